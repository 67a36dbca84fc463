"""Pacing as a function: bounded, monotone, the same for the same measurements, and all finish together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.train.step_assignment import CHANGE, StepAssignment, StepBounds, StepTimings, assign_steps, median

PEERS = sorted(SigningKey(bytes([i + 1]) * 32).public for i in range(6))
MOST = 40
SECONDS = st.floats(1e-3, 1e3)
SPEEDS = st.dictionaries(st.sampled_from(PEERS), st.lists(SECONDS, min_size=1, max_size=7), min_size=1)
EXCHANGE = st.lists(SECONDS, max_size=7)
SHARES = st.sampled_from([0.0, 0.05, 0.3, 0.9])


@st.composite
def paces(draw: st.DrawFn, least: int = 1) -> StepAssignment:
    steps = draw(st.integers(least, MOST))
    of = draw(st.dictionaries(st.sampled_from(PEERS), st.integers(least, steps)))
    return StepAssignment(steps, of)


@given(SPEEDS, EXCHANGE, paces(4), SHARES)
def test_a_pace_is_within_the_bounds_and_near_the_one_before(
    step: dict[PeerId, list[float]], exchange: list[float], before: StepAssignment, share: float
) -> None:
    found = assign_steps(StepTimings(step, exchange), before, StepBounds(4, MOST, share))
    assert 4 <= found.steps <= MOST
    if share and exchange:
        assert before.steps <= CHANGE * found.steps
        assert found.steps <= CHANGE * before.steps
    for peer, steps in found.of.items():
        assert 4 <= steps <= found.steps
        earlier = before.of.get(peer, before.steps)
        assert steps <= CHANGE * earlier
        assert min(earlier, found.steps) <= CHANGE * steps


@given(SPEEDS, EXCHANGE, paces(), SHARES)
def test_the_tokens_of_a_round_add_up_to_no_more_than_all_steps_of_all(
    step: dict[PeerId, list[float]], exchange: list[float], before: StepAssignment, share: float
) -> None:
    found = assign_steps(StepTimings(step, exchange), before, StepBounds(1, MOST, share))
    assert set(found.of) == set(step)
    assert 0 < sum(found.of.values()) <= len(step) * found.steps


@given(SPEEDS, EXCHANGE, paces(), SHARES, st.randoms())
def test_a_pace_is_the_same_for_the_same_measurements_in_any_order(
    step: dict[PeerId, list[float]], exchange: list[float], before: StepAssignment, share: float, random: object
) -> None:
    bounds = StepBounds(1, MOST, share)
    turned = dict(reversed(list(step.items())))
    assert assign_steps(StepTimings(step, exchange), before, bounds) == assign_steps(
        StepTimings(turned, exchange), before, bounds
    )


@given(SPEEDS, paces(), st.sampled_from(PEERS), st.floats(1.0, 50.0))
def test_who_is_slower_is_given_no_more_steps(
    step: dict[PeerId, list[float]], before: StepAssignment, peer: PeerId, times: float
) -> None:
    """Of two members that were given the same before, and when one member alone becomes slower."""
    bounds, even = StepBounds(1, MOST), StepAssignment(before.steps, {})
    found = assign_steps(StepTimings(step, ()), even, bounds)
    usual = {p: median(seen[-5:]) for p, seen in step.items()}
    for one in step:
        for other in step:
            if usual[one] >= usual[other]:
                assert found.of[one] <= found.of[other]
    if peer in step and sum(usual[p] < usual[peer] for p in usual) >= len(usual) / 2:
        slower = step | {peer: [times * x for x in step[peer]]}
        assert (
            assign_steps(StepTimings(slower, ()), before, bounds).of[peer]
            <= assign_steps(StepTimings(step, ()), before, bounds).of[peer]
        )


@given(SECONDS, SECONDS, st.floats(1.0, 100.0), st.integers(1, MOST))
def test_a_longer_exchange_gives_no_fewer_steps(seconds: float, exchange: float, times: float, before: int) -> None:
    bounds, at = StepBounds(1, MOST, 0.2), StepAssignment(before, {})
    step = {PEERS[0]: [seconds]}
    short = assign_steps(StepTimings(step, [exchange]), at, bounds)
    assert short.steps <= assign_steps(StepTimings(step, [exchange * times]), at, bounds).steps


def test_steps_are_as_few_as_the_exchange_allows() -> None:
    """1 s a step and 2 s of exchange, which may take a fifth: 8 steps."""
    step = {peer: [1.0] for peer in PEERS}
    at = StepAssignment(10, {})
    assert assign_steps(StepTimings(step, [2.0]), at, StepBounds(1, MOST, 0.2)).steps == 8
    assert assign_steps(StepTimings(step, [2.0]), at, StepBounds(1, MOST)).steps == MOST


def test_all_finish_together_after_some_rounds() -> None:
    """Five members of one speed, and one that takes seven times as long: it ends up with a seventh of the steps."""
    speeds = dict.fromkeys(PEERS, 1.0) | {PEERS[2]: 7.0}
    at = StepAssignment(MOST, {})
    for _ in range(4):
        at = assign_steps(StepTimings({p: [s] * 3 for p, s in speeds.items()}, ()), at, StepBounds(1, MOST))
    assert at.of == dict.fromkeys(PEERS, MOST) | {PEERS[2]: MOST // 7}
    assert max(at.of[p] * s for p, s in speeds.items()) == MOST


def test_one_odd_measurement_moves_nobody() -> None:
    step = {peer: [1.0, 1.0, 1.0, 1.0] for peer in PEERS}
    step[PEERS[1]][-1] = 500.0
    found = assign_steps(StepTimings(step, ()), StepAssignment(MOST, {}), StepBounds(1, MOST))
    assert found.of == dict.fromkeys(PEERS, MOST)


def test_without_measurements_nothing_changes() -> None:
    before = StepAssignment(7, {PEERS[0]: 3})
    assert assign_steps(StepTimings({}, [1.0]), before, StepBounds(1, MOST, 0.1)) == before
