"""Those who act together: sellers that agree on a price, and a clearer that works for them."""

from __future__ import annotations

import pytest
from market_play import Slot, played, with_ask
from market_stand import BEACON, bid, crowd, named, stand
from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.market.asks import market
from farflung.market.auction import Bundle, clear, drawn
from farflung.market.clearing_check import check

SLOTS = [Slot(1, 100, 0), Slot(2, 100, 1), Slot(3, 100, 2), Slot(7, 100, 3), Slot(8, 100, 4)]


def test_not_stopped_the_first_loser_can_raise_the_winners_price_to_the_next_ask_and_no_further() -> None:
    assert played(SLOTS, winners=2) == (frozenset({0, 1}), 3)
    for ask, price in ((6, 6), (7, 7), (9, 7), (999, 7)):
        result = played(with_ask(SLOTS, 2, ask), winners=2)
        assert result is not None
        assert (result.winners, result.price) == ({0, 1}, price)


def test_a_ring_that_asks_too_much_loses_to_whoever_is_outside_it() -> None:
    ring = [slot._replace(ask=50) for slot in SLOTS[:3]] + SLOTS[3:]
    result = played([*ring, Slot(9, 100, 5)], winners=2)
    assert result is not None
    assert (result.winners, result.price) == ({3, 4}, 9)


def test_a_ring_of_all_sellers_is_bounded_by_the_reserve_alone() -> None:
    assert played([slot._replace(ask=13) for slot in SLOTS], winners=2, reserve=12) is None
    result = played([slot._replace(ask=12) for slot in SLOTS], winners=2, reserve=12)
    assert result is not None
    assert result.price == 12


def test_a_clearer_cannot_invent_a_price_or_put_its_friends_to_work_first() -> None:
    asked, asks = bid(2, 2), crowd(1, 2, 3, 4, 5, 6)
    by_peer = {one.ask.peer: one for one in asks}
    (found,) = clear(market(asks), [asked], BEACON)
    assert isinstance(found, Bundle)
    check(found, asked, by_peer, BEACON)
    for bent in (
        replace(found, ask=6, price=6),
        replace(found, setter=named(99), ask=900, price=900),
        replace(found, members=found.spares, spares=found.members),
    ):
        with pytest.raises(PolicyError):
            check(bent, asked, by_peer, BEACON)


def test_not_stopped_a_clearer_may_pass_cheaper_asks_by_below_the_reserve() -> None:
    asked, asks = bid(2, price=6), crowd(1, 2, 3, 4, 5, 6)
    by_peer = {one.ask.peer: one for one in asks}
    hired = drawn(asked, BEACON, (named(4), named(5)))
    check(Bundle(asked.job, hired, (), named(6), 6, 6), asked, by_peer, BEACON)
    dearer = by_peer | {named(6): stand(6, 7)}
    with pytest.raises(PolicyError, match="price"):
        check(Bundle(asked.job, hired, (), named(6), 7, 7), asked, dearer, BEACON)
