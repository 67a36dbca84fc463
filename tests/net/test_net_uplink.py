from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.net import uplink
from farflung.net.uplink import Line, Phase, Sample

TICK = 0.02
MBIT = 125_000


class Home:
    """A line with a queue, asked for all it takes; a tick of the estimate after each tick of the line."""

    def __init__(self, rate: float, trip: float, line: Line | None = None) -> None:
        self.rate, self.trip, self.line = rate, trip, line or Line()
        self.waits, self.most, self.sent = 0.0, 0.0, 0.0
        self.way: deque[tuple[float, float]] = deque([(0.0, 0.0)] * max(1, round(trip / TICK)))
        self.recent: deque[float] = deque([0.0] * max(1, round(trip / TICK)), len(self.way))

    def tick(self, *, is_busy: bool = True, share: float = 1.0) -> Sample:
        """`share` of the line is ours, others send the rest."""
        self.waits += uplink.ceiling(self.line) * TICK if is_busy else 0.0
        out = min(self.waits, self.rate * share * TICK)
        self.waits -= out
        window = (
            2 * self.rate * self.trip + 15_000
        )  # of TCP; what the queue does not hold is dropped, and sent again
        self.waits = min(self.waits, 0.25 * self.rate, window)
        self.most = max(self.most, self.waits / self.rate)
        self.way.append((out, self.waits / self.rate))
        came, queue = self.way.popleft()
        self.recent.append(came)
        self.sent += came
        fastest = sum(self.recent) / (len(self.recent) * TICK)
        sample = Sample(int(came), TICK, fastest, self.trip + queue, queue, is_busy)
        self.line = uplink.observe(self.line, sample)
        return sample

    def run(self, seconds: float, *, is_busy: bool = True, share: float = 1.0) -> float:
        """Bytes a second that came through."""
        before = self.sent
        for _ in range(round(seconds / TICK)):
            self.tick(is_busy=is_busy, share=share)
        return (self.sent - before) / seconds

    def cut(self, seconds: float) -> None:
        """Nothing comes through, what was on the way is lost, and the senders have more."""
        self.way = deque([(0.0, 0.0)] * len(self.way))
        sample = Sample(
            0, TICK, uplink.ceiling(self.line), self.trip + self.waits / self.rate, self.waits / self.rate
        )
        for _ in range(round(seconds / TICK)):
            self.line = uplink.observe(self.line, sample)
        self.waits = 0.0


rates = st.floats(4 * MBIT, 1000 * MBIT)
trips = st.sampled_from([0.02, 0.04, 0.1, 0.2])


@settings(max_examples=20, deadline=None)
@given(rates, trips)
def test_the_rate_of_a_line_is_found_and_95_percent_of_it_used(rate: float, trip: float) -> None:
    home = Home(rate, trip)
    home.run(40 * trip + 2)
    assert home.line.rate == pytest.approx(rate, rel=0.08)
    home.most = 0.0
    used = home.run(20.0) / rate
    assert 0.90 < used <= 1.0
    assert home.most < 0.5 * trip + 0.06  # of a probe, for a moment


@settings(max_examples=20, deadline=None)
@given(rates, trips, st.integers(1, 1 << 34))
def test_idle_time_and_what_comes_in_it_say_nothing_of_a_line(rate: float, trip: float, size: int) -> None:
    line = uplink.known(rate)
    before = uplink.ceiling(line)
    for _ in range(1000):
        line = uplink.observe(line, Sample(size, TICK, float(size), trip, 0.0, is_busy=False))
    assert (uplink.ceiling(line), line.rate, line.phase) == (before, rate, Phase.KEEP)


@settings(max_examples=20, deadline=None)
@given(rates, trips)
def test_a_known_line_is_never_filled_by_a_fresh_connection(rate: float, trip: float) -> None:
    home = Home(rate, trip, uplink.known(rate))
    home.run(uplink.PROBE_SECONDS - 0.1)
    assert home.most == pytest.approx(0.0, abs=TICK)


@settings(max_examples=20, deadline=None)
@given(st.floats(20 * MBIT, 100 * MBIT), trips, st.floats(0.2, 0.7))
def test_a_line_that_became_slower_is_noticed(rate: float, trip: float, part: float) -> None:
    home = Home(rate, trip, uplink.known(rate))
    home.run(2.0)
    home.rate = rate * part
    home.run(4 * uplink.FORGET)
    allowed = used = 0.0
    for _ in range(1000):
        allowed += uplink.ceiling(home.line) / 1000 / home.rate
        used += home.run(TICK) / 1000 / home.rate
    assert allowed < 1.25
    assert used > 0.6


@settings(max_examples=20, deadline=None)
@given(st.floats(1 * MBIT, 50 * MBIT), trips, st.floats(2.0, 20.0))
def test_a_line_that_became_faster_is_noticed_at_the_next_probe(
    rate: float, trip: float, times: float
) -> None:
    home = Home(rate, trip, uplink.known(rate))
    home.run(2.0)
    home.rate = rate * times
    home.run(2 * uplink.PROBE_SECONDS + 60 * trip)
    assert home.line.rate >= 0.85 * home.rate


def test_a_new_line_is_asked_for_little_more_than_it_was_seen_to_carry() -> None:
    home = Home(20 * MBIT, 0.1)
    assert uplink.ceiling(home.line) == uplink.UNKNOWN
    while home.line.phase is Phase.SEEK:
        sample = home.tick()
        allowed = max(uplink.UNKNOWN, 2 * home.line.rate)
        assert uplink.ceiling(home.line) <= allowed, sample
    assert home.line.phase is Phase.DRAIN
    assert uplink.ceiling(home.line) < home.rate
    assert home.most < 0.15  # without a bound: 1.9 round trips, as far as the queue goes


def test_a_line_is_given_half_as_long_as_something_waits() -> None:
    line = Line(Phase.DRAIN, 1e6)
    line = uplink.observe(line, Sample(20_000, TICK, 1e6, 0.1, 0.05))
    assert (line.phase, uplink.ceiling(line)) == (Phase.DRAIN, 500_000)
    line = uplink.observe(line, Sample(20_000, TICK, 1e6, 0.05, 0.0))
    assert line.phase is Phase.KEEP


def test_a_probe_ends_as_soon_as_a_queue_grows() -> None:
    home = Home(8 * MBIT, 0.1, uplink.known(8 * MBIT))
    seen = []
    for _ in range(round(30 / TICK)):
        home.tick()
        seen.append(home.line.phase)
    share = seen.count(Phase.PROBE) / len(seen)
    assert 0.005 < share < 0.06
    assert Phase.SEEK not in seen


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 40), st.floats(0, 100), st.floats(0, 1e10), st.floats(0, 10), st.booleans()
        ),
        max_size=60,
    )
)
def test_whatever_the_kernel_says_the_ceiling_is_a_rate(
    samples: list[tuple[int, float, float, float, bool]],
) -> None:
    line = Line()
    for delivered, seconds, fastest, queue, is_busy in samples:
        line = uplink.observe(line, Sample(delivered, seconds, fastest, queue + 0.01, queue, is_busy))
        assert uplink.ceiling(line) >= 1
        assert line.rate == 0 or line.rate >= uplink.LEAST


def beside(home: Home, seconds: float, rate: float) -> float:
    """What we sent, bytes a second, while others kept a queue of 60 ms and took all that we left, down to half."""
    sent = 0.0
    for _ in range(round(seconds / TICK)):
        ours = min(uplink.ceiling(home.line), 0.7 * rate)
        sent += ours * TICK
        sample = Sample(int(ours * TICK), TICK, ours, home.trip + 0.06, 0.06)
        home.line = uplink.observe(home.line, sample)
    return sent / seconds


@settings(max_examples=20, deadline=None)
@given(st.floats(2 * MBIT, 100 * MBIT), trips)
def test_half_of_a_line_is_left_to_others_who_want_it_and_taken_again_when_they_are_done(
    rate: float, trip: float
) -> None:
    home = Home(rate, trip, uplink.known(rate))
    home.run(1.0)
    beside(home, 4.0, rate)
    assert home.line.phase is Phase.SHARE
    assert 0.40 * rate < beside(home, 30.0, rate) < 0.56 * rate
    home.run(2.0)
    assert home.line.has_others is False
    assert home.run(15.0) > 0.85 * rate


def test_a_line_that_others_fill_from_the_start_is_shared_at_half_of_what_tcp_gets() -> None:
    home = Home(20 * MBIT, 0.04)
    beside(home, 20.0, 20 * MBIT)
    assert home.line.phase is Phase.SHARE
    assert 0.25 * 20 * MBIT < beside(home, 10.0, 20 * MBIT) < 0.56 * 20 * MBIT


@settings(max_examples=20, deadline=None)
@given(
    rates,
    trips,
    st.floats(0.1, 8.0),
    st.lists(st.tuples(st.floats(2.0, 20.0), st.floats(0.1, 6.0)), max_size=2),
)
def test_after_a_cut_a_line_is_what_it_was(
    rate: float, trip: float, before: float, cuts: list[tuple[float, float]]
) -> None:
    home = Home(rate, trip, uplink.known(rate))
    home.run(before)
    for away, back in [*cuts, (10.0, 1.0)]:
        allowed = uplink.ceiling(home.line)
        home.cut(away)
        assert uplink.ceiling(home.line) == allowed
        home.run(2 * trip + 0.1)
        assert home.line.rate > 0.9 * rate
        home.run(back)
    assert home.line.rate == pytest.approx(rate, rel=0.05)


@settings(max_examples=20, deadline=None)
@given(rates, trips, st.integers(1, 200), st.floats(2.0, 30.0))
def test_a_line_that_is_cut_while_its_rate_is_looked_for_is_looked_at_further(
    rate: float, trip: float, ticks: int, away: float
) -> None:
    home = Home(rate, trip)
    for _ in range(ticks):
        home.tick()
    home.cut(away)
    home.run(40 * trip + 2 + uplink.PROBE_SECONDS)
    assert home.line.rate == pytest.approx(rate, rel=0.08)


@given(st.floats(0.0, 60.0), trips)
def test_the_lump_that_comes_first_after_a_cut_is_not_the_lines_rate(away: float, trip: float) -> None:
    line = uplink.observe(uplink.known(1e6), Sample(0, 2.0 + away, 1e6, trip))
    assert uplink.observe(line, Sample(1 << 30, TICK, 1e9, trip)).rate == 1e6
