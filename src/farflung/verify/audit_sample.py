"""Draws the audited contributions, a segment of each, and their verifiers, once nobody can prepare for it any
more.

The beacon hashes all commitments of a round with the id of the block in which the ledger anchored them, so it is known
to nobody before everybody has committed to all of its work (V2), and trying nonces makes it no kinder: the block comes
later. A ledger of one validator adds nothing to the commitments (ledger.block.unforeseen). Every draw is integer
arithmetic on hash bytes and is made for each peer alone: who else takes part, who is suspected and in which order one
counts changes nobody's draw, and a second reader draws the same.

What it does not stop: a coordinator that works with whoever proposes that block, and tries times and orders until the
draw is kind; and, where there is one validator only, the last to commit, told all others by the coordinator, who tries
nonces. At a rate q that takes about 1 / (1 - q) tries. Probation and flags are not to be tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.commitments import number
from farflung.core.crypto import NS_DRAW, digest
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import AuditSpec
from farflung.train.run_log import Commitment, Contribution

ODDS: Final = 1 << 32  # a peer is drawn with odds_of(audit) in so many
_NOT_FLAGGED: Final[Mapping[PeerId, str]] = {}


class AuditSample(msgspec.Struct, frozen=True):
    """One contribution that is audited. `flagged`: why it was suspected, or empty."""

    peer: PeerId
    segment: int
    flagged: str = ""


def anchor(job: Hash, round: int, commitments: Iterable[Commitment]) -> Hash:
    """What the ledger is told of a round before its draw: H(job, round, digests of all commitments, sorted)."""
    promises = sorted(bytes(c.digest) for c in commitments)
    return digest(NS_DRAW, b"commitments", job, number(round), *promises)


def beacon(anchored: Hash, block: Hash) -> Hash:
    """The round's random number: H(what was anchored, what was unforeseen of the block that holds it)."""
    return digest(NS_DRAW, b"round", anchored, block)


def standing(
    accepted: Mapping[int, Sequence[Contribution]], round: int, peer: PeerId, most: int = limits.ROUNDS
) -> int:
    """Contributions of a peer that were accepted in a row, up to the round before this one; `most` ends the count.

    Who was away begins anew: a peer that dies whenever it is drawn is on probation whenever it returns.
    """
    count = 0
    while count < min(round, most) and any(c.peer == peer for c in accepted.get(round - count - 1, ())):
        count += 1
    return count


def odds_of(audit: AuditSpec) -> int:
    """The audit rate as the draw uses it: so many in ODDS, rounded down."""
    return int(audit.rate * ODDS)


def draw(
    audit: AuditSpec,
    segments: int,
    beacon: Hash,
    peers: Sequence[tuple[PeerId, int]],
    flagged: Mapping[PeerId, str] = _NOT_FLAGGED,
) -> tuple[AuditSample, ...]:
    """Who is audited, ascending. `peers`: each with its contributions accepted in a row before this round (`standing`).

    With neither rate nor probation there are no audits, and flags draw nobody.
    """
    if not audit.rate > 0 and not audit.probation:
        return ()
    odds = odds_of(audit)
    drawn: list[AuditSample] = []
    for peer, accepted in sorted(peers):
        luck = digest(NS_DRAW, b"peer", beacon, peer)
        is_drawn = accepted < audit.probation or int.from_bytes(luck[:4], "little") < odds
        if is_drawn or peer in flagged:
            drawn.append(AuditSample(peer, segment_of(beacon, peer, segments), flagged.get(peer, "")))
    return tuple(drawn)


def segment_of(beacon: Hash, peer: PeerId, segments: int) -> int:
    """Which segment of a peer's round is opened if any is."""
    return int.from_bytes(digest(NS_DRAW, b"segment", beacon, peer)[:8], "little") * segments >> 64


def verifier_order(beacon: Hash, peer: PeerId, verifiers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The verifiers of one audit: the first is asked, each next one confirms. Nobody judges itself."""
    return tuple(
        sorted(
            (v for v in set(verifiers) if v != peer),
            key=lambda verifier: digest(NS_DRAW, b"verifier", beacon, peer, verifier),
        )
    )
