"""Defines one audit as the coordinator sees it: the contribution, each verifier's statement, and what counts."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError
from farflung.core.ids import PeerId
from farflung.ledger.transactions import DAMNING, VerdictFinding
from farflung.peers.protocol import messages
from farflung.train.run_log import Contribution
from farflung.verify import audit_sample
from farflung.verify.evidence import AuditEvidence, VerifierTestimony
from farflung.verify.segment_audit import is_same
from farflung.verify.segment_opening import read_border


class AuditCase(NamedTuple):
    """One contribution under audit."""

    round: int
    contribution: Contribution
    drawn: audit_sample.AuditSample
    ring: tuple[PeerId, ...] = ()  # its verifiers: the first is asked, each next one confirms


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
