"""Work is counted in units with bounds; prices of units are whole, and rounded once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from market_stand import UNIT
from msgspec.structs import replace

from farflung.core.errors import UsageError
from farflung.core.money import Credits
from farflung.market.work_units import CALIBRATED, MemberWork, UnitBounds, ask_within, token_price, unit_price


def test_a_unit_without_bounds_is_refused_and_the_field_is_named(subtests: pytest.Subtests) -> None:
    for name in UnitBounds.__struct_fields__:
        for value in [-1, 1 << 63, 1.5, float("nan"), None, True, "9"]:
            with subtests.test(name=name, value=value):
                with pytest.raises(UsageError) as error:
                    replace(UNIT, **{name: value})
                assert error.value.code == "FF-MARK-010"
                assert error.value.cause.startswith(name)


@pytest.mark.parametrize("name", ["steps", "flop", "memory_bytes", "seconds"])
def test_a_unit_that_takes_nothing_is_none(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        replace(UNIT, **{name: 0})


@pytest.mark.parametrize("units", [0, -1, 1 << 41, float("inf")])
def test_an_absurd_amount_of_work_is_refused(units: Any) -> None:
    with pytest.raises(UsageError) as error:
        MemberWork(units, UNIT)
    assert error.value.code == "FF-MARK-011"


def test_a_job_of_too_many_calibrated_units_is_refused() -> None:
    with pytest.raises(UsageError, match="calibrated"):
        MemberWork(1 << 40, replace(UNIT, flop=2 * CALIBRATED))


def test_calibrated_units_are_rounded_up() -> None:
    assert MemberWork(3, replace(UNIT, flop=CALIBRATED // 2)).calibrated == 2
    assert MemberWork(2, replace(UNIT, flop=CALIBRATED // 2)).calibrated == 1


def test_unequal_units_cost_in_proportion_and_a_part_is_rounded_up() -> None:
    assert unit_price(1000, UNIT) == 1000
    assert unit_price(1000, replace(UNIT, flop=CALIBRATED * 5 // 2)) == 2500
    assert unit_price(1, replace(UNIT, flop=1)) == 1


@given(price=st.integers(0, 10**12), flop=st.integers(1, 1 << 62))
def test_the_highest_ask_for_a_price_is_the_highest(price: int, flop: int) -> None:
    each = replace(UNIT, flop=flop)
    ask = ask_within(price, each)
    assert -(-ask * flop // CALIBRATED) <= price
    assert -(-(ask + 1) * flop // CALIBRATED) > price


def test_a_lease_holds_whole_pico_credits_for_a_token_and_no_less_than_the_unit_costs() -> None:
    assert token_price(Credits(824), 819_200) == 1
    assert token_price(Credits(819_200), 819_200) == 1
    assert token_price(Credits(819_201), 819_200) == 2
    assert token_price(Credits(0), 819_200) == 0
