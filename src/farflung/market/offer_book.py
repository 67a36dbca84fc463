"""Holds the standing asks as columns in one order, so that constraints and prices are evaluated for all at once.

The order is (ask, turn): `turn` says who comes first of those that ask the same. Who is named twice counts once, at its
lowest ask. One owner has one price for one class of
cards: where its asks differ, each counts at the highest, since nobody is ever paid less than he asks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.market.clearing import ALONE, FASTEST, SimilarityRule, SpeedWindow, Whole, best, widest, within
from farflung.market.filter_report import Mask

LARGEST: Final = (1 << 63) - 1


class OfferRow(msgspec.Struct, frozen=True):
    """One offer: pico-credits asked, FLOP/s, whose it is, its class of cards, and `facts` in a fixed order.

    `turn`: 32 bytes, the least of those that ask the same comes first.
    """

    peer: PeerId
    price: int
    speed: int
    owner: bytes
    card: Hashable
    facts: tuple[int, ...]
    turn: bytes


class OfferBook(msgspec.Struct, frozen=True):
    """Columns over offers, cheapest first. `owners` are numbers, one for each owner of several; `facts` by name.

    `by_speed` are places, slowest first.
    """

    peers: tuple[PeerId, ...]
    prices: Whole
    speeds: Whole
    owners: Whole
    by_speed: Whole
    facts: dict[str, Whole]

    @property
    def size(self) -> int:
        """How many offers there are."""
        return len(self.peers)

    @property
    def owner_count(self) -> int:
        """How many owners there are."""
        return int((self.owners == ALONE).sum()) + len(np.unique(self.owners[self.owners != ALONE]))

    def best(self, left: Mask, needed: int, rule: SimilarityRule) -> SpeedWindow | None:
        """The window over the offers in `left` whose `needed`-th comes earliest, by places in this book."""
        kept = np.flatnonzero(left)
        found = best(self.speeds[kept], self.owners[kept], needed, rule)
        if found is None:
            return None
        return msgspec.structs.replace(found, places=tuple(kept[list(found.places)].tolist()))

    def widest(self, left: Mask, rule: SimilarityRule) -> int:
        """How many of the offers in `left` the fullest window counts."""
        kept = self.by_speed[left[self.by_speed]]
        return widest(self.speeds[kept], self.owners[kept], rule)

    def within(self, left: Mask, slowest: int, rule: SimilarityRule) -> tuple[int, ...]:
        """The places of all offers in `left` that count in the window which begins at `slowest`."""
        kept = np.flatnonzero(left)
        return tuple(kept[within(self.speeds[kept], self.owners[kept], slowest, rule)].tolist())


def book(rows: Sequence[OfferRow], names: Sequence[str]) -> OfferBook:
    """Puts offers in order; `names` are those of their facts. Raises PolicyError FF-MARK-013 for too many.

    Numbers beyond 64 bits count as the largest, speeds beyond FASTEST as that: both are beyond all that is asked for.
    """
    if len(rows) > limits.ASKS:
        raise PolicyError(
            "FF-MARK-013",
            f"{len(rows)} asks are too many for one book",
            cause=f"{limits.ASKS} are the most",
            hint="keep a book for each class of cards",
        )
    rows = list(rows)
    peers = np.array([row.peer for row in rows], dtype="S32")
    prices = _column([row.price for row in rows])
    by_peer = np.lexsort((prices, peers))
    named = peers[by_peer]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = named[1:] != named[:-1]
    once = by_peer[is_first]
    prices = _of_owner(prices[once], [rows[i] for i in once])
    turns = np.array([row.turn for row in rows], dtype="S32")[once]
    order = once[np.lexsort((turns, prices))]
    facts = _column([row.facts for row in rows]).reshape(len(rows), len(names))[order]
    owners = _numbered([rows[i].owner for i in order])
    speeds = np.minimum(_column([row.speed for row in rows]), FASTEST)[order]
    return OfferBook(
        peers=tuple(rows[i].peer for i in order),
        prices=np.sort(prices),
        speeds=speeds,
        owners=np.where(np.bincount(owners)[owners] > 1, owners, ALONE) if len(order) else owners,
        by_speed=np.argsort(speeds, kind="stable"),
        facts={name: np.ascontiguousarray(facts[:, i]) for i, name in enumerate(names)},
    )


def chosen(numbers: Mapping[str, int], names: Sequence[str]) -> Mask:
    """By the number of a class of cards: whether it is one of `names`; all are where there are none."""
    found = np.full(len(numbers), not names)
    found[[numbers[name] for name in names if name in numbers]] = True
    return found


def _of_owner(prices: Whole, rows: Sequence[OfferRow]) -> Whole:
    """Each owner's highest price for each class of cards."""
    sellers = _numbered([(row.owner, row.card) for row in rows])
    highest = np.full(len(rows), -LARGEST - 1, np.int64)
    np.maximum.at(highest, sellers, prices)
    return highest[sellers]


def _numbered(things: Sequence[Hashable]) -> Whole:
    """A number for each different thing, in the order in which they first come."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(thing, len(numbers)) for thing in things], dtype=np.int64)


def _column(values: Sequence[int] | Sequence[tuple[int, ...]]) -> Whole:
    """Whole numbers as 64 bits."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        held = np.clip(np.array(values, dtype=object), -LARGEST - 1, LARGEST)
        return np.asarray(held, np.int64)
