"""False names: asks that nobody means to serve."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from market_play import SPEEDS, Slot, played

SLOTS = st.lists(
    st.builds(Slot, st.integers(0, 12), st.sampled_from(SPEEDS), st.integers(0, 0)), min_size=2, max_size=9
)


@given(
    slots=SLOTS,
    shill=st.builds(Slot, st.integers(0, 12), st.sampled_from(SPEEDS), st.just(1)),
    winners=st.integers(1, 3),
)
@settings(max_examples=150)
def test_an_ask_more_never_raises_a_price(slots: list[Slot], shill: Slot, winners: int) -> None:
    before, after = played(slots, winners), played([*slots, shill], winners)
    assert before is None or (after is not None and after.price <= before.price)


def test_not_stopped_where_too_few_offer_a_false_ask_makes_the_trade_and_sets_its_price() -> None:
    slots = [Slot(2, 100, 0), Slot(3, 100, 1)]
    assert played(slots, winners=2, reserve=12) is None
    shilled = played([*slots, Slot(12, 100, 2)], winners=2, reserve=12)
    assert shilled is not None
    assert (shilled.winners, shilled.price) == ({0, 1}, 12)  # the reserve is all that bounds it


def test_not_stopped_a_false_ask_draws_the_bid_to_ones_own_window() -> None:
    slots = [Slot(1, 100, 0), Slot(1, 100, 1), Slot(5, 100, 2), Slot(2, 200, 3), Slot(4, 200, 4), Slot(6, 200, 5)]
    honest = played(slots, winners=2)
    assert honest is not None
    assert (honest.winners, honest.price) == ({0, 1}, 5)
    shilled = played([*slots, Slot(3, 200, 6)], winners=2)
    assert shilled is not None
    assert (shilled.winners, shilled.price) == ({3, 6}, 4)  # the false name is hired, and its stake is at risk
