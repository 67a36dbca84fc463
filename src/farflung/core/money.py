"""Defines money as a whole number of micro-credits. There are no floats here, and nothing wraps or goes negative."""

from __future__ import annotations

import re
from typing import NewType

from farflung.core.errors import PolicyError, UsageError

Credits = NewType("Credits", int)  # micro-credits

MICRO = 1_000_000
MAX_CREDITS = (1 << 63) - 1
ZERO = Credits(0)

_TEXT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?")


def checked(value: int) -> Credits:
    """An amount inside the representable range; raises PolicyError FF-CORE-010."""
    if not 0 <= value <= MAX_CREDITS:
        raise PolicyError(
            "FF-CORE-010",
            f"amount out of range: {value} micro-credits",
            cause="amounts are whole and lie between 0 and 2^63 - 1",
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
    """Reads `12`, `0.5` or `1.234567` credits; raises UsageError FF-CORE-011."""
    match = _TEXT.fullmatch(value.strip())
    if match is None:
        raise UsageError(
            "FF-CORE-011",
            f"not an amount of credits: {value[:40]!r}",
            cause="an amount has at most 6 decimal places and no sign",
            hint='write it like budget = "2.5"',
        )
    whole, fraction = match.group(1), (match.group(2) or "").ljust(6, "0")
    return checked(int(whole) * MICRO + int(fraction))


def format_credits(value: int) -> str:
    """All six places, always: `1.234567`."""
    sign = "-" if value < 0 else ""
    whole, fraction = divmod(abs(value), MICRO)
    return f"{sign}{whole}.{fraction:06d}"
