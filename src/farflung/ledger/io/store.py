"""The ledger on disk: one SQLite file, one transaction a block, durable before anybody hears of it.

`synchronous=FULL`, and a rollback journal instead of a write-ahead log: behind a damaged frame SQLite drops the rest
of such a log without a word, and with it blocks that were promised (docs/log). The file holds the blocks, which
are the truth, and the rows they lead to, which are compared with a full replay whenever the file is opened. The
file is locked while open: a second validator with the same key would fork the chain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import ProtocolError, RunError, VerificationError
from farflung.core.io.durable import failpoint, sync_folder
from farflung.ledger.block import Block, Genesis, read_block
from farflung.ledger.chain import Chain
from farflung.ledger.results import Result
from farflung.ledger.rows import KINDS
from farflung.ledger.state import changed_rows, genesis_state
from farflung.ledger.tx import SignedTx

_FORMAT = b"farflung-ledger/1"
_LOCK_SECONDS = 2
_MACHINE_ERRORS = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE blocks (height INTEGER PRIMARY KEY, block BLOB NOT NULL)",
    "CREATE TABLE rows (kind TEXT, place INTEGER, row BLOB NOT NULL, PRIMARY KEY (kind, place)) WITHOUT ROWID",
)
_PUT_ROW = "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (kind, place) DO UPDATE SET row = excluded.row"

Rows = Sequence[tuple[str, int, bytes]]


class Store:
    """One open ledger file. One writer at a time; use `Store.open`."""

    def __init__(self, path: Path, genesis: Genesis, connection: sqlite3.Connection) -> None:
        self.path, self.genesis, self._connection = path, genesis, connection

    @classmethod
    def open(cls, path: Path, genesis: Genesis) -> Store:
        """Opens the file, or makes it.

        Raises RunError FF-LEDG-080 other genesis, -081 damaged, -082 cannot be read or written, -083 in use.
        """
        with _told(path):
            connection = sqlite3.connect(
                path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
        store = cls(path, genesis, connection)
        try:
            with _told(path):
                store._prepare()
            sync_folder(path.parent, "ledger.open")
        except BaseException:
            connection.close()
            raise
        return store

    def _prepare(self) -> None:
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = TRUNCATE", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {setting}")
        with self._transaction("ledger.create"):
            if not self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                self._create()
        meta = dict(self._connection.execute("SELECT name, value FROM meta"))
        if meta.get("format") != _FORMAT:
            raise _damaged(self.path, "it is not a ledger of this version")
        if meta.get("genesis") != encode(self.genesis):
            raise RunError(
                "FF-LEDG-080",
                f"{self.path.name} belongs to another ledger",
                cause="its genesis is not the one asked for",
                hint="choose another folder, or the genesis that this ledger was started with",
            )

    def _create(self) -> None:
        for statement in _SCHEMA:
            self._connection.execute(statement)
        self._connection.execute("INSERT INTO meta VALUES ('format', ?)", (_FORMAT,))
        self._connection.execute("INSERT INTO meta VALUES ('genesis', ?)", (encode(self.genesis),))
        state = genesis_state(self.genesis)
        for name in KINDS:
            rows = enumerate(state.tables[name].rows)
            self._connection.executemany(_PUT_ROW, [(name, place, encode(row)) for place, row in rows])

    @contextmanager
    def _transaction(self, label: str) -> Iterator[None]:
        failpoint(f"{label}.begin")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            failpoint(f"{label}.commit")
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        failpoint(f"{label}.committed")

    def load(self, key: SigningKey | None = None) -> Chain:
        """Replays and verifies every block; compares the result with the rows. Raises RunError FF-LEDG-081."""
        chain = Chain(self.genesis, key)
        with _told(self.path):
            stored = self._connection.execute("SELECT height, block FROM blocks ORDER BY height").fetchall()
            rows = self._connection.execute("SELECT kind, place, row FROM rows").fetchall()
        try:
            for _, data in stored:
                chain.adopt(read_block(data))
        except (ProtocolError, VerificationError) as error:
            raise _damaged(self.path, f"{error.message}: {error.cause}") from error
        expected = {
            (name, place): encode(row)
            for name, table in chain.state.tables.items()
            for place, row in enumerate(table.rows)
        }
        if {(name, place): row for name, place, row in rows} != expected:
            raise _damaged(self.path, "its rows are not those that its blocks lead to")
        return chain

    def append(self, block: Block, rows: Rows = ()) -> None:
        """Writes a block and the rows it changed; durable on return. Raises RunError FF-LEDG-081 to -084."""
        with _told(self.path):
            last = self._connection.execute("SELECT COALESCE(MAX(height), 0) FROM blocks").fetchone()[0]
            if block.header.height != last + 1:
                raise RunError(
                    "FF-LEDG-084",
                    f"block {block.header.height} cannot be stored",
                    cause=f"the store ends at block {last}",
                    hint="load the chain from the store again",
                )
            with self._transaction("ledger.block"):
                self._connection.execute(
                    "INSERT INTO blocks VALUES (?, ?)", (block.header.height, encode(block))
                )
                self._connection.executemany(_PUT_ROW, rows)

    def commit(
        self, chain: Chain, txs: Sequence[SignedTx], now_ms: int
    ) -> tuple[Block | None, tuple[Result, ...]]:
        """Proposes, stores, then adopts: the one way in which a validator makes a block.

        No block (None) when transactions were handed in and none of them may enter one: handing in again what
        is already there changes nothing. Without transactions: an empty block, which moves the clock.
        """
        block, results = chain.propose(txs, now_ms)
        if txs and not block.txs:
            return None, results
        self.append(block, changed_rows(chain.state, chain.state_after(block)))
        chain.adopt(block)
        return block, results

    def close(self) -> None:
        """Closes the file and gives up its lock."""
        self._connection.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as a person can use them."""
    try:
        yield
    except sqlite3.Error as error:
        # The primary of extended codes.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise RunError(
                "FF-LEDG-083",
                f"{path.name} is in use",
                cause="another ledger process holds it",
                hint="stop the other run (`farflung status` shows it), or choose another folder",
            ) from error
        if kind in _MACHINE_ERRORS:
            raise RunError(
                "FF-LEDG-082",
                f"cannot read or write {path.name}",
                cause=str(error),
                hint=f"check free space and permissions of {path.parent}, then run `farflung resume`",
            ) from error
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, cause: str) -> RunError:
    return RunError(
        "FF-LEDG-081",
        f"{path.name} is damaged",
        cause=cause,
        hint="restore the file from a copy; without one, move it away and start the run anew",
    )
