"""How a lie costs its stake: verifiers of the job agree, and the accused's own signature says what it had claimed.

Of what is taken at least half is burnt. Were all of it the verifiers' bounty, a worker could have itself accused by
a friend and lose nothing (verify: incentives). Burnt money stays in the accused's row, so that the sum over all
rows is still what genesis minted; it backs nothing, and nobody can move it.

What the law checks: that the node signed the claim and that enough verifiers signed the same finding. Whether the
finding is right it cannot know; `evidence` names what others need to judge for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from farflung.core.claims import commitment_digest, is_commitment_signed
from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.rows import JobRow, JobState, LeaseRow, lease_key
from farflung.ledger.rules import nodes
from farflung.ledger.rules.accounts import deposit
from farflung.ledger.rules.jobs import check_state, known
from farflung.ledger.tables import Draft, leases_of
from farflung.ledger.tx import Finding, JobSlash, Role, SignedVerdict, Verdict, is_verdict_signed

EXCESS_FALSE: Final = 2000  # thousandths of the tolerance: up to twice of it is not paid, and not punished
QUORUM: Final = 2  # verifiers that must agree, or all where a job has fewer
PERMILLE: Final = 1000


def slash(draft: Draft, sender: PeerId, op: JobSlash) -> None:
    """Ends the lease of a node that was found out. Codes: FF-LEDG-031, -033, and -048 to -056."""
    job = known(draft, op.job)
    if sender != job.requester and open_lease(draft, op.job, sender, Role.AUDIT) is None:
        raise PolicyError("FF-LEDG-048", "only the requester or a verifier of the job may do this")
    check_state(job, JobState.RUNNING)
    lease = open_lease(draft, op.job, op.node, Role.TRAIN)
    if lease is None:
        raise PolicyError("FF-LEDG-049", f"node {op.node[:4].hex()} does not train in this job")
    verifiers = _judges(draft, job, op.verdicts)
    finding = _finding(draft.law.chain, op)
    _check_claim(op)
    taken = _taken(lease.stake, finding, draft.law.params.withheld_permille)
    _take(draft, lease, taken, verifiers)
    draft.put(replace(lease, slashed=taken, evidence=op.evidence, is_open=False))
    freed = lease.units_max * lease.unit_price
    draft.put(replace(job, reserved=job.reserved - freed, slashed=job.slashed + taken))


def open_lease(draft: Draft, job: Hash, node: PeerId, role: Role) -> LeaseRow | None:
    """The node's lease in this job, if it has this role and has not ended."""
    lease = draft.find(LeaseRow, lease_key(job, node))
    return lease if lease and lease.is_open and lease.role == role else None


def _judges(draft: Draft, job: JobRow, verdicts: Sequence[SignedVerdict]) -> list[PeerId]:
    """Who signed, sorted. Codes: FF-LEDG-050 not a verifier's signature, -051 too few of them."""
    verifiers = {signed.verdict.verifier for signed in verdicts}
    for signed in verdicts:
        verifier = signed.verdict.verifier
        if open_lease(draft, job.job, verifier, Role.AUDIT) is None or not is_verdict_signed(signed):
            raise PolicyError("FF-LEDG-050", f"no verifier {verifier[:4].hex()} of this job signed this")
    hired = sum(lease.is_open and lease.role == Role.AUDIT for lease in leases_of(draft, job))
    needed = quorum_of(hired)
    if len(verifiers) < len(verdicts) or len(verifiers) < needed:
        raise PolicyError(
            "FF-LEDG-051", f"{len(verifiers)} verifiers in {len(verdicts)} verdicts, not {needed}"
        )
    return sorted(verifiers)


def _finding(chain: Hash, op: JobSlash) -> Finding:
    """What all verdicts say. Codes: FF-LEDG-052 of something else, -053 they differ, -054 nothing to punish."""
    verdicts = [signed.verdict for signed in op.verdicts]
    if any((v.chain, v.job, v.node) != (chain, op.job, op.node) for v in verdicts):
        raise PolicyError("FF-LEDG-052", "a verdict is of another chain, job or node")
    if len({_about(verdict) for verdict in verdicts}) > 1:
        raise PolicyError("FF-LEDG-053", "the verdicts are not of one segment and one finding")
    if not all(_is_punished(verdict) for verdict in verdicts):
        raise PolicyError("FF-LEDG-054", "the finding is not one that the law punishes")
    return verdicts[0].finding


def _about(verdict: Verdict) -> tuple[int, int, Hash, Finding]:
    return verdict.round, verdict.segment, verdict.trace, verdict.finding


def _is_punished(verdict: Verdict) -> bool:
    is_false = verdict.finding == Finding.FALSE and verdict.excess > EXCESS_FALSE
    return is_false or verdict.finding == Finding.WITHHELD


def _check_claim(op: JobSlash) -> None:
    """What is punished was said, and can be looked into. Codes: FF-LEDG-055 not signed, -056 no evidence."""
    claim, said = op.claim, op.verdicts[0].verdict
    promise = commitment_digest(
        op.job, op.node, said.round, claim.payload, claim.weight, said.trace, claim.nonce
    )
    if not is_commitment_signed(op.node, claim.signature, op.job, said.round, promise):
        raise PolicyError("FF-LEDG-055", f"node {op.node[:4].hex()} did not sign this claim")
    if op.evidence == ZERO_HASH:
        raise PolicyError("FF-LEDG-056", "no evidence is named")


def quorum_of(hired: int) -> int:
    """How many of a job's verifiers must find a node false: two, or the only one."""
    return max(1, min(QUORUM, hired))


def share_of(taken: int, verifiers: int) -> int:
    """The bounty of each of the verifiers, in micro-credits."""
    return taken // 2 // verifiers


def _taken(stake: int, finding: Finding, withheld_permille: int) -> int:
    """Micro-credits that the node loses, rounded down."""
    return stake if finding == Finding.FALSE else stake * withheld_permille // PERMILLE


def _take(draft: Draft, lease: LeaseRow, taken: int, verifiers: Sequence[PeerId]) -> None:
    """Half of `taken` is bounty in equal shares, both rounded down; all that is left of it burns."""
    share = share_of(taken, len(verifiers))
    nodes.seize(draft, lease.node, lease.stake, taken=taken, burnt=taken - share * len(verifiers))
    for verifier in verifiers:
        deposit(draft, verifier, share)
