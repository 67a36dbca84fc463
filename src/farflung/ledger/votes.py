"""Defines the votes that a committee's seats sign, and their quorum.

See docs/protocol/sdbft.md; Simplex, Chan and Pass, TCC 2023.

A quorum is more than two thirds of the seats. One seat has one vote, whatever its stake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_VOTE, SigningKey, is_signed
from farflung.core.ids import SIGNATURE_BYTES, Hash, PeerId, Signature


class VoteKind(IntEnum):
    """What a vote says of its view."""

    NOTARIZE = 0  # this block may follow
    NULLIFY = 1  # the view may be passed over
    FINALIZE = 2  # this block is the view's, and I have not nullified it


class Vote(Wire, frozen=True):
    """One statement. `view` counts from 1 in each epoch; `block` is a header's id, or zero under NULLIFY."""

    chain: Hash
    epoch: int
    view: int
    kind: VoteKind
    block: Hash


class SignedVote(Wire, frozen=True):
    """A vote under the signature of the seat's key (NS_VOTE)."""

    vote: Vote
    seat: int
    signature: Signature


class QuorumCertificate(Wire, frozen=True):
    """Signatures of several seats over one vote: bit i % 8 of byte i // 8 of `seats` is seat i, seats ascend."""

    kind: VoteKind
    view: int
    seats: bytes
    signatures: tuple[Signature, ...]


NO_CERTIFICATE = QuorumCertificate(VoteKind.FINALIZE, 0, b"", ())  # of the header at height 0, which nobody signs


def is_quorum(count: int, seats: int) -> bool:
    """Whether `count` of so many seats are more than two thirds."""
    return 3 * count > 2 * seats


def faults(seats: int) -> int:
    """How many seats may be Byzantine."""
    return (seats - 1) // 3


def sign_vote(key: SigningKey, seat: int, vote: Vote) -> SignedVote:
    """The vote under `key`'s signature, for its seat."""
    return SignedVote(vote, seat, key.sign(NS_VOTE, encode(vote)))


def is_vote_signed(signed: SignedVote, members: Sequence[PeerId]) -> bool:
    """Whether the vote's seat is one of the committee's and signed it."""
    if not 0 <= signed.seat < len(members):
        return False
    return is_signed(members[signed.seat], signed.signature, NS_VOTE, encode(signed.vote))


def excludes(first: Vote, second: Vote) -> bool:
    """Whether an honest seat never signs both. NOTARIZE and NULLIFY in one view it may."""
    if (first.chain, first.epoch, first.view) != (second.chain, second.epoch, second.view):
        return False
    if first.kind == second.kind:
        return first.kind != VoteKind.NULLIFY and first.block != second.block
    return {first.kind, second.kind} == {VoteKind.FINALIZE, VoteKind.NULLIFY}


def certificate_of(votes: Iterable[SignedVote], seats: int) -> QuorumCertificate:
    """Votes for the same, put together. They are taken to be signed; one of each seat, at least one."""
    by_seat = {signed.seat: signed for signed in votes}
    vote = next(iter(by_seat.values())).vote
    bits = sum(1 << seat for seat in by_seat).to_bytes(_width(seats), "little")
    return QuorumCertificate(vote.kind, vote.view, bits, tuple(by_seat[seat].signature for seat in sorted(by_seat)))


def has_quorum(certificate: QuorumCertificate, vote: Vote, members: Sequence[PeerId]) -> bool:
    """Whether a quorum of `members` signed `vote`. Form and number are checked before any signature is judged."""
    if not _is_sound(certificate, vote, len(members)):
        return False
    body = encode(vote)
    signers = zip(seats_of(certificate), certificate.signatures, strict=True)
    return all(is_signed(members[seat], signature, NS_VOTE, body) for seat, signature in signers)


def seats_of(certificate: QuorumCertificate) -> list[int]:
    """The seats whose bits are set, ascending."""
    bits = int.from_bytes(certificate.seats, "little")
    return [seat for seat in range(bits.bit_length()) if bits >> seat & 1]


def _is_sound(certificate: QuorumCertificate, vote: Vote, seats: int) -> bool:
    if (certificate.kind, certificate.view) != (vote.kind, vote.view) or vote.view < 1:
        return False
    bits = int.from_bytes(certificate.seats, "little")
    if len(certificate.seats) != _width(seats) or bits >> seats:
        return False
    count = bits.bit_count()
    if count != len(certificate.signatures) or not is_quorum(count, seats):
        return False
    return all(len(signature) == SIGNATURE_BYTES for signature in certificate.signatures)


def _width(seats: int) -> int:
    return (seats + 7) // 8
