"""Describes the plan and its outcome in words: the lines it assumes, and planned against measured values."""

from __future__ import annotations

from typing import Final

from farflung.core import events
from farflung.core.money import format_credits
from farflung.core.units import format_bytes
from farflung.plan.plan_comparison import is_off, ratio
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline

KEPT: Final = "all within 0.8 to 1.25 of the plan"


def assumed_lines(plan: events.PlanEvent) -> tuple[str, str]:
    """What a round's exchange moves over the busiest member's line, and which lines the plan assumes."""
    if not plan.lines:
        return "", ""
    moved = f"a round {format_bytes(plan.up_round)} up and {format_bytes(plan.down_round)} down a provider's line"
    return moved, f"lines: {phrases.clean(plan.lines, 120)}"


def summary(t: RunTimeline, report: str) -> str:
    """How many estimates were off; `report`: the command that says which, and why. Empty: nothing was compared."""
    off = sum(is_off(row) for row in t.compared)
    if off:
        return f"{off} of {len(t.compared)} estimates were off by over a quarter: {report}"
    return KEPT if t.compared else ""


def basis(t: RunTimeline) -> tuple[str, str]:
    """What a comparison stands on, where it is not all of a run in one session; empty: it is."""
    if not t.compared or t.result is None:
        return "", ""
    whole = t.plan.rounds if t.plan is not None else t.result.rounds
    part = f"compared with the plan of {t.result.rounds} of {phrases.many(whole, 'round')}"
    again = "time is not compared: how long the run was stopped is unknown"
    return part if t.result.rounds < whole else "", again if t.sessions > 1 else ""


def short_comparison(row: events.PlanComparisonEvent) -> str:
    """The same, short: `sync 49.7 MB of 56.7 MB: 0.88 x`."""
    share = ratio(row)
    multiple = f"{share:.2f} x" if share is not None else "not planned"
    if row.unit == "pico-credits":
        measured, planned = format_credits(round(row.measured)), format_credits(round(row.planned))
    else:
        measured, planned = phrases.amount(row.measured, row.unit), phrases.amount(row.planned, row.unit)
    most = f" (at most {phrases.amount(row.most, row.unit)})" if row.most else ""
    return f"{phrases.clean(row.quantity, 14)} {measured} of {planned}{most}: {multiple}"
