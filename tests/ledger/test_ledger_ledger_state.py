"""Versions of a table share what did not change, and are as if each had been made alone from all of its rows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_world import CAPS, REQUESTER, STRANGER, VALIDATOR, World
from msgspec.structs import replace

from farflung.core import merkle
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash, PeerId
from farflung.ledger import transactions
from farflung.ledger.ledger_state import LedgerTable, StateDraft
from farflung.ledger.persistent_collections import WIDTH, PersistentMap, PersistentVector
from farflung.ledger.state_transition import LedgerState, apply_block, changed_rows
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, JobState, NodeRow, NodeState, Row, Timed

EDGES = st.sampled_from((0, 1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH, 300))


def name(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


@given(EDGES, st.lists(st.tuples(st.lists(st.integers(0, 400), max_size=5), EDGES), max_size=4))
@settings(max_examples=60)
def test_chunks_are_the_sequence_that_a_copy_would_be(first: int, steps: list[tuple[list[int], int]]):
    made, plain = PersistentVector(range(first)), list(range(first))
    for replaced, added in steps:
        before, kept = made, list(plain)
        changes = {place: -place - len(plain) for place in replaced if place < len(plain)}
        changes |= {len(plain) + number: number for number in range(added)}
        for place, item in sorted(changes.items()):
            plain[place : place + 1] = [item]
        made = made.with_items(changes)
        assert list(before) == kept, "the source of a change moved"
        assert list(made) == plain == [made[place] for place in range(len(made))]
        assert made[-5:] == tuple(plain[-5:])
        assert made == PersistentVector(plain)
        assert dict(made.changed(before)) == {
            place: item for place, item in changes.items() if place >= len(kept) or kept[place] is not item
        }


@given(st.lists(st.integers(0, 600), max_size=12))
@settings(max_examples=40)
def test_places_find_every_key_in_every_version(sizes: list[int]):
    versions, count = [PersistentMap()], 0
    for size in sizes:
        versions.append(versions[-1].with_keys({name(count + at): count + at for at in range(size)}))
        count += size
    known = 0
    for places, size in zip(versions, [0, *sizes], strict=True):
        known += size
        assert [places.find(name(at)) for at in range(count)] == [at if at < known else None for at in range(count)]
        assert len(places.layers) <= 6, "look-ups would be slow"


def timed(kind: int, number: int, end: int, state: int) -> Timed:
    if kind == 0:
        return NodeRow(name(number), CAPS, 1, end, leases=state & 1, state=NodeState(state >> 1 & 1))
    if kind == 1:
        return JobRow(Hash(name(number)), name(0), 1, 1, 1, end, JobState(state))
    return ChannelRow(name(number), name(0), expires=end, is_open=bool(state & 1))


TIMES = st.integers(0, 20)
WRITTEN = st.lists(st.tuples(st.integers(0, 3 * WIDTH), TIMES, st.integers(0, 5)), max_size=20)


@given(st.integers(0, 2), st.lists(st.tuples(EDGES, WRITTEN), max_size=4), TIMES)
@settings(max_examples=80)
def test_what_the_clock_wants_is_found_as_by_looking_at_every_row(
    kind: int, blocks: list[tuple[int, list[tuple[int, int, int]]]], now: int
):
    table = LedgerTable()
    for grown, written in blocks:
        rows: dict[bytes, Timed] = {}
        for at in range(grown):
            row = timed(kind, 1000 * (len(table.rows) + 1) + at, 30 + at, 0)
            rows[row.key] = row
        for number, end, state in written:
            row = timed(kind, number, end, state)
            rows[row.key] = row
        table = table.with_rows(list(rows.values()))
        scanned = [place for place, row in enumerate(table.rows) if row.due <= now]  # type: ignore[union-attr]
        assert table.due(now) == scanned


def test_a_draft_sees_what_the_same_block_made_due_in_the_order_of_indices():
    busy, idle = (NodeRow(name(number), CAPS, 1, 10, leases=number < 9) for number in (1, 9))
    others = [NodeRow(name(number), CAPS, 1, 99) for number in range(2, 9)]
    draft = StateDraft(with_rows(World().state, NodeRow(name(0), CAPS, 1, 99), busy, *others[:6], idle), 20)
    assert draft.due(NodeRow, 20) == [idle]
    freed = replace(busy, leases=0)
    draft.put(freed)
    assert draft.due(NodeRow, 20) == [freed, idle], "by index: 1 before 8"
    draft.put(replace(idle, state=NodeState.LEFT))
    assert draft.due(NodeRow, 20) == [freed]


def with_rows(state: LedgerState, *rows: Row) -> LedgerState:
    tables = {**state.tables, rows[0].TABLE: state.tables[rows[0].TABLE].with_rows(rows)}
    return LedgerState(state.law, state.height, state.time, tables)


STEPS = st.lists(
    st.tuples(st.sampled_from((REQUESTER, VALIDATOR)), st.integers(1, 90), st.integers(0, 3), st.integers(0, 70_000)),
    max_size=4,
)


def extended(world: World, state: LedgerState, steps: list[tuple[SigningKey, int, int, int]]) -> LedgerState:
    """Blocks of transfers to many new and old accounts, of registrations and of jobs that run out."""
    for key, fresh, stake, span in steps:
        account = state.find(AccountRow, key.public)
        assert account is not None
        ops: list[transactions.Op] = [transactions.Transfer(name(1000 * fresh + at), 1) for at in range(min(fresh, 60))]
        ops += [world.register(100 * stake, state.time + 5000)] if stake else []
        ops += [world.create(Hash(name(state.time)), 9, 1, state.time + 3000)]
        made = transactions.make_tx(world.chain, key.public, account.nonce, *ops)
        state, _ = apply_block(state, state.time + span + 1, (transactions.sign_tx(key, made),), VALIDATOR.public)
    return state


@given(STEPS, STEPS, STEPS)
@settings(max_examples=25)
def test_two_branches_of_a_state_are_as_if_the_other_had_never_been(first, left, right):
    world = World(owners=(VALIDATOR, REQUESTER, STRANGER))
    base = extended(world, world.state, first)
    root, count = base.root, len(base.rows(AccountRow))
    branches = [extended(world, base, left), extended(world, base, right)]
    alone = [extended(world, world.state, [*first, *steps]) for steps in (left, right)]
    for branch, other in zip(branches, alone, strict=True):
        assert branch.root == other.root
        for table, same in zip(branch.tables.values(), other.tables.values(), strict=True):
            assert list(table.rows) == list(same.rows)
            assert table.soonest == same.soonest
            assert table.tree.root == merkle.root([encode(row) for row in table.rows])
            assert [table.place(row.key) for row in table.rows] == list(range(len(table.rows)))
    assert (base.root, len(base.rows(AccountRow))) == (root, count), "a branch moved its source"
    rows = {(kind, place): data for kind, place, data in changed_rows(base, branches[0])}
    for kind, table in branches[0].tables.items():
        before = base.tables[kind].rows
        for place, row in enumerate(table.rows):
            differs = place >= len(before) or before[place] != row
            assert not differs or rows[kind, place] == encode(row)
