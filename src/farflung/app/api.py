"""The Python API: `farflung.run(spec, callbacks=[…])` and `farflung.plan(spec)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from farflung.app import asking, preparation, running
from farflung.core.errors import SpecError
from farflung.core.events import AnyEvent, Planned, Result
from farflung.host.io.probe import machine
from farflung.job import dataset
from farflung.job.io.read import read_dataset
from farflung.plan.advise import advise
from farflung.watch.fold import Timeline
from farflung.watch.io import eventlog

Callback = Callable[[AnyEvent], None]


class Run:
    """A finished run: its result, its events, its folder."""

    def __init__(self, folder: Path, result: Result) -> None:
        self.folder, self.result = folder, result

    def __repr__(self) -> str:
        return f"Run({self.folder.name!r}, loss={self.result.loss:.3f}, rounds={self.result.rounds})"

    def events(self) -> Iterator[AnyEvent]:
        """All events, in order."""
        return eventlog.read(self.folder / "events.jsonl")


def run(
    spec: str | Path | None = None,
    *,
    preset: str = "local",
    set: Mapping[str, object] | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    baseline: bool | None = None,
    cheat: str | None = None,
) -> Run:
    """Trains a job on a network of processes on this computer.

    `spec` is the path of a job file (Path, or text that ends in `.toml`), a job file's text, or None for the preset
    alone; `set` overrides single values by dotted key (`{"sync.steps": 20}`). Each callback gets every event.
    `cheat` names what one drawn provider does instead of its work; by default one skips it when nothing but the
    preset `local` is asked for, and nobody cheats otherwise.
    Raises farflung.core.errors.FarflungError with a code, a cause and a hint.
    """
    resolved, identity = asking.resolve(_job(spec), preset, _flags(set), cheat=cheat, baseline=baseline)
    root = asking.new_root(Path(out) if out is not None else None, resolved.spec.name)

    def watch(event: AnyEvent, _: Timeline) -> None:
        for callback in callbacks:
            callback(event)

    return Run(root, running.start(root, resolved, identity, [watch]))


def plan(
    spec: str | Path | None = None,
    *,
    preset: str = "local",
    set: Mapping[str, object] | None = None,
) -> Planned:
    """What a job will take: bytes, memory, seconds, price. Nothing is started. Built-in models only."""
    resolved, identity = asking.resolve(_job(spec), preset, _flags(set))
    layout = preparation.known_layout(resolved.spec)
    if layout is None:
        raise SpecError(
            "FF-APP-016", "a module's size is known once it is built", hint="`farflung.run` plans it first"
        )
    data = read_dataset(resolved.spec.data, resolved.spec.model, Path(identity.base))
    return advise(resolved.spec, layout, len(dataset.pack(data)), machine()).event("")


def _job(spec: str | Path | None) -> Path | str | None:
    return Path(spec) if isinstance(spec, str) and spec.endswith(".toml") and "\n" not in spec else spec


def _flags(values: Mapping[str, object] | None) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (values or {}).items()
    }
