"""What anybody can check of a bundle without asking whether it was the best: each rule, broken alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from market_stand import BEACON, NOW, bid, named, stand
from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.market.asks import StandingOffer, market
from farflung.market.auction import Bundle, clear, drawn
from farflung.market.bids import Bid
from farflung.market.clearing_check import check

ASKED = bid(6, 1)
Standings = dict[PeerId, StandingOffer]


def offered() -> Standings:
    return {named(i): stand(i, i) for i in range(1, 12)}


def made() -> Bundle:
    (found,) = clear(market(list(offered().values())), [ASKED], BEACON)
    assert isinstance(found, Bundle)
    return found


def test_what_was_cleared_is_legal() -> None:
    check(made(), ASKED, offered(), BEACON)


def test_a_dearer_bundle_than_the_best_is_legal() -> None:
    hired = drawn(ASKED, BEACON, (named(i) for i in range(4, 11)))
    dear = Bundle(ASKED.job, hired[:6], hired[6:], named(11), 11, 11)
    check(dear, ASKED, offered(), BEACON)
    check(dear, ASKED, {peer: one for peer, one in offered().items() if one.ask.price > 3}, BEACON)


def swap(found: Bundle, **fields: object) -> Bundle:
    return replace(found, **fields)


def changed(number: int, **fields: object) -> Standings:
    asks = offered()
    return asks | {named(number): stand(number, **({"price": number} | fields))}  # type: ignore[arg-type]


BUNDLES: list[tuple[str, Callable[[Bundle], Bundle]]] = [
    ("another job", lambda b: swap(b, job=Hash(bytes(32)))),
    ("6 members and 1 spares", lambda b: swap(b, members=b.members[1:])),
    ("6 members and 1 spares", lambda b: swap(b, spares=())),
    ("named twice", lambda b: swap(b, spares=b.members[:1])),
    ("named twice", lambda b: swap(b, setter=b.members[0])),
    ("no standing ask", lambda b: swap(b, spares=(named(99),))),
    ("before a winner's", lambda b: swap(b, spares=(named(11),))),
    ("the setter asks 8, and 9 is paid", lambda b: swap(b, ask=9, price=9)),
    ("the setter asks 9, and 8 is paid", lambda b: swap(b, setter=named(9))),
    ("not 9", lambda b: swap(b, price=9)),
    ("order of the draw", lambda b: swap(b, members=b.members[::-1])),
    ("order of the draw", lambda b: swap(b, members=(*b.members[:5], *b.spares), spares=b.members[5:])),
]


@pytest.mark.parametrize(("words", "change"), BUNDLES)
def test_a_bundle_that_breaks_a_rule_is_refused_with_the_rule(
    words: str, change: Callable[[Bundle], Bundle]
) -> None:
    with pytest.raises(PolicyError) as error:
        check(change(made()), ASKED, offered(), BEACON)
    assert error.value.code == "FF-MARK-020"
    assert words in error.value.cause


ASKS: list[tuple[str, Standings]] = [
    ("does not meet standing", changed(3, until=NOW)),
    ("does not meet unit", changed(3, bounds=replace(stand(1, 1).ask.bounds, seconds=1))),
    ("does not meet deadline", changed(3, speed=10**6)),
    ("are not similar", changed(3, speed=13 * 10**12)),
    ("are not similar", changed(8, speed=13 * 10**12)),  # the setter counts
    ("one owner has 3", changed(3, owner=named(1)) | {named(2): stand(2, 2, owner=named(1))}),
    ("one owner has 3", changed(3, owner=named(8)) | {named(2): stand(2, 2, owner=named(8))}),
    ("before a winner's", changed(3, price=9)),
    ("before a winner's", changed(11, owner=named(3))),  # the owner's other ask is its price for both
]


@pytest.mark.parametrize(("words", "asks"), ASKS)
def test_a_bundle_whose_asks_do_not_carry_it_is_refused(words: str, asks: Standings) -> None:
    with pytest.raises(PolicyError) as error:
        check(made(), ASKED, asks, BEACON)
    assert words in error.value.cause


@pytest.mark.parametrize("asked", [replace(ASKED, price=7), replace(ASKED, budget=8 * 60 - 1)])
def test_a_price_above_the_bid_is_refused(asked: Bid) -> None:
    with pytest.raises(PolicyError, match="does not meet price"):
        check(made(), asked, offered(), BEACON)


def test_who_chose_another_beacon_is_refused() -> None:
    with pytest.raises(PolicyError, match="order of the draw"):
        check(made(), ASKED, offered(), b"another")
