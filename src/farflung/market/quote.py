"""Quotes a bid before it is made: price, supply curve, where hosts are lost, and the last day's prices.

    n + s winners of one window, all paid the (n+s+1)-th ask: members and spares alike, and nobody its own ask

Spares are winners, because they are paid when they work; would the first loser be called up at its own ask, it had
better ask more (docs/decisions/065). A quote reserves nothing: asks come and go, and others bid; `price` of the bid
itself is what protects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.core import limits
from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.core.units import Millis
from farflung.market.asks import Market
from farflung.market.bids import Bid, cap_of, rules
from farflung.market.clearing import SimilarityRule, SpeedWindow
from farflung.market.filter_report import FilterReport, Mask, OfferConstraint, alone, pour, relief
from farflung.market.price_history import DayPrices, PriceHistory, last_day
from farflung.market.work_units import unit_price

CURVE: Final = 9  # members of which a curve tells: 1, 2, 4, ... 256


class SupplyPoint(msgspec.Struct, frozen=True):
    """What a calibrated unit costs for so many members, with as many spares in proportion; None: there are too few."""

    members: int
    ask: Credits | None


class ConstraintLoss(msgspec.Struct, frozen=True):
    """Hosts that one constraint removes: after those before it, and hosts that it alone keeps out."""

    name: str
    value: str  # what is asked of each, as text
    removed: int
    alone: int


class Quote(msgspec.Struct, frozen=True):
    """The answer. `ask`: pico-credits for a calibrated unit; `price`: for one of the job's; `total`: for all of them.

    `hired`: the winners, cheapest first; which of them begin is drawn later. `setter`: whose ask they are all paid.
    None of these where no bundle can be had: `hint` says what to relax, and `beyond` what a calibrated unit would cost
    if money were no constraint.
    """

    ask: Credits | None
    price: Credits | None
    total: Credits | None
    hired: tuple[PeerId, ...]
    setter: PeerId | None
    beyond: Credits | None
    curve: tuple[SupplyPoint, ...]
    funnel: FilterReport
    losses: tuple[ConstraintLoss, ...]
    day: DayPrices | None
    hint: str = ""


def quote(market: Market, bid: Bid, tape: PriceHistory, now: Millis, also: Sequence[OfferConstraint] = ()) -> Quote:
    """Looks at all standing asks as if they were all idle. `tape`: bundles that were cleared; `now`: ledger time.

    `also`: what the requester asks for beyond the fields of a bid, over the places of `market`.
    """
    *fields, price = rules(bid, market)
    asked = (*fields, *also, price)
    left, steps = pour(market.asks.size, asked)
    funnel = FilterReport((*steps, ("similar", market.asks.widest(left, bid.similar))))
    others = alone(asked)
    found = winners(market, bid, left)
    beyond = ask_for(market, bid, others[-1]) if found is None else None
    named = () if found is None else tuple(market.asks.peers[place] for place in found.places)
    ask = None if found is None else Credits(int(market.asks.prices[found.places[-1]]))
    return Quote(
        ask=ask,
        price=None if ask is None else unit_price(ask, bid.work.each),
        total=None if ask is None else bid.total(ask),
        hired=named[:-1],
        setter=named[-1] if named else None,
        beyond=beyond,
        curve=curve(market, bid, others[-1]),
        funnel=funnel,
        losses=_losses(asked, others, dict(funnel.removed)),
        day=last_day(tape, bid.cards, now),
        hint=_hint(market, bid, left, asked, beyond) if ask is None else "",
    )


def _hint(market: Market, bid: Bid, left: Mask, asked: Sequence[OfferConstraint], beyond: Credits | None) -> str:
    """What to relax. Where money would not do it and those who meet all would be enough but for whose they are, no
    constraint on hosts is named: it is the owner's share that is in the way.
    """
    alike = market.asks.widest(left, SimilarityRule(bid.similarity))
    if beyond is not None or alike <= bid.seats:
        return _relief(market, bid, asked)
    share, counted = cap_of(bid.members), market.asks.widest(left, bid.similar)
    return (
        f"{alike} hosts of similar speed meet all that is asked, and of one owner {share} may be among"
        f" {bid.members} members: {counted} of {bid.seats + 1} that are needed. Hosts of other owners would do it"
    )


def _relief(market: Market, bid: Bid, asked: Sequence[OfferConstraint]) -> str:
    """What to relax where no window has a setter beyond its winners."""
    needed = bid.seats + 1
    if market.asks.size < needed:
        return f"{needed} hosts are needed, one of them to set the price, and {market.asks.size} offer"

    def is_enough(left: Mask) -> bool:
        return market.asks.widest(left, bid.similar) >= needed

    similar = f"relax similarity: speeds may differ by {bid.similarity - 100} % at most, one owner may have a third"
    return relief(asked, needed, similar, is_enough)


def _losses(
    asked: Sequence[OfferConstraint], others: Sequence[Mask], removed: dict[str, int]
) -> tuple[ConstraintLoss, ...]:
    """`others`: for each rule, who meets all but that one."""
    kept_out = [int(np.count_nonzero(mask & ~rule.met)) for rule, mask in zip(asked, others, strict=True)]
    return tuple(
        ConstraintLoss(rule.name, rule.value, removed[rule.name], out)
        for rule, out in zip(asked, kept_out, strict=True)
    )


def winners(market: Market, bid: Bid, left: Mask) -> SpeedWindow | None:
    """The window of a bid over the offers in `left`: its winners, and last the one that sets their price."""
    return market.asks.best(left, bid.seats + 1, bid.similar)


def ask_for(market: Market, bid: Bid, left: Mask) -> Credits | None:
    """The ask that would set the price."""
    window = winners(market, bid, left)
    return None if window is None else Credits(int(market.asks.prices[window.places[-1]]))


def curve(market: Market, bid: Bid, left: Mask) -> tuple[SupplyPoint, ...]:
    """Prices for 1, 2, 4, ... members, up to the first number that cannot be had.

    `left` holds whoever meets all constraints but that of price: what is above the budget is told, too.
    """
    points: list[SupplyPoint] = []
    for members in (1 << power for power in range(CURVE)):
        spares = min(-(-bid.spares * members // bid.members), limits.PEERS)
        ask = ask_for(market, msgspec.structs.replace(bid, members=members, spares=spares), left)
        points.append(SupplyPoint(members, ask))
        if ask is None:
            break
    return tuple(points)
