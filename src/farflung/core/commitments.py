"""Defines the bytes of a peer's commitments for one round.

Those who check them (verify) and the ledger rules that punish a breach share this format.

    digest = H(job, peer, round, payload hash, weight, trace root, nonce)        signed by the peer

`trace` is the Merkle root over the states at the borders of the round's segments, the statistics and the payload
(train.contribution_trace), so that any part can be opened later and none can be changed.
"""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.crypto import NS_ACK, NS_COMMITMENT, NS_PLANTED, digest, is_signed
from farflung.core.ids import Hash, PeerId, Signature


class BorderRoots(Wire, frozen=True):
    """Private state at the border before segment `index`. `steps`: what the optimizer has counted so far.

    Each root is core.layout.state_root over the vectors of that part by their names in train.inner_state (`params` for
    the weights); ZERO_HASH stands for no vectors (fresh).
    """

    round: int
    index: int
    steps: int
    params: Hash
    optimizer: Hash
    residual: Hash


def leaf_count(segments: int) -> int:
    """Leaves of a trace: borders, statistics and payload."""
    return segments + 3


def number(value: int) -> bytes:
    """A count as it stands under a hash."""
    return value.to_bytes(8, "little")


def commitment_digest(
    job: Hash, peer: PeerId, round: int, payload: Hash, weight: int, trace: Hash, nonce: Hash
) -> Hash:
    """What a peer promises."""
    return digest(NS_COMMITMENT, job, peer, number(round), payload, number(weight), trace, nonce)


def planted_digest(job: Hash, peer: PeerId, round: int, payload: Hash, weight: int, trace: Hash, nonce: Hash) -> Hash:
    """What a peer signs of a trace that it was asked to falsify: it promises nothing, and nobody is punished for it."""
    return digest(NS_PLANTED, job, peer, number(round), payload, number(weight), trace, nonce)


def is_commitment_signed(peer: PeerId, signature: Signature, job: Hash, round: int, promise: Hash) -> bool:
    """Whether the peer itself signed this commitment for this round of this job."""
    return is_signed(peer, signature, NS_ACK, job, number(round), promise)
