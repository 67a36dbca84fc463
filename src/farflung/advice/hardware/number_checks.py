"""Checks numbers that enter a price or a share of work: finite, not negative, not absurd; names those that are
not.
"""

from __future__ import annotations

from typing import Final

from farflung.core.errors import UsageError

MOST_PRICE: Final = 1e9  # of anything, in any currency
MOST_WATTS: Final = 1e9
MOST_TOKENS: Final = 10**18


def positive(field: str, number: float, most: float) -> float:
    """The number, if it is above 0 and at most `most`; raises UsageError FF-PLAN-035."""
    if not 0 < number <= most:
        raise wrong(field, number, f"above 0 and at most {most:g}")
    return number


def checked(field: str, number: float, least: float, most: float) -> float:
    """The number, if it lies from `least` to `most`; raises UsageError FF-PLAN-035. A nan lies nowhere."""
    if not least <= number <= most:
        raise wrong(field, number, f"from {least:g} to {most:g}")
    return number


def whole(field: str, number: int, least: int, most: int) -> int:
    """The same for counts."""
    return int(checked(field, number, least, most))


def wrong(field: str, number: float, wanted: str) -> UsageError:
    """A number that a price or a plan of cards cannot be made of."""
    return UsageError(
        "FF-PLAN-035",
        f"{field} is {number:g}",
        cause=f"it is a number {wanted}",
        hint=f"give {field} as it is, or leave it out where it is not known",
    )
