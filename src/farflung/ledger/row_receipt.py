"""Defines a receipt: one row of the ledger with everything needed to verify it, given its committee.

Row -> path -> table root -> path -> state root -> header -> certificate of the header's epoch. Who certifies is not
decided here (ledger.light_client). About 1.4 kB under four validators and a million rows, 5.6 kB under a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES, Hash
from farflung.ledger.block import BlockHeader, entry_path, sealed_root
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.table_rows import KINDS, Row
from farflung.ledger.votes import QuorumCertificate

_TABLES: Final = tuple(KINDS)


class LedgerReceipt(Wire, frozen=True):
    """Row `index` of the `count` rows of `table`, as it stood after the block of `header`.

    Paths are sibling hashes from below, 32 bytes each: `path` to the table's `root`, `table_path` to the state root.
    """

    genesis: Hash
    header: BlockHeader
    certificate: QuorumCertificate
    table: str
    count: int
    root: Hash
    table_path: bytes
    index: int
    row: bytes
    path: bytes


def prove_row(
    state: LedgerState, header: BlockHeader, certificate: QuorumCertificate, table: str, key: bytes
) -> LedgerReceipt:
    """The receipt of the row under `key` (see ledger.table_rows), as it is in the state of a certified header.

    Raises PolicyError FF-LEDG-070 when there is no such table or row.
    """
    place = state.tables[table].place(key) if table in KINDS else None
    if place is None:
        raise PolicyError(
            "FF-LEDG-070",
            f"no such row in the ledger's {table[:20]!r}",
            cause=f"nothing is recorded under {key[:4].hex()}",
            hint="`farflung status` lists what is recorded",
        )
    held = state.tables[table]
    return LedgerReceipt(
        header.chain,
        header,
        certificate,
        table,
        len(held.rows),
        held.tree.root,
        b"".join(entry_path(state.entries, _TABLES.index(table))),
        place,
        encode(held.rows[place]),
        b"".join(held.tree.path(place)),
    )


def opened(receipt: LedgerReceipt) -> Row:
    """The row, if it is under the header's state root; whether the header is anybody's is not looked at.

    Raises VerificationError: FF-LEDG-073 the table is not under the state root, -074 no such table, -075 wrong path,
    -076 unreadable row.
    """
    if receipt.table not in KINDS:
        raise refused("FF-LEDG-074", "its table is unknown")
    entry = encode((receipt.table, receipt.count, receipt.root))
    above = merkle.root_over(len(_TABLES), _TABLES.index(receipt.table), entry, _hashes(receipt.table_path) or ())
    if above is None or sealed_root(above) != receipt.header.state:
        raise refused("FF-LEDG-073", "its table is not under the state root")
    path = _hashes(receipt.path)
    if path is None or not merkle.holds(receipt.root, receipt.count, receipt.index, receipt.row, path):
        raise refused("FF-LEDG-075", "the path does not lead from the row to the root")
    return read_row(receipt)


def read_row(receipt: LedgerReceipt) -> Row:
    """The decoded row, unchecked: use `opened`. Raises VerificationError FF-LEDG-074, -076."""
    kind = KINDS.get(receipt.table)
    if kind is None:
        raise refused("FF-LEDG-074", "its table is unknown")
    try:
        return decode(receipt.row, kind, limits.ROW_BYTES)
    except ProtocolError as error:
        raise refused("FF-LEDG-076", f"its row cannot be read: {error.message}") from None


def _hashes(path: bytes) -> Sequence[bytes] | None:
    """The hashes of a packed path, or None where it is not whole ones."""
    if len(path) % ID_BYTES or len(path) > limits.PROOF_DEPTH * ID_BYTES:
        return None
    return [path[i : i + ID_BYTES] for i in range(0, len(path), ID_BYTES)]


def refused(code: str, cause: str) -> VerificationError:
    """A receipt that does not hold."""
    return VerificationError(
        code,
        "the receipt is not valid",
        cause=cause,
        hint="ask the ledger for a fresh receipt and compare the genesis you hold",
    )
