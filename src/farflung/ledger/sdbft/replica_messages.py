"""Defines the messages between replicas (docs/protocol/sdbft.md, "Names and formats").

They are a tagged union, bounded when it is read.

`PendingTxs` is for the shell's pool of transactions; a replica passes it over.
"""

from __future__ import annotations

from farflung.core import limits
from farflung.core.codec import Wire, decode
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, ZERO_HASH, Hash, Signature
from farflung.ledger.block import Block, BlockHeader
from farflung.ledger.transactions import SignedTx
from farflung.ledger.votes import QuorumCertificate, SignedVote, Vote, VoteKind


class VoteMessage(Wire, frozen=True, tag="ballot"):
    """One seat's vote."""

    signed: SignedVote


class VoteQuorum(Wire, frozen=True, tag="quorum"):
    """A quorum voted this: `seats` and `signatures` as in a certificate."""

    vote: Vote
    seats: bytes
    signatures: tuple[Signature, ...]

    @property
    def certificate(self) -> QuorumCertificate:
        """The same without the chain, epoch and block that a block's header says already."""
        return QuorumCertificate(self.vote.kind, self.vote.view, self.seats, self.signatures)


class BlockProposal(Wire, frozen=True, tag="proposal"):
    """A block, and its leader's NOTARIZE for it."""

    header: BlockHeader
    txs: tuple[SignedTx, ...]
    signed: SignedVote


class ReplicaStatus(Wire, frozen=True, tag="status"):
    """Where the sender stands: its view, its last final height, the first view of which it lacks something.

    `wants` is a block that it cannot see and needs, or zero.
    """

    epoch: int
    view: int
    height: int
    since: int
    wants: Hash


class FinalBlocks(Wire, frozen=True, tag="blocks"):
    """Final blocks of one epoch, in order; the last has a FINALIZE certificate."""

    blocks: tuple[Block, ...]


class PendingTxs(Wire, frozen=True, tag="pending"):
    """What a validator was handed and the next leaders may use."""

    txs: tuple[SignedTx, ...]


Message = VoteMessage | VoteQuorum | BlockProposal | ReplicaStatus | FinalBlocks | PendingTxs


def read_message(data: bytes) -> Message:
    """Reads a message, in form only; raises ProtocolError FF-CORE-020..023."""
    message: Message = decode(data, Message, limits.COMMITTEE_BYTES)  # type: ignore[arg-type]
    return message


def is_sound(vote: Vote) -> bool:
    """Whether a vote has its form: views count from 1, and NULLIFY alone names no block."""
    nothing = vote.block == ZERO_HASH
    return vote.view >= 1 and len(vote.block) == ID_BYTES and nothing == (vote.kind == VoteKind.NULLIFY)


def is_whole(signed: SignedVote) -> bool:
    """Whether a signed vote has its form."""
    return is_sound(signed.vote) and signed.seat >= 0 and len(signed.signature) == SIGNATURE_BYTES
