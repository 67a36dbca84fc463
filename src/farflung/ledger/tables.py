"""The ledger's memory: indexed tables (`State`), and a sheet of changes laid over them (`Draft`).

A State is never changed: a block writes on a Draft, each transaction on a Draft over that, and what fails is thrown
away with its sheet. Rows added on a sheet get their indices in the order in which they were first written, which
the order of transactions fixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from farflung.core import merkle
from farflung.core.codec import encode
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Params, Tables, tables_hash
from farflung.ledger.rows import (
    KINDS,
    NOBODY,
    AccountRow,
    ChannelRow,
    EpochRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    Row,
    lease_key,
)
from farflung.ledger.tree import Tree

R = TypeVar("R", AccountRow, NodeRow, JobRow, LeaseRow, EpochRow, KeyRow, ChannelRow)


@dataclass(frozen=True, slots=True)
class Law:
    """What stays as genesis fixed it. `proposer` earns the fees; `minted` is all the money there is."""

    chain: Hash
    params: Params
    proposer: PeerId
    minted: int


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by index, the index of each key, and the Merkle tree over the encoded rows."""

    rows: tuple[Row, ...] = ()
    places: dict[bytes, int] | None = None
    tree: Tree = field(default_factory=Tree)

    def place(self, key: bytes) -> int | None:
        """The index of a key's row."""
        return (self.places or {}).get(key)

    def row(self, key: bytes) -> Row | None:
        """The row of a key, or None."""
        place = self.place(key)
        return None if place is None else self.rows[place]

    def with_rows(self, written: Sequence[Row]) -> Table:
        """The table with rows replaced or added."""
        if not written:
            return self
        rows, places = list(self.rows), self.places or {}
        leaves: dict[int, Hash] = {}
        added: dict[bytes, int] = {}
        for row in written:
            place = places.get(row.key)
            if place is None:
                place = added[row.key] = len(rows)
                rows.append(row)
            else:
                rows[place] = row
            leaves[place] = merkle.leaf_hash(place, encode(row))
        return Table(tuple(rows), {**places, **added} if added else places, self.tree.with_leaves(leaves))


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the ledger knows after a block."""

    law: Law
    height: int
    time: int
    tables: dict[str, Table]

    def find(self, kind: type[R], key: bytes) -> R | None:
        """The row of a key, or None."""
        return cast(R | None, self.tables[kind.TABLE].row(key))

    def rows(self, kind: type[R]) -> Sequence[R]:
        """All rows of one table by index."""
        return cast(Sequence[R], self.tables[kind.TABLE].rows)

    @property
    def summary(self) -> Tables:
        """(name, rows, root) of each table: what a header holds."""
        return tuple((name, len(self.tables[name].rows), self.tables[name].tree.root) for name in KINDS)

    @property
    def root(self) -> Hash:
        """The state root."""
        return tables_hash(self.summary)


class Draft:
    """Changes over a State or over another Draft; `now` is the time of the block being made."""

    def __init__(self, below: State | Draft, now: int) -> None:
        self.below, self.now = below, now
        self.law: Law = below.law
        self.written: dict[tuple[str, bytes], Row] = {}

    def find(self, kind: type[R], key: bytes) -> R | None:
        """The row of a key as it stands on this sheet, or None."""
        row = self.written.get((kind.TABLE, key))
        return self.below.find(kind, key) if row is None else cast(R, row)

    def put(self, row: Row) -> None:
        """Writes a row."""
        self.written[row.TABLE, row.key] = row

    def account(self, owner: PeerId) -> AccountRow:
        """The account of a key; an empty one where there is none yet."""
        return self.find(AccountRow, owner) or AccountRow(owner)

    def merge_into(self, draft: Draft) -> None:
        """Copies what was written here onto the sheet below."""
        draft.written.update(self.written)


def leases_of(view: State | Draft, job: JobRow) -> Iterator[LeaseRow]:
    """The leases of a job, newest first."""
    node = job.last
    while node != NOBODY:
        lease = view.find(LeaseRow, lease_key(job.job, node))
        if lease is None:
            return
        yield lease
        node = lease.previous
