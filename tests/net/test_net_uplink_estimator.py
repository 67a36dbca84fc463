"""What is known of a home's line: on bulk, on bursts of any size, beside others, with losses, after cuts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_lines import MBIT, TICK, Home, Process

from farflung.net import uplink_estimator
from farflung.net.uplink_estimator import UplinkEstimate, UplinkPhase, UplinkSample

LOOK = 0.02
# Stated times: after so long all is as it should be
SETTLE, SETTLE_TRIPS = 5.0, 40

rates = st.floats(2 * MBIT, 200 * MBIT)
trips = st.sampled_from([0.02, 0.04, 0.1, 0.2])
buffers = st.floats(0.03, 0.3)
losses = st.sampled_from([0.0, 0.005, 0.02])
counts = st.sampled_from([1, 2, 4])
jitters = st.floats(0.0, 0.004)
bursts = st.lists(st.tuples(st.floats(1e3, 4e6), st.floats(0.0, 8.0)), min_size=1, max_size=6)
some = settings(max_examples=8)


def settled(trip: float) -> float:
    return SETTLE + SETTLE_TRIPS * trip


def usual(queues: list[float]) -> float:
    """The 95th percentile."""
    return sorted(queues)[int(0.95 * len(queues))]


@some
@given(rates, trips, counts, losses, buffers, jitters)
def test_bulk_gets_95_percent_of_its_line_and_the_queue_stays_small(
    rate: float, trip: float, count: int, loss: float, buffer: float, jitter: float
) -> None:
    ours = Process(trip, count)
    home = Home(rate, ours, buffer=buffer, loss=loss, jitter=jitter)
    home.run(settled(trip), [ours])
    (got,) = home.run(20.0, [ours])
    assert got >= 0.94 - 1.5 * loss
    assert usual(home.queues) <= max(0.03, 0.6 * trip)
    assert sum(home.queues) / len(home.queues) <= 0.02


@some
@given(rates, trips, counts, losses, buffers, jitters, bursts)
def test_bursts_come_as_fast_as_without_a_pace_and_bulk_behind_them_gets_its_line(
    rate: float, trip: float, count: int, loss: float, buffer: float, jitter: float, sizes: list[tuple[float, float]]
) -> None:
    ours, free = Process(trip, count), Process(trip, count, follows=False)
    home = Home(rate, ours, buffer=buffer, loss=loss, jitter=jitter)
    other = Home(rate, free, buffer=buffer, loss=loss, jitter=jitter)
    for size, gap in sizes:
        took, would = home.burst(ours, size), other.burst(free, size)
        assert took <= 1.3 * would + 0.3 + 8 * trip
        home.run(gap)
        other.run(gap)
    home.run(1.0 + SETTLE_TRIPS * trip, [ours])
    assert home.run(2.0, [ours])[0] >= 0.8 * (1 - 2.5 * loss)


@some
@given(rates, trips, counts, losses, buffers, jitters, bursts)
def test_alone_on_a_line_nobody_is_paced_below_most_of_it_except_in_a_test(
    rate: float, trip: float, count: int, loss: float, buffer: float, jitter: float, sizes: list[tuple[float, float]]
) -> None:
    ours = Process(trip, count)
    home = Home(rate, ours, buffer=buffer, loss=loss, jitter=jitter)
    tested = 0.0
    for size, gap in sizes:
        ours.put(size)
        for _ in range(round((size / rate + gap) / TICK)):
            home.tick()
            is_test = ours.line.phase is UplinkPhase.TEST
            tested = tested + TICK if is_test else 0.0
            assert tested <= uplink_estimator.TEST_MOST + 2 * trip
            assert uplink_estimator.ceiling(ours.line) >= (0.35 if is_test else 0.8) * (1 - 2 * loss) * rate


@some
@given(rates, trips, st.floats(1e3, 1e5), st.floats(0.0, 2.0))
def test_who_never_fills_a_line_is_never_paced(rate: float, trip: float, size: float, gap: float) -> None:
    ours = Process(trip, 2)
    home = Home(rate, ours)
    for _ in range(10):
        home.burst(ours, min(size, 0.1 * rate))
        home.run(gap)
        assert (ours.line.phase, ours.line.rate) == (UplinkPhase.OPEN, 0.0)


@some
@given(rates, trips, st.floats(0.05, 1.0), counts)
def test_a_wrong_memory_of_a_line_does_no_harm(rate: float, trip: float, part: float, count: int) -> None:
    ours = Process(trip, count, line=uplink_estimator.known(part * rate, 0.0))
    home = Home(rate, ours)
    home.run(0.5 + SETTLE_TRIPS * trip, [ours])
    assert home.run(3.0, [ours])[0] >= 0.8


@pytest.mark.slow
@some
@given(st.floats(8 * MBIT, 100 * MBIT), trips, st.floats(0.3, 3.0))
def test_a_line_that_became_slower_or_faster_is_found_again(rate: float, trip: float, times: float) -> None:
    ours = Process(trip, 2)
    home = Home(rate, ours)
    home.run(settled(trip), [ours])
    home.rate = rate * times
    home.run(settled(trip) + 60 * trip, [ours])
    assert home.run(10.0, [ours])[0] >= 0.85
    assert usual(home.queues) <= max(0.05, 0.6 * trip)


@pytest.mark.slow
@some
@given(rates, trips, st.lists(st.tuples(st.floats(1e5, 3e6), st.floats(0.0, 3.0)), max_size=4), jitters)
def test_what_another_process_of_the_home_sends_does_not_hold_us_back_after_it(
    rate: float, trip: float, sizes: list[tuple[float, float]], jitter: float
) -> None:
    one, two = Process(trip, 2), Process(trip, 2)
    home = Home(rate, one, two, jitter=jitter)
    home.run(1.0, [one, two])
    for size, gap in sizes:
        one.put(size)
        home.burst(two, size)
        home.run(gap)
    shares = home.run(5.0, [one, two])
    assert sum(shares) >= 0.75
    home.run(settled(trip), [one])
    assert home.run(5.0, [one])[0] >= 0.8


@pytest.mark.whole
@some
@given(rates, trips)
def test_two_processes_that_send_at_once_fill_the_line_between_them(rate: float, trip: float) -> None:
    one, two = Process(trip, 2), Process(trip, 1)
    home = Home(rate, one, two)
    home.run(settled(trip), [one, two])
    shares = home.run(20.0, [one, two])
    assert sum(shares) >= 0.8
    assert min(shares) >= 0.1


def beside(line: UplinkEstimate, seconds: float, ours: float, trip: float = 0.04) -> UplinkEstimate:
    """We deliver `ours`, and never more than we may, while others keep a queue of 60 ms."""
    began = line.busy_at if math.isfinite(line.busy_at) else 0.0
    for look in range(1, round(seconds / LOOK) + 1):
        sent = int(min(ours, uplink_estimator.ceiling(line)) * LOOK)
        line = uplink_estimator.observe(line, UplinkSample(began + look * LOOK, sent, LOOK, trip + 0.06, 0.06))
    return line


def free(line: UplinkEstimate, seconds: float, ours: float, trip: float = 0.04) -> UplinkEstimate:
    """The same without a queue."""
    for _ in range(round(seconds / LOOK)):
        sent = int(min(ours, uplink_estimator.ceiling(line)) * LOOK)
        line = uplink_estimator.observe(line, UplinkSample(line.busy_at + LOOK, sent, LOOK, trip, 0.0))
    return line


@some
@given(rates)
def test_half_of_a_known_line_is_left_to_others_who_want_it_and_never_more(rate: float) -> None:
    line = uplink_estimator.known(rate, 0.0)
    line = beside(line, 4.0, rate)
    assert line.phase is UplinkPhase.SHARE
    for _ in range(100):
        line = beside(line, 0.3, rate)
        assert uplink_estimator.ceiling(line) >= 0.49 * rate
    assert free(line, uplink_estimator.STAYS + 0.1, rate).phase is UplinkPhase.PROBE


@some
@given(rates)
def test_a_queue_of_others_on_a_line_that_is_not_known_is_left_to_tcp(rate: float) -> None:
    line = beside(UplinkEstimate(), 1.5, rate)
    for _ in range(20):
        line = beside(line, 0.5, rate)
        assert (line.phase, uplink_estimator.ceiling(line)) == (UplinkPhase.OPEN, math.inf)


def test_less_than_was_known_is_believed_when_it_is_shown_twice() -> None:
    line = UplinkEstimate(UplinkPhase.TEST, 1e6, since=0.0, agreed=3, found=4e5, patience=1.0, busy_at=1.0)
    gone = UplinkSample(1.0, 8_000, LOOK, 0.04, 0.0)
    once = uplink_estimator.observe(line, gone)
    assert (once.phase, once.rate) == (UplinkPhase.KEEP, 1e6)
    again = uplink_estimator.observe(replace(line, less=once.less), gone)
    assert (again.phase, again.rate) == (UplinkPhase.KEEP, 4e5)


def test_more_than_was_known_is_believed_at_once() -> None:
    line = UplinkEstimate(UplinkPhase.PROBE, 1e6, since=0.0, agreed=1, busy_at=0.0)
    for look in range(1, 40):
        line = uplink_estimator.observe(line, UplinkSample(look * LOOK, int(1.2e6 * LOOK), LOOK, 0.04, 0.0))
    assert (line.phase, uplink_estimator.ceiling(line)) == (UplinkPhase.OPEN, math.inf)
    assert line.rate == pytest.approx(1.2e6, rel=0.01)


@some
@given(rates, trips, st.integers(1, 1 << 34))
def test_idle_time_and_what_comes_in_it_say_nothing_of_a_line(rate: float, trip: float, size: int) -> None:
    line = uplink_estimator.known(rate, 0.0)
    for look in range(1000):
        line = uplink_estimator.observe(line, UplinkSample(look * LOOK, size, LOOK, trip, 0.1, is_busy=False))
    assert (line.rate, line.phase) == (rate, UplinkPhase.OPEN)


def test_what_is_old_is_forgotten() -> None:
    line = uplink_estimator.observe(
        uplink_estimator.known(1e6, 0.0), UplinkSample(uplink_estimator.OLD + 1, 0, LOOK, is_busy=False)
    )
    assert (line.phase, line.rate, uplink_estimator.ceiling(line)) == (UplinkPhase.OPEN, 0.0, math.inf)


def test_after_a_pause_what_is_known_is_doubted() -> None:
    line = uplink_estimator.observe(
        UplinkEstimate(UplinkPhase.KEEP, 1e6, since=0.0, agreed=4, busy_at=0.0), UplinkSample(1.5, 9, LOOK)
    )
    assert line.phase is UplinkPhase.PROBE


@pytest.mark.slow
@some
@given(rates, trips, counts, st.lists(st.tuples(st.floats(2.0, 20.0), st.floats(0.5, 4.0)), max_size=2))
def test_after_a_cut_a_line_is_what_it_was(
    rate: float, trip: float, count: int, cuts: list[tuple[float, float]]
) -> None:
    ours = Process(trip, count)
    home = Home(rate, ours)
    home.run(settled(trip), [ours])
    for away, back in [*cuts, (10.0, 1.0)]:
        line, now = ours.line, home.now
        for look in range(1, round(away / LOOK) + 1):
            line = uplink_estimator.observe(line, UplinkSample(now + look * LOOK, 0, LOOK, trip + 0.01, 0.01))
        ours.line = line
        home.ticks += round(away / TICK)
        home.run(back, [ours])
        assert uplink_estimator.ceiling(ours.line) >= (0.4 if ours.line.phase is UplinkPhase.TEST else 0.8) * rate
    home.run(2.0 + SETTLE_TRIPS * trip, [ours])
    assert home.run(3.0, [ours])[0] >= 0.85


def test_the_lump_that_comes_first_after_a_cut_says_nothing() -> None:
    line = uplink_estimator.known(1e6, 0.0)
    for look in range(200):
        line = uplink_estimator.observe(line, UplinkSample(look * LOOK, 0, LOOK))
    line = uplink_estimator.observe(line, UplinkSample(200 * LOOK, 1 << 30, LOOK))
    assert (line.phase, line.rate, line.weighed.got) == (UplinkPhase.OPEN, 1e6, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), st.floats(0, 100), st.floats(0, 10), st.floats(0, 10), st.booleans()),
        max_size=60,
    )
)
def test_whatever_the_kernel_says_the_ceiling_is_a_rate(samples: list[tuple[int, float, float, float, bool]]) -> None:
    line, now = UplinkEstimate(), 0.0
    for delivered, seconds, trip, queue, is_busy in samples:
        now += seconds
        line = uplink_estimator.observe(line, UplinkSample(now, delivered, seconds, trip, queue, is_busy))
        assert uplink_estimator.ceiling(line) >= uplink_estimator.LEAST
        assert line.rate == 0 or line.rate >= uplink_estimator.LEAST
        assert not math.isnan(line.rate)


def test_two_windows_of_late_answers_are_no_queue_and_three_are() -> None:
    late = [UplinkSample(look * LOOK, 40_000, LOOK, 0.05, 0.03) for look in range(1, 10)]
    line = UplinkEstimate()
    for sample in late[:8]:
        line = uplink_estimator.observe(line, sample)
    assert (line.phase, len(line.rates)) == (UplinkPhase.OPEN, 2)
    assert uplink_estimator.observe(line, late[8]).phase is UplinkPhase.TEST


@pytest.mark.parametrize(
    "line",
    [
        UplinkEstimate(UplinkPhase.TEST, found=1.0),
        UplinkEstimate(UplinkPhase.KEEP, rate=1.0),
        UplinkEstimate(UplinkPhase.SHARE, rate=1.0),
    ],
)
def test_nobody_is_paced_below_the_least(line: UplinkEstimate) -> None:
    assert uplink_estimator.ceiling(line) == uplink_estimator.LEAST
    assert uplink_estimator.ceiling(line, 100.0) == 100.0  # but for its owner


def test_a_queue_beneath_a_rate_that_still_doubles_is_tcps_start_and_proves_nothing() -> None:
    line = UplinkEstimate()
    for look in range(1, 40):
        size = int(20_000 * 2 ** (look / 6))
        line = uplink_estimator.observe(line, UplinkSample(look * LOOK, size, LOOK, 0.05, 0.03))
    assert (line.phase, line.found) == (UplinkPhase.OPEN, 0.0)


def test_a_queue_whose_smoothed_round_trip_falls_late_is_still_ours() -> None:
    line, at, queue = UplinkEstimate(), 0.0, 0.06
    for _ in range(60):
        at += LOOK
        line = uplink_estimator.observe(line, UplinkSample(at, 50_000, LOOK, 0.04 + queue, queue))
        if line.phase is UplinkPhase.TEST:
            queue *= 0.92
        if line.phase is UplinkPhase.KEEP:
            break
    assert line.phase is UplinkPhase.KEEP
    assert line.rate == pytest.approx(50_000 / LOOK)


@some
@given(st.floats(0.0, 0.2), trips)
def test_a_test_leaves_no_more_of_the_line_than_its_queue_calls_for(queue: float, trip: float) -> None:
    line = UplinkEstimate(UplinkPhase.TEST, 1e6, since=0.0, agreed=1, found=1e6, patience=9.0, busy_at=0.0)
    line = uplink_estimator.observe(line, UplinkSample(LOOK, 20_000, LOOK, trip + queue, queue))
    if line.phase is UplinkPhase.TEST:
        left = 1e6 - uplink_estimator.ceiling(line)
        assert 0.04e6 <= left <= 0.5e6
        assert left * (uplink_estimator.DRAIN + uplink_estimator.DRAIN_TRIPS * trip) <= max(0.05 * 0.15e6, queue * 1e6)


def test_a_long_queue_is_given_half_of_the_line_to_go() -> None:
    line = UplinkEstimate(UplinkPhase.TEST, 1e6, since=0.0, agreed=1, found=1e6, patience=9.0, busy_at=0.0)
    line = uplink_estimator.observe(line, UplinkSample(LOOK, 20_000, LOOK, 0.14, 0.1))
    assert uplink_estimator.ceiling(line) == pytest.approx(0.5e6)


JITTER = 0.015  # more than a queue must have gone below, and less than proves one


@pytest.mark.parametrize("phase", [UplinkPhase.OPEN, UplinkPhase.KEEP, UplinkPhase.PROBE])
def test_what_jitter_may_be_begins_no_test(phase: UplinkPhase) -> None:
    line = UplinkEstimate(phase, 1e6, since=0.0, agreed=4, busy_at=0.0)
    for look in range(1, 20):
        line = uplink_estimator.observe(line, UplinkSample(look * LOOK, 18_000, LOOK, 0.04 + JITTER, JITTER))
    assert (line.phase, line.rate) == (phase, 1e6)


def test_a_queue_that_went_to_what_jitter_makes_was_ours() -> None:
    line, at, queue = uplink_estimator.known(1e6, 0.0), 0.0, 0.06
    for _ in range(100):
        at += LOOK
        line = uplink_estimator.observe(line, UplinkSample(at, 20_000, LOOK, 0.04 + queue, queue))
        if line.phase is UplinkPhase.TEST:
            queue = max(JITTER, queue * 0.9)
    assert line.phase is UplinkPhase.KEEP
    assert line.rate == pytest.approx(1e6)


def test_jitter_is_nobody_elses_upload() -> None:
    line = UplinkEstimate(UplinkPhase.OPEN, 1e6, since=0.0, agreed=1, is_others=True, busy_at=0.0)
    shared = UplinkEstimate(UplinkPhase.SHARE, 1e6, since=0.0, agreed=1, busy_at=0.0)
    for look in range(1, round((uplink_estimator.STAYS + 0.1) / LOOK)):
        sample = UplinkSample(look * LOOK, 18_000, LOOK, 0.04 + JITTER, JITTER)
        line, shared = uplink_estimator.observe(line, sample), uplink_estimator.observe(shared, sample)
    assert (line.phase, line.is_others) == (UplinkPhase.OPEN, False)
    assert shared.phase is UplinkPhase.PROBE
