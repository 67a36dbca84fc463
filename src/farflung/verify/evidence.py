"""Collects under one hash all that a later reader needs to check a finding of FALSE or WITHHELD again.

The ledger keeps only `evidence_hash`; the bytes stay with the requester and the verifiers that signed. The states
themselves are too large for this: their manifests name the sealed objects, which the node was bound to keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import Wire, encode
from farflung.core.commitments import BorderRoots
from farflung.core.crypto import NS_EVIDENCE, digest
from farflung.core.file_header import HEAD_BYTES, FileFormat, headed, value_of
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobSpec, JobTerms
from farflung.ledger.transactions import DAMNING, CommitmentOpening, JobSlash, SignedVerdict, is_verdict_signed
from farflung.store.sealed_objects import ObjectManifest
from farflung.train.contribution_trace import TraceLeaf, are_opened
from farflung.train.run_log import Commitment, Contribution
from farflung.verify.audit_sample import anchor, beacon, segment_of
from farflung.verify.blind_commitment import BlindCommitment, is_blind, opens
from farflung.verify.commitment_check import is_commitment
from farflung.verify.commitment_check import opens as opens_commitment
from farflung.verify.replay_report import ReplayReport, require

_FORMAT: Final = FileFormat("evidence")
BYTES: Final = limits.CONTROL_BYTES + HEAD_BYTES  # of a file, at most


class VerifierTestimony(Wire, frozen=True):
    """One verifier's part: what it committed to, what opens that, and what it signed in the end."""

    blinds: tuple[BlindCommitment, ...]  # none when nothing was opened to it (WITHHELD)
    borders: tuple[BorderRoots, ...]
    nonces: tuple[Hash, ...]
    verdict: SignedVerdict


class AuditEvidence(Wire, frozen=True):
    """One audit. `commitments`: all of the round, from which the beacon and so the draw follow with `block` (sample);
    `leaves`: all that was opened, by index; `states`: what was fetched of start, end and last, in this order.
    """

    job: Hash
    round: int
    contribution: Contribution
    commitments: tuple[Commitment, ...]
    block: Hash
    segment: int
    flagged: str
    leaves: tuple[TraceLeaf, ...]
    states: tuple[ObjectManifest, ...]
    testimonies: tuple[VerifierTestimony, ...]


def write(encoded: bytes) -> bytes:
    """The file of an encoded AuditEvidence."""
    return headed(_FORMAT, encoded)


def read(data: bytes) -> AuditEvidence:
    """The evidence in a file. Raises VersionError FF-CORE-095, ProtocolError FF-CORE-020, FF-CORE-096."""
    return value_of(_FORMAT, data, AuditEvidence, limits.CONTROL_BYTES)


def evidence_hash(evidence: AuditEvidence) -> Hash:
    """How the ledger names it."""
    return digest(NS_EVIDENCE, encode(evidence))


def claim_of(evidence: AuditEvidence) -> CommitmentOpening:
    """What the node had committed to, as the ledger's law checks it. The commitment must be among the round's."""
    c = evidence.contribution
    commitment = next(x for x in evidence.commitments if x.peer == c.peer)
    return CommitmentOpening(c.payload, c.weight, c.nonce, commitment.signature)


def accusation(terms: JobTerms | None, evidence: AuditEvidence, verdicts: tuple[SignedVerdict, ...]) -> JobSlash:
    """What the ledger takes the stake by. `terms`: the job's, whose program it opens where there is one."""
    peer, named = evidence.contribution.peer, evidence_hash(evidence)
    said = JobSlash(evidence.job, peer, claim_of(evidence), verdicts, named)
    return replace(said, terms=terms.rest, program=terms.program) if terms and terms.is_proven else said


def evidence_fault(evidence: AuditEvidence, spec: JobSpec) -> str:
    """What does not hold of an accusation that anybody can recheck without training; empty when all does.

    The node committed to this contribution, the beacon gives this segment, what was opened stands under the node's
    own root, and each verifier had committed to its result before and signed its finding.
    """
    e, segments = evidence, spec.segments
    promised = next((x for x in e.commitments if x.peer == e.contribution.peer), None)
    if promised is None or not is_commitment(promised, e.job, e.round):
        return "the node signed no such commitment"
    if not opens_commitment(e.contribution, promised, e.job, e.round):
        return "the contribution is not the committed one"
    luck = beacon(anchor(e.job, e.round, e.commitments), e.block)
    if segment_of(luck, promised.peer, segments) != e.segment:
        return "another segment was drawn"
    if not are_opened(e.contribution.trace, segments, e.leaves):
        return "a leaf does not stand under the node's trace"
    return next(filter(None, (_testimony_fault(e, each) for each in e.testimonies)), "")


def check_evidence(
    files: Sequence[bytes],
    accused: Mapping[PeerId, Hash],
    blocks: Mapping[int, Hash],
    terms: JobTerms,
    report: ReplayReport,
) -> None:
    """Every accusation holds, and of each node that was slashed one is what the ledger names (`accused`).

    `blocks`: what each round was drawn from, by the log.

    A node may have been found out twice and is slashed once. Where no file is there, nothing is said: a reader of the
    log alone has none. Raises VerificationError FF-VERI-045, -046.
    """
    named: set[Hash] = set()
    for data in files:
        evidence = read(data)
        fault = evidence_fault(evidence, terms.spec)
        is_drawn = blocks.get(evidence.round) == evidence.block
        is_whole = not fault and evidence.job == terms.id and is_drawn
        why = fault or "it is of another job, or another draw"
        require(is_whole, "FF-VERI-045", "an accusation does not hold", why)
        named.add(evidence_hash(evidence))
    is_named = not files or named >= set(accused.values())
    require(is_named, "FF-VERI-046", "the evidence is not what the ledger names")
    report.evidence = len(files)


def _testimony_fault(e: AuditEvidence, testimony: VerifierTestimony) -> str:
    verdict = testimony.verdict.verdict
    about = (verdict.job, verdict.round, verdict.node, verdict.segment, verdict.trace)
    if about != (e.job, e.round, e.contribution.peer, e.segment, e.contribution.trace):
        return "a verdict is about something else"
    if verdict.finding not in DAMNING or not is_verdict_signed(testimony.verdict):
        return "a verdict accuses nobody, or its verifier did not sign it"
    place = (e.job, e.round, verdict.node, e.segment)
    if len(testimony.blinds) != any(verdict.result):
        return "a verifier judged what it had not committed to"
    for blind, border, nonce in zip(testimony.blinds, testimony.borders, testimony.nonces, strict=False):
        if blind.digest != verdict.result or not is_blind(blind, *place):
            return "a verifier committed to another result"
        if not opens(blind, *place, border, nonce):
            return "a verifier's commitment is not opened"
    return (
        ""
        if len(testimony.blinds) == len(testimony.borders) == len(testimony.nonces) <= 1
        else "a testimony is not whole"
    )
