"""Measures work in units with bounds that are declared before they are priced, never in time (V5).

A job is a finite list of units. A unit that goes over a bound is stopped and failed, so that work which never ends
costs no more than it was bounded to.

    calibrated units = ceil(units x FLOP of one / 10^15)      what asks are priced in, so that unequal cards compare
    price of a unit  = ceil(ask x FLOP of one / 10^15)        whole pico-credits, rounded once, and up
    price of a token = ceil(price of a unit / its tokens)     what a lease of the ledger can hold: whole, and up

(research: orchestrate, section 4, metering.)
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.money import Credits, checked
from farflung.market.range_checks import fault

CALIBRATED: Final = 10**15  # FLOP of one calibrated unit, by the benchmark of the card's class


class UnitBounds(msgspec.Struct, frozen=True):
    """The most that one unit takes: optimizer steps, FLOP, bytes up and down, bytes of memory, seconds.

    Raises UsageError FF-MARK-010 for a bound that is missing, negative or absurd.
    """

    steps: int
    flop: int
    up_bytes: int
    down_bytes: int
    memory_bytes: int
    seconds: int

    def __post_init__(self) -> None:
        most = dict.fromkeys(self.__struct_fields__, limits.UNIT_AMOUNT) | {"flop": limits.UNIT_FLOP}
        least = {"up_bytes": 0, "down_bytes": 0}
        wrong = fault({name: (getattr(self, name), least.get(name, 1), most[name]) for name in most})
        if wrong:
            raise UsageError(
                "FF-MARK-010", "a unit of work without bounds", cause=wrong, hint="declare what one unit takes at most"
            )


class MemberWork(msgspec.Struct, frozen=True):
    """What each member of a job does: so many units, each within the same bounds.

    Raises UsageError FF-MARK-011 for a number of units that makes no sense.
    """

    units: int
    each: UnitBounds

    def __post_init__(self) -> None:
        wrong = fault({"units": (self.units, 1, limits.MARKET_UNITS)})
        if wrong or self.calibrated > limits.MARKET_UNITS:
            raise UsageError(
                "FF-MARK-011",
                "this is no amount of work",
                cause=wrong or f"{self.calibrated} calibrated units, and {limits.MARKET_UNITS} are the most",
                hint="split the job",
            )

    @property
    def flop(self) -> int:
        """FLOP of all units of one member."""
        return self.units * self.each.flop

    @property
    def calibrated(self) -> int:
        """Calibrated units of one member, rounded up."""
        return -(-self.flop // CALIBRATED)


def unit_price(ask: int, each: UnitBounds) -> Credits:
    """Pico-credits for one of the job's units, at `ask` pico-credits for a calibrated one."""
    return checked(-(-ask * each.flop // CALIBRATED))


def token_price(price: Credits, tokens: int) -> Credits:
    """Pico-credits for one token of a unit of `tokens` that costs `price`, as a lease of the ledger holds it."""
    return Credits(-(-price // tokens))


def ask_within(price: int, each: UnitBounds) -> int:
    """The highest ask for a calibrated unit at which one of the job's units costs at most `price`."""
    return price * CALIBRATED // each.flop
