"""Checks that a bundle keeps the market's rules, from the asks, the bid and the beacon alone, as any reader can.

It is legal to choose badly: whoever clears may have seen other asks, and no rule says that a cheaper window was missed.
It is not legal to hire who does not fit, to pay a price that was not set by an ask behind all winners in the same
window, to give an owner more than its third, or to choose who begins. Whole numbers throughout, and the constraints
are those of `bids.rules`, on the chosen and what else their owners ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.market.asks import Market, StandingOffer, market
from farflung.market.auction import Bundle, drawn
from farflung.market.bids import Bid, cap_of, rules
from farflung.market.clearing import reach
from farflung.market.work_units import unit_price


def check(bundle: Bundle, bid: Bid, standing: Mapping[PeerId, StandingOffer], beacon: bytes) -> None:
    """Raises PolicyError FF-MARK-020 naming the first rule that the bundle breaks. `standing`: asks by peer."""
    broken = next(_broken(bundle, bid, standing, beacon), "")
    if broken:
        raise PolicyError(
            "FF-MARK-020", "this bundle is not legal", cause=broken, hint="clear the bid again, from its asks"
        )


def _broken(
    bundle: Bundle, bid: Bid, standing: Mapping[PeerId, StandingOffer], beacon: bytes
) -> Iterator[str]:
    """The rules that are broken, each as what is wrong."""
    hired = (*bundle.members, *bundle.spares)
    named = (*hired, bundle.setter)
    if bundle.job != bid.job:
        yield "it is for another job"
    if (len(bundle.members), len(bundle.spares)) != (bid.members, bid.spares):
        yield f"{bid.members} members and {bid.spares} spares are asked for"
    if len(set(named)) != len(named):
        yield "a host is named twice"
    if missing := [peer for peer in named if peer not in standing]:
        yield f"host {missing[0][:4].hex()} has no standing ask"
        return
    chosen = [standing[peer] for peer in named]
    sellers = {(one.ask.owner, one.host.card) for one in chosen}
    offers = market([one for one in standing.values() if (one.ask.owner, one.host.card) in sellers])
    yield from _unfit(bid, offers, set(named))
    yield from _unlike(bid, chosen)
    yield from _mispriced(bundle, bid, offers)
    if drawn(bid, beacon, hired) != hired:
        yield "members and spares do not stand in the order of the draw"


def _unfit(bid: Bid, offers: Market, named: set[PeerId]) -> Iterator[str]:
    """Hosts, the setter among them, that do not meet a constraint."""
    for rule in rules(bid, offers):
        for peer, is_met in zip(offers.asks.peers, rule.met, strict=True):
            if peer in named and not is_met:
                yield f"host {peer[:4].hex()} does not meet {rule.name}: {rule.value}"


def _unlike(bid: Bid, named: list[StandingOffer]) -> Iterator[str]:
    """Speeds too far apart, and owners with more than their share; the ask that sets the price counts."""
    speeds = [one.host.speed for one in named]
    if max(speeds) > reach(min(speeds), bid.similarity):
        yield f"speeds of {min(speeds)} and {max(speeds)} FLOP/s are not similar"
    owners = [one.ask.owner for one in named]
    most = max(owners.count(owner) for owner in set(owners))
    if most > cap_of(bid.members):
        yield f"one owner has {most} of {len(named)} asks, and may have {cap_of(bid.members)}"


def _mispriced(bundle: Bundle, bid: Bid, offers: Market) -> Iterator[str]:
    """A price that no ask behind all winners has set, or one that is not what the bid's unit costs at it."""
    place = {peer: place for place, peer in enumerate(offers.asks.peers)}
    if max(place[peer] for peer in (*bundle.members, *bundle.spares)) > place[bundle.setter]:
        yield "the ask that sets the price stands before a winner's"
    asked = int(offers.asks.prices[place[bundle.setter]])
    if asked != bundle.ask:
        yield f"the setter asks {asked}, and {bundle.ask} is paid"
    if unit_price(bundle.ask, bid.work.each) != bundle.price:
        yield f"a unit costs {unit_price(bundle.ask, bid.work.each)} at this ask, and not {bundle.price}"
