"""Implements the Python API: `farflung.plan(spec)`, `farflung.run(spec, callbacks=[...])`, `resume` and `load`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.app.api import notebook
from farflung.app.api.callbacks import Callback, Callbacks, Watch
from farflung.app.api.module_source import ModuleSource, source_of
from farflung.app.views import report_page
from farflung.core import events
from farflung.core.errors import RunError, SpecError
from farflung.core.events import AnyEvent, RunResultEvent
from farflung.host.io.machine_probe import machine
from farflung.job import dataset
from farflung.job.io.job_files import read_data
from farflung.job.job_loader import ResolvedJob
from farflung.job.spec import JobSpec
from farflung.local.jobs import continued_run, preflight_checks, resolve
from farflung.local.model import load as model_load
from farflung.local.model.load import SavedModel
from farflung.local.network import session
from farflung.peers.requester import relay_fees
from farflung.peers.rundir import folder
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.inputs import known_layout
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import new_root, resolve_again, runs_folder
from farflung.plan.run_plan import advise
from farflung.watch import run_tables
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.io import event_log
from farflung.watch.run_tables import RunTable

if TYPE_CHECKING:
    from torch import nn

    from farflung.verify.replay_report import ReplayReport

    Module = nn.Module | Callable[[], nn.Module]


class Plan(events.PlanEvent, frozen=True, tag="plan"):
    """What a run will take. Bytes are of all members together; money is in pico-credits, time in seconds.

    `sync_bytes`: sync traffic, against `ring_bytes` that a bf16 ring all-reduce of the same steps would send;
    `memory_bytes` is one worker's peak; `price` is the most that is paid, `escrow` what is locked for it.
    """

    def __repr__(self) -> str:
        return notebook.text(notebook.plan_rows(fold(RunTimeline(), self)))

    def _repr_html_(self) -> str:
        return notebook.screen_html(notebook.plan_rows(fold(RunTimeline(), self)))


class Run:
    """A run in its folder: finished, stopped, or still going on in another process.

    Tables and figures are read from the run's event log; of a run that goes on, as it stands when they are asked for.
    """

    def __init__(self, folder: str | Path) -> None:
        """Opens the run in `folder`. Raises RunError FF-APP-011 where there is none."""
        self._files = RunFolder(Path(folder))
        self._files.read_identity()
        self._final: RunTimeline | None = None

    def __repr__(self) -> str:
        timeline = self.timeline
        done = timeline.result
        if done is not None:
            loss = f"{done.loss:.3f}" if done.loss is not None else None
            return f"Run({self.name!r}, loss={loss}, rounds={done.rounds})"
        return f"Run({self.name!r}, {self.state}, rounds={len(timeline.rounds)})"

    def _repr_html_(self) -> str:
        return notebook.run_html(self.name, self.timeline)

    @property
    def name(self) -> str:
        """What `farflung status` calls it: the name of its folder."""
        return self._files.name

    @property
    def folder(self) -> Path:
        """Where everything of this run lies (docs/concepts/processes.md, "Files of a run")."""
        return self._files.root

    @property
    def report(self) -> Path:
        """The run's report as one HTML page; written when it is asked for first, and again while the run goes on.

        Raises RunError FF-APP-155 where it cannot be written.
        """
        written = self.folder / report_page.FILE
        return written if self._final is not None and written.exists() else report_page.write(self._files)

    @property
    def state(self) -> str:
        """`running`, `finished`, `failed` or `interrupted`."""
        if self._files.owner() is not None:
            return "running"
        timeline = self.timeline
        if timeline.result is not None:
            return "finished"
        return "failed" if timeline.failed is not None else "interrupted"

    @property
    def timeline(self) -> RunTimeline:
        """All that its events say, folded into one frozen value (farflung.watch.fold)."""
        if self._final is not None:
            return self._final
        timeline = read_timeline(self._files)
        if timeline.result is not None:
            self._final = timeline
        return timeline

    def events(self) -> Iterator[AnyEvent]:
        """All events (farflung.core.events), in order."""
        path = self._files.events_file
        return event_log.read(path) if path.exists() else iter(())

    @property
    def result(self) -> RunResultEvent:
        """Losses in nats per token, bytes as sent at the sockets, money in pico-credits, hashes in hex.

        Raises RunError FF-APP-188 while there is none.
        """
        found = self.timeline.result
        if found is None:
            raise RunError(
                "FF-APP-188",
                f"run {self.name} has no result",
                cause=f"it is {self.state}",
                hint=f"farflung resume {self.folder}",
            )
        return found

    @property
    def metrics(self) -> RunTable:
        """One row for each round: round, tokens, seconds, losses, bytes, peers, root. `.units` explains each column.

        `pandas.DataFrame(run.metrics)` takes it as it is; so does `polars.DataFrame`.
        """
        return run_tables.rounds(self.timeline)

    @property
    def audits(self) -> RunTable:
        """One row for each audited segment: whose work, by whom repeated, and what was found."""
        return run_tables.audits(self.timeline)

    @property
    def payments(self) -> RunTable:
        """One row for each provider and verifier: accepted tokens, what the ledger paid, what it took."""
        return run_tables.payments(self.timeline)

    def model(self) -> nn.Module:
        """The trained model in eval mode, with the weights that were handed over: float32 on the CPU.

        The built-in GPT is made from the model file alone; a model of your own from the source in the run's folder,
        which runs in this process. Call it as `model(x_BT, y_BT)` with int64 tokens for the mean loss.
        Raises RunError FF-APP-160 (no model yet), FF-APP-161, UsageError FF-TRAIN-100 and -101 (no model file),
        VerificationError FF-APP-162 (not the file on the ledger), FF-TRAIN-102 (tensors do not fit).
        """
        import torch

        from farflung.train import flat_model as models
        from farflung.train import model_file

        found = self._saved_model()
        with torch.random.fork_rng(devices=[]):  # building draws numbers: yours stay as they are
            model = models.build(JobSpec(model=found.card.model), found.source)
        model.put(model_file.flat(found.card, model.layout, found.tensors))
        return model.module.eval()

    def sample(
        self,
        prompt: str = "",
        tokens: int = 200,
        *,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 0.95,
        seed: int = 1,
    ) -> str:
        """The prompt, and `tokens` tokens that the trained model writes after it; the same seed, the same text.

        temperature: 0 takes the likeliest token each time. top_k: draw from the k likeliest, 0 from all.
        top_p: draw from the likeliest that together hold this share. As `farflung sample`, from the model file alone.
        Raises what `model` raises, UsageError FF-APP-171 (no such prompt), FF-TRAIN-103 (no such option),
        RunError FF-TRAIN-105 (a model of your own without a method `logits`), PolicyError FF-APP-172 (no text).
        """
        import torch

        from farflung.local.model import prompts
        from farflung.local.model.text_generation import ask
        from farflung.train import token_sampler
        from farflung.train.inference_messages import GenerateReply, GenerateRequest

        found = self._saved_model()
        start = prompts.prompt_tokens(prompt, found)
        token_sampler.SamplingOptions(temperature, top_k, top_p).check()
        asked = GenerateRequest(found.data, found.source, start, tokens, temperature, top_k, top_p, seed)
        threads = torch.get_num_threads()
        try:
            with torch.random.fork_rng(devices=[]):
                told = [answer.token for answer in ask(found, asked) if isinstance(answer, GenerateReply)]
        finally:
            torch.set_num_threads(threads)  # asking takes one, for the same sums in the same order
        return prompt + "".join(prompts.as_text(told))

    def _saved_model(self) -> SavedModel:
        found = model_load.open_model(str(self.folder))
        model_load.on_ledger(self._files, found.data)
        return found

    def verify(
        self, *, audit: float | None = None, seed: int = 1, condemned: bool = False, parents: Sequence[str | Path] = ()
    ) -> ReplayReport:
        """Recomputes the run from its exported log alone: merges, roots, signatures, blocks, receipts.

        audit: the share of all segments that is trained again, drawn by `seed`; None: none.
        condemned: whether what the run's audits found false is trained again.
        parents: the runs that it stands on, nearest first, to be proved as well.

        Counts what was found true (farflung.verify.replay_report). Raises VerificationError at the first statement that
        does not hold, RunError FF-APP-080 where a run has no complete export, -354 where it has no data, and
        UsageError FF-APP-391 for a share or a seed that is none.
        """
        from farflung.local.verify_run.verify_run import prove
        from farflung.peers.rundir.genesis import chain_of

        chain = chain_of(self._files, resolve_again(self._files).spec)
        return prove(self._files, chain, [str(parent) for parent in parents], audit, seed, condemned)


def run(
    spec: str | Path | Module | None = None,
    *,
    module: Module | None = None,
    preset: str = "local",
    set: Mapping[str, object] | None = None,
    callbacks: Sequence[Callback | Watch] = (),
    out: str | Path | None = None,
    cheat: str | None = None,
    dispute: bool = False,
    baseline: bool = False,
    relay_price: int | None = None,
    relay_most: int | None = None,
    display: bool = True,
) -> Run:
    """Trains a job on a network of processes on this computer, settles it, and returns the finished run.

    spec: path of a job file (Path, or text that ends in `.toml`), a job file's text, or None for the preset alone.
    module: your own torch.nn.Module, its class, or a function that builds it (app.api.module_source). Workers build it
        anew from its source. Its forward(x, y) returns the loss, or forward(x) returns logits.
    preset: what unnamed values start from: "local" or "tiny".
    set: single values by dotted key, over all else: `{"sync.steps": 20}`.
    callbacks: objects of `farflung.callbacks.Callback`, or functions that get every event; called in this thread.
    out: the run's folder; None: a new one below `runs`, or below FARFLUNG_RUNS.
    cheat: what one drawn provider does instead of its work, "none" for nobody. None: it skips its work when nothing
        but the preset "local" is asked for, and nobody cheats otherwise.
    dispute: whether who is found guilty contests it, on a ledger where a dispute is played down to one element; then
        the drawn provider cheats, whatever else is asked for.
    baseline: whether a single machine trains on the same tokens after the run, to compare with.
    relay_price: pico-credits that relays are paid for a GiB; 0: nothing; None: a small price.
    relay_most: pico-credits that all relays together may cost; None: what the plan puts aside.
    display: whether a notebook shows the run as it goes on. Elsewhere nothing is shown: print what you want to see.

    Ctrl-C, or the stop button of a notebook, finishes the open round and settles; once more stops at once. Either
    way RunStoppedError is raised, and `farflung.load()` opens what there is.
    Raises farflung.core.errors.FarflungError with a code, a cause and a hint.
    """
    if spec is not None and not isinstance(spec, str | Path):
        spec, module = None, spec
    own = source_of(module) if module is not None else ModuleSource("", b"")
    named = {"model.kind": "module", "model.module": own.name} if own.name else {}
    resolved, identity = _resolved(
        spec,
        preset,
        {**named, **(set or {})},
        cheat=cheat,
        baseline=baseline,
        relay_price=relay_price,
        relay_most=relay_most,
        disputes=dispute,
    )
    root = new_root(Path(out) if out is not None else None, resolved.spec.name)
    with _hooks(root, callbacks, identity.created, display) as see:
        session.start(root, resolved, identity, [see], report_page.keep, module=own.source)
    return Run(root)


def resume(
    name: str | Path | None = None,
    *,
    rounds: int | str | None = None,
    set: Mapping[str, object] | None = None,
    callbacks: Sequence[Callback | Watch] = (),
    display: bool = True,
) -> Run:
    """Goes on with a run that was stopped or killed, or trains a settled one further, as `farflung resume` does.

    name: the run's name or folder; None: the newest. A run that has settled is closed: the run that is returned is
        then a new one beside it, with its weights, at its place in the learning rate's schedule.
    rounds: of a settled run: so many more, or as text "+12" the same, "24" until there are 24 in all; None: those that
        it did not come to. set: single values by dotted key that differ from then on.
    callbacks, display, and how it is stopped: as in `farflung.run`. A finished run of which nothing more is asked is
    returned as it is.
    Raises UsageError FF-APP-014 (no such run), FF-APP-480 to FF-APP-483 (nothing left to do, no number of rounds, it
    diverged, it has not settled), and what `farflung.run` raises.
    """
    found = folder.find(runs_folder(), None if name is None else str(name))
    asked = f"+{rounds}" if isinstance(rounds, int) else rounds
    ended = read_timeline(found).result
    more = continued_run.to_continue(found, ended, asked, _texts(set))
    if more is None and ended is not None:
        return Run(found.root)
    root, identity = (more.root, more.identity) if more is not None else (found.root, found.read_identity())
    with _hooks(root, callbacks, identity.created, display) as see:
        if more is None:
            session.resume(found, resolve_again(found), [see], report_page.keep)
        else:
            session.start(root, more.resolved, identity, [see], report_page.keep, more.inputs)
    return Run(root)


def plan(
    spec: str | Path | None = None,
    *,
    preset: str = "local",
    set: Mapping[str, object] | None = None,
    baseline: bool = False,
    relay_price: int | None = None,
    relay_most: int | None = None,
) -> Plan:
    """What a job will take: bytes, memory, seconds, price. Nothing is started, nothing is spent.

    Arguments as in `farflung.run`. Raises SpecError FF-APP-016 for a model of your own, whose size is known once it
    is built, and PolicyError FF-PLAN-0xx for a job that cannot run here.
    """
    resolved, identity = _resolved(spec, preset, set, baseline=baseline, relay_price=relay_price, relay_most=relay_most)
    layout = known_layout(resolved.spec)
    if layout is None:
        raise SpecError("FF-APP-016", "a module's size is known once it is built", hint="`farflung.run` plans it first")
    read = read_data(resolved.spec.data, resolved.spec.model, Path(identity.base))
    size = dataset.packed_bytes(read.dataset)
    said = advise(resolved.spec, layout, size, machine())
    preflight_checks.check(resolved.spec, Path(identity.base), runs_folder(), layout, size)
    event = read.account.within(said.event("", baseline=identity.baseline))
    relays = identity.relays if resolved.spec.hidden else 0
    event = relay_fees.planned(event, said.traffic, identity.relay_price, relays, identity.relay_most)
    return Plan(**{name: getattr(event, name) for name in event.__struct_fields__})


def load(name: str | Path | None = None) -> Run:
    """An earlier run, by its name or its folder; the newest one without a name.

    Raises UsageError FF-APP-014 when there is no such run.
    """
    return Run(folder.find(runs_folder(), None if name is None else str(name)).root)


@contextlib.contextmanager
def _hooks(root: Path, callbacks: Sequence[Callback | Watch], created: float, display: bool) -> Iterator[Callbacks]:
    """The callbacks of a run in `root`, and the screen of a notebook; closed at the end."""
    hooks = Callbacks(root, callbacks)
    if display and notebook.kernel() is not None:
        hooks.add(notebook.NotebookDisplay(created))
    try:
        yield hooks
    finally:
        hooks.close()


def _texts(values: Mapping[str, object] | None) -> dict[str, str]:
    """Settings as a command line would give them."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (values or {}).items()}


def _resolved(
    spec: str | Path | None,
    preset: str,
    values: Mapping[str, object] | None,
    *,
    cheat: str | None = None,
    baseline: bool = False,
    relay_price: int | None = None,
    relay_most: int | None = None,
    disputes: bool = False,
) -> tuple[ResolvedJob, RunIdentity]:
    flags = _texts(values)
    is_path = isinstance(spec, str) and spec.endswith(".toml") and "\n" not in spec
    job = Path(spec) if isinstance(spec, str) and is_path else spec
    paid = relay_price, relay_most
    return resolve.resolve(job, preset, flags, None, cheat, baseline, *paid, disputes=disputes)
