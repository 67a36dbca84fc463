"""Holds the ledger's state: indexed tables (`LedgerState`), and a sheet of changes over them (`StateDraft`).

A LedgerState is never changed: a block writes on a StateDraft, each transaction on a StateDraft over that, and what
fails is thrown away with its sheet. Rows added on a sheet get their indices in the order in which they were first
written, which the order of transactions fixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar, cast

from farflung.core import limits, merkle
from farflung.core.codec import encode
from farflung.core.errors import RunError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Entry, state_root
from farflung.ledger.disputes import BallotRow, DisputeRow
from farflung.ledger.exclusions import ExclusionRow
from farflung.ledger.merkle_tree import MerkleTree
from farflung.ledger.motions import MotionRow, ParamsRow
from farflung.ledger.params import LedgerParams
from farflung.ledger.persistent_collections import WIDTH, PersistentMap, PersistentVector
from farflung.ledger.pinpoint_game import PinpointRow
from farflung.ledger.table_rows import (
    KINDS,
    NOBODY,
    TIMED,
    AccountRow,
    ChannelRow,
    EpochRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    Row,
    Timed,
    lease_key,
)
from farflung.ledger.validators import CommitteeRow, ValidatorRow, count_key

R = TypeVar(
    "R",
    AccountRow,
    NodeRow,
    JobRow,
    LeaseRow,
    EpochRow,
    KeyRow,
    ChannelRow,
    DisputeRow,
    BallotRow,
    CommitteeRow,
    ParamsRow,
    ValidatorRow,
    MotionRow,
    PinpointRow,
    ExclusionRow,
)
C = TypeVar("C", NodeRow, JobRow, ChannelRow, DisputeRow, ValidatorRow, MotionRow, PinpointRow, ExclusionRow)


@dataclass(frozen=True, slots=True)
class GenesisConstants:
    """What stays as genesis fixed it: the chain's id, and all the money there is."""

    chain: Hash
    minted: int


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """Rows by index, the index of each key, the Merkle tree over the encoded rows, and when the clock wants some.

    `soonest` follows from the rows and is part of no root: of each chunk of rows, the earliest `due`. It is empty in a
    table of rows that wait for no time.
    """

    rows: PersistentVector[Row] = field(default_factory=PersistentVector)
    places: PersistentMap = field(default_factory=PersistentMap)
    tree: MerkleTree = field(default_factory=MerkleTree)
    soonest: tuple[int, ...] = ()

    def place(self, key: bytes) -> int | None:
        """The index of a key's row."""
        return self.places.find(key)

    def row(self, key: bytes) -> Row | None:
        """The row of a key, or None."""
        for layer in self.places.layers:
            place = layer.get(key)
            if place is not None:
                return self.rows.at(place)
        return None

    def due(self, now: int) -> list[int]:
        """The indices, in their order, of the rows that the clock acts on at `now`."""
        if not self.soonest or min(self.soonest) > now:
            return []
        return [
            number * WIDTH + at
            for number, soonest in enumerate(self.soonest)
            if soonest <= now
            for at, row in enumerate(self.rows.chunks[number])
            if isinstance(row, TIMED) and row.due <= now
        ]

    def next_due(self, after: int) -> int:
        """The earliest time behind `after` at which the clock acts on a row; NEVER where it acts on none."""
        soonest = [each for each in self.soonest if each > after]
        late = [self.rows.chunks[number] for number, each in enumerate(self.soonest) if each <= after]
        soonest += [row.due for chunk in late for row in chunk if isinstance(row, TIMED) and row.due > after]
        return min(soonest, default=limits.NEVER)

    def with_rows(self, written: Sequence[Row], encoded: Sequence[bytes] | None = None) -> LedgerTable:
        """The table with rows replaced or added. `encoded`: the rows' bytes, for who has them already."""
        if not written:
            return self
        count, find, leaf_hash = len(self.rows), self.places.find, merkle.leaf_hash
        changes: dict[int, Row] = {}
        leaves: dict[int, Hash] = {}
        added: dict[bytes, int] = {}
        for row, data in zip(written, encoded or map(encode, written), strict=True):
            key = row.key
            place = find(key)
            if place is None:
                place = added.setdefault(key, count + len(added))
            changes[place] = row
            leaves[place] = leaf_hash(place, data)
        rows = self.rows.with_items(changes)
        places = self.places.with_keys(added) if added else self.places
        return LedgerTable(rows, places, self.tree.with_leaves(leaves), _soonest(rows, self))


def _soonest(rows: PersistentVector[Row], before: LedgerTable) -> tuple[int, ...]:
    if not isinstance(rows[0], TIMED):
        return ()
    known = zip_longest(rows.chunks, before.rows.chunks, before.soonest, fillvalue=None)
    return tuple(
        cast(int, soonest) if chunk is old else min(row.due for row in cast(tuple[Timed, ...], chunk))
        for chunk, old, soonest in known
    )


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Everything that the ledger knows after a block."""

    law: GenesisConstants
    height: int
    time: int
    tables: dict[str, LedgerTable]

    def find(self, kind: type[R], key: bytes) -> R | None:
        """The row of a key, or None."""
        return cast(R | None, self.tables[kind.TABLE].row(key))

    def rows(self, kind: type[R]) -> Sequence[R]:
        """All rows of one table by index."""
        return cast(Sequence[R], self.tables[kind.TABLE].rows)

    @property
    def committee(self) -> CommitteeRow:
        """Who certifies the next block."""
        return self.rows(CommitteeRow)[-1]

    @property
    def params(self) -> LedgerParams:
        """The parameters of the next block."""
        return params_of(self, self.committee.params)

    @property
    def closes(self) -> bool:
        """Whether the last block closed its epoch, so that the next one is of another."""
        return self.committee.epoch > 0 and self.committee.first == self.height + 1

    @property
    def entries(self) -> tuple[Entry, ...]:
        """(name, rows, root) of each table: what the state root is the root of."""
        return tuple((name, len(self.tables[name].rows), self.tables[name].tree.root) for name in KINDS)

    @property
    def root(self) -> Hash:
        """The state root."""
        return state_root(self.entries)


class StateDraft:
    """Changes over a LedgerState or another StateDraft; `now`, `height`: of the new block; `payee` earns its fees."""

    def __init__(self, below: LedgerState | StateDraft, now: int, payee: PeerId = NOBODY) -> None:
        self.below, self.now = below, now
        self.height: int = below.height if isinstance(below, StateDraft) else below.height + 1
        self.payee: PeerId = below.payee if isinstance(below, StateDraft) else payee
        self.law: GenesisConstants = below.law
        self.committee: CommitteeRow = below.committee
        self.params: LedgerParams = below.params
        self.written: dict[tuple[str, bytes], Row] = {}

    def find(self, kind: type[R], key: bytes) -> R | None:
        """The row of a key as it stands on this sheet, or None."""
        place, view = (kind.TABLE, key), self.below
        row = self.written.get(place)
        while row is None and isinstance(view, StateDraft):
            row, view = view.written.get(place), view.below
        return cast(LedgerState, view).find(kind, key) if row is None else cast(R, row)

    def due(self, kind: type[C], now: int) -> list[C]:
        """The rows that the clock acts on at `now`, by index, as they stand on a sheet that lies on a State."""
        table = cast(LedgerState, self.below).tables[kind.TABLE]
        written = [table.place(key) for name, key in self.written if name == kind.TABLE]
        places = {place for place in written if place is not None}.union(table.due(now))
        rows = [self.find(kind, table.rows[place].key) for place in sorted(places)]
        return [row for row in rows if row is not None and row.due <= now]

    def rows(self, kind: type[R]) -> list[R]:
        """All rows of one table by index, as they stand on a sheet that lies on a State."""
        table: LedgerTable = cast(LedgerState, self.below).tables[kind.TABLE]
        known: list[Row] = [self.written.get((kind.TABLE, row.key), row) for row in table.rows]
        for (name, key), row in self.written.items():
            if name == kind.TABLE and table.place(key) is None:
                known.append(row)
        return cast(list[R], known)

    def put(self, row: Row) -> None:
        """Writes a row."""
        self.written[row.TABLE, row.key] = row

    def account(self, owner: PeerId) -> AccountRow:
        """The account of a key; an empty one where there is none yet."""
        return self.find(AccountRow, owner) or AccountRow(owner)

    def merge_into(self, draft: StateDraft) -> None:
        """Copies what was written here onto the sheet below."""
        draft.written.update(self.written)


def leases_of(view: LedgerState | StateDraft, job: JobRow) -> Iterator[LeaseRow]:
    """The leases of a job, newest first."""
    node = job.last
    while node != NOBODY:
        lease = view.find(LeaseRow, lease_key(job.job, node))
        if lease is None:
            return
        yield lease
        node = lease.previous


def exclusion_of(view: LedgerState | StateDraft, node: PeerId, now: int) -> ExclusionRow | None:
    """Why a node holds no further lease at `now`; None for one that may."""
    row = view.find(ExclusionRow, node)
    return row if row and now < row.until else None


def params_of(view: LedgerState | StateDraft, version: int) -> LedgerParams:
    """A version of the parameters that ever held."""
    row = view.find(ParamsRow, count_key(version))
    if row is None:
        raise RunError("FF-LEDG-250", f"the ledger has no version {version} of its parameters")
    return row.params
