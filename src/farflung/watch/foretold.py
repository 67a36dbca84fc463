"""The plan and what came of it, in words: which lines it reckons with, and planned against measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from farflung.core import events
from farflung.core.money import format_credits
from farflung.core.units import format_bytes
from farflung.plan.compare import is_off, ratio
from farflung.watch import words

CAUSE: Final = 100  # characters of one


def lines_of(plan: events.Planned) -> tuple[str, str]:
    """What a round's exchange moves over the busiest member's line, and which lines the plan reckons with."""
    if not plan.lines:
        return "", ""
    moved = (
        f"a round {format_bytes(plan.up_round)} up and {format_bytes(plan.down_round)} down a provider's line"
    )
    return moved, f"lines: {words.clean(plan.lines, 120)}"


def compared(row: events.Compared) -> str:
    """One planned quantity against the measured one, with the ratio."""
    planned, measured = words.amount(row.planned, row.unit), words.amount(row.measured, row.unit)
    share = ratio(row)
    told = f"{share:.2f} of the plan" if share is not None else "not planned"
    most = f", at most {words.amount(row.most, row.unit)}" if row.most else ""
    why = f"; {words.clean(row.cause, CAUSE)}" if row.cause else ""
    return f"{words.clean(row.quantity, 20)}: planned {planned}{most}, measured {measured} ({told}){why}"


def against(row: events.Compared) -> str:
    """The same, short: `sync 49.7 MB of 56.7 MB: 0.88 x`."""
    share = ratio(row)
    told = f"{share:.2f} x" if share is not None else "not planned"
    if row.unit == "micro-credits":
        measured, planned = format_credits(round(row.measured)), format_credits(round(row.planned))
    else:
        measured, planned = words.amount(row.measured, row.unit), words.amount(row.planned, row.unit)
    most = f" (at most {words.amount(row.most, row.unit)})" if row.most else ""
    return f"{words.clean(row.quantity, 14)} {measured} of {planned}{most}: {told}"


def off_plan(rows: Sequence[events.Compared]) -> list[str]:
    """What lies off the plan by more than a quarter, in multiples of it, with its likeliest cause."""
    told = []
    for row in rows:
        if is_off(row):
            share, name = ratio(row), words.clean(row.quantity, 20)
            why = f": {words.clean(row.cause, CAUSE)}" if row.cause else ""
            told.append(
                f"{name} {share:.2f} x the plan{why}" if share is not None else f"{name} was not planned{why}"
            )
    return told
