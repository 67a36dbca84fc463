"""Where owners are known, a local run hires at most a third from one of them, at one price."""

from __future__ import annotations

import pytest
from market_play import peer

from farflung.core.errors import PolicyError
from farflung.core.money import Credits
from farflung.market.match import Request, cap_of, match
from farflung.market.offer import Capabilities, Listing

CAPS = Capabilities(4, 8 << 30, 100 << 30, 10**11, 1, "Linux", "x86_64", "2.7.0")


def listing(number: int, price: int, owner: bytes = b"") -> Listing:
    return Listing(peer(number), Credits(price), Credits(100), CAPS, owner=owner)


def hired(members: int, listings: list[Listing]) -> tuple[list[int], int]:
    found = match(Request(members, Credits(100)), listings)
    return [int.from_bytes(each, "big") for each in found.peers], found.unit_price


def test_a_third_is_rounded_down_and_one_at_the_least() -> None:
    assert [cap_of(members) for members in (1, 2, 3, 5, 6, 8, 9, 300)] == [1, 1, 1, 1, 2, 2, 3, 100]


def test_one_owner_has_a_third_of_the_members() -> None:
    listings = [listing(i, 1, b"whale") for i in range(1, 7)] + [listing(i, i) for i in range(7, 14)]
    assert hired(6, listings) == ([1, 2, 7, 8, 9, 10], 11)


def test_spares_keep_to_the_third_too() -> None:
    listings = [listing(i, 20, b"whale") for i in range(1, 7)] + [listing(i, i) for i in range(7, 14)]
    found = match(Request(6, Credits(100)), listings)
    assert [int.from_bytes(each, "big") for each in found.spares] == [13, 1, 2]


def test_where_no_owner_is_known_each_peer_is_one() -> None:
    assert hired(3, [listing(i, i) for i in range(1, 6)]) == ([1, 2, 3], 4)


def test_an_owner_has_one_price_its_highest() -> None:
    listings = [listing(1, 1, b"two"), listing(2, 8, b"two"), listing(3, 5), listing(4, 6)]
    assert hired(2, listings) == ([3, 4], 8)


def test_nobody_is_too_few_to_ask_for() -> None:
    with pytest.raises(PolicyError, match="0 providers are asked for") as error:
        match(Request(0, Credits(100)), [listing(1, 1)])
    assert error.value.hint == "ask for one provider at least"


def test_one_owner_alone_is_too_few() -> None:
    with pytest.raises(PolicyError) as error:
        match(Request(3, Credits(100)), [listing(i, 1, b"whale") for i in range(1, 9)])
    assert error.value.cause == "8 offers → 1 similar"
    assert "similarity" in error.value.hint
