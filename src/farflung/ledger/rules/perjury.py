"""Punishes a verifier who states that a planted false segment holds (ledger.canaries).

As a slash for a lie (`slash`), with a node that planted in the place of the accusers: half of the stake is its reward,
so that it does not warn the verifier, and the rest is burnt. Hashes show that the verdict is wrong if the node's own
commitment was true; that they cannot show. So where the genesis gives `dispute_ms` the verifier may answer, and the
node's stake is behind its word meanwhile (`disputes`).

A verifier that is an accuser in a dispute owes its stake to that first: until it is decided, the law takes no other
accusation of it. Otherwise a friend's canary would pull the stake out from under whoever it had accused wrongly.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger import canaries
from farflung.ledger.exclusions import ExclusionFault
from farflung.ledger.ledger_state import StateDraft, params_of
from farflung.ledger.rules import bounties, disputes, exclusions, nodes
from farflung.ledger.rules.jobs import check_accusable, check_recent, check_staked, check_term, known
from farflung.ledger.rules.verifiers import open_lease
from farflung.ledger.table_rows import JobRow, LeaseRow
from farflung.ledger.transactions import JobPerjury, LeaseRole, Verdict


def perjury(draft: StateDraft, sender: PeerId, op: JobPerjury) -> None:
    """Ends the lease of a verifier that did not look. Codes: FF-LEDG-031, -033, -356, -385 to -390, -406, -420."""
    job, said = known(draft, op.job), op.canary.verdict.verdict
    if sender not in (job.requester, said.node):
        raise PolicyError("FF-LEDG-385", "only the requester or the node that planted may do this")
    if sender == job.requester:
        check_term(draft, op.job)
    check_accusable(draft, job)
    lease = _lease(draft, job, said)
    check_staked(lease)
    check_recent(job, said.round)
    wrong = canaries.fault(op.canary, draft.law.chain, op.job)
    if wrong:
        raise PolicyError("FF-LEDG-389", f"this is no canary: {wrong}")
    if not canaries.is_perjury(op.canary):
        raise PolicyError("FF-LEDG-390", f"the verdict is {said.finding.name.lower()}: nobody is punished for it")
    if params_of(draft, job.terms).dispute_ms:
        disputes.open_(draft, job, lease, lease.stake, (said.node,), said.trace)
        return
    nodes.seize(draft, lease.node, lease.stake, lease.stake)
    bounties.spend(draft, lease.node, lease.stake, (said.node,))
    draft.put(replace(lease, slashed=lease.stake, evidence=said.trace, is_open=False))
    exclusions.record(draft, op.job, lease.node, ExclusionFault.FALSE, said.trace)
    freed = lease.units_max * lease.unit_price
    draft.put(replace(job, reserved=job.reserved - freed, slashed=job.slashed + lease.stake))


def _lease(draft: StateDraft, job: JobRow, said: Verdict) -> LeaseRow:
    """The verifier's, which ends here, so that it is punished once.

    Codes: FF-LEDG-386 the node that planted does not train here (any more), -387 no verifier of the job, -388 its stake
    is owed to a dispute.
    """
    if open_lease(draft, job.job, said.node, LeaseRole.TRAIN) is None:
        raise PolicyError("FF-LEDG-386", f"node {said.node[:4].hex()} does not train in this job")
    lease = open_lease(draft, job.job, said.verifier, LeaseRole.AUDIT)
    if lease is None:
        raise PolicyError("FF-LEDG-387", f"{said.verifier[:4].hex()} is no verifier of this job")
    if lease.disputes:
        raise PolicyError("FF-LEDG-388", "the verifier is an accuser in a dispute that is not decided")
    return lease
