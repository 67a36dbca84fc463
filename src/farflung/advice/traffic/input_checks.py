"""Refuses input that no cluster has, by its name.

This is a count, an amount, a rate, a word or a link that is negative, missing, NaN or absurd.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import numpy as np

from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.plan.link_syntax import FASTEST, LONGEST, SLOWEST, Link

_Word = TypeVar("_Word", bound=StrEnum)


def count(name: str, value: int, least: int = 1, most: int = limits.PLANNED_RANKS) -> int:
    """`value`, a whole number from `least` to `most`; raises UsageError FF-PLAN-020."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(
            "FF-PLAN-020",
            f"{name} cannot be {_shown(value)}",
            cause=f"a whole number from {least:,} to {most:,} is needed",
            hint=f"correct {name}",
        )
    return value


def amount(
    name: str, value: float, least: float = 0.0, most: float = limits.PLANNED_AMOUNT, *, above: bool = False
) -> float:
    """`value`, finite, from `least` to `most`; `above`: more than `least`. Raises UsageError FF-PLAN-021."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)  # NaN is not between any two
    if not is_number or not least <= value <= most or (above and value == least):
        raise UsageError(
            "FF-PLAN-021",
            f"{name} cannot be {_shown(value)}",
            cause=f"{'more than' if above else 'at least'} {least:g} and at most {most:g}",
            hint=f"correct {name}",
        )
    return float(value)


def word(name: str, value: str, among: type[_Word]) -> _Word:
    """The member of `among` that is spelled like `value`; raises UsageError FF-PLAN-026."""
    try:
        return among(value)
    except ValueError:
        raise UsageError(
            "FF-PLAN-026",
            f"there is no {name} {_shown(value)}",
            cause=f"there are {', '.join(among)}",
            hint=f'use {name} = "{next(iter(among))}"',
        ) from None


def link(name: str, value: Link) -> Link:
    """`value`, with rates and a round trip that a line can have; raises UsageError FF-PLAN-021.

    Links do not check themselves: those of rates that were just measured may lie below any that is planned with.
    """
    amount(f"{name}.up", value.up, SLOWEST, FASTEST)
    amount(f"{name}.down", value.down, SLOWEST, FASTEST)
    amount(f"{name}.round_trip", value.round_trip, 0.0, LONGEST)
    return value


def dividing(what: str, whole: int, parts: str, by: int) -> None:
    """Raises UsageError FF-PLAN-023 unless `by` parts divide the whole evenly."""
    if whole % by:
        raise UsageError(
            "FF-PLAN-023",
            f"`{what} = {whole}` cannot be cut by `{parts} = {by}`",
            cause=f"{whole % by} are left over",
            hint=f"choose `{parts}` so that it divides `{what}`",
        )


def matrix(name: str, rows: Sequence[Sequence[float]], side: int, most: float) -> None:
    """Every entry off the diagonal of a `side` x `side` matrix lies in 0 to `most`; raises FF-PLAN-022, FF-PLAN-021."""
    if len(rows) != side or any(len(row) != side for row in rows):
        shape = f"{len(rows)} rows of {sorted({len(row) for row in rows})[:4]}"
        raise UsageError(
            "FF-PLAN-022",
            f"{name} is no matrix of {side} x {side}",
            cause=f"it has {shape}",
            hint=f"give {name} a row and a column for each rank",
        )
    found = np.array(rows, np.float64)
    np.fill_diagonal(found, 0.0)
    bad = np.argwhere(~((found >= 0.0) & (found <= most)))
    if bad.size:
        at, to = bad[0]
        amount(f"{name}[{at}][{to}]", float(found[at, to]), most=most)


def _shown(value: object) -> str:
    return repr(value)[:40]
