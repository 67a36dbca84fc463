"""Defines a requester's bid (budget, deadline, class of cards, work in units) and selects asks that can serve
it.

    reserve = the highest ask at which a unit costs at most `price`, and all units of all members at most `budget`
    in time: speed x open seconds between start and deadline >= FLOP of one member's units

Open seconds are those of the hours in which a machine works. Speed counts in whole MFLOP/s and work in MFLOP, up, so
that it fits 64 bits: a millionth part of a slow card, to the requester's advantage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.money import MAX_CREDITS, Credits, format_credits
from farflung.core.units import Millis, format_bytes, format_count, format_rate, format_seconds
from farflung.market.asks import LARGE, Market
from farflung.market.clearing import FASTEST, SimilarityRule, Whole
from farflung.market.filter_report import Mask, OfferConstraint
from farflung.market.match import SIMILARITY_PERCENT
from farflung.market.offer_book import chosen
from farflung.market.range_checks import fault
from farflung.market.work_units import MemberWork, UnitBounds, ask_within, unit_price

MEGA: Final = 10**6
HOUR_MS: Final = 3_600_000
HOURS: Final = 24
HALF: Final = 12  # hours whose sums are in one table
HALF_DAY: Final = (1 << HALF) - 1
LONGEST_MS: Final = 1000 << 30  # from start to deadline: 34 years


class Bid(msgspec.Struct, frozen=True):
    """Members and spares for a job, each with the same work. Raises UsageError FF-MARK-017.

    Money in pico-credits; `price` for one of the job's units. No `cards`: any class. `memory_bytes` are the card's.
    """

    members: int
    spares: int
    work: MemberWork
    price: Credits
    budget: Credits
    start: Millis
    deadline: Millis
    cards: tuple[str, ...] = ()
    similarity: int = SIMILARITY_PERCENT
    speed: int = 0  # FLOP/s
    memory_bytes: int = 0
    disk_bytes: int = 0
    cores: int = 0
    up: int = 0  # bit/s
    down: int = 0  # bit/s
    reliability: int = 0  # permille
    stake: Credits = Credits(0)

    def __post_init__(self) -> None:
        wrong = fault(
            {
                "members": (self.members, 1, limits.PEERS),
                "spares": (self.spares, 0, limits.PEERS),
                "price": (self.price, 0, MAX_CREDITS),
                "budget": (self.budget, 0, MAX_CREDITS),
                "start": (self.start, 0, limits.NEVER),
                "deadline": (self.deadline, self.start + 1, self.start + LONGEST_MS),
                "number of cards": (len(self.cards), 0, limits.CARDS),
                "length of cards": (max(map(len, self.cards), default=1), 1, limits.CARD_CHARACTERS),
                "similarity": (self.similarity, 100, limits.SIMILARITY),
                "speed": (self.speed, 0, FASTEST),
                **{name: (getattr(self, name), 0, LARGE) for name in ("memory_bytes", "disk_bytes", "cores")},
                **{name: (getattr(self, name), 0, limits.BIT_RATE) for name in ("up", "down")},
                "reliability": (self.reliability, 0, 1000),
                "stake": (self.stake, 0, MAX_CREDITS),
            }
        )
        if wrong:
            raise UsageError("FF-MARK-017", "this is no bid", cause=wrong, hint="correct that field")

    @property
    def seats(self) -> int:
        """Hosts that are hired: members and spares."""
        return self.members + self.spares

    @property
    def units(self) -> int:
        """Units of all members together."""
        return self.members * self.work.units

    @property
    def reserve(self) -> int:
        """The highest ask for a calibrated unit that it can pay, pico-credits."""
        price = min(self.price, self.budget // self.units)
        return min(ask_within(price, self.work.each), MAX_CREDITS)

    @property
    def similar(self) -> SimilarityRule:
        """What may be hired together: at most a third of the *members* of one owner, spares counted with them."""
        return SimilarityRule(self.similarity, cap_of(self.members))

    def total(self, ask: int) -> Credits:
        """What all units cost where a calibrated one costs `ask`."""
        return Credits(unit_price(ask, self.work.each) * self.units)


def cap_of(members: int) -> int:
    """Of one owner, at most a third of the members; one where there are fewer than three."""
    return max(1, members // 3)


def rules(bid: Bid, market: Market) -> tuple[OfferConstraint, ...]:
    """The constraints of a bid on all standing asks, in the order in which a funnel tells of them."""
    facts = market.asks.facts
    size, span = bid.work.calibrated, (bid.deadline - bid.start) // 1000
    known = chosen(market.cards, bid.cards)
    least: tuple[tuple[str, str, int, Callable[[int], str]], ...] = (
        ("memory", "memory", bid.memory_bytes, format_bytes),
        ("disk", "disk", bid.disk_bytes, format_bytes),
        ("cores", "cores", bid.cores, str),
        ("upload", "up", bid.up, format_rate),
        ("download", "down", bid.down, format_rate),
        ("reliability", "reliability", bid.reliability, lambda value: f"{value / 10:g} %"),
        ("stake", "stake", bid.stake, lambda value: f"{format_credits(value)} credits"),
    )
    reserve = f"{format_credits(bid.reserve)} credits for 10^15 FLOP"
    return (
        OfferConstraint("card", " or ".join(bid.cards) or "any", known[facts["card"]]),
        OfferConstraint("standing", "an ask that holds at the start", facts["until"] > bid.start),
        *(OfferConstraint(name, text(value), facts[fact] >= value) for name, fact, value, text in least),
        OfferConstraint("speed", f"{format_count(bid.speed)}FLOP/s", market.asks.speeds >= bid.speed),
        OfferConstraint("unit", "its bounds", _takes(bid.work.each, facts)),
        OfferConstraint("job", f"{size} calibrated units", (facts["minimum"] <= size) & (facts["most"] >= size)),
        OfferConstraint(
            "deadline", f"{format_count(bid.work.flop)}FLOP in {format_seconds(span)}", _in_time(bid, market)
        ),
        OfferConstraint("price", reserve, market.asks.prices <= bid.reserve),
    )


def _takes(unit: UnitBounds, facts: dict[str, Whole]) -> Mask:
    """Whose largest unit holds this one."""
    names = unit.__struct_fields__
    held: Mask = np.logical_and.reduce([facts[f"most {name}"] >= getattr(unit, name) for name in names])
    return held


def _in_time(bid: Bid, market: Market) -> Mask:
    """Who has done a member's units before the deadline, at the speed that was measured, in the hours it works."""
    seconds = open_ms(market.asks.facts["hours"], bid.start, bid.deadline) // 1000
    is_done: Mask = market.asks.speeds // MEGA * seconds >= -(-bid.work.flop // MEGA)
    return is_done


def open_ms(hours: Whole, start: int, end: int) -> Whole:
    """For each set of hours, by its bits: milliseconds between two times that lie in them (UTC; days have 24 hours)."""
    early, late = _tables(start, end)
    found: Whole = early[hours & HALF_DAY] + late[hours >> HALF]
    return found


def _tables(start: int, end: int) -> tuple[Whole, Whole]:
    """Open milliseconds for each set of the first twelve hours of a day, and of the last twelve."""
    days, rest = divmod(end - start, HOURS * HOUR_MS)
    of_hour = [days * HOUR_MS] * HOURS
    at = start
    while rest:
        part = min(rest, HOUR_MS - at % HOUR_MS)
        of_hour[at // HOUR_MS % HOURS] += part
        at, rest = at + part, rest - part
    return _sums(of_hour[:HALF]), _sums(of_hour[HALF:])


def _sums(of_hour: list[int]) -> Whole:
    """The sum of each subset, by its bits."""
    found = np.zeros(1, np.int64)
    for value in of_hour:
        found = np.concatenate((found, found + value))
    return found
