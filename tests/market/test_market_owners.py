"""A third of the members for one owner, where an ask names one; on the ledger each account is an owner of its own."""

from __future__ import annotations

import pytest
from market_play import peer
from market_stand import EMPTY, NOW, bid, crowd, named, stand

from farflung.core.errors import PolicyError
from farflung.core.money import Credits
from farflung.market.asks import market
from farflung.market.bids import cap_of
from farflung.market.match import MatchRequest, match
from farflung.market.provider_offer import Capabilities, OfferListing
from farflung.market.quote import quote

CAPS = Capabilities(4, 8 << 30, 100 << 30, 10**11, 1, "Linux", "x86_64", "2.7.0")


def listing(number: int, price: int) -> OfferListing:
    return OfferListing(peer(number), Credits(price), Credits(100), CAPS)


def test_a_third_is_rounded_down_and_one_at_the_least() -> None:
    assert [cap_of(members) for members in (1, 2, 3, 5, 6, 8, 9, 300)] == [1, 1, 1, 1, 2, 2, 3, 100]


def test_one_owner_has_a_third_of_the_members_and_sets_no_price_with_the_rest() -> None:
    whale = [stand(i, 1, owner=named(1)) for i in range(1, 7)]
    told = quote(market([*whale, *crowd(*range(1, 20))[6:]]), bid(6), EMPTY, NOW)
    assert told.hired == tuple(named(i) for i in (1, 2, 7, 8, 9, 10))
    assert (told.setter, told.ask) == (named(11), 11)


def test_on_the_ledger_each_account_is_one_owner_and_may_be_all_neighbours() -> None:
    found = match(MatchRequest(named(0), 3, Credits(100)), [listing(i, i) for i in range(1, 6)])
    assert ([int.from_bytes(each, "big") for each in found.peers], found.unit_price) == ([1, 2, 3], 4)
    assert {"owner"}.isdisjoint(OfferListing.__struct_fields__)


def test_nobody_is_too_few_to_ask_for() -> None:
    with pytest.raises(PolicyError, match="0 providers are asked for") as error:
        match(MatchRequest(named(0), 0, Credits(100)), [listing(1, 1)])
    assert error.value.hint == "ask for one provider at least"
