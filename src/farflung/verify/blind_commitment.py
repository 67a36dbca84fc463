"""Implements blind audits: a verifier commits to its own result before it sees what the worker claims (V2).

    blind = H(job, round, node, segment, verifier, border, nonce)        signed by the verifier

A verifier that did not do the work has nothing to commit to; one that copies another's commitment cannot open it,
because its own key is inside. The nonce is derived from the verifier's key: after a crash it commits to the same.
"""

from __future__ import annotations

from farflung.core.codec import Wire, encode
from farflung.core.commitments import BorderRoots, number
from farflung.core.crypto import NS_AUDIT, NS_NONCE, SigningKey, digest, is_signed
from farflung.core.ids import Hash, PeerId, Signature


class BlindCommitment(Wire, frozen=True):
    """A verifier's promise of one audit's result."""

    verifier: PeerId
    digest: Hash
    signature: Signature


def _about(job: Hash, round: int, node: PeerId, segment: int) -> tuple[bytes, ...]:
    return bytes(job), number(round), bytes(node), number(segment)


def result_digest(
    job: Hash, round: int, node: PeerId, segment: int, verifier: PeerId, border: BorderRoots, nonce: Hash
) -> Hash:
    """What a verifier commits to; it is in its verdict as `result`."""
    return digest(NS_AUDIT, *_about(job, round, node, segment), verifier, encode(border), nonce)


def nonce_of(key: SigningKey, job: Hash, round: int, node: PeerId, segment: int) -> Hash:
    """The verifier's nonce for one audit: secret until it judges, the same after a crash."""
    return Hash(key.secret(NS_NONCE, b"audit", *_about(job, round, node, segment)))


def blind(key: SigningKey, job: Hash, round: int, node: PeerId, segment: int, border: BorderRoots) -> BlindCommitment:
    """The verifier's signed commitment to `border` as the result of the segment."""
    nonce = nonce_of(key, job, round, node, segment)
    promise = result_digest(job, round, node, segment, key.public, border, nonce)
    return BlindCommitment(key.public, promise, key.sign(NS_AUDIT, *_about(job, round, node, segment), promise))


def is_blind(commitment: BlindCommitment, job: Hash, round: int, node: PeerId, segment: int) -> bool:
    """Whether the verifier that it names signed it for this audit."""
    parts = (*_about(job, round, node, segment), commitment.digest)
    return is_signed(commitment.verifier, commitment.signature, NS_AUDIT, *parts)


def opens(
    commitment: BlindCommitment, job: Hash, round: int, node: PeerId, segment: int, border: BorderRoots, nonce: Hash
) -> bool:
    """Whether this result and nonce are what the verifier had committed to."""
    return result_digest(job, round, node, segment, commitment.verifier, border, nonce) == commitment.digest
