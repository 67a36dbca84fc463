"""Loss, stragglers, clocks, headers: against published tables and games that are played."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.traffic import loss_and_stragglers, packet_overhead
from farflung.advice.traffic.loss_and_stragglers import LossResponse
from farflung.core.errors import UsageError

losses, trips = st.floats(1e-7, 0.5), st.floats(1e-3, 1)


def window(loss: float, congestion: LossResponse) -> float:
    """Packets in flight at 100 ms on a line that is never full."""
    return loss_and_stragglers.goodput(1e13, 0.1, loss, congestion) * 0.1 / 8 / packet_overhead.segment()


@pytest.mark.parametrize(
    ("loss", "reno", "cubic"),
    [
        (1e-2, 12, 12),
        (1e-3, 38, 38),
        (1e-4, 120, 187),
        (1e-5, 379, 1054),
        (1e-6, 1200, 5926),
        (1e-7, 3795, 33325),
    ],
)
def test_windows_are_those_of_the_cubic_rfc(loss: float, reno: float, cubic: float) -> None:
    """RFC 8312, section 5.1, table 1 (round trip 0.1 s, C = 0.4); Reno's there with 1.2 for the root of 1.5."""
    assert window(loss, LossResponse.RENO) == pytest.approx(reno, rel=0.03)
    assert window(loss, LossResponse.CUBIC) == pytest.approx(cubic, rel=0.03)


@given(st.floats(1e4, 1e11), trips, losses, st.sampled_from(list(LossResponse)))
def test_loss_and_distance_never_help(
    rate: float, trip: float, loss: float, congestion: LossResponse
) -> None:
    found = loss_and_stragglers.goodput(rate, trip, loss, congestion)
    assert 0 < found <= rate * (1 - loss) * (1 + 1e-12)
    assert loss_and_stragglers.goodput(rate, 2 * trip, loss, congestion) <= found * (1 + 1e-12)
    assert loss_and_stragglers.goodput(rate, trip, min(0.9, 1.5 * loss), congestion) <= found * (1 + 1e-12)
    assert loss_and_stragglers.goodput(2 * rate, trip, loss, congestion) >= found * (1 - 1e-12)
    assert loss_and_stragglers.goodput(rate, trip, 0.0, congestion) == rate


def test_bbr_keeps_a_line_that_cubic_gives_up() -> None:
    """As measured on 100 Mbit/s and 100 ms with 0.5 to 2 % of loss: cubic 1 to 2 % of the line, BBR nearly all."""
    for loss in (0.005, 0.02):
        assert loss_and_stragglers.goodput(1e8, 0.1, loss) / 1e8 < 0.03
        assert loss_and_stragglers.goodput(1e8, 0.1, loss, LossResponse.BBR) / 1e8 > 0.97
    assert loss_and_stragglers.goodput(1e8, 0.1, 0.3, LossResponse.BBR) / 1e8 < 0.03


@given(st.floats(0.01, 100), st.floats(0.01, 2))
@settings(max_examples=30)
def test_the_slower_of_two_is_known_exactly(mean: float, share: float) -> None:
    spread = math.sqrt(math.log1p(share**2))
    expected = 2 * mean * NormalDist().cdf(spread / math.sqrt(2))
    assert loss_and_stragglers.slowest_of(2, mean, share * mean) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("count", "share"), [(5, 0.1), (64, 0.3), (1000, 0.5)])
def test_the_slowest_is_what_drawing_gives(count: int, share: float) -> None:
    spread = math.sqrt(math.log1p(share**2))
    draws = np.random.default_rng(3).lognormal(-(spread**2) / 2, spread, (3000, count)).max(axis=1)
    assert loss_and_stragglers.slowest_of(count, 1.0, share) == pytest.approx(draws.mean(), rel=0.015)


@given(st.integers(1, 5000), st.floats(0, 3))
@settings(max_examples=30)
def test_more_to_wait_for_takes_longer(count: int, deviation: float) -> None:
    one, more = (loss_and_stragglers.slowest_of(n, 1.0, deviation) for n in (count, 2 * count))
    assert 1.0 - 2e-3 <= one <= more * (1 + 1e-9)


def test_memoryless_times_wait_by_harmonic_numbers() -> None:
    assert loss_and_stragglers.slowest_memoryless(3, 6.0) == pytest.approx(11.0)
    assert loss_and_stragglers.slowest_memoryless(1 << 20, 1.0) == pytest.approx(
        math.log(1 << 20) + 0.57722, rel=1e-5
    )


def test_two_clocks_are_off_by_both_errors_and_drifts() -> None:
    assert loss_and_stragglers.clock_margin(0.01) == pytest.approx(0.02)
    assert loss_and_stragglers.clock_margin(0.01, 50e-6, 3600.0) == pytest.approx(0.38)


def test_headers_are_one_for_each_segment() -> None:
    assert packet_overhead.segment() == 1448
    assert packet_overhead.counted(1448_000, 0.0) == 1448_000 + 1000 * 66
    assert packet_overhead.counted(0.0, 1448_000) == 500 * 66
    assert packet_overhead.counted(0.0, 1448_000, acknowledged=packet_overhead.IN_BATCHES) == 100 * 66
    assert packet_overhead.counted(0.0, 0.0, messages=10, head=48) == pytest.approx(
        480 + (480 / 1448 + 5) * 66 + 240 / 1448 * 66
    )
    assert packet_overhead.counted(0.0, 0.0, notices=10, head=48) == pytest.approx(10 * (48 + 66))
    assert packet_overhead.payload_rate(100e6) == pytest.approx(100e6 * 1448 / 1514)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: packet_overhead.segment(0)),
        ("FF-PLAN-020", lambda: loss_and_stragglers.slowest_of(0, 1.0, 0.1)),
        ("FF-PLAN-021", lambda: loss_and_stragglers.goodput(0.0, 0.1, 0.01)),
        ("FF-PLAN-021", lambda: loss_and_stragglers.goodput(1e6, -0.1, 0.01)),
        ("FF-PLAN-021", lambda: loss_and_stragglers.goodput(1e6, 0.1, 1.0)),
        ("FF-PLAN-021", lambda: loss_and_stragglers.goodput(1e6, 0.1, float("nan"))),
        ("FF-PLAN-021", lambda: loss_and_stragglers.slowest_of(3, 0.0, 0.1)),
        ("FF-PLAN-021", lambda: loss_and_stragglers.slowest_memoryless(3, -1.0)),
        ("FF-PLAN-021", lambda: loss_and_stragglers.clock_margin(-1.0)),
        ("FF-PLAN-021", lambda: packet_overhead.counted(-1.0, 0.0)),
        ("FF-PLAN-021", lambda: packet_overhead.counted(1.0, 0.0, acknowledged=0.0)),
    ],
)
def test_lines_that_cannot_be_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
