"""Pays a node without recorded units by a tally that the job's requester or a quorum of verifiers signed.

So neither the requester nor any single verifier can withhold or change the pay for work that was checked: what a
tally says can only raise what a lease counts, never above its `units_max`, which the escrow has reserved. What
Progress records and what tallies say are two counts of the same work; the larger is paid (LeaseRow.earned), so that
a round which a tally already holds is not paid twice when it is recorded afterwards.

A quorum of verifiers credits those who train, and nobody that audits: it would be writing its own bill.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.earnings_tally import (
    EarningsVoucher,
    JobAttest,
    OutputAttestation,
    SettleMany,
    SignedEarningsTally,
    is_of,
    is_signed_by,
)
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules.jobs import ENDING, check_state, known
from farflung.ledger.rules.verifiers import check_signatures, check_strangers, open_lease
from farflung.ledger.table_rows import JobRow, JobState, LeaseRow, lease_key
from farflung.ledger.transactions import LeaseRole


def settle_many(draft: StateDraft, _sender: PeerId, op: SettleMany) -> None:
    """Leases count what their vouchers say. Codes: FF-LEDG-031, -033, and -220 to -228."""
    tally = op.signed.tally
    job = known(draft, tally.job)
    check_state(job, JobState.RUNNING, *ENDING)
    if tally.chain != draft.law.chain:
        raise PolicyError("FF-LEDG-220", "the tally is of another chain")
    if not 1 <= len(op.vouchers) <= limits.VOUCHERS:
        raise PolicyError("FF-LEDG-221", f"{len(op.vouchers)} vouchers, not 1 to {limits.VOUCHERS}")
    is_requesters = _is_of_requester(job, op.signed)
    if not is_requesters:
        check_signatures(draft, job, op.signed.marks, tally)
    for voucher in op.vouchers:
        if not is_of(tally, voucher):
            raise PolicyError("FF-LEDG-224", f"voucher {voucher.index} is not of this tally")
        _credit(draft, job, voucher, tuple(LeaseRole) if is_requesters else (LeaseRole.TRAIN,))


def _is_of_requester(job: JobRow, signed: SignedEarningsTally) -> bool:
    return [mark.signer for mark in signed.marks] == [job.requester] and is_signed_by(signed.marks[0], signed.tally)


def _credit(draft: StateDraft, job: JobRow, voucher: EarningsVoucher, roles: tuple[LeaseRole, ...]) -> None:
    node, units = voucher.credit.node, voucher.credit.units
    lease = draft.find(LeaseRow, lease_key(job.job, node))
    if lease is None:
        raise PolicyError("FF-LEDG-225", f"node {node[:4].hex()} has no lease in this job")
    if lease.role not in roles:
        raise PolicyError("FF-LEDG-226", "verifiers credit nobody that audits")
    if not lease.is_open and not _is_disputed(draft, lease):
        raise PolicyError("FF-LEDG-227", f"the lease of node {node[:4].hex()} has ended")
    if units > lease.units_max:
        raise PolicyError("FF-LEDG-228", f"{units} units are above {lease.units_max}")
    draft.put(replace(lease, vouched=max(lease.vouched, units)))


def _is_disputed(draft: StateDraft, lease: LeaseRow) -> bool:
    """Whether it is not decided yet if the lease is paid: then vouchers for it still count."""
    dispute = draft.find(DisputeRow, lease.key)
    return dispute is not None and dispute.is_pending


def attest(draft: StateDraft, _sender: PeerId, op: JobAttest) -> None:
    """Ends the verification window.

    Codes: FF-LEDG-031, -033, -222, -223, -392 the requester's own account, -421 nothing at stake.
    """
    job = known(draft, op.job)
    check_state(job, *ENDING)
    check_strangers(job, {mark.signer for mark in op.marks})
    check_signatures(draft, job, op.marks, OutputAttestation(draft.law.chain, job.job, job.root, job.output))
    leases = [open_lease(draft, job.job, mark.signer, LeaseRole.AUDIT) for mark in op.marks]
    if not all(lease is not None and lease.stake for lease in leases):
        raise PolicyError("FF-LEDG-421", "a verifier with nothing at stake ends no window")
    draft.put(replace(job, until=min(job.until, draft.now)))
