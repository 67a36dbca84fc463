"""Timelines of pipelines, event by event, with uneven stages and cuts that take time (P1).

GPipe (Huang et al. 2019): all forward passes, then all backward ones. 1F1B (Narayanan et al. 2021, section 2.2.1):
stage i of p runs min(m, p - 1 - i) forward passes ahead, then one of each in turn, so that at most p - i
micro-batches are alive. Interleaved (section 2.2.2): each rank holds v parts of the model, micro-batches go in
groups of p through one part after another, and v times as much crosses the cuts. Where stages are even and cuts
free the time lost is (p - 1)/m of the work, (p - 1)/(v m) interleaved; zero-bubble schedules (Qi et al. 2023) are
not reckoned.

An operation begins when its rank is free and what it needs has come. A cut passes one transfer at a time each way,
in order, while ranks go on; `Cut.seconds` occupies it, `Cut.delay` is the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Seconds
from farflung.plan.parallel import bounds


class Schedule(StrEnum):
    """Who computes what when."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class Stage(msgspec.Struct, frozen=True):
    """Seconds of one micro-batch in one rank, all its parts together."""

    forward: float
    backward: float

    def __post_init__(self) -> None:
        bounds.amount("forward", self.forward, most=1e9)
        bounds.amount("backward", self.backward, most=1e9)


class Cut(msgspec.Struct, frozen=True):
    """From a rank to the next one, and back: seconds that a transfer occupies it, and seconds of the way."""

    seconds: float = 0.0
    delay: float = 0.0
    back_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("seconds", "delay", "back_seconds"):
            bounds.amount(name, getattr(self, name), most=1e9)


class Timeline(msgspec.Struct, frozen=True):
    """What came of it. `alive`: micro-batches (parts of them, interleaved) whose activations a rank holds at most."""

    seconds: Seconds
    work: tuple[float, ...]  # seconds that each rank computes
    alive: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """Seconds beyond the busiest rank's work, as a share of it."""
        busiest = max(self.work)
        return self.seconds / busiest - 1.0 if busiest else 0.0


class _Operation(NamedTuple):
    part: int
    micro: int
    is_forward: bool


def timeline(
    stages: Sequence[Stage],
    micros: int,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
    *,
    virtual: int = 1,
    cuts: Sequence[Cut] = (),
) -> Timeline:
    """One step. `cuts`: one from each rank to the next, interleaved also from the last to the first; none: free.

    Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-023 (interleaved: stages must divide micros), FF-PLAN-025.
    """
    ranks = bounds.count("stages", len(stages), most=limits.PLANNED_OPERATIONS)
    bounds.count("micros", micros)
    bounds.count("virtual", virtual)
    bounds.count("operations", 2 * ranks * micros * virtual, most=limits.PLANNED_OPERATIONS)
    _check(ranks, micros, schedule, virtual, cuts)
    order = [_order(at, ranks, micros, schedule, virtual) for at in range(ranks)]
    run = _Run(stages, list(cuts) or [Cut()] * ranks, virtual)
    turn = deque(range(ranks))
    while turn:
        at = turn.popleft()
        turn.extend(run.advance(at, order[at]))
    work = tuple(micros * (stage.forward + stage.backward) for stage in stages)
    return Timeline(Seconds(max(run.free)), work, tuple(run.most))


class _Run:
    """The state of one timeline: when ranks and cuts are free, and what has come where."""

    def __init__(self, stages: Sequence[Stage], cuts: list[Cut], virtual: int) -> None:
        self.stages, self.cuts, self.virtual = stages, cuts, virtual
        self.free = [0.0] * len(stages)
        self.most = [0] * len(stages)
        self._alive = [0] * len(stages)
        self._lines: dict[tuple[int, bool], float] = {}
        self._came: dict[tuple[int, int, bool], float] = {}

    def advance(self, at: int, waiting: list[_Operation]) -> set[int]:
        """Does what rank `at` can do now (`waiting` is in reverse); returns whom it has handed something."""
        given = set[int]()
        while waiting:
            part, micro, is_forward = waiting[-1]
            needs = self._needs(at, part, micro, is_forward)
            if needs is None:
                break
            waiting.pop()
            stage = self.stages[at]
            spent = (stage.forward if is_forward else stage.backward) / self.virtual
            end = self.free[at] = max(self.free[at], needs) + spent
            self._alive[at] += 1 if is_forward else -1
            self.most[at] = max(self.most[at], self._alive[at])
            self._hand_over(at, part, micro, is_forward, end)
            given.add((at + 1 if is_forward else at - 1) % len(self.stages))
        return given - {at}

    def _needs(self, at: int, part: int, micro: int, is_forward: bool) -> float | None:
        """When what it needs is there; None: nobody knows yet."""
        place = part * len(self.stages) + at
        if is_forward and place == 0:
            return 0.0
        return self._came.get((place, micro, is_forward))

    def _hand_over(self, at: int, part: int, micro: int, is_forward: bool, end: float) -> None:
        ranks = len(self.stages)
        place, last = part * ranks + at, ranks * self.virtual - 1
        if is_forward and place == last:
            self._came[place, micro, False] = end
            return
        if not is_forward and place == 0:
            return
        target = place + 1 if is_forward else place - 1
        if ranks == 1:
            self._came[target, micro, is_forward] = end
            return
        line = at if is_forward else (at - 1) % ranks
        cut = self.cuts[line]
        spent = cut.seconds if is_forward else cut.back_seconds
        sent = max(end, self._lines.get((line, is_forward), 0.0)) + spent
        self._lines[line, is_forward] = sent
        self._came[target, micro, is_forward] = sent + cut.delay


def _order(at: int, ranks: int, micros: int, schedule: Schedule, virtual: int) -> list[_Operation]:
    """What rank `at` does, last first."""
    ahead = {
        Schedule.GPIPE: micros,
        Schedule.ONE_F_ONE_B: min(micros, ranks - 1 - at),
        Schedule.INTERLEAVED: min(micros * virtual, 2 * (ranks - 1 - at) + (virtual - 1) * ranks),
    }[schedule]
    if schedule is Schedule.INTERLEAVED:
        forward = [_grouped(step, ranks, virtual, is_forward=True) for step in range(micros * virtual)]
        backward = [_grouped(step, ranks, virtual, is_forward=False) for step in range(micros * virtual)]
    else:
        forward = [_Operation(0, micro, True) for micro in range(micros)]
        backward = [_Operation(0, micro, False) for micro in range(micros)]
    found = forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        found += [one, other]
    found += backward[len(forward) - ahead :]
    return found[::-1]


def _grouped(step: int, ranks: int, virtual: int, *, is_forward: bool) -> _Operation:
    part = step // ranks % virtual
    micro = step // (ranks * virtual) * ranks + step % ranks
    return _Operation(part if is_forward else virtual - 1 - part, micro, is_forward)


def _check(ranks: int, micros: int, schedule: Schedule, virtual: int, cuts: Sequence[Cut]) -> None:
    if schedule is Schedule.INTERLEAVED:
        bounds.dividing("micros", micros, "stages", ranks)
    elif virtual != 1:
        raise UsageError(
            "FF-PLAN-025",
            f"a {schedule} pipeline has one part a rank, not {virtual}",
            cause="only the interleaved schedule has more",
            hint="set virtual = 1, or the interleaved schedule",
        )
    if cuts:
        bounds.count("cuts", len(cuts), least=max(1, ranks - 1), most=ranks)
        if virtual > 1:
            bounds.count("cuts", len(cuts), least=ranks, most=ranks)
