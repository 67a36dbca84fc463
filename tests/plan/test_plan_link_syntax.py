"""Links as people write them: what is understood, and what is said of the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.errors import UsageError
from farflung.plan.link_syntax import FASTEST, LONGEST, ROUND_TRIP, SLOWEST, Link, parse


@pytest.mark.parametrize(
    ("text", "up", "down", "trip"),
    [
        ("20/100/30ms", 20e6, 100e6, 0.03),
        ("20/100", 20e6, 100e6, ROUND_TRIP),
        (" 2.5 / 16 / 80 ", 2.5e6, 16e6, 0.08),
        ("20Mbit/1Gbit/500us", 20e6, 1e9, 0.0005),
        ("20 Mbit/s / 1 Gbit/s / 1s", 20e6, 1e9, 1.0),
        ("20mbps/1GBPS", 20e6, 1e9, ROUND_TRIP),
        ("500k/10M/0", 500e3, 10e6, 0.0),
        ("64000bit/1G", 64e3, 1e9, ROUND_TRIP),
    ],
)
def test_rates_and_round_trips_are_read_in_their_units(text: str, up: float, down: float, trip: float) -> None:
    assert parse(text) == Link(pytest.approx(up), pytest.approx(down), pytest.approx(trip))


def test_what_is_no_link_is_refused_with_how_to_write_one(subtests: pytest.Subtests) -> None:
    for text in ["", "fast", "20", "20/", "/20", "1/2/3/4", "20/100/30m", "-1/5", "1e3/5", "nan/1", "20/1 0", "²/1"]:
        with subtests.test(text=text):
            with pytest.raises(UsageError) as error:
                parse(text)
            assert error.value.code == "FF-PLAN-010"
            assert "--link 20/100/30ms" in error.value.hint
            assert error.value.exit_code == 2


@pytest.mark.parametrize("text", ["0/0", "0/100", "20/0.0001", "20/99999Gbit", "20/100/61s"])
def test_a_link_that_cannot_be_is_refused_with_the_limits(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert error.value.code == "FF-PLAN-011"


@given(st.text(max_size=40))
def test_any_text_is_a_link_or_one_of_two_errors(text: str) -> None:
    try:
        link = parse(text)
    except UsageError as error:
        if error.code not in ("FF-PLAN-010", "FF-PLAN-011"):
            raise
        return
    assert SLOWEST <= link.up <= FASTEST
    assert 0 <= link.round_trip <= LONGEST


def test_a_local_network_is_fast_both_ways_and_near() -> None:
    assert parse("200/200/2ms").is_lan
    for text in ("199/200/2ms", "200/199/2ms", "200/200/2.1ms"):
        assert not parse(text).is_lan
