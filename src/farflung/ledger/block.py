"""Defines the genesis of a ledger and the blocks that follow: formats, names and certificates.

A chain is named by the hash of its genesis, a block by the hash of its header. A certificate is the votes of more than
two thirds of the committee for the header's id (ledger.votes); a committee of one certifies alone. It is a single
notary: its fraud can be *shown* by receipts and certificates, it is not *prevented*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_GENESIS, NS_HEADER, NS_TABLES, digest, is_small_order
from farflung.core.errors import VerificationError
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash, PeerId
from farflung.core.money import MAX_CREDITS, format_credits
from farflung.ledger.params import LedgerParams, fault_of_params
from farflung.ledger.transactions import ChannelClaim, ChannelClose, SignedTx
from farflung.ledger.votes import QuorumCertificate, Vote, VoteKind, has_quorum

LOGICAL_MS = 1000  # step of logical time: local networks propose at (last block's time) + this

Entry = tuple[str, int, Hash]  # name, rows and Merkle root of one table


class Genesis(Wire, frozen=True):
    """The start of a chain: who owns what, and who certifies. Nothing is minted afterwards."""

    name: str
    time: int
    accounts: tuple[tuple[PeerId, int], ...]
    validators: tuple[PeerId, ...]
    params: LedgerParams = LedgerParams()

    @property
    def chain(self) -> Hash:
        """The chain's id."""
        return digest(NS_GENESIS, encode(self))


class BlockHeader(Wire, frozen=True):
    """One block in short. `proposer` is the key of the seat that made it; `state` is the state root (`state_root`)."""

    chain: Hash
    height: int
    epoch: int
    time: int
    proposer: PeerId
    parent: Hash
    txs: Hash
    state: Hash

    @property
    def id(self) -> Hash:
        """The block's id."""
        return digest(NS_HEADER, encode(self))


class Block(Wire, frozen=True):
    """A header, the transactions under its `txs` root, and the committee's signatures."""

    header: BlockHeader
    txs: tuple[SignedTx, ...]
    certificate: QuorumCertificate


def state_root(entries: Sequence[Entry]) -> Hash:
    """The hash over the Merkle root of the tables' entries."""
    return sealed_root(merkle.root([encode(entry) for entry in entries]))


def sealed_root(root: Hash) -> Hash:
    """The state root over the Merkle root of the tables' entries."""
    return digest(NS_TABLES, root)


def entry_path(entries: Sequence[Entry], place: int) -> tuple[Hash, ...]:
    """Sibling hashes from one table's entry to the root under the state root, for core.merkle."""
    return merkle.prove([encode(entry) for entry in entries], place)


def txs_root(txs: tuple[SignedTx, ...]) -> Hash:
    """Merkle root over the encoded signed transactions."""
    return merkle.root([encode(signed) for signed in txs])


def worked_state(blocks: Iterable[Block]) -> Hash:
    """The state root after the last block that does more than pay relays; ZERO_HASH where there is none.

    What relays are paid for are measured bytes, all else a job's ledger says follows from the job: two runs have this
    root in common.
    """
    found = ZERO_HASH
    for block in blocks:
        ops = [op for signed in block.txs for op in signed.tx.ops]
        if not all(isinstance(op, ChannelClaim | ChannelClose) for op in ops):
            found = block.header.state
    return found


def unforeseen(block: Block) -> Hash:
    """What nobody alone could choose of a final block: its id, where several seats agreed to it; else ZERO_HASH.

    A ledger's only validator may make as many headers as it likes. Left out, they cannot serve it, and a run on such a
    ledger, whose blocks differ with every delay, still has one outcome.
    """
    return block.header.id if len(block.certificate.signatures) > 1 else ZERO_HASH


def read_block(data: bytes) -> Block:
    """Reads a block from elsewhere, in form only; raises ProtocolError FF-CORE-020..023."""
    return decode(data, Block, limits.BLOCK_BYTES)


def vote_for(header: BlockHeader, view: int, kind: VoteKind) -> Vote:
    """What a seat signs to notarize or finalize this block in a view."""
    return Vote(header.chain, header.epoch, view, kind, header.id)


def has_certificate(header: BlockHeader, certificate: QuorumCertificate, members: Sequence[PeerId]) -> bool:
    """Whether a quorum of `members` notarized or finalized `header` in the certificate's view."""
    if certificate.kind == VoteKind.NULLIFY:
        return False
    return has_quorum(certificate, vote_for(header, certificate.view, certificate.kind), members)


def is_final(header: BlockHeader, certificate: QuorumCertificate, members: Sequence[PeerId]) -> bool:
    """Whether the certificate alone makes the block final."""
    return certificate.kind == VoteKind.FINALIZE and has_certificate(header, certificate, members)


def check_certificate(header: BlockHeader, certificate: QuorumCertificate, members: Sequence[PeerId]) -> None:
    """Raises VerificationError FF-LEDG-066 unless `has_certificate`."""
    if not has_certificate(header, certificate, members):
        raise VerificationError(
            "FF-LEDG-066",
            f"block {header.height} is not certified",
            cause=f"it is not signed by more than two thirds of the {len(members)} seats of epoch {header.epoch}",
            hint="fetch the block again from another source, and check that the genesis is the right one",
        )


def check_genesis(genesis: Genesis) -> None:
    """Raises VerificationError FF-LEDG-060 unless a chain can start from it."""
    fault = _genesis_fault(genesis)
    if fault:
        raise VerificationError("FF-LEDG-060", "unusable genesis", cause=fault, hint="write the genesis file anew")


def _genesis_fault(genesis: Genesis) -> str:
    owners = [owner for owner, _ in genesis.accounts]
    amounts = [amount for _, amount in genesis.accounts]
    numbers = (genesis.time, *amounts)
    if any(len(key) != ID_BYTES for key in (*owners, *genesis.validators)):
        return "a key has not 32 bytes"
    if not genesis.validators or len(set(genesis.validators)) < len(genesis.validators):
        return "validators are missing or named twice"
    if any(is_small_order(key) for key in genesis.validators):
        return "a validator's key has a small order"
    if len(genesis.validators) > genesis.params.committee_max:
        return "validators are more than committee_max"
    if len(set(owners)) < len(owners):
        return "an account is named twice"
    if min(numbers) < 0 or genesis.time > MAX_CREDITS:
        return "a number is out of range"
    if sum(amounts) > MAX_CREDITS:
        most = format_credits(MAX_CREDITS)
        return f"the balances are {format_credits(sum(amounts))} credits in all, and {most} are the most"
    return fault_of_params(genesis.params)
