"""What is told of rounds: a wait begins when the round before is over, and nothing is told twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from farflung.core.events import ArrivalEvent, RoundEndEvent, RoundStartEvent
from farflung.core.ids import PeerId
from farflung.peers.requester import chronicle
from farflung.peers.requester.chronicle import RoundEventEmitter
from farflung.peers.requester.payload_exchange import ExchangeReport
from farflung.train import rounds
from farflung.train.run_log import RoundEndRecord

A, B = PeerId(b"a" * 32), PeerId(b"b" * 32)


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
    monkeypatch.setattr(chronicle.time, "monotonic", lambda: clock[0])
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
    seen.closed(RoundEndRecord(0, b"r" * 32, ()), (), {}, ExchangeReport("all-gather", 0.1, 0.2, 77))
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
