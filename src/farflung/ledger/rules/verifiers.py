"""Decides who may speak for a job's verifiers: two holders of its open AUDIT leases, or the only one there is.

A quorum accuses (`slash`), credits work that it has checked (`tallies`) and ends a job's verification window early.
Where a job has one verifier, its word alone counts, but for an accusation in a job without a graph (`slashes`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.earnings_tally import EarningsTally, OutputAttestation, PartySignature, is_signed_by
from farflung.ledger.ledger_state import StateDraft, leases_of
from farflung.ledger.table_rows import JobRow, LeaseRow, lease_key
from farflung.ledger.transactions import LeaseRole

QUORUM: Final = 2  # verifiers that must agree, or all where a job has fewer


def quorum_of(hired: int) -> int:
    """How many of a job's verifiers must say the same: two, or the only one."""
    return max(1, min(QUORUM, hired))


def quorum(draft: StateDraft, job: JobRow) -> int:
    """How many of this job's verifiers must say the same now."""
    return quorum_of(sum(lease.is_open and lease.role == LeaseRole.AUDIT for lease in leases_of(draft, job)))


def open_lease(draft: StateDraft, job: Hash, node: PeerId, role: LeaseRole) -> LeaseRow | None:
    """The node's lease in this job, if it has this role and has not ended."""
    lease = draft.find(LeaseRow, lease_key(job, node))
    return lease if lease and lease.is_open and lease.role == role else None


def check_strangers(job: JobRow, verifiers: Collection[PeerId]) -> None:
    """That the requester's own account is none of them. Code: FF-LEDG-392."""
    if job.requester in verifiers:
        raise PolicyError("FF-LEDG-392", "the requester is no verifier of its own job")


def check_signatures(
    draft: StateDraft, job: JobRow, marks: Sequence[PartySignature], said: EarningsTally | OutputAttestation
) -> None:
    """That a quorum signed this. Codes: FF-LEDG-222 one of them is no verifier's signature, -223 not a quorum."""
    signers, needed = {mark.signer for mark in marks}, quorum(draft, job)
    if not needed <= len(signers) == len(marks) <= limits.AUDITORS:
        raise PolicyError("FF-LEDG-223", f"{len(signers)} verifiers in {len(marks)} marks, not {needed}")
    for mark in marks:
        if open_lease(draft, job.job, mark.signer, LeaseRole.AUDIT) is None or not is_signed_by(mark, said):
            raise PolicyError("FF-LEDG-222", f"no verifier {mark.signer[:4].hex()} of this job signed this")
