"""One owner with many cards: a third in one name; what it gains by holding cards back, and by more names."""

from __future__ import annotations

from market_play import Slot, played
from market_stand import EMPTY, NOW, bid, stand

from farflung.core.ids import PeerId
from farflung.market.asks import StandingOffer, market
from farflung.market.quote import quote

WHALE = stand(1, 1).ask.peer
SMALL = [stand(i, 10 + i) for i in range(40, 60)]


def owned(cards: list[StandingOffer], members: int = 6) -> tuple[int, int]:
    """How many of the whale's cards are hired, and the price."""
    found = quote(market([*cards, *SMALL]), bid(members), EMPTY, NOW)
    assert found.ask is not None
    mine = {card.ask.peer for card in cards}
    return sum(peer in mine for peer in found.hired), int(found.ask)


def cheap(count: int, owner: PeerId | None = None) -> list[StandingOffer]:
    """Cards that ask 1; each of another name where no owner is given."""
    return [stand(i, 1, **({} if owner is None else {"owner": owner})) for i in range(1, count + 1)]


def test_in_one_name_it_gets_a_third_and_its_other_asks_do_not_lower_the_price_of_others() -> None:
    assert owned(cheap(20, WHALE)) == (2, 54)
    assert owned(cheap(2, WHALE)) == (2, 54)


def test_two_asks_in_one_name_are_one_price() -> None:
    dear = [stand(1, 1, owner=WHALE), stand(2, 51, owner=WHALE)]
    found = quote(market([*dear, *SMALL]), bid(6), EMPTY, NOW)
    assert {card.ask.peer for card in dear} <= {*found.hired, found.setter}
    low, high = market([*dear, *SMALL]).asks.prices[:2].tolist()
    assert (low, high) == (50, 51)  # neither stands at 1


def test_a_cheap_card_beside_a_dear_one_wins_no_more_than_its_one_price() -> None:
    mixed = [stand(1, 1, owner=WHALE), stand(2, 900, owner=WHALE)]
    assert owned(mixed) == (0, 56)


def test_not_stopped_as_many_names_as_cards_take_the_whole_bundle() -> None:
    assert owned(cheap(20)) == (6, 1)  # at its own price: a stake for each name is what it costs


def test_not_stopped_a_card_held_back_can_raise_the_price_of_the_others() -> None:
    slots = [Slot(1, 100, 0), Slot(3, 100, 9), Slot(3, 100, 9), Slot(2, 100, 1), Slot(2, 100, 2)]
    slots += [Slot(2, 100, 3), Slot(2, 100, 4), Slot(12, 100, 5)]
    all_told = played(slots, winners=6, cap=2)
    assert all_told is not None
    assert (all_told.price, all_told.gain(3, 1, 2)) == (3, 0)  # its second card sets the price of its first
    held_back = played([*slots[:2], *slots[3:]], winners=6, cap=2)
    assert held_back is not None
    assert (held_back.price, held_back.gain(3, 1)) == (12, 9)
