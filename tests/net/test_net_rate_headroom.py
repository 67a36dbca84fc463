"""How much more than a line's rate is shared out, while some of its connections are below their shares."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.net import rate_headroom
from farflung.net.io.rate_limiter import LinePacer, RateCaps
from farflung.net.rate_headroom import MOST, RateHeadroom
from farflung.net.uplink_estimator import UplinkEstimate, UplinkPhase, UplinkSample

KEEP, SHARE, PROBE, TEST, OPEN = (
    UplinkPhase.KEEP,
    UplinkPhase.SHARE,
    UplinkPhase.PROBE,
    UplinkPhase.TEST,
    UplinkPhase.OPEN,
)
RATE = 1_000_000
FREE = UplinkSample(0.0, 20_000, 0.02)  # all that the rate allows
QUEUED = replace(FREE, trip=0.09, queue=0.04)


def after(one: RateHeadroom, part: float, phase: UplinkPhase = KEEP, looks: int = 12) -> RateHeadroom:
    """So many looks in which `part` of the rate was carried, and the division behind them."""
    for _ in range(looks):
        sample = replace(FREE, delivered=round(part * 20_000))
        one = rate_headroom.looked(one, phase, phase, 0.02 * RATE, sample)
    return rate_headroom.divided(one)


@pytest.mark.parametrize("phase", [KEEP, SHARE])
def test_what_some_leave_is_shared_out_until_all_of_the_rate_is_used(phase: UplinkPhase) -> None:
    one = RateHeadroom()
    for _ in range(4):
        one = after(one, min(1.0, 0.8 * one.times), phase)  # each uses four fifths of its share
    assert one.times == pytest.approx(1.25, rel=0.01)


def test_what_was_shared_out_too_much_is_taken_back() -> None:
    assert after(RateHeadroom(1.3), 1.15).times == pytest.approx(1.3 / 1.15)
    assert after(RateHeadroom(1.1), 1.4).times == 1.0


@given(st.lists(st.floats(0, 3), max_size=20))
def test_never_less_than_the_rate_is_shared_out_and_never_half_more(parts: list[float]) -> None:
    one = RateHeadroom()
    for part in parts:
        one = after(one, part)
        assert 1.0 <= one.times <= MOST


@pytest.mark.parametrize(
    ("before", "now", "sample"),
    [
        (KEEP, KEEP, replace(QUEUED, delivered=9_000)),  # the line is full: what we lack others have
        (SHARE, SHARE, replace(QUEUED, delivered=9_000)),
        (KEEP, KEEP, replace(FREE, delivered=9_000, is_busy=False)),  # nothing waited
        (KEEP, PROBE, replace(FREE, delivered=9_000)),
        (PROBE, PROBE, replace(FREE, delivered=9_000)),  # not meant to be filled
    ],
)
def test_a_queue_idle_time_and_a_probe_add_nothing(before: UplinkPhase, now: UplinkPhase, sample: UplinkSample) -> None:
    one = rate_headroom.looked(RateHeadroom(1.2), KEEP, KEEP, 0.02 * RATE, FREE)
    one = rate_headroom.looked(one, before, now, 0.02 * RATE, sample)
    assert rate_headroom.divided(one) == RateHeadroom(1.2)
    assert rate_headroom.divided(RateHeadroom(1.2)) == RateHeadroom(1.2)  # nothing was seen


def test_a_test_shares_out_what_it_says_and_begins_a_doubt() -> None:
    one = rate_headroom.looked(RateHeadroom(1.4), PROBE, TEST, 0.02 * RATE, QUEUED)
    assert one.times == pytest.approx(1.2)
    assert rate_headroom.times(one, TEST, RATE, math.inf) == rate_headroom.times(one, OPEN, RATE, math.inf) == 1.0
    assert rate_headroom.looked(one, TEST, TEST, 0.02 * RATE, QUEUED) == one  # once
    assert rate_headroom.times(one, KEEP, RATE, math.inf) == pytest.approx(1.2)


def test_what_the_owner_allows_is_never_lifted() -> None:
    assert rate_headroom.times(RateHeadroom(1.4), KEEP, RATE, RATE) == 1.0
    assert rate_headroom.times(RateHeadroom(1.4), KEEP, RATE, 1.1 * RATE) == pytest.approx(1.1)


@pytest.mark.parametrize(("cap", "times"), [(0, 1.25), (100_000, 1.0)])
def test_a_peer_shares_out_what_its_connections_leave(monkeypatch: pytest.MonkeyPatch, cap: int, times: float) -> None:
    async def test() -> float:
        loop, now = asyncio.get_running_loop(), 0.0
        monkeypatch.setattr(loop, "time", lambda: now)
        peer = LinePacer(RateCaps(up=cap))
        peer.line = UplinkEstimate(KEEP, RATE, since=0.0, agreed=4, busy_at=0.0)
        peer._pacer.limit(peer._ceiling())
        monkeypatch.setattr(
            peer, "_sampled", lambda at, seconds: UplinkSample(at, int(0.8 * peer.rate * seconds), seconds)
        )
        while now < 0.5:
            now += 0.02
            peer._look()
            assert peer._timer is not None
            peer._timer.cancel()
        return peer._pacer.lift

    assert asyncio.run(test()) == pytest.approx(times, rel=0.05)
