"""Counts the rounds of one job that a node worked in and is not paid for, and decides whether it begins another (L5).

    a round is trained              it is open until the requester says what became of it
    the node merges it, as accepted it is owed
    anything else                   it is left out: dropped, merged without it, or passed over by another start
    lease.earned has grown          the oldest units are paid, of what is owed and of what was left out

No other round is begun with UNPAID_ROUNDS that are open or owed, or open or left out. An honest requester never comes
so far: it orders a round when the ledger has all but the last UNRECORDED_ROUNDS before it (requester.round_tasks). The
two are counted apart since those that wait to be recorded are no sign that it passes the node over, or the reverse.

What honest work is not paid for is forgiven in proportion to what is paid. In a proven job that is a segment between
one and two tolerances: a unit for each eight. A unit for each one: what the job's scores decide (outcome-only jobs),
what a verifier is not honoured for, and rounds that were closed without the node (a quorum below 1).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.ids import PeerId

PROVEN_SHARE: Final = 8  # units that are paid for each unit that is forgiven, where audits alone decide
JUDGED_SHARE: Final = 1  # and where scores, or other verifiers, decide
ANY_ROUND: Final = -1


class RoundWork(Wire, frozen=True):
    """Units of one round that are not paid."""

    round: int
    units: int


class UnpaidWork(Wire, frozen=True):
    """One node's, in one job. `earned`: units that the ledger was seen to count; `time`: of the newest work, seconds
    since 1970.
    """

    requester: PeerId
    share: int
    earned: int = 0
    open: tuple[RoundWork, ...] = ()
    owed: tuple[RoundWork, ...] = ()
    left_out: tuple[RoundWork, ...] = ()
    time: int = 0

    def trained(self, round: int, units: int, time: int) -> UnpaidWork:
        """Work on a round is done. Of what is still open from before nobody has said that it was accepted."""
        left_out = (*self.left_out, *self.open)
        return replace(self, left_out=left_out, open=(RoundWork(round, units),), time=time)

    def closed(self, round: int, *, is_accepted: bool) -> UnpaidWork:
        """The requester says what became of a round."""
        mine = tuple(work for work in self.open if work.round == round)
        if not mine:
            return self
        if is_accepted:
            return replace(self, open=(), owed=(*self.owed, *mine))
        return replace(self, open=(), left_out=(*self.left_out, *mine))

    def audited(self, round: int, units: int, time: int) -> UnpaidWork:
        """A verifier has repeated, or scored, something of a round; all that it does for one round counts as one."""
        so_far = sum(work.units for work in self.owed if work.round == round)
        others = tuple(work for work in self.owed if work.round != round)
        return replace(self, owed=(*others, RoundWork(round, so_far + units)), time=time)

    def credited(self, earned: int) -> UnpaidWork:
        """The ledger counts so many units since the job began. More than is unpaid is no credit for later rounds.

        What a crash kept from being closed is paid behind what is owed.
        """
        more = earned - self.earned
        if more <= 0:
            return self
        owed, rest = _less(self.owed, more + more // self.share)
        return replace(
            self, earned=earned, owed=owed, open=_less(self.open, rest)[0], left_out=_less(self.left_out, more)[0]
        )

    @property
    def rounds(self) -> int:
        """Rounds that are not paid."""
        return len(self.open) + len(self.owed) + len(self.left_out)

    def may_work(self, on: int = ANY_ROUND) -> bool:
        """Whether another round is begun; `on`: or this one gone on with."""
        owed = sum(work.round != on for work in self.owed)
        return len(self.open) + max(owed, len(self.left_out)) < limits.UNPAID_ROUNDS


def _less(unpaid: tuple[RoundWork, ...], units: int) -> tuple[tuple[RoundWork, ...], int]:
    """What is left of this when so many units are paid, the oldest first; and of these units."""
    left = []
    for work in unpaid:
        paid = min(units, work.units)
        units -= paid
        if paid < work.units:
            left.append(replace(work, units=work.units - paid))
    return tuple(left), units
