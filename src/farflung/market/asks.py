"""Defines a standing offer: the ask that an owner makes, and what was measured of its machine.

An ask is the owner's word, a price for a calibrated unit and the work that it takes. Speed, memory and lines are no
part of it: what is measured cannot be bid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.money import MAX_CREDITS, Credits
from farflung.core.units import Millis
from farflung.market.clearing import FASTEST
from farflung.market.offer_book import OfferBook, OfferRow, book
from farflung.market.range_checks import fault
from farflung.market.work_units import UnitBounds

ALL_DAY: Final = (1 << 24) - 1
LARGE: Final = limits.UNIT_AMOUNT


class Ask(msgspec.Struct, frozen=True):
    """Pico-credits for one calibrated unit of `peer`'s work, and which jobs it takes.

    `hours`: bit h of 24 is set where it works from h o'clock UTC for an hour. Raises UsageError FF-MARK-014.
    """

    peer: PeerId
    owner: PeerId  # who is paid
    price: Credits
    until: Millis  # ledger time at which it ends
    bounds: UnitBounds  # of the largest unit that it takes
    minimum: int = 1  # calibrated units of a job, below which it does not begin
    most: int = limits.MARKET_UNITS  # and above which it does not, either
    hours: int = ALL_DAY

    def __post_init__(self) -> None:
        wrong = fault(
            {
                "length of peer": (len(self.peer), ID_BYTES, ID_BYTES),
                "length of owner": (len(self.owner), ID_BYTES, ID_BYTES),
                "price": (self.price, 0, MAX_CREDITS),
                "until": (self.until, 0, limits.NEVER),
                "minimum": (self.minimum, 1, limits.MARKET_UNITS),
                "most": (self.most, self.minimum, limits.MARKET_UNITS),
                "hours": (self.hours, 1, ALL_DAY),
            }
        )
        if wrong:
            raise UsageError("FF-MARK-014", "this is no ask", cause=wrong, hint="correct that field")


class HostMeasurements(msgspec.Struct, frozen=True):
    """What others measured of a machine, and what backs it: whole numbers. Raises UsageError FF-MARK-015.

    `reliability`: of a thousand units that it began, how many were accepted.
    """

    card: str
    speed: int  # FLOP/s in the benchmark of its class
    memory_bytes: int  # of the card
    disk_bytes: int
    cores: int
    up: int  # bit/s
    down: int  # bit/s
    reliability: int
    stake: Credits  # that no lease has locked

    def __post_init__(self) -> None:
        wrong = fault(
            {
                "length of card": (len(self.card), 1, limits.CARD_CHARACTERS),
                "speed": (self.speed, 1, FASTEST),
                "memory_bytes": (self.memory_bytes, 0, LARGE),
                "disk_bytes": (self.disk_bytes, 0, LARGE),
                "cores": (self.cores, 0, LARGE),
                "up": (self.up, 0, limits.BIT_RATE),
                "down": (self.down, 0, limits.BIT_RATE),
                "reliability": (self.reliability, 0, 1000),
                "stake": (self.stake, 0, MAX_CREDITS),
            }
        )
        if wrong:
            raise UsageError("FF-MARK-015", "this is no machine", cause=wrong, hint="measure it again")


class StandingOffer(msgspec.Struct, frozen=True):
    """One offer: an ask, and the machine behind it."""

    ask: Ask
    host: HostMeasurements


FACTS: Final = (
    "card", "until", "minimum", "most", "hours", "memory", "disk", "cores", "up", "down", "reliability", "stake",
    *(f"most {name}" for name in UnitBounds.__struct_fields__),
)  # fmt: skip


class Market(msgspec.Struct, frozen=True):
    """Standing asks in order, and the number that each class of cards has among their facts."""

    asks: OfferBook
    cards: dict[str, int]


def market(standing: Sequence[StandingOffer]) -> Market:
    """The book of standing asks. Raises PolicyError FF-MARK-013 where they are too many."""
    cards: dict[str, int] = {}
    rows = [_row(one, cards.setdefault(one.host.card, len(cards))) for one in standing]
    return Market(book(rows, FACTS), cards)


def _row(offer: StandingOffer, card: int) -> OfferRow:
    ask, host = offer.ask, offer.host
    most = ask.bounds
    facts = (
        card, ask.until, ask.minimum, ask.most, ask.hours, host.memory_bytes, host.disk_bytes, host.cores, host.up,
        host.down, host.reliability, host.stake, most.steps, most.flop, most.up_bytes, most.down_bytes,
        most.memory_bytes, most.seconds,
    )  # fmt: skip
    return OfferRow(ask.peer, ask.price, host.speed, ask.owner, card, facts, ask.peer)
