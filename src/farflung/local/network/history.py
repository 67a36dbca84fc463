"""Compares a run with the runs before it: records the versions it began under, and detects a repeated run."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Final

import farflung
from farflung.core import events
from farflung.core.errors import FarflungError
from farflung.job.spec import JobSpec
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.journal import read_timeline
from farflung.watch.fold import RunTimeline

# One seed gives these, whatever the machine was busy with.
LEDGER: Final = "ledger_root"
SAME: Final = ("model_hash", LEDGER, "loss", "paid")


def began(folder: RunFolder, spec: JobSpec) -> events.RunStartEvent:
    """The first event of a session."""
    return events.RunStartEvent(
        run=folder.name,
        name=spec.name,
        seed=spec.seed,
        version=farflung.__version__,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
    )


def repeated(
    folder: RunFolder, timeline: RunTimeline, result: events.RunResultEvent
) -> events.RepeatedRunEvent | None:
    """Whether the newest finished run of the same job beside this one ended alike; None where there is none.

    The same job: equal terms (so data and module too), the same cheat, rounds, and versions; and the same money for
    relays, of which there is one more in a run through homes.
    """
    for earlier, past in _alike(folder, timeline):
        if past.rounds == result.rounds:
            differs = tuple(name for name in _same(folder) if getattr(past, name) != getattr(result, name))
            return events.RepeatedRunEvent(run=earlier.name, differs=differs)
    return None


def _same(folder: RunFolder) -> tuple[str, ...]:
    """In a dispute its players move when they can, and who waits makes blocks: no seed tells that ledger."""
    return tuple(name for name in SAME if name != LEDGER or not folder.read_identity().disputes)


def _alike(folder: RunFolder, timeline: RunTimeline) -> Iterator[tuple[RunFolder, events.RunResultEvent]]:
    """Finished runs of the same job under the same versions, newest first."""
    terms, own = folder.terms_file.read_bytes(), folder.read_identity()
    for earlier in reversed(folders.all_runs(folder.root.parent)):
        try:
            is_same = (
                earlier.root.resolve() != folder.root.resolve()
                and _money(earlier.read_identity()) == _money(own)
                and earlier.terms_file.read_bytes() == terms
            )
            past = read_timeline(earlier) if is_same else RunTimeline()
        except (OSError, FarflungError):
            continue  # a damaged run is no reason for this one to fail
        if past.result is not None and _versions(past) == _versions(timeline):
            yield earlier, past.result


def _money(identity: RunIdentity) -> tuple[str, int, int, bool, int, int, bool]:
    price, most = identity.relay_price, identity.relay_most
    relays = identity.relays if price else 0
    paid = price, most, bool(price) and identity.lab, relays
    return identity.cheat, *paid, identity.validators, identity.disputes


def _versions(timeline: RunTimeline) -> tuple[str, str, str] | None:
    began = timeline.began
    return None if began is None else (began.version, began.python, began.torch)
