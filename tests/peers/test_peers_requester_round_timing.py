"""What the coordinator's clock makes of when its members' parts of a round came."""

import msgspec
import pytest

from farflung.core.ids import Hash, PeerId
from farflung.job.spec import ChurnSpec, JobSpec, SyncSpec
from farflung.peers.requester.round_timing import LEAST, RoundClock
from farflung.train import rounds
from farflung.train.rounds import RoundPhase

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
