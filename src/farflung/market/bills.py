"""Computes what each host is owed from how its units ended, in whole micro-credits, never above the escrow.

    owed = accepted units x price of a unit
         + for each unit that the job's own code broke: the share of its price that its steps were done, rounded down

An error is the job's own where hosts of two owners met it; with one owner alone it is the host's, and pays nothing. So
nobody is paid for breaking his own work, and a broken job costs the steps that it ran. Units that were stopped at
a bound, found false or never came pay nothing. Seconds are a bound and enter no sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from farflung.core.errors import UsageError
from farflung.core.ids import PeerId
from farflung.core.money import Credits, add, times
from farflung.market.range_checks import fault
from farflung.market.work_units import MemberWork, escrow

WITNESSES: Final = 2  # owners that must meet an error before it is the job's


class UnitEnd(StrEnum):
    """How a unit ended."""

    ACCEPTED = "accepted"  # within its bounds, and no audit found it false
    OVER = "over"  # stopped at a bound
    ERROR = "error"  # its code raised one
    REJECTED = "rejected"  # found false, or it never came


class UnitReport(msgspec.Struct, frozen=True):
    """The end of one unit on one host, `steps` into it; `error` names what was raised, the same on every host."""

    peer: PeerId
    unit: int
    end: UnitEnd
    steps: int = 0
    error: str = ""


class BundleTerms(msgspec.Struct, frozen=True):
    """What a bill goes by: the work of each of `members`, micro-credits for a unit, and who owns each host."""

    work: MemberWork
    members: int
    price: Credits
    owners: Mapping[PeerId, PeerId]  # spares included

    @property
    def cap(self) -> Credits:
        """What may be owed in all."""
        return escrow(self.work, self.price, self.members)


class Bill(msgspec.Struct, frozen=True):
    """Micro-credits owed to each host, and the units that they are for."""

    owed: dict[PeerId, Credits]
    accepted: int
    broken: int  # by the job's own code
    total: Credits


def bill(bundle: BundleTerms, reports: Sequence[UnitReport]) -> Bill:
    """Folds the ends of units. Raises UsageError FF-MARK-012 for a report that cannot be.

    Accepted units are served first; broken ones have what is left below the cap, in the order of reports.
    """
    _check(bundle, reports)
    owed = dict.fromkeys(bundle.owners, Credits(0))
    accepted = [report for report in reports if report.end is UnitEnd.ACCEPTED]
    for report in accepted:
        owed[report.peer] = add(owed[report.peer], bundle.price)
    left = bundle.cap - times(bundle.price, len(accepted))
    broken = _broken(bundle, reports)
    for report in broken:
        part = min(left, bundle.price * report.steps // bundle.work.each.steps)
        owed[report.peer] = add(owed[report.peer], Credits(part))
        left -= part
    return Bill(owed, len(accepted), len(broken), Credits(bundle.cap - left))


def _broken(bundle: BundleTerms, reports: Sequence[UnitReport]) -> list[UnitReport]:
    """The units that an error ended which hosts of several owners met."""
    errors = [report for report in reports if report.end is UnitEnd.ERROR]
    met: dict[str, set[PeerId]] = {}
    for report in errors:
        met.setdefault(report.error, set()).add(bundle.owners[report.peer])
    return [report for report in errors if len(met[report.error]) >= WITNESSES]


def _check(bundle: BundleTerms, reports: Sequence[UnitReport]) -> None:
    """Each host ends each unit once at most, and no more units are accepted than there are."""
    work, seen = bundle.work, set[tuple[PeerId, int]]()
    accepted = 0
    for report in reports:
        ranges = {"unit": (report.unit, 0, work.units - 1), "steps": (report.steps, 0, work.each.steps)}
        accepted += report.end is UnitEnd.ACCEPTED
        wrong = fault(ranges)
        if report.peer not in bundle.owners:
            wrong = "the host is not of this bundle"
        elif (report.peer, report.unit) in seen:
            wrong = f"unit {report.unit} ended twice on one host"
        elif accepted > work.units * bundle.members:
            wrong = f"more than {work.units * bundle.members} units are accepted"
        if wrong:
            raise UsageError(
                "FF-MARK-012", "this report does not fit its job", cause=wrong, hint="ask who reported it"
            )
        seen.add((report.peer, report.unit))
