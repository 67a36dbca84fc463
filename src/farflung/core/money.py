"""Defines money as a whole number of pico-credits, 10^-12 credit: a token may cost less than a millionth of a credit.

All amounts, and all money of one ledger, fit into 63 bits: 9,223,372 credits. There are no floats here, and nothing
wraps or goes negative.
"""

from __future__ import annotations

import re
from typing import NewType

from farflung.core.errors import PolicyError, UsageError

Credits = NewType("Credits", int)  # pico-credits

PLACES = 12
CREDIT = 10**PLACES
MAX_CREDITS = (1 << 63) - 1
LEAST_PLACES = 6  # that every amount is written with
MICRO = CREDIT // 10**6  # a micro-credit, the unit of receipts and event logs before the pico-credit
ZERO = Credits(0)

_TEXT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,12}))?")


def checked(value: int) -> Credits:
    """An amount inside the representable range; raises PolicyError FF-CORE-010."""
    if not 0 <= value <= MAX_CREDITS:
        raise PolicyError(
            "FF-CORE-010",
            f"amount out of range: {format_credits(value)} credits",
            cause=f"amounts lie between 0 and {format_credits(MAX_CREDITS)} credits",
            hint="check prices and budget",
        )
    return Credits(value)


def add(left: Credits, right: Credits) -> Credits:
    """left + right, checked."""
    return checked(left + right)


def sub(left: Credits, right: Credits) -> Credits:
    """left - right, checked: an account never goes below zero."""
    return checked(left - right)


def times(price: Credits, units: int) -> Credits:
    """price * units, checked."""
    return checked(price * units)


def parse_credits(value: str) -> Credits:
    """Reads `12`, `0.5` or `1.234567` credits, to 12 decimal places; raises UsageError FF-CORE-011."""
    match = _TEXT.fullmatch(value.strip())
    if match is None:
        raise UsageError(
            "FF-CORE-011",
            f"not an amount of credits: {value[:40]!r}",
            cause="an amount has at most 12 decimal places and no sign",
            hint='write it like budget = "2.5"',
        )
    whole, fraction = match.group(1), (match.group(2) or "").ljust(PLACES, "0")
    return checked(int(whole) * CREDIT + int(fraction))


def format_credits(value: int) -> str:
    """Six places, and those of the other six that are needed: `1.234567`, `0.0000000005`."""
    sign = "-" if value < 0 else ""
    whole, fraction = divmod(abs(value), CREDIT)
    places = f"{fraction:0{PLACES}d}"
    return f"{sign}{whole}.{places[:LEAST_PLACES]}{places[LEAST_PLACES:].rstrip('0')}"


def rounded_credits(value: int) -> str:
    """For the eye: to six places, or to four digits where it is less than a thousandth of a credit."""
    step = MICRO if abs(value) >= 1000 * MICRO else 10 ** max(0, len(str(abs(value))) - 4)
    return format_credits((value + step // 2) // step * step)
