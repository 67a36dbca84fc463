"""Slashes the stake of a liar: verifiers of the job agree, and the accused's own signature proves the claim.

Where the genesis gives `dispute_ms`, the accused may answer first (`disputes`), and an accusation of distance may be
played down to one element (`pinpoint`); otherwise what a lie costs is taken at once (`bounties`).

What the law checks: that the node signed the claim and that enough verifiers signed the same finding. Whether the
finding is right it cannot know; `evidence` names what others need to judge for themselves.

| the accusation                       | who must agree        | half of a lie's stake | what the lease had earned |
|--------------------------------------|-----------------------|-----------------------|---------------------------|
| opens the job's id to its program    | two of the job's      | is their bounty       | is refunded               |
|                                      | verifiers, or the     |                       |                           |
|                                      | only one              |                       |                           |
| opens nothing: the job has no graph  | two of the job's      | is burnt              | is burnt                  |
|                                      | verifiers             |                       |                           |

Where nothing is at stake nobody is convicted. The requester's own account is never one of them. Without a graph nothing
but a second repetition can contradict the first, and nobody, whoever holds the verifiers' keys, gets anything of the
stake or of the pay. The burnt pay stays reserved until the job's end, and in its escrow after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.canon import program as programs
from farflung.core.commitments import commitment_digest, is_commitment_signed
from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.exclusions import ExclusionFault
from farflung.ledger.ledger_state import StateDraft, params_of
from farflung.ledger.rules import bounties, disputes, exclusions, nodes, pinpoint
from farflung.ledger.rules.jobs import check_accusable, check_recent, check_staked, check_term, known
from farflung.ledger.rules.verifiers import QUORUM, check_strangers, open_lease, quorum
from farflung.ledger.table_rows import JobRow
from farflung.ledger.transactions import JobSlash, LeaseRole, SignedVerdict, Verdict, VerdictFinding, is_verdict_signed

EXCESS_FALSE: Final = 2000  # thousandths of the tolerance: up to twice of it is not paid, and not punished
EXCESS_EXACT: Final = 1_000_000_000  # of what is false whatever the distance: an encoding, an opening
PERMILLE: Final = 1000


def slash(draft: StateDraft, sender: PeerId, op: JobSlash) -> None:
    """Ends the lease of a node that was found out.

    Codes: FF-LEDG-031, -033, -048 to -056, -356, -391, -392, -406, -420.
    """
    job = known(draft, op.job)
    if sender != job.requester and open_lease(draft, op.job, sender, LeaseRole.AUDIT) is None:
        raise PolicyError("FF-LEDG-048", "only the requester or a verifier of the job may do this")
    if sender == job.requester:
        check_term(draft, op.job)
    check_accusable(draft, job)
    lease = open_lease(draft, op.job, op.node, LeaseRole.TRAIN)
    if lease is None:
        raise PolicyError("FF-LEDG-049", f"node {op.node[:4].hex()} does not train in this job")
    check_staked(lease)
    is_proven = _is_proven(op)
    verifiers = _judges(draft, job, op.verdicts, is_proven=is_proven)
    finding = _finding(draft.law.chain, op)
    check_recent(job, op.verdicts[0].verdict.round)
    _check_claim(op)
    terms = params_of(draft, job.terms)
    taken = _taken(lease.stake, finding, terms.withheld_permille)
    if terms.dispute_ms:
        dispute = disputes.open_(draft, job, lease, taken, verifiers, op.evidence)
        if all(_is_distance(signed.verdict) for signed in op.verdicts):
            said = op.verdicts[0].verdict
            pinpoint.offer(draft, dispute, (said.round, said.segment, said.trace), op.claim.weight)
        return
    nodes.seize(draft, lease.node, lease.stake, taken)
    bounties.spend(draft, lease.node, taken, bounties.finders_of(lease, taken, verifiers) if is_proven else ())
    draft.put(replace(lease, slashed=taken, evidence=op.evidence, is_open=False))
    fault = ExclusionFault.FALSE if bounties.is_lie(lease, taken) else ExclusionFault.WITHHELD
    exclusions.record(draft, op.job, op.node, fault, op.evidence)
    kept = 0 if is_proven else lease.earned
    freed = (lease.units_max - kept) * lease.unit_price
    draft.put(replace(job, reserved=job.reserved - freed, slashed=job.slashed + taken))


def _is_proven(op: JobSlash) -> bool:
    """Whether it opens the job's id to a program, which a referee can recompute. Code: FF-LEDG-391 to another one."""
    if op.program.graph == ZERO_HASH:
        return False
    if programs.job_id(op.terms, op.program) != op.job or not programs.is_sound(op.program):
        raise PolicyError("FF-LEDG-391", "the accusation opens a program that is not that of the job's terms")
    return True


def _judges(draft: StateDraft, job: JobRow, verdicts: Sequence[SignedVerdict], *, is_proven: bool) -> list[PeerId]:
    """Who signed, sorted.

    Codes: FF-LEDG-050 not a verifier's signature, -392 the requester's own, -051 too few of them.
    """
    verifiers = {signed.verdict.verifier for signed in verdicts}
    for signed in verdicts:
        verifier = signed.verdict.verifier
        if open_lease(draft, job.job, verifier, LeaseRole.AUDIT) is None or not is_verdict_signed(signed):
            raise PolicyError("FF-LEDG-050", f"no verifier {verifier[:4].hex()} of this job signed this")
    check_strangers(job, verifiers)
    needed = quorum(draft, job) if is_proven else QUORUM
    if not needed <= len(verifiers) == len(verdicts) <= limits.AUDITORS:
        raise PolicyError("FF-LEDG-051", f"{len(verifiers)} verifiers in {len(verdicts)} verdicts, not {needed}")
    return sorted(verifiers)


def _finding(chain: Hash, op: JobSlash) -> VerdictFinding:
    """What all verdicts say. Codes: FF-LEDG-052 of something else, -053 they differ, -054 nothing to punish."""
    verdicts = [signed.verdict for signed in op.verdicts]
    if any((v.chain, v.job, v.node) != (chain, op.job, op.node) for v in verdicts):
        raise PolicyError("FF-LEDG-052", "a verdict is of another chain, job or node")
    if len({_about(verdict) for verdict in verdicts}) > 1:
        raise PolicyError("FF-LEDG-053", "the verdicts are not of one segment and one finding")
    if not all(_is_punished(verdict) for verdict in verdicts):
        raise PolicyError("FF-LEDG-054", "the finding is not one that the law punishes")
    return verdicts[0].finding


def _about(verdict: Verdict) -> tuple[int, int, Hash, VerdictFinding]:
    return verdict.round, verdict.segment, verdict.trace, verdict.finding


def _is_punished(verdict: Verdict) -> bool:
    is_false = verdict.finding == VerdictFinding.FALSE and verdict.excess > EXCESS_FALSE
    return is_false or verdict.finding == VerdictFinding.WITHHELD


def _is_distance(verdict: Verdict) -> bool:
    """Whether it says how far off the end of a segment is; an encoding that is wrong has no distance."""
    return verdict.finding == VerdictFinding.FALSE and verdict.excess < EXCESS_EXACT


def _check_claim(op: JobSlash) -> None:
    """What is punished was said, and can be looked into. Codes: FF-LEDG-055 not signed, -056 no evidence."""
    claim, said = op.claim, op.verdicts[0].verdict
    promise = commitment_digest(op.job, op.node, said.round, claim.payload, claim.weight, said.trace, claim.nonce)
    if not is_commitment_signed(op.node, claim.signature, op.job, said.round, promise):
        raise PolicyError("FF-LEDG-055", f"node {op.node[:4].hex()} did not sign this claim")
    if op.evidence == ZERO_HASH:
        raise PolicyError("FF-LEDG-056", "no evidence is named")


def _taken(stake: int, finding: VerdictFinding, withheld_permille: int) -> int:
    """Pico-credits that the node loses, rounded down."""
    return stake if finding == VerdictFinding.FALSE else stake * withheld_permille // PERMILLE
