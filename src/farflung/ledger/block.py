"""What the ledger starts from, and the blocks that follow: formats, names and certificates.

A chain is named by the hash of its genesis, a block by the hash of its header. A certificate is more than two
thirds of the validators' signatures over the header; a committee of one certifies alone. It is a single notary:
its fraud can be *shown* by receipts and certificates, it is not *prevented*.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_GENESIS, NS_HEADER, NS_TABLES, digest, is_signed
from farflung.core.errors import VerificationError
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash, PeerId, Signature
from farflung.core.money import MAX_CREDITS
from farflung.ledger.tx import ChannelClaim, ChannelClose, SignedTx

LOGICAL_MS = 1000  # step of logical time: local networks propose at (last block's time) + this
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

Certificate = tuple[tuple[int, Signature], ...]
Tables = tuple[tuple[str, int, Hash], ...]


class Params(Wire, frozen=True):
    """Numbers of the law, fixed by genesis. Money in micro-credits, times in milliseconds."""

    fee_min: int = 0
    stake_min: int = 0
    job_ms_max: int = 90 * DAY_MS  # how far ahead a job's deadline may lie
    node_ms_max: int = 400 * DAY_MS  # how far ahead a node's expiry may lie
    step_ms_max: int = HOUR_MS  # how far one block may move ledger time
    withheld_permille: int = 100  # of its stake, what a node loses that did not open what it had committed to
    window_ms: int = 0  # between a job's end and its settlement, for vouchers and accusations
    dispute_ms: int = 0  # for an accused to answer, and again for the jury; 0: a slash takes effect at once
    bond_min: int = 0  # what an accused puts up with its answer


class Genesis(Wire, frozen=True):
    """The start of a chain: who owns what, and who certifies. Nothing is minted afterwards."""

    name: str
    time: int
    accounts: tuple[tuple[PeerId, int], ...]
    validators: tuple[PeerId, ...]
    params: Params = Params()

    @property
    def chain(self) -> Hash:
        """The chain's id."""
        return digest(NS_GENESIS, encode(self))


class Header(Wire, frozen=True):
    """One block in short. `tables` = (name, rows, Merkle root) of each; `state` is their hash."""

    chain: Hash
    height: int
    time: int
    parent: Hash
    txs: Hash
    state: Hash
    tables: Tables

    @property
    def id(self) -> Hash:
        """The block's id."""
        return digest(NS_HEADER, encode(self))


class Block(Wire, frozen=True):
    """A header, the transactions under its `txs` root, and the committee's signatures."""

    header: Header
    txs: tuple[SignedTx, ...]
    certificate: Certificate


def tables_hash(tables: Tables) -> Hash:
    """The state root: hash over name, size and root of each table."""
    return digest(NS_TABLES, encode(tables))


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


def read_block(data: bytes) -> Block:
    """Reads a block from elsewhere, in form only; raises ProtocolError FF-CORE-020..023."""
    return decode(data, Block, limits.BLOCK_BYTES)


def has_certificate(header: Header, certificate: Certificate, validators: tuple[PeerId, ...]) -> bool:
    """Whether more than two thirds of `validators` signed `header`, each once, in ascending order."""
    seats = [seat for seat, _ in certificate]
    if seats != sorted(set(seats)) or not 3 * len(seats) > 2 * len(validators):
        return False
    body = encode(header)
    return all(
        0 <= seat < len(validators) and is_signed(validators[seat], signature, NS_HEADER, body)
        for seat, signature in certificate
    )


def check_certificate(header: Header, certificate: Certificate, validators: tuple[PeerId, ...]) -> None:
    """Raises VerificationError FF-LEDG-066 unless `has_certificate`."""
    if not has_certificate(header, certificate, validators):
        raise VerificationError(
            "FF-LEDG-066",
            f"block {header.height} is not certified",
            cause="its header is not signed by more than two thirds of the genesis validators",
            hint="fetch the block again from another source, and check that the genesis is the right one",
        )


def check_genesis(genesis: Genesis) -> None:
    """Raises VerificationError FF-LEDG-060 unless a chain can start from it."""
    fault = _genesis_fault(genesis)
    if fault:
        raise VerificationError(
            "FF-LEDG-060", "unusable genesis", cause=fault, hint="write the genesis file anew"
        )


def _genesis_fault(genesis: Genesis) -> str:
    owners = [owner for owner, _ in genesis.accounts]
    amounts = [amount for _, amount in genesis.accounts]
    numbers = (genesis.time, *msgspec.structs.astuple(genesis.params), *amounts)
    if any(len(key) != ID_BYTES for key in (*owners, *genesis.validators)):
        return "a key has not 32 bytes"
    if not genesis.validators or len(set(genesis.validators)) < len(genesis.validators):
        return "validators are missing or named twice"
    if len(set(owners)) < len(owners):
        return "an account is named twice"
    if min(numbers) < 0 or max(numbers) > MAX_CREDITS or sum(amounts) > MAX_CREDITS:
        return "a number or the sum of all balances is out of range"
    if genesis.params.withheld_permille > 1000:
        return "withheld_permille is above 1000"
    return "" if genesis.params.step_ms_max >= 1 else "step_ms_max must be at least 1"
