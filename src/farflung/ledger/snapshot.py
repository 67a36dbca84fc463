"""Defines a snapshot of the state after one final block, in chunks that can each be verified alone.

It serves nodes that join late or were offline for long.

A table's rows are in chunks of 2^k by index, k fixed for each table so that a chunk has at most a mebibyte. The hash
of a chunk is a node of the table's own Merkle tree (level k), so a manifest needs nobody's word but the certificate's:
the chunks' hashes fold to the tables' roots, these to the header's `state`, and a committee that the reader trusts
finalized the header (ledger.light_client). Hence the first wrong chunk shows who sent it. States are never changed
(ledger.persistent_collections), so to serve a snapshot is to hold on to one: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from farflung.core import limits, merkle
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES
from farflung.ledger.block import BlockHeader, Entry, Genesis, is_final, state_root
from farflung.ledger.ledger_state import LedgerState, LedgerTable
from farflung.ledger.light_client import TrustedCommittee
from farflung.ledger.merkle_tree import MerkleTree
from farflung.ledger.state_transition import law_of
from farflung.ledger.table_rows import KINDS
from farflung.ledger.validators import CommitteeRow
from farflung.ledger.votes import QuorumCertificate

# log2 of a chunk's rows: of the longest that a table can have, so many are within limits.SNAPSHOT_CHUNK_BYTES (tested).
LEVELS: Final[Mapping[str, int]] = {"accounts": 14, "epochs": 13, "nodes": 12, "leases": 11, "keys": 12} | {
    "channels": 12,
    "jobs": 11,
}
_LEVEL: Final = 8  # of all other tables: rows of up to limits.ROW_BYTES

Rows = tuple[bytes, ...]


class TableListing(Wire, frozen=True):
    """One table: its number of rows, and the hash of each chunk of them, one behind the other."""

    table: str
    rows: int
    chunks: bytes


class SnapshotManifest(Wire, frozen=True):
    """A final header with its FINALIZE certificate, and what the tables under its `state` are made of."""

    header: BlockHeader
    certificate: QuorumCertificate
    tables: tuple[TableListing, ...]


class GetSnapshot(Wire, frozen=True, tag="snapshot"):
    """The newest snapshot that is served."""


class GetSnapshotChunk(Wire, frozen=True, tag="chunk"):
    """One chunk of the snapshot of block `height`."""

    height: int
    table: str
    number: int


class SnapshotReply(Wire, frozen=True, tag="snapshot"):
    """Its manifest; None while there is no block."""

    manifest: SnapshotManifest | None


class SnapshotChunkReply(Wire, frozen=True, tag="chunk"):
    """The encoded rows; None when that snapshot is served no more: ask for the manifest of a newer one."""

    rows: Rows | None


def level_of(table: str) -> int:
    """log2 of the number of rows in a chunk of this table."""
    return LEVELS.get(table, _LEVEL)


def manifest_of(state: LedgerState, header: BlockHeader, certificate: QuorumCertificate) -> SnapshotManifest:
    """What a server says of the state after a block that is final by its own certificate."""
    listings = (
        TableListing(name, len(table.rows), table.tree.level(level_of(name))) for name, table in state.tables.items()
    )
    return SnapshotManifest(header, certificate, tuple(listings))


def chunk_of(state: LedgerState, table: str, number: int) -> Rows | None:
    """The encoded rows of one chunk, or None where there is none."""
    held, start = state.tables.get(table), number << level_of(table)
    if held is None or not 0 <= start < len(held.rows):
        return None
    end = min(len(held.rows), start + (1 << level_of(table)))
    return tuple(encode(held.rows.at(place)) for place in range(start, end))


def chunks_of(listing: TableListing) -> int:
    """How many chunks a table has."""
    return -(-listing.rows >> level_of(listing.table))


def opened_by(manifest: SnapshotManifest) -> int:
    """The last epoch that the state names: that of the header, or the next one where its block closes it."""
    return next((each.rows for each in manifest.tables if each.table == CommitteeRow.TABLE), 0) - 1


def check_manifest(manifest: SnapshotManifest, trust: TrustedCommittee) -> None:
    """`trust`: the committee of the header's epoch, from `light.walk`.

    Raises VerificationError: FF-LEDG-324 form, -325 not final by that committee, -326 not the header's state.
    """
    fault = _fault(manifest)
    if fault:
        raise _wrong("FF-LEDG-324", fault)  # its form
    header = manifest.header
    is_theirs = (header.chain, header.epoch) == (trust.chain, trust.epoch)
    if not is_theirs or not is_final(header, manifest.certificate, trust.committee):
        raise _wrong("FF-LEDG-325", f"its block is not finalized by the committee of epoch {trust.epoch}")
    entries = [
        (listing.table, listing.rows, merkle.seal(listing.rows, _top(listing.chunks))) for listing in manifest.tables
    ]
    if state_root(entries) != header.state:
        raise _wrong("FF-LEDG-326", "its chunks do not hash to the state root of its block")


def _fault(manifest: SnapshotManifest) -> str:
    """Counted before anything is hashed or allocated."""
    if tuple(listing.table for listing in manifest.tables) != tuple(KINDS):
        return "its tables are not the ledger's"
    if any(not 0 <= listing.rows <= limits.TABLE_ROWS for listing in manifest.tables):
        return "a table's number of rows is out of range"
    if any(len(listing.chunks) != chunks_of(listing) * ID_BYTES for listing in manifest.tables):
        return "it does not name each chunk once"
    return ""


def _top(chunks: bytes) -> bytes:
    level: Sequence[bytes] = [chunks[at : at + ID_BYTES] for at in range(0, len(chunks), ID_BYTES)]
    return merkle.top(level) if level else b""


def check_chunk(listing: TableListing, number: int, rows: Rows) -> None:
    """Whether these are the encoded rows of chunk `number` of a table whose manifest was checked.

    Raises VerificationError: FF-LEDG-327 not so many rows, or too large, -328 other rows.
    """
    size = 1 << level_of(listing.table)
    start = number * size
    due = min(listing.rows - start, size) if number >= 0 else 0
    if due < 1 or len(rows) != due or max(map(len, rows)) > limits.ROW_BYTES:
        raise _wrong("FF-LEDG-327", f"chunk {number} of {listing.table} has not its {due} rows")
    leaves = [merkle.leaf_hash(start + at, row) for at, row in enumerate(rows)]
    if merkle.top(leaves) != listing.chunks[number * ID_BYTES : (number + 1) * ID_BYTES]:
        raise _wrong("FF-LEDG-328", f"chunk {number} of {listing.table} holds other rows than its hash says")


def restored(genesis: Genesis, header: BlockHeader, rows: Mapping[str, Sequence[bytes]]) -> LedgerState:
    """The state after the block of a header that one trusts, from all encoded rows of each table.

    Raises VerificationError FF-LEDG-329: the rows are not those under the header's state root.
    """
    law, tables = law_of(genesis), dict[str, LedgerTable]()
    for name, kind in KINDS.items():
        held = rows.get(name, ())
        try:
            tables[name] = LedgerTable().with_rows([decode(row, kind, limits.ROW_BYTES) for row in held], held)
        except ProtocolError as error:
            raise _unlike(header, f"a row of {name} cannot be read: {error.message}") from None
    state = LedgerState(law, header.height, header.time, tables)
    if not set(rows) <= set(KINDS) or state.root != header.state:
        raise _unlike(header, "they do not hash to the state root of its header")
    return state


def are_written(header: BlockHeader, rows: Mapping[str, Sequence[bytes]]) -> bool:
    """Whether these bytes are the rows under the header's state root, whatever they mean."""
    entries: list[Entry] = []
    for name in KINDS:
        held = rows.get(name, ())
        leaves = {at: merkle.leaf_hash(at, row) for at, row in enumerate(held)}
        entries.append((name, len(held), MerkleTree().with_leaves(leaves).root))
    return set(rows) <= set(KINDS) and state_root(tuple(entries)) == header.state


def _unlike(header: BlockHeader, cause: str) -> VerificationError:
    return VerificationError(
        "FF-LEDG-329",
        f"the rows are not those of block {header.height}",
        cause=cause,
        hint="fetch them again from another source",
    )


class SnapshotCache:
    """What a server hands out: the states after a few of its blocks, each for a while, so that nobody is sent home."""

    def __init__(self) -> None:
        self._held: list[tuple[SnapshotManifest, LedgerState]] = []

    def manifest(
        self, state: LedgerState, header: BlockHeader, certificate: QuorumCertificate
    ) -> SnapshotManifest | None:
        """The newest, or one of the head where that is `limits.SNAPSHOT_BLOCKS` behind; None at the genesis."""
        newest = self._held[-1][0].header.height if self._held else -limits.SNAPSHOT_BLOCKS
        if header.height and header.height >= newest + limits.SNAPSHOT_BLOCKS:
            self._held.append((manifest_of(state, header, certificate), state))
            del self._held[: -limits.SNAPSHOTS]
        return self._held[-1][0] if self._held else None

    def chunk(self, height: int, table: str, number: int) -> Rows | None:
        """A chunk of the snapshot at this height; None when it is held no more, or has no such chunk."""
        for manifest, state in self._held:
            if manifest.header.height == height:
                return chunk_of(state, table, number)
        return None


def _wrong(code: str, cause: str) -> VerificationError:
    return VerificationError(
        code,
        "the snapshot is refused",
        cause=cause,
        hint="ask another validator: this one lies, or its disk is damaged",
    )
