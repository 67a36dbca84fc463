"""Simulates timelines of pipelines, event by event, with uneven stages and cuts that take time (P1).

GPipe (Huang et al. 2019): all forward passes, then all backward ones. 1F1B (Narayanan et al. 2021, section 2.2.1):
stage i of p runs min(m, p - 1 - i) forward passes ahead, then one of each in turn, so that at most p - i
micro-batches are alive. Interleaved (section 2.2.2): each rank holds v parts of the model, micro-batches go in
groups of p through one part after another, and v times as much crosses the cuts. Where stages are even and cuts
free the time lost is (p - 1)/m of the work, (p - 1)/(v m) interleaved; zero-bubble schedules (Qi et al. 2023) are
not modelled.

An operation begins when its rank is free and what it needs has come. A cut passes one transfer at a time each way,
in order, while ranks go on; `Cut.seconds` occupies it, `Cut.delay` is the way.

torch's pipelines over gloo lose more, which is played too (read in torch.distributed.pipelining 2.13 and gloo's TCP
pairs, and seen in bench/plan.py): a transfer begins only when its receiver has asked for it, which it does when it
has nothing else to do; the word that asks goes behind what that rank is just sending on the same line; and where a
rank turns from forward to backward or back it waits until what it sent has left.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.collectives import CollectiveBackend
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Seconds


class PipelineSchedule(StrEnum):
    """Who computes what when."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class StageTimes(msgspec.Struct, frozen=True):
    """Seconds of one micro-batch in one rank, all its parts together."""

    forward: float
    backward: float

    def __post_init__(self) -> None:
        input_checks.amount("forward", self.forward, most=1e9)
        input_checks.amount("backward", self.backward, most=1e9)


class CutTimes(msgspec.Struct, frozen=True):
    """From a rank to the next one, and back: seconds that a transfer occupies it, and seconds of the way."""

    seconds: float = 0.0
    delay: float = 0.0
    back_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("seconds", "delay", "back_seconds"):
            input_checks.amount(name, getattr(self, name), most=1e9)


class PipelineTimeline(msgspec.Struct, frozen=True):
    """What came of it. `alive`: micro-batches (parts of them, interleaved) whose activations a rank holds at most."""

    seconds: Seconds
    work: tuple[float, ...]  # seconds that each rank computes
    alive: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """Seconds beyond the busiest rank's work, as a share of it."""
        busiest = max(self.work)
        return self.seconds / busiest - 1.0 if busiest else 0.0


class _PipelineOperation(NamedTuple):
    part: int
    micro: int
    is_forward: bool


def timeline(
    stages: Sequence[StageTimes],
    micros: int,
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B,
    *,
    virtual: int = 1,
    cuts: Sequence[CutTimes] = (),
    backend: CollectiveBackend = CollectiveBackend.IDEAL,
) -> PipelineTimeline:
    """One step. `cuts`: one from each rank to the next, interleaved also from the last to the first; none: free.

    Raises UsageError FF-PLAN-020, FF-PLAN-021, FF-PLAN-023 (interleaved: stages must divide micros), FF-PLAN-025,
    FF-PLAN-026 (no such schedule or backend), FF-PLAN-027 (interleaved over gloo).
    """
    schedule = input_checks.word("schedule", schedule, PipelineSchedule)
    backend = input_checks.word("backend", backend, CollectiveBackend)
    ranks = input_checks.count("stages", len(stages), most=limits.PLANNED_OPERATIONS)
    input_checks.count("micros", micros)
    input_checks.count("virtual", virtual)
    input_checks.count("operations", 2 * ranks * micros * virtual, most=limits.PLANNED_OPERATIONS)
    _check(ranks, micros, schedule, virtual, cuts, backend)
    order = [_order(at, ranks, micros, schedule, virtual) for at in range(ranks)]
    run = _PipelineRun(stages, list(cuts) or [CutTimes()] * ranks, virtual, backend is CollectiveBackend.GLOO, order)
    run.play()
    work = tuple(micros * (stage.forward + stage.backward) for stage in stages)
    return PipelineTimeline(Seconds(run.end), work, tuple(run.most))


class _StageTransfer:
    """What one operation leaves for another rank, from when either end first speaks of it."""

    __slots__ = ("cut", "has_come", "has_left", "is_asked", "is_forward", "is_offered", "source", "target")

    def __init__(self, source: int, target: int, cut: CutTimes, *, is_forward: bool, is_asked: bool) -> None:
        self.source, self.target, self.cut, self.is_forward = source, target, cut, is_forward
        self.is_asked, self.is_offered, self.has_left, self.has_come = is_asked, False, False, False


class _ScheduleEvent(StrEnum):
    """What an instant may bring."""

    COMPUTED = "computed"  # a rank is done with the operation that it began
    ASKED = "asked"  # the word that a transfer is awaited has come to who will send it
    LEFT = "left"  # a transfer's last byte is on its way
    CAME = "came"


class _PipelineRun:
    """One timeline in virtual time. `order`: what each rank does, last first; it is used up."""

    def __init__(
        self,
        stages: Sequence[StageTimes],
        cuts: list[CutTimes],
        virtual: int,
        is_asking: bool,  # transfers wait for their receivers
        order: list[list[_PipelineOperation]],
    ) -> None:
        self.stages, self.cuts, self.virtual, self.is_asking, self.order = (stages, cuts, virtual, is_asking, order)
        self.most = [0] * len(stages)
        self.end = 0.0
        self._alive = [0] * len(stages)
        self._is_busy = [False] * len(stages)
        self._has_asked = [False] * len(stages)  # for what the next operation needs
        self._last: list[_PipelineOperation | None] = [None] * len(stages)
        self._sent: list[_StageTransfer | None] = [None] * len(stages)  # what the last operation left
        self._lines: dict[tuple[int, bool], float] = {}  # of each cut and way: when it is free
        self._transfers: dict[tuple[int, int, bool], _StageTransfer] = {}  # by the operation that needs it
        self._coming: list[tuple[float, int, _ScheduleEvent, int | _StageTransfer]] = []
        self._count = 0

    def play(self) -> None:
        """To the end."""
        for rank in range(len(self.stages)):
            self._go_on(rank, 0.0)
        while self._coming:
            now, _, what, whose = heapq.heappop(self._coming)
            if isinstance(whose, int):
                self._finish(whose, now)
            else:
                self._move(whose, what, now)

    def _at(self, when: float, what: _ScheduleEvent, whose: int | _StageTransfer) -> None:
        self._count += 1  # of two things at one instant the one that was known first
        heapq.heappush(self._coming, (when, self._count, what, whose))

    def _go_on(self, rank: int, now: float) -> None:
        """Begins a rank's next operation if nothing is in its way; asks for what it needs."""
        if self._is_busy[rank] or not self.order[rank]:
            return
        operation = self.order[rank][-1]
        needed = self._needed(rank, operation)
        if needed is not None and not needed.has_come:
            if self.is_asking and not self._has_asked[rank]:
                self._has_asked[rank] = True
                behind = self._lines.get(self._line(needed, is_back=True), 0.0)
                self._at(max(now, behind) + needed.cut.delay, _ScheduleEvent.ASKED, needed)
            return
        last, sent = self._last[rank], self._sent[rank]
        is_turn = last is not None and last.is_forward != operation.is_forward
        if self.is_asking and is_turn and sent is not None and not sent.has_left:
            return
        stage = self.stages[rank]
        spent = (stage.forward if operation.is_forward else stage.backward) / self.virtual
        self._is_busy[rank], self._has_asked[rank] = True, False
        self._alive[rank] += 1 if operation.is_forward else -1
        self.most[rank] = max(self.most[rank], self._alive[rank])
        self._at(now + spent, _ScheduleEvent.COMPUTED, rank)

    def _finish(self, rank: int, now: float) -> None:
        operation = self.order[rank].pop()
        self._is_busy[rank], self._last[rank], self.end = False, operation, now
        left = self._sent[rank] = self._left(rank, operation)
        if left is not None:
            left.is_offered = True
            self._begin(left, now)
        self._go_on(rank, now)

    def _begin(self, transfer: _StageTransfer, now: float) -> None:
        """A transfer goes when both its ends want it and its line is free."""
        if not (transfer.is_offered and transfer.is_asked):
            return
        line = self._line(transfer)
        spent = transfer.cut.seconds if transfer.is_forward else transfer.cut.back_seconds
        gone = self._lines[line] = max(now, self._lines.get(line, 0.0)) + spent
        self._at(gone, _ScheduleEvent.LEFT, transfer)
        self._at(gone + transfer.cut.delay, _ScheduleEvent.CAME, transfer)

    def _move(self, transfer: _StageTransfer, what: _ScheduleEvent, now: float) -> None:
        if what is _ScheduleEvent.ASKED:
            transfer.is_asked = True
            self._begin(transfer, now)
        elif what is _ScheduleEvent.LEFT:
            transfer.has_left = True
            self._go_on(transfer.source, now)
        else:
            transfer.has_come = True
            self._go_on(transfer.target, now)

    def _line(self, transfer: _StageTransfer, *, is_back: bool = False) -> tuple[int, bool]:
        first = transfer.source if transfer.is_forward else transfer.target
        return first, transfer.is_forward != is_back

    def _needed(self, rank: int, operation: _PipelineOperation) -> _StageTransfer | None:
        """What must come from another rank before an operation; None: nothing."""
        ranks = len(self.stages)
        place = operation.part * ranks + rank
        edge = 0 if operation.is_forward else ranks * self.virtual - 1
        if place == edge or ranks == 1:
            return None
        return self._transfer(place, operation.micro, is_forward=operation.is_forward)

    def _left(self, rank: int, operation: _PipelineOperation) -> _StageTransfer | None:
        """What an operation leaves for another rank."""
        ranks = len(self.stages)
        place = operation.part * ranks + rank
        edge = ranks * self.virtual - 1 if operation.is_forward else 0
        if place == edge or ranks == 1:
            return None
        target = place + (1 if operation.is_forward else -1)
        return self._transfer(target, operation.micro, is_forward=operation.is_forward)

    def _transfer(self, place: int, micro: int, *, is_forward: bool) -> _StageTransfer:
        """What the operation of `place`, a part of a rank, needs."""
        found = self._transfers.get((place, micro, is_forward))
        if found is None:
            ranks = len(self.stages)
            target = place % ranks
            source = (place - 1 if is_forward else place + 1) % ranks
            cut = self.cuts[source if is_forward else target]
            found = _StageTransfer(source, target, cut, is_forward=is_forward, is_asked=not self.is_asking)
            self._transfers[place, micro, is_forward] = found
        return found


def _order(at: int, ranks: int, micros: int, schedule: PipelineSchedule, virtual: int) -> list[_PipelineOperation]:
    """What rank `at` does, last first."""
    ahead = {
        PipelineSchedule.GPIPE: micros,
        PipelineSchedule.ONE_F_ONE_B: min(micros, ranks - 1 - at),
        PipelineSchedule.INTERLEAVED: min(micros * virtual, 2 * (ranks - 1 - at) + (virtual - 1) * ranks),
    }[schedule]
    if schedule is PipelineSchedule.INTERLEAVED:
        forward = [_grouped(step, ranks, virtual, is_forward=True) for step in range(micros * virtual)]
        backward = [_grouped(step, ranks, virtual, is_forward=False) for step in range(micros * virtual)]
    else:
        forward = [_PipelineOperation(0, micro, True) for micro in range(micros)]
        backward = [_PipelineOperation(0, micro, False) for micro in range(micros)]
    found = forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        found += [one, other]
    found += backward[len(forward) - ahead :]
    return found[::-1]


def _grouped(step: int, ranks: int, virtual: int, *, is_forward: bool) -> _PipelineOperation:
    part = step // ranks % virtual
    micro = step // (ranks * virtual) * ranks + step % ranks
    return _PipelineOperation(part if is_forward else virtual - 1 - part, micro, is_forward)


def _check(
    ranks: int,
    micros: int,
    schedule: PipelineSchedule,
    virtual: int,
    cuts: Sequence[CutTimes],
    backend: CollectiveBackend,
) -> None:
    if schedule is PipelineSchedule.INTERLEAVED:
        if backend is CollectiveBackend.GLOO:
            raise UsageError(
                "FF-PLAN-027",
                "an interleaved pipeline over gloo is not modelled",
                cause="what its ranks wait for there was not measured",
                hint="take gpipe or 1f1b, or leave the backend ideal",
            )
        input_checks.dividing("micros", micros, "stages", ranks)
    elif virtual != 1:
        raise UsageError(
            "FF-PLAN-025",
            f"a {schedule} pipeline has one part a rank, not {virtual}",
            cause="only the interleaved schedule has more",
            hint="set virtual = 1, or the interleaved schedule",
        )
    if cuts:
        input_checks.count("cuts", len(cuts), least=max(1, ranks - 1), most=ranks)
        if virtual > 1:
            input_checks.count("cuts", len(cuts), least=ranks, most=ranks)
