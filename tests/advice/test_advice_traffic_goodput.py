"""Loss and headers: against published tables and what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.traffic import goodput, packet_overhead
from farflung.advice.traffic.goodput import LossResponse
from farflung.core.errors import UsageError

losses, trips = st.floats(1e-7, 0.5), st.floats(1e-3, 1)


def window(loss: float, congestion: LossResponse) -> float:
    """Packets in flight at 100 ms on a line that is never full."""
    return goodput.goodput(1e13, 0.1, loss, congestion) * 0.1 / 8 / packet_overhead.segment()


@pytest.mark.parametrize(
    ("loss", "reno", "cubic"),
    [(1e-2, 12, 12), (1e-3, 38, 38), (1e-4, 120, 187), (1e-5, 379, 1054), (1e-6, 1200, 5926), (1e-7, 3795, 33325)],
)
def test_windows_are_those_of_the_cubic_rfc(loss: float, reno: float, cubic: float) -> None:
    """RFC 8312, section 5.1, table 1 (round trip 0.1 s, C = 0.4); Reno's there with 1.2 for the root of 1.5."""
    assert window(loss, LossResponse.RENO) == pytest.approx(reno, rel=0.03)
    assert window(loss, LossResponse.CUBIC) == pytest.approx(cubic, rel=0.03)


@given(st.floats(1e4, 1e11), trips, losses, st.sampled_from(list(LossResponse)))
def test_loss_and_distance_never_help(rate: float, trip: float, loss: float, congestion: LossResponse) -> None:
    found = goodput.goodput(rate, trip, loss, congestion)
    assert 0 < found <= rate * (1 - loss) * (1 + 1e-12)
    assert goodput.goodput(rate, 2 * trip, loss, congestion) <= found * (1 + 1e-12)
    assert goodput.goodput(rate, trip, min(0.9, 1.5 * loss), congestion) <= found * (1 + 1e-12)
    assert goodput.goodput(2 * rate, trip, loss, congestion) >= found * (1 - 1e-12)
    assert goodput.goodput(rate, trip, 0.0, congestion) == rate


def test_bbr_keeps_a_line_that_cubic_gives_up() -> None:
    """As measured on 100 Mbit/s and 100 ms with 0.5 to 2 % of loss: cubic 1 to 2 % of the line, BBR nearly all."""
    for loss in (0.005, 0.02):
        assert goodput.goodput(1e8, 0.1, loss) / 1e8 < 0.03
        assert goodput.goodput(1e8, 0.1, loss, LossResponse.BBR) / 1e8 > 0.97
    assert goodput.goodput(1e8, 0.1, 0.3, LossResponse.BBR) / 1e8 < 0.03


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
        ("FF-PLAN-021", lambda: goodput.goodput(0.0, 0.1, 0.01)),
        ("FF-PLAN-021", lambda: goodput.goodput(1e6, -0.1, 0.01)),
        ("FF-PLAN-021", lambda: goodput.goodput(1e6, 0.1, 1.0)),
        ("FF-PLAN-021", lambda: goodput.goodput(1e6, 0.1, float("nan"))),
        ("FF-PLAN-021", lambda: packet_overhead.counted(-1.0, 0.0)),
        ("FF-PLAN-021", lambda: packet_overhead.counted(1.0, 0.0, acknowledged=0.0)),
    ],
)
def test_lines_that_cannot_be_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
