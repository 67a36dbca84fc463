"""Asks in one order: by price, then by turn; one price an owner; nothing that a stranger writes breaks it."""

from __future__ import annotations

import pytest
from market_play import peer

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.market.clearing import ALONE, FASTEST, SimilarityRule
from farflung.market.offer_book import LARGEST, OfferBook, OfferRow, book


def row(
    number: int, price: int, *, owner: int | None = None, card: str = "a", speed: int = 100, fact: int = 0
) -> OfferRow:
    return OfferRow(
        peer(number), price, speed, bytes([number if owner is None else owner]), card, (fact,), peer(number)
    )


def order(asks: OfferBook) -> list[tuple[int, int]]:
    return [(int.from_bytes(each, "big"), int(price)) for each, price in zip(asks.peers, asks.prices, strict=True)]


def test_asks_stand_by_price_and_then_by_peer() -> None:
    asks = book([row(3, 5), row(1, 9), row(2, 5)], ("fact",))
    assert order(asks) == [(2, 5), (3, 5), (1, 9)]


def test_facts_and_speeds_stay_with_their_peer() -> None:
    asks = book([row(3, 5, fact=30, speed=130), row(1, 9, fact=10, speed=110)], ("fact",))
    assert asks.facts["fact"].tolist() == [30, 10]
    assert asks.speeds.tolist() == [130, 110]
    assert asks.by_speed.tolist() == [1, 0]


def test_who_is_named_twice_counts_once_at_its_lowest_ask() -> None:
    assert order(book([row(1, 9), row(2, 7), row(1, 5)], ("fact",))) == [(1, 5), (2, 7)]


def test_an_owner_has_one_price_for_a_class_and_it_is_its_highest() -> None:
    asks = book([row(1, 2, owner=9), row(2, 8, owner=9), row(3, 1, owner=9, card="b"), row(4, 5)], ("fact",))
    assert order(asks) == [(3, 1), (4, 5), (1, 8), (2, 8)]
    assert len(set(asks.owners[[0, 2, 3]].tolist())) == 1


def test_only_owners_of_several_cards_have_a_number() -> None:
    asks = book([row(1, 1, owner=9), row(2, 2), row(3, 3, owner=9), row(4, 4)], ("fact",))
    found = dict(zip([each for each, _ in order(asks)], asks.owners.tolist(), strict=True))
    assert found[1] == found[3] != ALONE
    assert found[2] == found[4] == ALONE


def test_numbers_beyond_all_bounds_count_as_the_largest() -> None:
    asks = book([row(1, 1 << 80, speed=1 << 70, fact=-(1 << 90)), row(2, 3)], ("fact",))
    assert order(asks) == [(2, 3), (1, LARGEST)]
    assert asks.speeds.tolist() == [100, FASTEST]
    assert asks.facts["fact"].tolist() == [0, -LARGEST - 1]
    assert asks.best(asks.prices >= 0, 1, SimilarityRule(125)) is not None


def test_an_empty_book_has_no_window() -> None:
    asks = book([], ("fact",))
    assert (asks.size, asks.best(asks.prices > 0, 1, SimilarityRule(125))) == (0, None)
    assert asks.widest(asks.prices > 0, SimilarityRule(125, 1)) == 0


def test_a_book_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ASKS", 2)
    with pytest.raises(PolicyError) as error:
        book([row(1, 1), row(2, 2), row(3, 3)], ("fact",))
    assert error.value.code == "FF-MARK-013"


def test_places_of_a_part_are_places_of_the_whole() -> None:
    asks = book([row(i, i) for i in range(1, 7)], ("fact",))
    found = asks.best(asks.prices % 2 == 0, 2, SimilarityRule(125))
    assert found is not None
    assert found.places == (1, 3)
    assert asks.within(asks.prices % 2 == 0, found.slowest, SimilarityRule(125)) == (1, 3, 5)
