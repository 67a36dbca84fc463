"""Stores the ledger in one SQLite file.

Final blocks are written in one transaction, durable before anybody is told.

The file holds headers with their certificates, which stay for ever; the transactions, which may be pruned; where each
transaction is; and the rows that the blocks led to. Opening reads the rows, not the blocks: their trees must have the
root that the last header names, and that header the signatures of the committee that genesis leads to. What is not
under a root carries a checksum, looked at when it is read; `audit` looks at all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from sqlite3 import Connection
from typing import Final, TypeVar

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import ProtocolError, RunError, VerificationError, VersionError
from farflung.core.file_header import FileFormat, other_version, program_of
from farflung.core.ids import Hash, PeerId
from farflung.ledger import genesis_file, light_client
from farflung.ledger.block import Block, BlockHeader, Genesis, is_final, txs_root
from farflung.ledger.block_execution import ExecutedBlock
from farflung.ledger.chain import Chain
from farflung.ledger.history import Place, keyed_by, places_of, step_of
from farflung.ledger.io.sqlite_file import LedgerFile, damaged, sealed, unsealed
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.snapshot import are_written, restored
from farflung.ledger.state_transition import changed_rows, genesis_header, genesis_state
from farflung.ledger.transactions import SignedTx, tx_id
from farflung.ledger.tx_results import Outcome, Result
from farflung.ledger.votes import NO_CERTIFICATE, QuorumCertificate

_FORM: Final = FileFormat("ledger", 4, "move the file away: a validator fetches the chain anew from the others")
_FORMAT: Final = b"farflung-ledger/%d"
_SAID: Final = re.compile(rb"farflung-ledger/([1-9][0-9]{0,8})")
_SCHEMA: Final = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE headers (height INTEGER PRIMARY KEY, header BLOB NOT NULL)",
    "CREATE TABLE bodies (height INTEGER PRIMARY KEY, time INTEGER NOT NULL, txs BLOB NOT NULL)",
    "CREATE TABLE steps (epoch INTEGER PRIMARY KEY, receipt BLOB NOT NULL)",
    "CREATE TABLE keyed (height INTEGER, account BLOB, PRIMARY KEY (height, account)) WITHOUT ROWID",
    "CREATE TABLE rows (kind TEXT, place INTEGER, row BLOB NOT NULL, PRIMARY KEY (kind, place)) WITHOUT ROWID",
    "CREATE TABLE txs (id BLOB PRIMARY KEY, place BLOB NOT NULL) WITHOUT ROWID",
)
PUT_ROW: Final = "INSERT INTO rows VALUES (?, ?, ?) ON CONFLICT (kind, place) DO UPDATE SET row = excluded.row"
_RECENT: Final = 256  # blocks before the head whose parents are looked at when the file is opened
_WHOLE: Final = 8  # whose transactions are: a full block takes some 20 ms
_PRUNED: Final = 64  # blocks that one transaction prunes, at most
_STEPS: Final = 256  # committees read at a time


T = TypeVar("T")
Rows = Sequence[tuple[str, int, bytes]]  # table, index, encoded row


class _CertifiedHeader(Wire, frozen=True):
    header: BlockHeader
    certificate: QuorumCertificate


class LedgerStore:
    """One open ledger file, and its chain's past. One writer at a time; use `LedgerStore.open`."""

    def __init__(self, file: LedgerFile, genesis: Genesis, keep_ms: int | None) -> None:
        self.path, self.genesis, self._file, self._keep_ms = file.path, genesis, file, keep_ms
        self.keyed_from = began(file)
        self._first = self._kept_from()

    @classmethod
    def open(cls, path: Path, genesis: Genesis, keep_ms: int | None = None) -> LedgerStore:
        """Opens the file, or makes it.

        `keep_ms`: transactions are kept so long by the ledger's time, and at least as long as stakes stay bonded;
        None: for ever.

        Raises RunError FF-LEDG-080 other genesis, -081 damaged, -082 cannot be read or written, -083 in use,
        VersionError FF-CORE-095.
        """
        file = open_file(path, genesis, "ledger", _genesis_rows)
        try:
            return cls(file, genesis, keep_ms)
        except BaseException:
            file.close()
            raise

    @property
    def marks(self) -> list[str]:
        """What was marked in this file."""
        return [name for (name,) in self._file.rows("SELECT substr(name, 6) FROM meta WHERE name LIKE 'mark:%'")]

    def mark(self, name: str) -> None:
        """Remembers a name for ever, also in a file that takes this one's place."""
        if name not in self.marks:
            with self._file.transaction("mark") as connection:
                put_mark(connection, name)

    def _kept_from(self) -> int:
        lowest = self._file.one("SELECT MIN(height) FROM bodies")
        return lowest if lowest is not None else self.height + 1

    @property
    def height(self) -> int:
        """That of the last block; 0 at the genesis."""
        return self._file.one("SELECT MAX(height) FROM headers") or 0

    # The past

    @property
    def head(self) -> BlockHeader:
        """The last block's header; that of height 0 follows from genesis. Raises RunError FF-LEDG-081, -082."""
        held = self._header(self.height)
        return held[0] if held else genesis_header(self.genesis)

    @property
    def first(self) -> int:
        """The lowest height from which on all blocks are kept whole; behind the head where none is."""
        return self._first

    def find(self, tx: Hash) -> Place | None:
        """Where a transaction is; None also where it was pruned. Raises RunError FF-LEDG-081, -082."""
        data = self._file.one("SELECT place FROM txs WHERE id = ?", tx)
        if data is None:
            return None
        return self._decoded(unsealed(self.path, _place_name(tx), data), tuple[int, str])

    def named(self, lowest: bytes, highest: bytes, count: int) -> Sequence[Hash]:
        """Ids of transactions between two ids, in order."""
        query = "SELECT id FROM txs WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
        return [Hash(name) for (name,) in self._file.rows(query, lowest, highest, count)]

    def blocks(self, first: int, count: int) -> Iterator[Block]:
        """Blocks from a height on, read one by one. Raises RunError FF-LEDG-081, -082."""
        for height in range(max(1, first), max(1, first) + count):
            block = self._block(height)
            if block is None:
                if self.first <= height <= self.height:
                    raise damaged(self.path, f"block {height} is missing")
                return
            yield block

    def headers(self) -> Iterator[tuple[BlockHeader, QuorumCertificate]]:
        """All headers from the lowest on, read one by one. Raises RunError FF-LEDG-081, -082."""
        for height in range(self._file.one("SELECT MIN(height) FROM headers") or 1, self.height + 1):
            headed = self._header(height)
            if headed is None:
                raise damaged(self.path, f"header {height} is missing")
            yield headed

    def count_txs(self) -> int:
        """How many transactions can be found."""
        return int(self._file.one("SELECT COUNT(*) FROM txs"))

    def steps(self, epoch: int, count: int) -> Sequence[LedgerReceipt]:
        """The committee's row of each epoch behind `epoch`. Raises RunError FF-LEDG-081, -082."""
        query = "SELECT epoch, receipt FROM steps WHERE epoch > ? ORDER BY epoch LIMIT ?"
        return [
            self._decoded(unsealed(self.path, f"step {number}", data), LedgerReceipt)
            for number, data in self._file.rows(query, epoch, count)
        ]

    def keyed(self, height: int, count: int) -> Sequence[tuple[int, PeerId]]:
        """(height, account) of changes of node keys in blocks behind `height`, in order."""
        query = "SELECT height, account FROM keyed WHERE height > ? ORDER BY height, account LIMIT ?"
        return self._file.rows(query, height, count)

    def add(self, block: Block, executed: ExecutedBlock) -> None:
        """Nothing: `adopt` has written it before the chain moved."""

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            return decode(data, kind, limits.BLOCK_BYTES)
        except ProtocolError as error:  # its checksum agrees, so it is what was written
            raise self._of_another_version() from error

    def _of_another_version(self) -> VersionError:
        genesis = self._file.one("SELECT value FROM meta WHERE name = 'genesis'")
        return other_version(_FORM, _FORM.version, program_of(genesis))

    def _header(self, height: int) -> tuple[BlockHeader, QuorumCertificate] | None:
        data = self._file.one("SELECT header FROM headers WHERE height = ?", height)
        if data is None:
            return None
        held = self._decoded(unsealed(self.path, f"header {height}", data), _CertifiedHeader)
        return held.header, held.certificate

    def _block(self, height: int) -> Block | None:
        """A block as it was written, which is all that is checked."""
        data = self._file.one("SELECT txs FROM bodies WHERE height = ?", height)
        headed = self._header(height)
        if data is None or headed is None:
            return None
        txs = self._decoded(unsealed(self.path, f"block {height}", data), tuple[SignedTx, ...])
        return Block(headed[0], txs, headed[1])

    # Opening

    def load(self, key: SigningKey | None = None) -> Chain:
        """The chain at its head, from the rows; its blocks are not executed again.

        Every row is under the state root, that under the certificate of the committee to which genesis leads; the last
        blocks are checked against each other. Raises RunError FF-LEDG-081, -082.
        """
        try:
            tip, certificate = self._tip()
            self._check_recent(tip.header)
        except (ProtocolError, VerificationError) as error:
            raise damaged(self.path, f"{error.message}: {error.cause}") from error
        return Chain(self.genesis, key, history=self, tip=tip, certificate=certificate)

    def _tip(self) -> tuple[ExecutedBlock, QuorumCertificate]:
        height = self.height
        header, certificate = self._header(height) or (genesis_header(self.genesis), NO_CERTIFICATE)
        rows = self._rows()
        try:
            state = restored(self.genesis, header, rows)
        except VerificationError:
            if are_written(header, rows):
                raise self._of_another_version() from None
            raise
        if height:
            trust = light_client.follow_steps(light_client.trust_in(self.genesis), self._walk(), header.epoch)
            if trust.epoch != header.epoch or not is_final(header, certificate, trust.committee):
                raise damaged(self.path, f"header {height} is not certified by its committee")
        return ExecutedBlock(header, (), state, ()), certificate

    def _rows(self) -> dict[str, list[bytes]]:
        found = self._file.rows("SELECT kind, place, row FROM rows ORDER BY kind, place")
        tables: dict[str, list[bytes]] = {}
        for kind, rows in groupby(found, itemgetter(0)):
            held = list(rows)
            if held[-1][1] != len(held) - 1 or not all(isinstance(row, bytes) for _, _, row in held):
                raise damaged(self.path, f"rows of {kind} are missing")
            tables[kind] = [row for _, _, row in held]
        return tables

    def _walk(self) -> Iterator[LedgerReceipt]:
        epoch = 0
        while page := self.steps(epoch, _STEPS):
            yield from page
            epoch += len(page)

    def _check_recent(self, head: BlockHeader) -> None:
        """The last blocks follow each other, and their transactions are those of their headers."""
        child = head
        for height in range(head.height - 1, max(0, head.height - _RECENT), -1):
            headed = self._header(height)
            if headed is None and height < self.keyed_from:
                break  # a snapshot began behind it
            if headed is None or headed[0].id != child.parent:
                raise damaged(self.path, f"block {child.height} does not follow the one before it")
            child = headed[0]
        for height in range(max(self.first, head.height - _WHOLE + 1), head.height + 1):
            block = self._block(height)
            if block is None or txs_root(block.txs) != block.header.txs:
                raise damaged(self.path, f"the transactions of block {height} are not those of its header")

    # Writing

    def adopt(self, chain: Chain, blocks: Sequence[Block]) -> tuple[tuple[Outcome, ...], ...]:
        """Checks blocks that became final, writes them in one transaction, then moves the chain.

        Raises what `Chain.judge` raises, and RunError FF-LEDG-081 to -084.
        """
        made = chain.judge(blocks)
        self._append(chain.state, blocks, made)
        return chain.move(blocks, made)

    def commit(self, chain: Chain, txs: Sequence[SignedTx], now_ms: int) -> tuple[Block | None, tuple[Result, ...]]:
        """Proposes, stores, then adopts: how a committee of one makes a block.

        No block (None) when transactions were handed in and none of them may enter one: handing in again what
        is already there changes nothing. Without transactions: an empty block, which moves the clock.
        """
        block, results = chain.propose(txs, now_ms)
        if txs and not block.txs:
            return None, results
        self.adopt(chain, (block,))
        return block, results

    def _append(self, before: LedgerState, blocks: Sequence[Block], made: Sequence[ExecutedBlock]) -> None:
        last = self.height
        if blocks[0].header.height != last + 1:
            raise RunError(
                "FF-LEDG-084",
                f"block {blocks[0].header.height} cannot be stored",
                cause=f"the store ends at block {last}",
                hint="load the chain from the store again",
            )
        with self._file.transaction("block") as connection:
            for block, executed in zip(blocks, made, strict=True):
                _put_block(connection, block, executed)
            connection.executemany(PUT_ROW, changed_rows(before, made[-1].state))
            first = self._prune(connection, made[-1].state)
        self._first = first

    def _prune(self, connection: Connection, state: LedgerState) -> int:
        """Forgets transactions that nobody can dispute any more. Returns the lowest height that is kept."""
        if self._keep_ms is None:
            return self._first
        end = state.time - max(self._keep_ms, state.params.unbonding_ms)
        query = "SELECT height FROM bodies WHERE time < ? AND height < ? ORDER BY height LIMIT ?"
        old = connection.execute(query, (end, state.height, _PRUNED)).fetchall()
        for (height,) in old:
            block = self._block(height)
            names = [(tx_id(signed),) for signed in block.txs] if block else []
            connection.executemany("DELETE FROM txs WHERE id = ?", names)
        connection.executemany("DELETE FROM bodies WHERE height = ?", old)
        return old[-1][0] + 1 if old else self._first

    def close(self) -> None:
        """Closes the file and gives up its lock."""
        self._file.close()


def _put_block(connection: Connection, block: Block, executed: ExecutedBlock) -> None:
    header = block.header
    put_header(connection, header, block.certificate)
    body = sealed(f"block {header.height}", encode(block.txs))
    connection.execute("INSERT INTO bodies VALUES (?, ?, ?)", (header.height, header.time, body))
    places = ((name, sealed(_place_name(name), encode(place))) for name, place in places_of(executed).items())
    connection.executemany("INSERT INTO txs VALUES (?, ?)", places)
    keyed = ((header.height, account) for account in keyed_by(block.txs))
    connection.executemany("INSERT INTO keyed VALUES (?, ?)", keyed)
    step = step_of(block, executed)
    if step is not None:
        put_step(connection, step)


def _place_name(tx: Hash) -> str:
    return f"place {tx.hex()}"


def _genesis_rows(genesis: Genesis) -> Rows:
    tables = genesis_state(genesis).tables
    return [(name, at, encode(row)) for name, table in tables.items() for at, row in enumerate(table.rows)]


def began(file: LedgerFile) -> int:
    """The height of the snapshot that a file began with; 0: with genesis. Raises RunError FF-LEDG-081."""
    height = file.one("SELECT value FROM meta WHERE name = 'began'")
    if height is not None and not isinstance(height, int):
        raise damaged(file.path, "it does not say where it began")
    return height or 0


def _create(genesis: Genesis, first: Callable[[Genesis], Rows], connection: Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    meta = (("format", _FORMAT % _FORM.version), ("genesis", genesis_file.write(genesis)))
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta)
    connection.executemany(PUT_ROW, first(genesis))


def put_header(connection: Connection, header: BlockHeader, certificate: QuorumCertificate) -> None:
    """Writes a header."""
    data = sealed(f"header {header.height}", encode(_CertifiedHeader(header, certificate)))
    connection.execute("INSERT INTO headers VALUES (?, ?)", (header.height, data))


def put_step(connection: Connection, step: LedgerReceipt) -> None:
    """Writes the receipt of the committee that follows the one of its header's epoch."""
    epoch = step.header.epoch + 1
    connection.execute("INSERT INTO steps VALUES (?, ?)", (epoch, sealed(f"step {epoch}", encode(step))))


def put_mark(connection: Connection, name: str) -> None:
    """Writes a mark."""
    connection.execute("INSERT INTO meta VALUES (?, x'01')", (f"mark:{name}",))


def _check_version(path: Path, said: object, genesis: object) -> None:
    found = _SAID.fullmatch(said) if isinstance(said, bytes) else None
    if found is None:
        raise damaged(path, "it does not say that it is a ledger")
    if int(found[1]) != _FORM.version:
        raise other_version(_FORM, int(found[1]), program_of(genesis))


def _genesis_in(path: Path, data: object) -> Genesis:
    """What the file began with; before headers it was bare. Raises RunError FF-LEDG-081, VersionError FF-CORE-095."""
    try:
        return genesis_file.read(data if isinstance(data, bytes) else b"")
    except ProtocolError as error:
        raise damaged(path, f"{error.message}: {error.cause}") from error


def open_file(path: Path, genesis: Genesis, label: str, first: Callable[[Genesis], Rows] = lambda _: ()) -> LedgerFile:
    """This ledger's file; made, with the rows `first`, if there is none.

    Raises RunError as `LedgerStore.open` does, VersionError FF-CORE-095.
    """
    file = LedgerFile(path, label, partial(_create, genesis, first))
    try:
        meta = dict(file.rows("SELECT name, value FROM meta"))
        _check_version(path, meta.get("format"), meta.get("genesis"))
        if _genesis_in(path, meta.get("genesis")) != genesis:
            raise RunError(
                "FF-LEDG-080",
                f"{path.name} belongs to another ledger",
                cause="its genesis is not the one asked for",
                hint="choose another folder, or the genesis that this ledger was started with",
            )
    except BaseException:
        file.close()
        raise
    return file
