"""Clears a sealed reverse auction for bundles of similar cards: assigns hosts to bids and sets the price.

    n + s winners of one window, all paid the (n+s+1)-th ask: members and spares alike, and nobody its own ask

Spares are winners, because they are paid when they work; would the first loser be called up at its own ask, it had
better ask more. Which winners begin is drawn by the beacon of the block that opened the asks and not by what they
ask: an ask that could move a spare to a member's seat would be worth lowering. (docs/decisions/065 has the proof,
docs/concepts/market.md says where it ends: several slots of one owner, several bids of one epoch, names that nobody
stands behind.)

Bids of one epoch are served one after the other, by what they would pay for a calibrated unit; ties by the beacon.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from farflung.core import limits
from farflung.core.crypto import NS_BID, NS_SPARE, digest
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.market.asks import Market
from farflung.market.bids import Bid, rules
from farflung.market.clearing import SpeedWindow
from farflung.market.filter_report import FilterReport, Mask, OfferConstraint, pour, relief
from farflung.market.work_units import unit_price


class Bundle(msgspec.Struct, frozen=True):
    """Who was hired for a job. `ask` is the price of a calibrated unit, that of `setter`; `price` of one of the job's.

    Members and spares are in the order in which the beacon drew them.
    """

    job: Hash
    members: tuple[PeerId, ...]
    spares: tuple[PeerId, ...]
    setter: PeerId
    ask: Credits
    price: Credits


class UnmetBid(msgspec.Struct, frozen=True):
    """A bid without a bundle: where offers were lost, and what to relax."""

    job: Hash
    funnel: FilterReport
    hint: str


def clear(market: Market, bids: Sequence[Bid], beacon: bytes) -> tuple[Bundle | UnmetBid, ...]:
    """Serves the bids of one epoch; answers in the order in which they were served. Nobody is hired twice.

    Raises PolicyError FF-MARK-018 for too many bids.
    """
    if len(bids) > limits.BIDS:
        raise PolicyError(
            "FF-MARK-018",
            f"{len(bids)} bids are too many for one epoch",
            cause=f"{limits.BIDS} are the most",
            hint="clear the others in the next one",
        )
    is_free = np.ones(market.asks.size, np.bool_)
    ordered = sorted(bids, key=lambda bid: (-bid.reserve, digest(NS_BID, beacon, bid.job)))
    return tuple(_serve(market, bid, beacon, is_free) for bid in ordered)


def _serve(market: Market, bid: Bid, beacon: bytes, is_free: Mask) -> Bundle | UnmetBid:
    """One bid's answer; marks those who are hired."""
    asked = (*rules(bid, market), OfferConstraint("free", "an idle host", is_free))
    left, steps = pour(market.asks.size, asked)
    window = winners(market, bid, left)
    if window is None:
        funnel = FilterReport((*steps, ("similar", market.asks.widest(left, bid.similar))))
        return UnmetBid(bid.job, funnel, hint(market, bid, asked))
    hired = list(window.places[:-1])
    is_free[hired] = False
    return _bundle(market, bid, beacon, window)


def winners(market: Market, bid: Bid, left: Mask) -> SpeedWindow | None:
    """The window of a bid over the offers in `left`: its winners, and last the one that sets their price."""
    return market.asks.best(left, bid.seats + 1, bid.similar)


def _bundle(market: Market, bid: Bid, beacon: bytes, window: SpeedWindow) -> Bundle:
    asks, setter = market.asks, window.places[-1]
    hired = drawn(bid, beacon, (asks.peers[place] for place in window.places[:-1]))
    ask = Credits(int(asks.prices[setter]))
    return Bundle(
        job=bid.job,
        members=hired[: bid.members],
        spares=hired[bid.members :],
        setter=asks.peers[setter],
        ask=ask,
        price=unit_price(ask, bid.work.each),
    )


def drawn(bid: Bid, beacon: bytes, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Winners in the order of a draw that no ask moves: the first are members, the others stand by."""
    return tuple(sorted(peers, key=lambda peer: digest(NS_SPARE, beacon, bid.job, peer)))


def hint(market: Market, bid: Bid, asked: Sequence[OfferConstraint]) -> str:
    """What to relax where no window has a setter beyond its winners."""
    needed = bid.seats + 1
    if market.asks.size < needed:
        return f"{needed} hosts are needed, one of them to set the price, and {market.asks.size} offer"

    def is_enough(left: Mask) -> bool:
        return market.asks.widest(left, bid.similar) >= needed

    similar = f"relax similarity: speeds may differ by {bid.similarity - 100} % at most, one owner may have a third"
    return relief(asked, needed, similar, is_enough)
