"""A bill counts accepted units, never time; errors pay where they are the job's own; nothing is above the escrow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market_stand import UNIT, named

from farflung.core.errors import UsageError
from farflung.core.money import Credits
from farflung.market.bills import BundleTerms, UnitEnd, UnitReport, bill
from farflung.market.work_units import MemberWork

HOSTS = {named(1): named(10), named(2): named(20), named(3): named(10)}
DEAL = BundleTerms(MemberWork(4, UNIT), 2, Credits(1000), HOSTS)


def report(host: int, unit: int, end: UnitEnd = UnitEnd.ACCEPTED, **more: Any) -> UnitReport:
    return UnitReport(named(host), unit, end, **more)


def test_a_host_is_paid_for_each_accepted_unit_and_for_nothing_else() -> None:
    found = bill(
        DEAL, [report(1, 0), report(1, 1), report(2, 0, UnitEnd.OVER), report(2, 1, UnitEnd.REJECTED)]
    )
    assert found.owed == {named(1): 2000, named(2): 0, named(3): 0}
    assert (found.accepted, found.broken, found.total) == (2, 0, 2000)


def test_seconds_enter_no_sum() -> None:
    assert "seconds" not in UnitReport.__struct_fields__
    assert "seconds" not in BundleTerms.__struct_fields__


def test_an_error_that_one_owner_alone_met_is_its_own() -> None:
    ends = [
        report(1, 0, UnitEnd.ERROR, steps=50, error="nan"),
        report(3, 0, UnitEnd.ERROR, steps=50, error="nan"),
    ]
    assert bill(DEAL, ends).total == 0


def test_an_error_that_two_owners_met_is_the_jobs_and_pays_the_steps_before_it() -> None:
    ends = [
        report(1, 0, UnitEnd.ERROR, steps=50, error="nan"),
        report(2, 0, UnitEnd.ERROR, steps=33, error="nan"),
    ]
    found = bill(DEAL, ends)
    assert found.owed == {named(1): 500, named(2): 330, named(3): 0}
    assert (found.accepted, found.broken) == (0, 2)
    other = [
        report(1, 0, UnitEnd.ERROR, steps=50, error="nan"),
        report(2, 0, UnitEnd.ERROR, steps=33, error="oom"),
    ]
    assert bill(DEAL, other).total == 0


def test_broken_units_are_paid_from_what_accepted_ones_leave() -> None:
    done = [report(1 + unit % 2, unit // 2) for unit in range(7)]
    broken = [
        report(2, 3, UnitEnd.ERROR, steps=100, error="x"),
        report(3, 3, UnitEnd.ERROR, steps=100, error="x"),
    ]
    found = bill(DEAL, [*broken, *done])
    assert found.total == DEAL.cap == 8000
    assert (found.owed[named(2)], found.owed[named(3)]) == (4000, 0)


@pytest.mark.parametrize(
    "bad",
    [
        [report(9, 0)],
        [report(1, 4)],
        [report(1, -1)],
        [report(1, 0), report(1, 0)],
        [report(1, 0), report(1, 0, UnitEnd.OVER)],
        [report(1, 0, UnitEnd.ERROR, steps=101)],
        [report(1, 0, UnitEnd.ERROR, steps=-1)],
        [report(host, unit) for host in (1, 2, 3) for unit in range(4)],
    ],
    ids=["stranger", "unit", "negative", "twice", "both", "steps", "back", "too many"],
)
def test_a_report_that_cannot_be_is_refused(bad: list[UnitReport]) -> None:
    with pytest.raises(UsageError) as error:
        bill(DEAL, bad)
    assert error.value.code == "FF-MARK-012"


REPORTS = st.lists(
    st.builds(
        report,
        st.integers(1, 3),
        st.integers(0, 3),
        st.sampled_from(UnitEnd),
        steps=st.integers(0, 100),
        error=st.sampled_from(["", "nan", "oom"]),
    ),
    max_size=12,
    unique_by=lambda one: (one.peer, one.unit),
)


@given(ends=REPORTS)
@settings(max_examples=80)
def test_no_bill_is_above_its_escrow_and_its_parts_are_its_total(ends: list[UnitReport]) -> None:
    if sum(one.end is UnitEnd.ACCEPTED for one in ends) > 8:
        return
    found = bill(DEAL, ends)
    assert sum(found.owed.values()) == found.total <= DEAL.cap
    assert min(found.owed.values()) >= 0
    assert found.total >= 1000 * found.accepted
