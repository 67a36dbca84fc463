"""A receipt: one row of the ledger with all that a stranger needs to believe it, given only the genesis.

Row -> Merkle path -> table root -> state root -> header -> certificate of the genesis validators. About 1 kB.
"""

from __future__ import annotations

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.core.ids import Hash
from farflung.ledger.block import Certificate, Genesis, Header, has_certificate, tables_hash
from farflung.ledger.chain import Chain
from farflung.ledger.rows import (
    KINDS,
    AccountRow,
    ChannelRow,
    EpochRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    Row,
)
from farflung.ledger.state import genesis_header

__all__ = [
    "AccountRow",
    "ChannelRow",
    "EpochRow",
    "JobRow",
    "KeyRow",
    "LeaseRow",
    "NodeRow",
    "Receipt",
    "check_receipt",
    "prove",
    "read_row",
]


class Receipt(Wire, frozen=True):
    """Row `index` of the `count` rows of `table`, as it stood after the block of `header`."""

    genesis: Hash
    header: Header
    certificate: Certificate
    table: str
    index: int
    count: int
    row: bytes
    path: tuple[Hash, ...]


def prove(chain: Chain, table: str, key: bytes) -> Receipt:
    """The receipt of the row under `key` (see ledger.rows) at the chain's head.

    Raises PolicyError FF-LEDG-070 when there is no such table or row.
    """
    place = chain.state.tables[table].place(key) if table in KINDS else None
    if place is None:
        raise PolicyError(
            "FF-LEDG-070",
            f"no such row in the ledger's {table[:20]!r}",
            cause=f"nothing is recorded under {key[:4].hex()}",
            hint="`farflung status` lists what is recorded",
        )
    held = chain.state.tables[table]
    return Receipt(
        chain.id,
        chain.head,
        chain.certificate,
        table,
        place,
        len(held.rows),
        encode(held.rows[place]),
        held.tree.path(place),
    )


def check_receipt(receipt: Receipt, genesis: Genesis) -> Row:
    """The row that the receipt proves.

    Raises VerificationError: FF-LEDG-071 other chain, -072 certificate, -073 tables are not the header's, -074
    no such table or row number, -075 wrong path, -076 unreadable row.
    """
    header = receipt.header
    if receipt.genesis != genesis.chain or header.chain != genesis.chain:
        raise _wrong("FF-LEDG-071", "it is of another chain")
    if not _is_certified(receipt, genesis):
        raise _wrong("FF-LEDG-072", "its block is not certified by the genesis validators")
    if tables_hash(header.tables) != header.state:
        raise _wrong("FF-LEDG-073", "its tables do not hash to the state root")
    root = {name: held for name, rows, held in header.tables if rows == receipt.count}.get(receipt.table)
    if root is None or receipt.table not in KINDS:
        raise _wrong("FF-LEDG-074", "its table is not in the header")
    if not merkle.holds(root, receipt.count, receipt.index, receipt.row, receipt.path):
        raise _wrong("FF-LEDG-075", "the path does not lead from the row to the root")
    return read_row(receipt)


def _is_certified(receipt: Receipt, genesis: Genesis) -> bool:
    if receipt.header.height == 0:
        return receipt.header == genesis_header(genesis) and not receipt.certificate
    return has_certificate(receipt.header, receipt.certificate, genesis.validators)


def read_row(receipt: Receipt) -> Row:
    """The decoded row, unchecked: use `check_receipt`. Raises VerificationError FF-LEDG-074, -076."""
    kind = KINDS.get(receipt.table)
    if kind is None:
        raise _wrong("FF-LEDG-074", "its table is unknown")
    try:
        return decode(receipt.row, kind, limits.KIB)
    except ProtocolError as error:
        raise _wrong("FF-LEDG-076", f"its row cannot be read: {error.message}") from None


def _wrong(code: str, cause: str) -> VerificationError:
    return VerificationError(
        code,
        "the receipt is not valid",
        cause=cause,
        hint="ask the ledger for a fresh receipt and compare the genesis you hold",
    )
