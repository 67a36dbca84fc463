"""Tracks arrival times in a round; derives the straggler timeout and the next step counts; emits the round's events.

The one place where a coordinator's clock meets its rounds. What is measured here reaches the result through records
alone: who is in (train.quorum_window), and what RoundStartRecord assigns (train.step_assignment).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from farflung.core.events import ArrivalEvent, RoundEndEvent, RoundStartEvent, SkippedMemberEvent
from farflung.core.ids import PeerId
from farflung.core.units import Seconds
from farflung.job.spec import JobSpec
from farflung.peers.protocol import messages
from farflung.peers.requester.payload_exchange import ExchangeReport
from farflung.peers.rundir.journal import EventEmitter
from farflung.train import rounds, step_assignment
from farflung.train.rounds import RoundPhase
from farflung.train.run_log import CommitmentTiming, Contribution, RoundEndRecord
from farflung.train.step_assignment import StepAssignment, StepBounds, StepTimings

LEAST: Final = 1.0  # seconds that a window is open: no jitter of a line is worth a member's round

Past = deque[float]
NO_BENCHMARKS: Final[Mapping[PeerId, int]] = MappingProxyType({})


class RoundClock:
    """The clock of one job's rounds. `benchmarks`: FLOP/s of each node, as it offered itself."""

    def __init__(
        self,
        spec: JobSpec,
        clock: Callable[[], float] = time.monotonic,
        benchmarks: Mapping[PeerId, int] = NO_BENCHMARKS,
    ) -> None:
        self._spec, self._benchmarks, self._clock = spec, benchmarks, clock
        self._opened = self._exchange_began = clock()
        self._place: tuple[int, RoundPhase] = (-1, RoundPhase.IDLE)
        self._seen: dict[PeerId, float] = {}  # in the open phase, seconds since the round was opened
        self._steps: dict[PeerId, Past] = {}  # seconds a step
        self._exchange = _past()

    def see(self, state: rounds.CoordinatorState) -> None:
        """Notices a round or a phase that was opened."""
        place = (state.round, state.phase)
        if place == self._place:
            return
        now, (round, phase) = self._clock(), self._place
        if phase is RoundPhase.MERGE:
            self._exchange.append(now - self._exchange_began)
        if phase is RoundPhase.TRAIN and round == state.round:
            self._exchange_began = now
        if state.phase is RoundPhase.TRAIN:
            self._opened = now
        self._place, self._seen = place, {}

    def arrived(self, state: rounds.CoordinatorState, peer: PeerId, seconds: float = 0.0) -> None:
        """A member's part of the open phase is here; `seconds` is what it states that training took.

        That is trusted where rounds are trained ahead, before they are opened (train.prefetched_round), and only
        where it is more than was seen: who overstates it is assigned less.
        """
        took = self._clock() - self._opened
        self._seen[peer] = max(took, seconds) if self._spec.sync.delay else took
        if state.phase is RoundPhase.TRAIN:
            self._measured(state, peer, self._seen[peer])

    def timed(self, peer: PeerId, *, is_resumed: bool) -> CommitmentTiming | None:
        """What the log says of the time until a commitment that is here now; None where the job does not judge it.

        `is_resumed`: the round was opened in another session, it is unknown when.
        """
        if not self._spec.audit.speed:
            return None
        took = 0 if is_resumed else math.ceil(1000 * (self._clock() - self._opened))
        return CommitmentTiming(took, self._benchmarks.get(peer, 0))

    def passed_over(self, state: rounds.CoordinatorState, peer: PeerId) -> None:
        """A member has not trained in time. How long it would have taken is unknown: it is tried with half."""
        self._steps.pop(peer, None)  # what was measured before is disproved
        self._measured(state, peer, step_assignment.CHANGE * (self._clock() - self._opened))

    def _measured(self, state: rounds.CoordinatorState, peer: PeerId, seconds: float) -> None:
        steps = self._spec.steps_of(state.assigned.get(peer, self._spec.round_tokens))
        self._steps.setdefault(peer, _past()).append(seconds / steps)

    def grace(self) -> Seconds:
        """How long those that have not arrived are waited for from now on, when a quorum has."""
        usual = step_assignment.median(list(self._seen.values())) if self._seen else 0.0
        return Seconds(max(LEAST, self._spec.churn.grace * usual))

    def pace(self, state: rounds.CoordinatorState) -> rounds.StepAssignmentInput:
        """What the next round assigns."""
        spec, share = self._spec, self._spec.churn.exchange
        before = StepAssignment(state.steps, {peer: spec.steps_of(w) for peer, w in state.pace.items()})
        measured = StepTimings({peer: tuple(past) for peer, past in self._steps.items()}, tuple(self._exchange))
        found = step_assignment.assign_steps(measured, before, StepBounds(spec.segments, spec.sync.steps, share))
        weights = {peer: steps * spec.step_tokens for peer, steps in found.of.items()}
        return rounds.StepAssignmentInput(found.steps, found.steps * spec.step_tokens, weights)


def _past() -> Past:
    return deque(maxlen=step_assignment.WINDOW)


class RoundEventEmitter:
    """Emits the events of rounds, with seconds since each was opened."""

    def __init__(self, journal: EventEmitter, total: int) -> None:
        self._journal, self._total = journal, total
        self._closed_at = self._opened_at = time.monotonic()
        self._opened = -1
        self._last_in = ""

    def see(self, state: rounds.CoordinatorState) -> None:
        """Tells once of each round whose members are asked to train."""
        if state.phase is not rounds.RoundPhase.TRAIN or state.round == self._opened or not state.in_round:
            return
        self._opened, self._opened_at = state.round, time.monotonic()
        peers = tuple(peer.hex() for peer in sorted(state.in_round))
        waited = self._opened_at - self._closed_at
        self._journal.emit(RoundStartEvent(round=state.round, rounds=self._total, peers=peers, waited=waited))

    def arrived(self, round: int, peer: PeerId, phase: str) -> None:
        """A member's part of one phase is here."""
        if phase == "train":
            self._last_in = peer.hex()
        seconds = time.monotonic() - self._opened_at
        self._journal.emit(ArrivalEvent(round=round, peer=peer.hex(), phase=phase, seconds=seconds))

    def passed_over(self, round: int, peer: PeerId, phase: str) -> None:
        """A phase was closed without a member that was too slow."""
        seconds = time.monotonic() - self._opened_at
        self._journal.emit(SkippedMemberEvent(round=round, peer=peer.hex(), phase=phase, seconds=seconds))

    def closed(
        self,
        closed: RoundEndRecord,
        accepted: tuple[Contribution, ...],
        promises: Mapping[PeerId, messages.TrainReply],
        exchange: ExchangeReport,
        clipped: Mapping[PeerId, float],
    ) -> None:
        """The round is over. Losses and training times are what the members state."""
        now = time.monotonic()
        said = [promises[c.peer] for c in accepted if c.peer in promises]
        losses = [x for p in said for x in p.statistics.losses]
        self._journal.emit(
            RoundEndEvent(
                round=closed.round,
                rounds=self._total,
                peers=len(accepted),
                loss=sum(losses) / len(losses) if losses else 0.0,
                tokens=sum(c.weight for c in accepted),
                root=closed.root.hex(),
                waited_for=self._last_in,
                seconds=now - self._closed_at,
                train_seconds=max((p.seconds for p in said), default=0.0),
                sync_bytes=0,  # the supervisor knows what all processes have sent
                way=exchange.way,
                way_predicted=exchange.predicted,
                way_taken=exchange.taken,
                payload_bytes=exchange.payload,
                clipped=tuple(peer.hex() for peer in sorted(clipped)),
                clipped_shares=tuple(round(clipped[peer], 4) for peer in sorted(clipped)),
            )
        )
        self._closed_at = now
