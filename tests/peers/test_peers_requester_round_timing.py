"""What the coordinator's clock makes of when its members' parts of a round came, and what is told of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farflung.core.events import ArrivalEvent, RoundEndEvent, RoundStartEvent
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import ChurnSpec, JobSpec, SyncSpec
from farflung.peers.requester import round_timing
from farflung.peers.requester.payload_exchange import ExchangeReport
from farflung.peers.requester.round_timing import LEAST, RoundClock, RoundEventEmitter
from farflung.train import rounds
from farflung.train.rounds import RoundPhase
from farflung.train.run_log import RoundEndRecord

A, B, C = (PeerId(bytes([n]) * 32) for n in range(3))
STEPS = 20


def train(delay: int, stated: tuple[float, ...], seen: float = 0.5) -> tuple[float, list[int]]:
    """A round of three members, all of which are seen to take `seen` seconds and state what they say."""
    spec = JobSpec(sync=SyncSpec(steps=STEPS, delay=delay), churn=ChurnSpec(quorum=0.5, adaptive=True))
    now = [0.0]
    clock = RoundClock(spec, lambda: now[0])
    weight = STEPS * spec.step_tokens
    state = rounds.CoordinatorState(Hash(bytes(32)), 9, STEPS, 1, weight, (A, B, C), phase=RoundPhase.TRAIN)
    state = msgspec.structs.replace(state, assigned=dict.fromkeys((A, B, C), weight))
    clock.see(state)
    now[0] += seen
    for peer, seconds in zip((A, B, C), stated, strict=True):
        clock.arrived(state, peer, seconds)
    pace = clock.pace(msgspec.structs.replace(state, pace=state.assigned))
    return clock.grace(), [pace.weights[peer] // spec.step_tokens for peer in (A, B, C)]


def test_with_a_delay_what_was_trained_ahead_counts_in_the_window_and_in_the_pace() -> None:
    """All promise half a second after the round was opened, and one needs twice the others' time."""
    grace, steps = train(1, (10.0, 10.0, 20.0))
    assert grace == pytest.approx(JobSpec().churn.grace * 10.0)
    assert steps == [STEPS, STEPS, STEPS // 2]


def test_without_a_delay_only_the_coordinators_own_clock_counts() -> None:
    assert train(0, (10.0, 10.0, 20.0)) == train(0, (0.0, 0.0, 0.0)) == (LEAST, [STEPS] * 3)


def test_nobody_is_believed_to_have_been_faster_than_it_was_seen_to_be() -> None:
    assert train(1, (0.0, 0.0, 0.0), seen=4.0) == train(1, (4.0, 4.0, 4.0), seen=4.0)


class Heard(list[Any]):
    """What was emitted."""

    def emit(self, event: Any, *, durable: bool = False) -> None:
        self.append(event)


class State(msgspec.Struct):
    """As much of the rounds' state as is looked at."""

    round: int
    phase: rounds.RoundPhase = rounds.RoundPhase.TRAIN
    in_round: frozenset[PeerId] = frozenset((A, B))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, in a list of one."""
    clock = [100.0]
    monkeypatch.setattr(round_timing.time, "monotonic", lambda: clock[0])
    return clock


def test_a_round_waits_from_the_end_of_the_one_before_and_is_opened_once(now: list[float]) -> None:
    told = Heard()
    seen = RoundEventEmitter(told, 5)
    seen.see(State(0))  # type: ignore[arg-type]
    now[0] += 4
    seen.arrived(0, A, "train")
    now[0] += 1
    seen.arrived(0, B, "train")
    seen.see(State(0))  # type: ignore[arg-type]
    now[0] += 2
    seen.closed(RoundEndRecord(0, b"r" * 32, ()), (), {}, ExchangeReport("all-gather", 0.1, 0.2, 77), {b"p" * 32: 0.25})
    seen.see(State(1, rounds.RoundPhase.AUDIT))  # type: ignore[arg-type]
    now[0] += 3
    seen.see(State(1))  # type: ignore[arg-type]
    opened = [event for event in told if isinstance(event, RoundStartEvent)]
    assert [(event.round, event.waited) for event in opened] == [(0, 0.0), (1, 3.0)]
    assert opened[0].peers == (A.hex(), B.hex())
    assert [event.seconds for event in told if isinstance(event, ArrivalEvent)] == [4.0, 5.0]
    (closed,) = [event for event in told if isinstance(event, RoundEndEvent)]
    assert (closed.seconds, closed.waited_for) == (7.0, B.hex())
    assert (closed.way, closed.way_taken, closed.payload_bytes) == ("all-gather", 0.2, 77)
