"""A third of the members for one owner in a quote; `run` hires one node of each owner that is declared."""

from __future__ import annotations

import pytest
from market_play import peer
from market_stand import EMPTY, NOW, bid, crowd, named, stand

from farflung.core.errors import PolicyError
from farflung.core.money import Credits
from farflung.market.asks import market
from farflung.market.bids import cap_of
from farflung.market.match import MatchRequest, match, one_role_each
from farflung.market.provider_offer import Capabilities, OfferListing
from farflung.market.quote import quote

CAPS = Capabilities(4, 8 << 30, 100 << 30, 10**11, 1, "Linux", "x86_64", "2.7.0")


def listing(number: int, price: int, owner: int = 0) -> OfferListing:
    return OfferListing(peer(number), Credits(price), Credits(100), CAPS, owner=peer(owner) if owner else None)


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


@pytest.mark.parametrize(
    ("asks", "hired", "price"),
    [
        ([(1, 1, 9), (2, 2, 9), (3, 3, 0), (4, 4, 0)], [1, 3], 4),  # its second node neither wins nor sets the price
        ([(1, 1, 9), (2, 8, 9), (3, 3, 0), (4, 9, 0)], [1, 3], 9),  # and does not raise what the first one asks
        ([(1, 1, 0), (2, 2, 0), (3, 3, 9), (4, 4, 9)], [1, 2], 3),
    ],
)
def test_a_declared_owner_has_one_member_at_that_nodes_own_ask(
    asks: list[tuple[int, int, int]], hired: list[int], price: int
) -> None:
    found = match(MatchRequest(named(0), 2, Credits(100)), [listing(*ask) for ask in asks])
    assert ([int.from_bytes(each, "big") for each in found.peers], found.unit_price) == (hired, price)


def test_too_few_owners_are_told_as_such() -> None:
    with pytest.raises(PolicyError) as error:
        match(MatchRequest(named(0), 3, Credits(100)), [listing(i, i, 9) for i in range(1, 6)])
    assert "at most 1 providers" in error.value.hint


@pytest.mark.parametrize(
    ("train", "audit", "wanted", "left"),
    [
        ([9, 0, 0], [9], (1, 1), ([0, 0], [9])),  # a verifier is scarcer
        ([9, 0, 0], [9, 0, 0], (3, 1), ([9, 0, 0], [0, 0])),
        ([9, 9], [9], (1, 0), ([9, 9], [])),  # no verifier is wanted
        ([9, 8], [9, 8], (1, 1), None),  # one owner each
    ],
)
def test_an_owner_asks_in_one_role_of_a_job(
    train: list[int], audit: list[int], wanted: tuple[int, int], left: tuple[list[int], list[int]] | None
) -> None:
    asks = {
        "train": [listing(i, 1, owner) for i, owner in enumerate(train, 1)],
        "audit": [listing(i, 1, owner) for i, owner in enumerate(audit, 100)],
    }
    found = one_role_each(asks, dict(zip(asks, wanted, strict=True)))
    owners = {role: [int.from_bytes(ask.owner or b"", "big") for ask in found[role]] for role in asks}
    assert not {*owners["train"]} & {*owners["audit"]} - {0}
    assert left is None or (owners["train"], owners["audit"]) == left
    assert all(len(found[role]) >= count for role, count in zip(asks, wanted, strict=True))


def test_nobody_is_too_few_to_ask_for() -> None:
    with pytest.raises(PolicyError, match="0 providers are asked for") as error:
        match(MatchRequest(named(0), 0, Credits(100)), [listing(1, 1)])
    assert error.value.hint == "ask for one provider at least"
