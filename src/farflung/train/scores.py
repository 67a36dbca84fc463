"""Defines loss probes: what one contribution does to the loss, signed by a verifier (V2: a filter only).

All losses are of the public state before the round, and of that state with one contribution merged alone
(train.sync_arithmetic.Sync.alone), in units of 2^-20 nats per token (train.contribution_trace): on windows of
validation text, the same ones for everybody, and on windows of the contribution's own assigned data. Which windows
follows from the round's beacon, so nobody knew them when the contributions were committed to.

    gain       loss before - loss with the contribution: above 0 is better
    validation what the contribution is worth to others; own: what it is worth on what it should have been made from
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_SCORES, SigningKey, digest, is_signed
from farflung.core.ids import Hash, PeerId, Signature


class ContributionScore(Wire, frozen=True):
    """One contribution's losses: on validation data with it, and on its own data before and with it."""

    peer: PeerId
    held: int
    before: int
    own: int

    def gains(self, held_before: int) -> tuple[int, int]:
        """On validation data, and on its own."""
        return held_before - self.held, self.before - self.own


class RoundScores(Wire, frozen=True):
    """One verifier's losses of a round: on validation data before it, and of each accepted contribution, ascending by
    peer.

    `contributions` is the root of the accept set (roundlog.contributions_root), `beacon` that of the round.
    """

    chain: Hash
    job: Hash
    round: int
    beacon: Hash
    contributions: Hash
    verifier: PeerId
    held_before: int
    each: tuple[ContributionScore, ...]


class SignedRoundScores(Wire, frozen=True):
    """Scores under their verifier's signature."""

    scores: RoundScores
    signature: Signature


def sign_scores(key: SigningKey, scores: RoundScores) -> SignedRoundScores:
    """Signed by the verifier that they name."""
    return SignedRoundScores(scores, key.sign(NS_SCORES, encode(scores)))


def are_scores_signed(signed: SignedRoundScores) -> bool:
    """Whether the verifier that they name signed them."""
    return is_signed(signed.scores.verifier, signed.signature, NS_SCORES, encode(signed.scores))


def seed_of(beacon: Hash) -> int:
    """What names a round's windows."""
    return int.from_bytes(digest(NS_SCORES, b"windows", beacon)[:8], "little")


def windows_of(seed: int, total: int, count: int) -> list[int]:
    """`count` of `total` windows, evenly apart, from one on that the seed names; where there are fewer, some twice."""
    first = seed % total
    return [(first + place * total // count) % total for place in range(count)]


def lot_of(beacon: Hash) -> int:
    """A round's lot, below 2^32: whether it is scored."""
    return int.from_bytes(digest(NS_SCORES, b"lot", beacon)[:4], "little")


def order_of(beacon: Hash, verifiers: Collection[PeerId]) -> tuple[PeerId, ...]:
    """The verifiers in the order in which a round's scores are asked of them: another one first in every round."""
    return tuple(sorted(set(verifiers), key=lambda v: digest(NS_SCORES, b"verifier", beacon, v)))


def by_peer(scores: RoundScores) -> Mapping[PeerId, tuple[int, int]]:
    """Each contribution's gains, on validation data and on its own."""
    return {score.peer: score.gains(scores.held_before) for score in scores.each}
