"""Ends a job: every open lease is paid for its units, the rest of the escrow goes back, stakes are freed.

The same payment follows settlement, cancelling and the deadline: work that was recorded is paid, whoever stops.
It always fits: earned <= units_max on each lease, and the sum of units_max * unit_price over the open ones <= escrow.
A lease that slashing ended is passed over: its units are forfeited, its stake has gone already. So is one that a
dispute is about: its pay lies in the dispute. The stake of a verifier that is an accuser there stays locked.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import StateDraft, leases_of, params_of
from farflung.ledger.rules import nodes
from farflung.ledger.rules.accounts import deposit
from farflung.ledger.rules.jobs import step, window_end
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import JobCancel, JobSettle


def settle(draft: StateDraft, sender: PeerId, op: JobSettle) -> None:
    """The requester pays after the output. Codes: FF-LEDG-031 to -033, -229 not yet."""
    job = step(draft, sender, op.job, JobState.OUTPUT)
    _check_window(draft, job)
    close(draft, job, JobState.SETTLED)


def cancel(draft: StateDraft, sender: PeerId, op: JobCancel) -> None:
    """The requester stops before the output; where jobs have a window, at once only what never ran.

    Codes: FF-LEDG-031 to -033, -229 not yet.
    """
    job = step(draft, sender, op.job, JobState.CREATED, JobState.RUNNING, JobState.STOPPED)
    if job.state == JobState.RUNNING and params_of(draft, job.terms).window_ms:
        draft.put(replace(job, state=JobState.STOPPED, until=window_end(draft, job)))
    else:
        _check_window(draft, job)
        close(draft, job, JobState.CANCELLED)


def _check_window(draft: StateDraft, job: JobRow) -> None:
    if draft.now < job.until:
        raise PolicyError("FF-LEDG-229", f"the verification window is open until {job.until}")


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: ends jobs that are past their deadline and still hold money."""
    for row in draft.due(JobRow, draft.now):
        close(draft, row, JobState.EXPIRED)


def close(draft: StateDraft, job: JobRow, target: JobState) -> None:
    """Pays, unlocks and refunds; leases in the order in which they were made."""
    paid = 0
    for lease in reversed([row for row in leases_of(draft, job) if row.is_open]):
        due = lease.earned * lease.unit_price
        deposit(draft, lease.node, due)
        if not lease.disputes:
            nodes.unlock(draft, lease.node, lease.stake)
        draft.put(replace(lease, paid=due, is_open=False))
        paid += due
    deposit(draft, job.requester, job.escrow - paid)
    refunded = job.refunded + job.escrow - paid
    draft.put(replace(job, state=target, escrow=0, paid=job.paid + paid, refunded=refunded))
