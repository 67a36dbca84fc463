"""The market: what a quote takes among 100,000 asks, and who gains by not asking what it costs him.

    python bench/market.py [--quick] [--out FILE]

Seconds are processor time of one core. Asks, bids and markets are drawn from seeds: cards of some twenty classes with
speeds that spread by a tenth, prices that spread by a third around their class's, six machines of ten the only one of
their owner. Bids want 4 to 64 members and a spare for each eight, of one to three classes or of any.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).with_suffix("")))
from market_deviations import deviations
from msgspec.structs import replace
from reporting import Row, at_most, load, show, told

from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.core.units import Millis
from farflung.market.asks import ALL_DAY, Ask, HostMeasurements, Market, StandingOffer, market
from farflung.market.bids import Bid
from farflung.market.price_history import DAY_MS, BundleSale, PriceHistory, tape
from farflung.market.quote import quote
from farflung.market.work_units import MemberWork, UnitBounds

ASKS = 100_000
CLASSES = 20
NOW = 10 * DAY_MS
GIB = 1 << 30
LARGEST = UnitBounds(10_000, 1 << 60, 1 << 40, 1 << 40, 1 << 38, 86_400)
UNIT = UnitBounds(100, 2 * 10**15, 200 * 10**6, 10**9, 8 * GIB, 900)


def name(number: int) -> bytes:
    """32 bytes that look like a key."""
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def asks(count: int, seed: int = 1) -> list[StandingOffer]:
    """Standing asks of a large market."""
    draws = np.random.Generator(np.random.Philox(seed))
    card = draws.integers(0, CLASSES, count)
    speed = 5e12 * 1.25**card * np.exp(0.1 * draws.standard_normal(count))
    price = 3000 * np.exp(0.33 * draws.standard_normal(count))
    owner = np.where(draws.random(count) < 0.6, np.arange(count), count + draws.integers(0, count // 10, count))
    memory, hours = 6 + 2 * (card // 2), draws.random(count) < 0.7
    up = 10 ** draws.uniform(6.5, 9, count)
    trust, stake = draws.integers(700, 1001, count), draws.integers(0, 10**8, count)
    return [
        StandingOffer(
            Ask(
                PeerId(name(i)), PeerId(name(int(owner[i]))), Credits(int(price[i])), Millis(NOW + 7 * DAY_MS), LARGEST,
                hours=ALL_DAY if hours[i] else 0xFF003F,
            ),
            HostMeasurements(
                f"card {card[i]}", int(speed[i]), int(memory[i]) * GIB, 200 * GIB, 8, int(up[i]), 4 * int(up[i]),
                int(trust[i]), Credits(int(stake[i])),
            ),
        )
        for i in range(count)
    ]  # fmt: skip


def bids(count: int, seed: int = 2) -> list[Bid]:
    """What requesters want."""
    draws = np.random.Generator(np.random.Philox(seed))

    def one(number: int) -> Bid:
        members = int(draws.integers(4, 65))
        cards = tuple(f"card {card}" for card in draws.choice(CLASSES, int(draws.integers(0, 4)), replace=False))
        return Bid(
            members=members, spares=-(-members // 8),
            work=MemberWork(200, UNIT), price=Credits(int(draws.integers(4000, 20_000))), budget=Credits(10**12),
            start=Millis(NOW), deadline=Millis(NOW + DAY_MS * int(draws.integers(1, 4))), cards=cards,
            memory_bytes=int(draws.integers(6, 14)) * GIB, cores=4, up=int(10 ** draws.uniform(6.5, 7.5)),
            reliability=int(draws.integers(700, 950)), stake=Credits(10**6),
        )  # fmt: skip

    return [one(number) for number in range(count)]


def sales(count: int, seed: int = 3) -> PriceHistory:
    """Bundles of two days."""
    draws = np.random.Generator(np.random.Philox(seed))
    at = np.sort(draws.integers(NOW - 2 * DAY_MS, NOW, count))
    return tape(
        [
            BundleSale(
                Millis(int(at[i])), f"card {draws.integers(0, CLASSES)}", 16, Credits(int(draws.integers(2000, 4000)))
            )
            for i in range(count)
        ]
    )


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of one call, and what it answered."""
    began = time.process_time()
    answer = call()
    return time.process_time() - began, answer


def quotes(offers: Market, sold: PriceHistory, count: int) -> Iterator[Row]:
    """The slowest of a hundred quotes, each for another bid."""
    wanted = bids(count)
    quote(offers, wanted[0], sold, Millis(NOW))
    spent = sorted(seconds(lambda bid=bid: quote(offers, bid, sold, Millis(NOW)))[0] for bid in wanted)  # type: ignore[misc]
    against = f"{ASKS:,} asks, {count} bids, {sold.at.size:,} sales of two days"
    yield at_most("quote, p99", 1e3 * spent[-1 - count // 100], "ms", 50.0, against)
    yield told("quote, median", 1e3 * spent[count // 2], "ms", against)
    yield told("quote, slowest", 1e3 * spent[-1], "ms", against)
    largest = replace(wanted[0], members=1024, spares=1024, cards=(), memory_bytes=0, up=0, reliability=0)
    most = max(seconds(lambda: quote(offers, largest, sold, Millis(NOW)))[0] for _ in range(5))
    yield told("quote, 1024 members and as many spares of any class", 1e3 * most, "ms", against)


def speed(quick: bool) -> Iterator[Row]:
    """Everything that has a clock."""
    standing = asks(ASKS)
    gc.collect()
    spent, offers = seconds(lambda: market(standing))
    yield told("book", spent, "s", f"{ASKS:,} asks read and put in order, once an epoch")
    yield from quotes(offers, sales(20_000), 100 if quick else 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer bids and deviations")
    parser.add_argument("--out", type=Path, help="also add the rows to this file")
    options = parser.parse_args()
    busy = load()
    for part in (speed, deviations):
        for row in part(options.quick):
            show("market", row, busy, options.out)


if __name__ == "__main__":
    main()
