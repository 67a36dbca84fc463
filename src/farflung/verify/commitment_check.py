"""Checks commitments that are made before payloads are shown: nobody can copy what nobody has seen.

    digest = H(job, peer, round, payload hash, weight, trace root, nonce)        signed by the peer (core.commitments)

The nonce is derived from the peer's key, so that a peer that crashed after committing commits to the same again.
"""

from __future__ import annotations

from farflung.core import limits, merkle
from farflung.core.commitments import commitment_digest, is_commitment_signed, number, planted_digest
from farflung.core.crypto import NS_ACK, NS_NONCE, NS_ROUND_ROOT, SigningKey, is_signed
from farflung.core.ids import Hash, PeerId, Signature
from farflung.ledger.canaries import source_of
from farflung.ledger.transactions import CommitmentOpening, PlantedTrace
from farflung.train.contribution_trace import ContributionTrace
from farflung.train.run_log import Commitment, Contribution


def nonce_of(key: SigningKey, job: Hash, round: int) -> Hash:
    """The peer's nonce for one round of one job: secret until it is revealed, the same after a crash."""
    return Hash(key.secret(NS_NONCE, job, number(round)))


def commit(key: SigningKey, job: Hash, round: int, payload: Hash, weight: int, trace: Hash) -> Commitment:
    """A peer's signed commitment to the payload with this content hash, and to how it was made."""
    nonce = nonce_of(key, job, round)
    promise = commitment_digest(job, key.public, round, payload, weight, trace, nonce)
    return Commitment(key.public, promise, key.sign(NS_ACK, job, number(round), promise))


def plant(key: SigningKey, job: Hash, round: int, trace: ContributionTrace, segment: int) -> PlantedTrace:
    """A peer's own trace with a false end of `segment`, and all that shows it to be false (ledger.canaries).

    The nonce is another one than the commitment's, and follows from the key as well.
    """
    payload, weight = trace.payload, trace.statistics.tokens
    committed = commit(key, job, round, payload, weight, trace.root)
    truth = CommitmentOpening(payload, weight, nonce_of(key, job, round), committed.signature)
    nonce = Hash(key.secret(NS_NONCE, b"planted", job, number(round)))
    asked = planted_digest(job, key.public, round, payload, weight, trace.planted(segment).root, nonce)
    leaves = tuple(merkle.leaf_hash(index, leaf) for index, leaf in enumerate(trace.leaves))
    end, source = trace.borders[segment + 1], trace.borders[source_of(segment, len(trace.borders) - 1)]
    signature = key.sign(NS_ACK, job, number(round), asked)
    return PlantedTrace(truth, trace.root, leaves, end, source, nonce, signature)


def is_commitment(commitment: Commitment, job: Hash, round: int) -> bool:
    """Whether the peer itself signed this commitment for this round of this job."""
    return is_commitment_signed(commitment.peer, commitment.signature, job, round, commitment.digest)


def opens(contribution: Contribution, commitment: Commitment, job: Hash, round: int) -> bool:
    """Whether a revealed contribution is the one that was committed, of a weight that can be merged."""
    c = contribution
    if c.peer != commitment.peer or not 1 <= c.weight <= limits.WEIGHT:
        return False
    return commitment_digest(job, c.peer, round, c.payload, c.weight, c.trace, c.nonce) == commitment.digest


def sign_root(key: SigningKey, job: Hash, round: int, root: Hash) -> Signature:
    """A peer's signature under the public state that it holds after a round."""
    return key.sign(NS_ROUND_ROOT, job, number(round), root)


def is_root_signed(peer: PeerId, signature: Signature, job: Hash, round: int, root: Hash) -> bool:
    """Whether the peer signed this root for this round."""
    return is_signed(peer, signature, NS_ROUND_ROOT, job, number(round), root)
