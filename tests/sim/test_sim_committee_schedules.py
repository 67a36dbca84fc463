"""Committees under faults and traitors, from seeds: never two final blocks, and blocks again once faults stop.

A failing seed is one line: python tests/sim/sim_committee_schedules.py --seed N
"""

from __future__ import annotations

import os

import pytest
from sim_committee_schedules import failure

QUICK = 100
GROUPS, EACH = 20, 100  # `make soak`: 2,000 more


def check(seeds: range) -> None:
    assert [line for line in map(failure, seeds) if line] == []


@pytest.mark.guarantee
@pytest.mark.whole
def test_a_hundred_schedules_are_safe_and_live() -> None:
    first = int(os.environ.get("FARFLUNG_SEED", "0"))
    check(range(first, first + (1 if "FARFLUNG_SEED" in os.environ else QUICK)))


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_two_thousand_more_schedules_are_safe_and_live(group: int) -> None:
    begin = QUICK + group * EACH
    check(range(begin, begin + EACH))
