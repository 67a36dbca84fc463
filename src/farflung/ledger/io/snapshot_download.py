"""Stores an incoming snapshot chunk by chunk in a file of its own.

Once complete, that file replaces the ledger's.

Nothing is trusted before it was checked (ledger.snapshot), one chunk is in memory at a time, and a process that is
killed goes on with the chunks that it has: those that the manifest of a later block names as well are kept, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import ProtocolError, RunError, VerificationError
from farflung.core.io.durable_files import failpoint, remove, sync_folder
from farflung.ledger import light_client
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import PUT_ROW, LedgerStore, open_file, put_header, put_mark, put_step
from farflung.ledger.io.sqlite_file import DAMAGED, sealed, unsealed
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.snapshot import (
    Rows,
    SnapshotManifest,
    TableListing,
    check_chunk,
    check_manifest,
    chunks_of,
    level_of,
    opened_by,
)

_LABEL: Final = "ledger.snapshot"
_AFRESH: Final = (  # also after a crash behind the last chunk
    "DELETE FROM steps",
    "DELETE FROM headers",
    "DELETE FROM meta WHERE name = 'began'",
    "DELETE FROM meta WHERE name LIKE 'mark:%'",
)


class SnapshotDownload:
    """The state of a ledger on its way to `path`. One process at a time; it is locked."""

    def __init__(self, path: Path, genesis: Genesis) -> None:
        """Opens what came before, if anything did; what a disk damaged of it is fetched again.

        Raises RunError FF-LEDG-080, -082, -083.
        """
        self.path, self.genesis = path, genesis
        try:
            self._open()
        except RunError as error:
            if error.code != DAMAGED:
                raise
            remove(path.with_name(path.name + ".new"), _LABEL)
            self._open()

    def _open(self) -> None:
        self._file = open_file(self.path.with_name(self.path.name + ".new"), self.genesis, _LABEL)
        self.manifest: SnapshotManifest | None = None
        try:
            data = self._file.one("SELECT value FROM meta WHERE name = 'manifest'")
            if data is not None:
                body = unsealed(self._file.path, "manifest", data)
                self.manifest = decode(body, SnapshotManifest, limits.CONTROL_BYTES)
                self._keep(self.manifest)
        except (ProtocolError, RunError):
            self.close()
            raise

    def begin(self, manifest: SnapshotManifest, steps: Sequence[LedgerReceipt]) -> None:
        """From now on towards this one. `steps` lead from the genesis' committee to the last one that its state names.

        Raises VerificationError FF-LEDG-071 to -076 and -253 (`light.walk`), -324 to -326 (`check_manifest`), -337.
        """
        trust = light_client.follow_steps(light_client.trust_in(self.genesis), steps, manifest.header.epoch)
        check_manifest(manifest, trust)
        opened = opened_by(manifest)
        if light_client.follow_steps(trust, steps[trust.epoch :], opened).epoch != opened:
            raise VerificationError(
                "FF-LEDG-337",
                "the snapshot is refused: its block closes an epoch, and nobody shows the next committee",
                cause=f"its state names the committee of epoch {opened}, and the way there ends before",
                hint="ask another validator: this one lies, or its disk is damaged",
            )
        self._keep(manifest)
        with self._file.transaction("begin") as connection:
            for statement in _AFRESH:
                connection.execute(statement)
            for step in steps[:opened]:
                put_step(connection, step)
            data = sealed("manifest", encode(manifest))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('manifest', ?)", (data,))
        self.manifest = manifest

    def _keep(self, manifest: SnapshotManifest) -> None:
        """Of the rows that are here only whole chunks of this manifest stay."""
        for listing in manifest.tables:
            size = 1 << level_of(listing.table)
            wrong = [number for number in range(chunks_of(listing)) if not self._is_here(listing, number)]
            with self._file.transaction("keep") as connection:
                _drop(connection, listing.table, chunks_of(listing) * size, 1 << 62)
                for number in wrong:
                    _drop(connection, listing.table, number * size, (number + 1) * size)

    def _is_here(self, listing: TableListing, number: int) -> bool:
        start, size = number << level_of(listing.table), 1 << level_of(listing.table)
        query = "SELECT row FROM rows WHERE kind = ? AND place >= ? AND place < ? ORDER BY place"
        rows = tuple(row for (row,) in self._file.rows(query, listing.table, start, start + size))
        try:
            check_chunk(listing, number, rows)
        except VerificationError:
            return False
        return True

    def missing(self) -> Iterator[tuple[str, int]]:
        """(table, number) of each chunk that is not here, as they should be asked for."""
        query = "SELECT 1 FROM rows WHERE kind = ? AND place = ?"
        for listing in self.manifest.tables if self.manifest else ():
            for number in range(chunks_of(listing)):
                if self._file.one(query, listing.table, number << level_of(listing.table)) is None:
                    yield listing.table, number

    def put(self, table: str, number: int, rows: Rows) -> None:
        """A chunk that was asked for. Raises VerificationError FF-LEDG-327, -328: its sender lies."""
        listing = next(each for each in self.manifest.tables if each.table == table) if self.manifest else None
        if listing is None:
            raise ValueError("a chunk came before its manifest")
        check_chunk(listing, number, rows)
        start = number << level_of(table)
        with self._file.transaction("chunk") as connection:
            placed = ((table, start + at, row) for at, row in enumerate(rows))
            connection.executemany(PUT_ROW, placed)

    def replace(self, store: LedgerStore) -> None:
        """Puts the whole snapshot in the place of `store`, which it closes: open it again.

        Raises RunError FF-LEDG-331 when chunks are missing, or the store knows later blocks.
        """
        manifest = self.manifest
        if manifest is None or next(self.missing(), None) or manifest.header.height <= store.height:
            raise RunError(
                "FF-LEDG-331",
                "this snapshot cannot take the place of the ledger's file",
                cause="it is not whole, or the file is of a later block",
                hint="fetch the chunks that are missing, or go on from the file",
            )
        with self._file.transaction("finish") as connection:
            put_header(connection, manifest.header, manifest.certificate)
            connection.execute("INSERT INTO meta VALUES ('began', ?)", (manifest.header.height,))
            connection.execute("DELETE FROM meta WHERE name = 'manifest'")
            for name in store.marks:
                put_mark(connection, name)
        self.close()
        store.close()
        for path in (self._file.path, store.path):
            remove(path.with_name(path.name + "-journal"), f"{_LABEL}.journal")  # both are closed: it is empty
        failpoint(f"{_LABEL}.rename")
        os.replace(self._file.path, store.path)
        sync_folder(store.path.parent, _LABEL)

    def close(self) -> None:
        """Closes the file; what came stays for the next time."""
        self._file.close()


def _drop(connection: Connection, table: str, start: int, end: int) -> None:
    query = "DELETE FROM rows WHERE kind = ? AND place >= ? AND place < ?"
    connection.execute(query, (table, start, end))
