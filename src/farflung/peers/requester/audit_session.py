"""Takes one verifier through one audit (blind run, reveal, verdict), each part checked against the one before.

Nothing here knows whether the case is a contribution or a canary (peers.requester.canaries): a verifier must not
either.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import NetworkError, PolicyError, ProtocolError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.units import Seconds
from farflung.ledger.transactions import DAMNING, SignedVerdict, VerdictFinding, is_verdict_signed
from farflung.net.messages import RemoteError
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import Dial
from farflung.peers.requester.job_context import JobContext
from farflung.train.run_log import Contribution
from farflung.verify import audit_sample
from farflung.verify.audit_replay import is_sound
from farflung.verify.blind_commitment import BlindCommitment, is_blind, opens
from farflung.verify.evidence import AuditEvidence, VerifierTestimony
from farflung.verify.segment_audit import is_same
from farflung.verify.segment_opening import read_border

OPEN_SECONDS: Final = 60.0  # within which a peer opens a drawn segment to the coordinator

NO_ANSWER: Final = "FF-NET-047"
WORKER_GONE: Final = ("FF-APP-049", "FF-TRAIN-090")  # a death, and no refusal


def is_refusal(error: NetworkError) -> bool:
    """Whether a peer is there and does not do what it is asked to; else it is gone, or its line is."""
    is_there = isinstance(error, RemoteError | ProtocolError) or error.code == NO_ANSWER
    return is_there and error.code not in WORKER_GONE


class AuditCase(NamedTuple):
    """One contribution under audit."""

    round: int
    contribution: Contribution
    drawn: audit_sample.AuditSample
    verifiers: tuple[PeerId, ...] = ()  # its verifiers: the first is asked, each next one confirms


class VerifierStatement(NamedTuple):
    """One verifier's whole part in a case."""

    testimony: VerifierTestimony
    revealed: messages.SegmentRevealReply | None


def is_unmatched(said: VerifierStatement, case: AuditCase) -> bool:
    """Whether a verifier finds good what did not come out alike for it: of another class of machine, or a guess."""
    testimony = said.testimony
    if testimony.verdict.verdict.finding is not VerdictFinding.HOLDS:
        return False
    leaves = said.revealed.leaves if said.revealed is not None else ()
    end = next((leaf for leaf in leaves if leaf.index == case.drawn.segment + 1), None)
    try:
        return end is None or not is_same(testimony.borders[0], read_border(end))
    except ProtocolError:
        return True


def confirmed(said: dict[PeerId, VerifierStatement], case: AuditCase) -> dict[PeerId, VerifierStatement]:
    """Without those who guessed, where another had exactly what was claimed: a guess earns nothing.

    Where somebody accuses all count: a denial less, and the accusation would be open again.
    """
    if any(s.testimony.verdict.verdict.finding in DAMNING for s in said.values()):
        return said
    matched = {v: s for v, s in said.items() if not is_unmatched(s, case)}
    is_exact = any(s.testimony.verdict.verdict.finding is VerdictFinding.HOLDS for s in matched.values())
    return matched if is_exact else said


def encoded(evidence: AuditEvidence) -> bytes:
    """No larger than its reader takes, or nobody could ever be slashed: without states, at worst without leaves."""
    bare = replace(evidence, states=())
    each = (encode(told) for told in (evidence, bare, replace(bare, leaves=())))
    return next(data for data in each if len(data) <= limits.CONTROL_BYTES)


class AuditSession:
    """How verifiers of one job are asked."""

    def __init__(self, job: JobContext, dial: Dial, patience: Seconds) -> None:
        """`patience` bounds the wait for their answers."""
        self._chain, self._terms = job.chain, job.terms
        self._dial, self._patience = dial, patience

    async def ask(self, verifier: PeerId, case: AuditCase, order: messages.AuditRequest) -> VerifierStatement:
        """Raises NetworkError, or VerificationError FF-APP-090 for what it cannot have found like that."""
        c, round, segment = case.contribution, case.round, case.drawn.segment
        about = (self._terms.id, round, c.peer, segment)
        connection = await self._dial(verifier)
        answer = decode(
            await connection.call(messages.AUDIT, encode(order), timeout=self._patience),
            messages.AuditReply,
            limits.VERDICT_BYTES,
        )
        if answer.verdict is not None:
            if answer.verdict.verdict.finding not in DAMNING:
                raise VerificationError("FF-APP-090", "a verifier finds good what it has not run")
            self._check(answer.verdict, verifier, case, ZERO_HASH)
            return VerifierStatement(VerifierTestimony((), (), (), answer.verdict), None)
        if answer.blind is None or answer.blind.verifier != verifier or not is_blind(answer.blind, *about):
            raise VerificationError("FF-APP-090", "a verifier's commitment is not its own")
        revealed = await self._reveal(case, answer.blind)
        request = messages.VerdictRequest(self._terms.id, round, c.peer, segment, revealed)
        data = await connection.call(messages.JUDGE, encode(request), timeout=self._patience)
        judged = decode(data, messages.VerdictReply, limits.VERDICT_BYTES)
        if not opens(answer.blind, *about, judged.border, judged.nonce):
            raise VerificationError("FF-APP-090", "a verifier opens another result than it had committed to")
        self._check(judged.verdict, verifier, case, answer.blind.digest)
        testimony = VerifierTestimony((answer.blind,), (judged.border,), (judged.nonce,), judged.verdict)
        return VerifierStatement(testimony, revealed)

    async def _reveal(self, case: AuditCase, said: BlindCommitment) -> messages.SegmentRevealReply | None:
        """What the peer claims, for a verifier that has committed; None: no answer, the verifier asks itself."""
        c = case.contribution
        request = messages.SegmentRevealRequest(self._terms.id, case.round, case.drawn.segment, c.trace, said)
        try:
            connection = await self._dial(c.peer)
            data = await connection.call(messages.UNVEIL, encode(request), timeout=OPEN_SECONDS)
            return messages.read_opening(data, messages.SegmentRevealReply)
        except (NetworkError, PolicyError):  # of another session, perhaps: nobody says where it is
            return None

    def _check(self, signed: SignedVerdict, verifier: PeerId, case: AuditCase, result: Hash) -> None:
        v, c = signed.verdict, case.contribution
        told = (v.chain, v.job, v.round, v.node, v.segment, v.trace, v.verifier, v.result)
        place = (case.round, c.peer, case.drawn.segment)
        asked = (self._chain, self._terms.id, *place, c.trace, verifier, result)
        if told != asked or not is_verdict_signed(signed) or not is_sound(v):
            raise VerificationError(
                "FF-APP-090", "a verdict is of another audit, contradicts itself, or is not signed by its verifier"
            )
