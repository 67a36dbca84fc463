"""Says what a data set is made of, and which files were left out of it: before the price, and afterwards."""

from __future__ import annotations

from typing import Final

from farflung.core.events import PlanEvent
from farflung.core.units import format_bytes
from farflung.job import text_files
from farflung.watch import phrases

_USUAL: Final = frozenset({"hidden", "empty", "limit"})


def size(plan: PlanEvent) -> str:
    """`4.58 kB of data in 2 files`."""
    files = f" in {phrases.many(plan.data_files, 'file')}" if plan.data_files else ""
    return f"{format_bytes(plan.data_bytes)} of data{files}"


def lines(plan: PlanEvent | text_files.DataAccount) -> list[str]:
    """One line for each reason why files are left out, then one for each that others are told of."""
    left_out = [f"left out: {text_files.told(count)}" for count in plan.left_out]
    return left_out + [f"noted: {text_files.told(count)}" for count in plan.noted]


def summary(plan: PlanEvent) -> str:
    """What was left out, in one cell of the screen; empty where nothing was."""
    if not plan.left_out:
        return ""
    files, total = sum(count.files for count in plan.left_out), sum(count.bytes for count in plan.left_out)
    why = ", ".join(count.reason for count in plan.left_out)
    return f"left out of the data: {phrases.many(files, 'file')}, {format_bytes(total)} ({phrases.clean(why, 80)})"


def is_unasked(plan: PlanEvent) -> bool:
    """Whether files are left out for another reason than that they are hidden or empty, or that the job says so."""
    return any(count.reason not in _USUAL for count in plan.left_out)
