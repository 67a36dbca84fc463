"""Published figures of traffic, time and memory, beside what this planner says: those of tests/advice/*_cases.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from plan_bytes import Wanted
from reporting import Row, at_most

sys.path.insert(1, str(Path(__file__).parents[2] / "tests" / "advice"))


class Figure(NamedTuple):
    """A published one, how far ours may lie from it, and ours."""

    published: float
    allowed: float
    ours: float


def rows(wanted: Wanted, *, is_quick: bool) -> Iterator[Row]:
    """How many figures miss 3 % and the rounding of their last digit, of traffic and of memory."""
    import footprint_cases
    import traffic_cases

    found = {
        "traffic, time and failures": [
            Figure(case.published, case.allowed, case.ours()) for case in traffic_cases.CASES
        ],
        "memory": [Figure(float(case.printed), case.allowed, case.ours) for case in footprint_cases.CASES],
    }
    for name, figures in found.items():
        if wanted(name):
            yield _row(name, figures)


def _row(name: str, figures: Sequence[Figure]) -> Row:
    missed = sum(abs(one.ours - one.published) > one.allowed for one in figures)
    worst = max(abs(one.ours / one.published - 1) for one in figures)
    return at_most(
        f"references: {name}", missed, "missed", 0, f"{len(figures)} published figures, worst {worst:.1%} off"
    )
