"""Ends a job, or one node's part in it: open leases are paid for their units, the escrow's rest goes back, stakes are
freed.

The same payment follows settlement, cancelling and the deadline: work that was recorded is paid, whoever stops.
It always fits: earned <= units_max on each lease, and the sum of units_max * unit_price over the open ones <= escrow.
A lease that slashing ended is passed over: its units are forfeited, its stake has gone already. What it had earned is
refunded, or, where the accusation opened no graph, stays in the escrow for ever (`slashes`): nobody gets it. A lease
that a dispute is about is passed over, too: its pay lies in the dispute. The stake of a verifier that is an accuser
there stays locked.

A node leaves on its own where the requester has vanished: a job that runs has recorded nothing for SILENT_MS and for
its window, nor drawn its first round, or one that has ended is past its window. Until then it is accused as before, so
leaving saves no liar.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import StateDraft, leases_of, params_of
from farflung.ledger.params import HOUR_MS
from farflung.ledger.rules import nodes
from farflung.ledger.rules.accounts import deposit
from farflung.ledger.rules.jobs import ENDING, check_state, known, step, window_end
from farflung.ledger.table_rows import EpochRow, JobRow, JobState, LeaseRow, epoch_key, lease_key
from farflung.ledger.transactions import JobCancel, JobLeave, JobSettle

SILENT_MS: Final = HOUR_MS  # so long a running job records nothing before its nodes may leave


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


def leave(draft: StateDraft, sender: PeerId, op: JobLeave) -> None:
    """A node ends its own lease.

    Codes: FF-LEDG-031, -033, -393 it has no open lease here, -394 the job was not silent for long enough.
    """
    job = known(draft, op.job)
    check_state(job, JobState.RUNNING, *ENDING)
    lease = draft.find(LeaseRow, lease_key(op.job, sender))
    if lease is None or not lease.is_open:
        raise PolicyError("FF-LEDG-393", "the sender has no open lease in this job")
    begins = _leaving_from(draft, job)
    if draft.now < begins:
        raise PolicyError("FF-LEDG-394", f"nodes leave this job from {begins} on, it is {draft.now}")
    due = _end(draft, lease)
    reserved = job.reserved - lease.units_max * lease.unit_price
    draft.put(replace(job, escrow=job.escrow - due, reserved=reserved, paid=job.paid + due))


def _leaving_from(draft: StateDraft, job: JobRow) -> int:
    """From when on its nodes may leave; a job of which nothing was drawn or recorded has judged nobody yet."""
    if job.state in ENDING:
        return job.until
    last = draft.find(EpochRow, epoch_key(job.job, max(0, job.round - 1)))
    return last.time + max(SILENT_MS, params_of(draft, job.terms).window_ms) if last else draft.now


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: ends jobs that are past their deadline and still hold money."""
    for row in draft.due(JobRow, draft.now):
        close(draft, row, JobState.EXPIRED)


def close(draft: StateDraft, job: JobRow, target: JobState) -> None:
    """Pays, unlocks, burns and refunds; leases in the order in which they were made."""
    paid, burnt = 0, job.reserved  # what is reserved for no open lease is burnt
    for lease in reversed([row for row in leases_of(draft, job) if row.is_open]):
        paid += _end(draft, lease)
        burnt -= lease.units_max * lease.unit_price
    rest = job.escrow - paid - burnt
    deposit(draft, job.requester, rest)
    draft.put(replace(job, state=target, escrow=burnt, paid=job.paid + paid, refunded=job.refunded + rest))


def _end(draft: StateDraft, lease: LeaseRow) -> int:
    """Closes one lease; pico-credits that it is paid."""
    due = lease.earned * lease.unit_price
    deposit(draft, lease.node, due)
    if not lease.disputes:
        nodes.unlock(draft, lease.node, lease.stake)
    draft.put(replace(lease, paid=due, is_open=False))
    return due
