"""Who gains by not asking what it costs him: small markets, every deviation tried, by the market's own clearing.

Markets: three to ten slots, costs of 0 to 12, nine speeds from 100 to 200 (windows of 1.25 hold some and not others),
one to four winners, a reserve of 12. A deviation is another ask from 0 to 13; below, each way to deviate is told
apart. "Pays" counts markets in which somebody has a deviation that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from reporting import Row, at_most, told

from farflung.core.ids import PeerId
from farflung.market import offer_book as books
from farflung.market.bids import cap_of
from farflung.market.clearing import SimilarityRule

SPEEDS = (100, 110, 120, 125, 130, 150, 156, 157, 200)
DEAREST = 12  # cost, and the reserve
PERCENT = 125


class Slot(NamedTuple):
    """One card: what is asked for a unit, its speed, and whose it is."""

    ask: int
    speed: int
    owner: int


class Case(NamedTuple):
    """One market, and how many it hires."""

    slots: list[Slot]
    winners: int


Sold = dict[int, int]  # what each winner is paid
Clear = Callable[[Sequence[Slot], int], Sold]


def clear(slots: Sequence[Slot], winners: int) -> Sold:
    """As the market does, with the owner's third."""
    rows = [
        books.OfferRow(PeerId(i.to_bytes(32, "big")), s.ask, s.speed, bytes([s.owner]), "", (), i.to_bytes(32, "big"))
        for i, s in enumerate(slots)
    ]
    asks = books.book(rows, ())
    window = asks.best(asks.prices <= DEAREST, winners + 1, SimilarityRule(PERCENT, cap_of(winners)))
    if window is None:
        return {}
    price = int(asks.prices[window.places[-1]])
    return {int.from_bytes(asks.peers[place], "big"): price for place in window.places[:-1]}


def pay_as_bid(slots: Sequence[Slot], winners: int) -> Sold:
    """The same winners, each paid its own ask: the yardstick."""
    return {i: slots[i].ask for i in clear(slots, winners)}


def twice(slots: Sequence[Slot], winners: int) -> Sold:
    """Two bids of one epoch, one after the other."""
    sold = clear(slots, winners)
    rest = [i for i in range(len(slots)) if i not in sold]
    later = clear([slots[i] for i in rest], winners)
    return sold | {rest[i]: price for i, price in later.items()}


def market(draws: np.random.Generator, owners: int) -> Case:
    """One market; `owners` 0: each slot its own."""
    count = int(draws.integers(3, 11))
    columns = (
        draws.integers(0, DEAREST + 1, count),
        draws.choice(SPEEDS, count),
        draws.integers(0, owners, count) if owners else np.arange(count),
    )
    slots = [Slot(*(int(value) for value in row)) for row in zip(*columns, strict=True)]
    cost = {slot.owner: slot.ask for slot in slots}  # an owner's cards of one class cost it the same
    return Case([slot._replace(ask=cost[slot.owner]) for slot in slots], int(draws.integers(1, 5)))


class Tried(NamedTuple):
    """What one deviation brought whoever did it, above honesty."""

    more: int


Deviate = Callable[[Case], Iterator[Tried]]


def gain(sold: Sold, cost: int, mine: Sequence[int]) -> int:
    """What slots of that cost earn."""
    return sum(sold[i] - cost for i in mine if i in sold)


def asks_of_one(case: Case, by: Clear = clear) -> Iterator[Tried]:
    """A seller with one slot asks anything."""
    honest = by(case.slots, case.winners)
    for i, slot in enumerate(case.slots):
        if sum(other.owner == slot.owner for other in case.slots) > 1:
            continue
        for ask in (ask for ask in range(DEAREST + 2) if ask != slot.ask):
            told = [*case.slots[:i], slot._replace(ask=ask), *case.slots[i + 1 :]]
            yield Tried(gain(by(told, case.winners), slot.ask, [i]) - gain(honest, slot.ask, [i]))


def asks_of_owner(case: Case) -> Iterator[Tried]:
    """An owner of several slots asks anything for all of them, or offers fewer."""
    honest = clear(case.slots, case.winners)
    for owner in {slot.owner for slot in case.slots}:
        mine = [i for i, slot in enumerate(case.slots) if slot.owner == owner]
        if len(mine) < 2:
            continue
        cost = case.slots[mine[0]].ask
        truth = gain(honest, cost, mine)
        for ask in range(DEAREST + 2):
            told = [s._replace(ask=ask) if s.owner == owner else s for s in case.slots]
            yield Tried(gain(clear(told, case.winners), cost, mine) - truth)
        for kept_back in mine:
            told = [s._replace(ask=DEAREST + 1, owner=99) if i == kept_back else s for i, s in enumerate(case.slots)]
            yield Tried(gain(clear(told, case.winners), cost, mine) - truth)


def false_names(case: Case, is_hired: bool) -> Iterator[Tried]:
    """A seller with one slot offers a second one that does not exist, under another name.

    Where that is hired it cannot work and loses its stake, which is not counted; where it sets a price, nothing.
    """
    honest = clear(case.slots, case.winners)
    for i, slot in enumerate(case.slots):
        for speed in {other.speed for other in case.slots}:
            for ask in range(0, DEAREST + 1, 2):
                sold = clear([*case.slots, Slot(ask, speed, 98)], case.winners)
                if (len(case.slots) in sold) == is_hired:
                    yield Tried(gain(sold, slot.ask, [i]) - gain(honest, slot.ask, [i]))


def slowed(case: Case) -> Iterator[Tried]:
    """A seller with one slot lets its card be measured slower than it is."""
    honest = clear(case.slots, case.winners)
    for i, slot in enumerate(case.slots):
        for speed in (speed for speed in SPEEDS if speed < slot.speed):
            told = [*case.slots[:i], slot._replace(speed=speed), *case.slots[i + 1 :]]
            yield Tried(gain(clear(told, case.winners), slot.ask, [i]) - gain(honest, slot.ask, [i]))


def pairs(case: Case) -> Iterator[Tried]:
    """Two sellers with a slot each agree on what one of them asks, and share what both earn."""
    honest = clear(case.slots, case.winners)
    for i, one in enumerate(case.slots):
        for j, two in enumerate(case.slots):
            if i == j:
                continue
            truth = gain(honest, one.ask, [i]) + gain(honest, two.ask, [j])
            for ask in range(DEAREST + 2):
                told = [*case.slots[:i], one._replace(ask=ask), *case.slots[i + 1 :]]
                sold = clear(told, case.winners)
                yield Tried(gain(sold, one.ask, [i]) + gain(sold, two.ask, [j]) - truth)


class Seen(NamedTuple):
    """Over all markets: deviations tried, those that paid, markets in which one did, and the most it brought."""

    tried: int
    paid: int
    markets: int
    where: int
    most: int


def play(way: Deviate, owners: Sequence[int], at_least: int, seed: int = 11) -> Seen:
    """Plays markets until so many deviations were tried."""
    draws = np.random.Generator(np.random.Philox(seed))
    tried = paid = markets = where = most = 0
    while tried < at_least:
        found = [deviation.more for deviation in way(market(draws, owners[markets % len(owners)]))]
        tried, markets = tried + len(found), markets + 1
        paid += sum(more > 0 for more in found)
        where += max(found, default=0) > 0
        most = max(most, *found, 0)
    return Seen(tried, paid, markets, where, most)


def deviations(quick: bool) -> Iterator[Row]:
    """The goal is for a seller with one slot and one bid; all else is told."""
    many = 5_000 if quick else 100_000
    others = 2_000 if quick else 40_000
    seen = play(asks_of_one, (0, 0, 4, 6), many)
    yield told("deviations tried, one slot, one bid", seen.tried, "deviations", f"{seen.markets} markets, computed")
    yield at_most("deviations that pay, one slot, one bid", seen.paid, "deviations", 0, f"of {seen.tried}, computed")
    ways: tuple[tuple[str, Deviate, Sequence[int]], ...] = (
        ("pay as bid, one slot", lambda case: asks_of_one(case, pay_as_bid), (0,)),
        ("two bids of one epoch, one slot", lambda case: asks_of_one(case, twice), (0,)),
        ("several slots of one owner", asks_of_owner, (3, 4, 6)),
        ("a false name that is hired", lambda case: false_names(case, True), (0,)),
        ("a false name that sets a price", lambda case: false_names(case, False), (0,)),
        ("one slot that is measured slower", slowed, (0,)),
        ("two sellers that agree", pairs, (0,)),
    )
    for name, way, owners in ways:
        seen = play(way, owners, others)
        where = f"{seen.tried} deviations in {seen.markets} markets, {seen.paid} pay, {seen.most} at most; costs 0-12"
        yield told(f"markets in which it pays: {name}", seen.where / seen.markets, "share", where)
