"""Ends a job, or one node's part in it: open leases are paid for their units, the escrow's rest goes back, stakes are
freed.

The same payment follows settlement, cancelling and the deadline: work that was recorded is paid, whoever stops.
It always fits: earned <= units_max on each lease, and the sum of units_max * unit_price over the open ones <= escrow.
A lease that slashing ended is passed over: its units are forfeited, its stake has gone already. What it had earned is
refunded, or, where the accusation opened no graph, stays in the escrow for ever (`slashes`): nobody gets it. A lease
that a dispute is about is passed over, too: its pay lies in the dispute. The stake of a verifier that is an accuser
there stays locked.

A node leaves on its own. Where the requester has vanished it does so at once: a job that runs has recorded nothing for
SILENT_MS and for its window, nor drawn its first round, or one that has ended is past its window. In a job that goes on
it gives notice, which names the first round without it; when the round before is recorded and a window after it is
over, it leaves. Until then it is accused as before, so leaving saves no liar.
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
from farflung.ledger.rules.jobs import ENDING, check_state, first_round_without, known, step, window_end
from farflung.ledger.table_rows import EpochRow, JobRow, JobState, KeyRow, LeaseRow, epoch_key, lease_key
from farflung.ledger.transactions import JobCancel, JobLeave, JobSettle, notice_of

SILENT_MS: Final = HOUR_MS  # so long a running job records nothing before its nodes may leave
# Rounds that a node may have committed to when it gives notice: one that waits for its draw, and one that is open.
OPEN_ROUNDS: Final = 2


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
    """A node ends its own lease, or says in a job that goes on that it will.

    Codes: FF-LEDG-031, -033, -393 it has no open lease here, -394 not yet.
    """
    job = known(draft, op.job)
    check_state(job, JobState.RUNNING, *ENDING)
    lease = draft.find(LeaseRow, lease_key(op.job, sender))
    if lease is None or not lease.is_open:
        raise PolicyError("FF-LEDG-393", "the sender has no open lease in this job")
    first = first_round_without(draft, op.job, sender)
    last = draft.find(EpochRow, epoch_key(op.job, deciding_round(job, first)))
    begins = leaving_time(job, first, last, params_of(draft, job.terms).window_ms)
    if draft.now < begins:
        if job.state == JobState.RUNNING and not first:
            name, bound = notice_of(op.job, sender), max(job.drawn, job.round) + OPEN_ROUNDS
            draft.put(KeyRow(name, sender, name, epoch=min(bound, job.rounds)))
            return
        raise PolicyError("FF-LEDG-394", f"nodes leave this job from {begins} on, it is {draft.now}")
    due = _end(draft, lease)
    reserved = job.reserved - lease.units_max * lease.unit_price
    draft.put(replace(job, escrow=job.escrow - due, reserved=reserved, paid=job.paid + due))


def deciding_round(job: JobRow, first: int) -> int:
    """The round whose record decides from when on a node may leave that gave notice for round `first` (0: none)."""
    return first - 1 if 0 < first <= job.round else max(0, job.round - 1)


def leaving_time(job: JobRow, first: int, last: EpochRow | None, window_ms: int) -> int:
    """From when on such a node may leave; `last` is the deciding round's row. A job of which nothing was drawn or
    recorded has judged nobody yet.
    """
    if job.state in ENDING:
        return job.until
    if last is None:
        return 0
    return last.time + (window_ms if 0 < first <= job.round else max(SILENT_MS, window_ms))


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
