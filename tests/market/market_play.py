"""Small markets that tests play: the same clearing by the core, and by hand as its words say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from farflung.core.ids import PeerId
from farflung.market.clearing import SimilarityRule
from farflung.market.offer_book import OfferRow, book

SPEEDS = (100, 110, 120, 125, 130, 150, 156, 157, 200)
PERCENT = 125


class Slot(NamedTuple):
    """One card: what its owner asks for a unit, its speed, whose it is."""

    ask: int
    speed: int
    owner: int


class Result(NamedTuple):
    """Who won, by number, and what all of them are paid."""

    winners: frozenset[int]
    price: int

    def gain(self, cost: int, *slots: int) -> int:
        """What slots of that cost earn."""
        return sum(self.price - cost for slot in slots if slot in self.winners)


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def played(slots: Sequence[Slot], winners: int, cap: int = 0, reserve: int = 10**9) -> Result | None:
    """By the core: the book and its windows."""
    rows = [OfferRow(peer(i), s.ask, s.speed, bytes([s.owner]), "card", (), peer(i)) for i, s in enumerate(slots)]
    asks = book(rows, ())
    window = asks.best(asks.prices <= reserve, winners + 1, SimilarityRule(PERCENT, cap))
    if window is None:
        return None
    won = (int.from_bytes(asks.peers[place], "big") for place in window.places[:-1])
    return Result(frozenset(won), int(asks.prices[window.places[-1]]))


def by_hand(slots: Sequence[Slot], winners: int, cap: int = 0, reserve: int = 10**9) -> Result | None:
    """By trying every window: one price an owner, its first `cap` asks, the price of the first that is left over."""
    highest = {s.owner: max(t.ask for t in slots if t.owner == s.owner) for s in slots}
    order = sorted((highest[s.owner], i) for i, s in enumerate(slots) if highest[s.owner] <= reserve)
    found: list[tuple[tuple[int, int], int, list[int]]] = []
    for low in {slots[i].speed for _, i in order}:
        counted: list[tuple[int, int]] = []
        for ask, i in order:
            held = sum(slots[j].owner == slots[i].owner for _, j in counted)
            if low <= slots[i].speed <= low * PERCENT // 100 and (not cap or held < cap):
                counted.append((ask, i))
        if len(counted) > winners:
            found.append((counted[winners], -low, [i for _, i in counted[:winners]]))
    if not found:
        return None
    (price, _), _, won = min(found)
    return Result(frozenset(won), price)


def crowd(draws: np.random.Generator, owners: int = 0) -> list[Slot]:
    """Three to ten cards of some speeds; `owners` of them (0: each card its own) share them out."""
    count = int(draws.integers(3, 11))
    speeds = draws.choice(SPEEDS, count)
    asks = draws.integers(0, 13, count)
    whose = draws.integers(0, owners, count) if owners else np.arange(count)
    return [Slot(*(int(value) for value in row)) for row in zip(asks, speeds, whose, strict=True)]


def with_ask(slots: Sequence[Slot], number: int, ask: int) -> list[Slot]:
    """The same market where one slot asks something else."""
    return [s._replace(ask=ask) if i == number else s for i, s in enumerate(slots)]
