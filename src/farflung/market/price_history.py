"""Keeps the prices at which the latest bundles were cleared, and summarises the last day of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.money import MAX_CREDITS, Credits
from farflung.core.units import Millis
from farflung.market.clearing import Whole
from farflung.market.offer_book import chosen
from farflung.market.range_checks import fault

DAY_MS: Final = 86_400_000


class BundleSale(msgspec.Struct, frozen=True):
    """One bundle: when, of which class of cards, how many hosts, at which price for a calibrated unit."""

    at: Millis
    card: str
    hosts: int
    ask: Credits


class PriceHistory(msgspec.Struct, frozen=True):
    """The latest sales as columns, oldest first. `cards` has the number of each class."""

    at: Whole
    card: Whole
    hosts: Whole
    ask: Whole
    cards: dict[str, int]


class DayPrices(msgspec.Struct, frozen=True):
    """Pico-credits for a calibrated unit in the last day: least, middle and most; and how much was sold."""

    low: Credits
    median: Credits  # half of all hosts were hired at this price or below
    high: Credits
    bundles: int
    hosts: int


def tape(sales: Sequence[BundleSale]) -> PriceHistory:
    """The latest limits.PRICES of these sales. Raises UsageError FF-MARK-019 for a false one, or a wrong order."""
    cards: dict[str, int] = {}
    before = 0
    for sale in sales:
        wrong = fault(
            {
                "at": (sale.at, before, limits.NEVER - 1),
                "hosts": (sale.hosts, 1, 2 * limits.PEERS),
                "ask": (sale.ask, 0, MAX_CREDITS),
                "length of card": (len(sale.card), 1, limits.CARD_CHARACTERS),
            }
        )
        if wrong:
            raise UsageError("FF-MARK-019", "this is no sale", cause=wrong, hint="read the tape again")
        before = sale.at
    kept = sales[-limits.PRICES :]
    numbers = np.array([cards.setdefault(sale.card, len(cards)) for sale in kept], np.int64)
    columns = np.array([(sale.at, sale.hosts, sale.ask) for sale in kept], np.int64).reshape(-1, 3).T
    return PriceHistory(columns[0], numbers, columns[1], columns[2], cards)


def last_day(sold: PriceHistory, cards: Sequence[str], now: Millis) -> DayPrices | None:
    """Sales of these classes (none: of all) in the 24 h before `now`; None where there were none."""
    first, last = np.searchsorted(sold.at, (now - DAY_MS, now), side="right")
    wanted = np.flatnonzero(chosen(sold.cards, cards)[sold.card[first:last]]) + first
    if not wanted.size:
        return None
    order = wanted[np.argsort(sold.ask[wanted], kind="stable")]
    hired = np.cumsum(sold.hosts[order])
    middle = order[np.searchsorted(hired, -(-int(hired[-1]) // 2))]
    low, median, high = (Credits(int(sold.ask[i])) for i in (order[0], middle, order[-1]))
    return DayPrices(low, median, high, int(wanted.size), int(hired[-1]))
