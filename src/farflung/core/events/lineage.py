"""Defines the event of a run that starts from the proved result of an earlier run."""

from __future__ import annotations

from farflung.core.events.base import Event


class LineageEvent(Event, frozen=True, tag="stands-on"):
    """The run begins with what the finished run `run` came to, which was proved before: `merges` recomputed, so many
    `signatures` checked. `jobs`: of that run and of those behind it, nearest first; `root`: of its final state.
    """

    run: str
    jobs: tuple[str, ...]
    root: str
    rounds: int
    merges: int
    signatures: int
    seconds: float
