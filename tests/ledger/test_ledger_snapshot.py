"""Snapshots, pruning, and opening again: what a chain takes from rows is what it would take from all its blocks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from ledger_committee import Reign
from ledger_history import batches, contents, history, signed
from ledger_world import NODES, PARAMS, STRANGER, VALIDATOR, genesis
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.errors import RunError, VerificationError
from farflung.ledger import light_client, snapshot, transactions
from farflung.ledger import queries as q
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.io.file_audit import audit
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.snapshot_download import SnapshotDownload
from farflung.ledger.io.votelog import open_votes
from farflung.ledger.snapshot import SnapshotCache, SnapshotManifest, check_chunk, check_manifest, chunk_of, manifest_of
from farflung.ledger.table_rows import KINDS, KeyRow


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of a table are a chunk."""
    monkeypatch.setattr(snapshot, "LEVELS", {})
    monkeypatch.setattr(snapshot, "_LEVEL", 1)


def manifest_at(chain: Chain) -> SnapshotManifest:
    return manifest_of(chain.state, chain.head, chain.certificate)


def take(path: Path, chain: Chain) -> None:
    """Puts the state of `chain` where a store was, by queries and answers alone."""
    said = q.reply(chain, snapshot.GetSnapshot())
    assert isinstance(said, snapshot.SnapshotReply)
    assert said.manifest is not None
    with (
        closing(SnapshotDownload(path, chain.genesis)) as held,
        closing(LedgerStore.open(path, chain.genesis)) as store,
    ):
        held.begin(said.manifest, chain.steps)
        for table, number in held.missing():
            given = q.reply(chain, snapshot.GetSnapshotChunk(said.manifest.header.height, table, number))
            assert isinstance(given, snapshot.SnapshotChunkReply)
            assert given.rows is not None
            held.put(table, number, given.rows)
        held.replace(store)


def follow(store: LedgerStore, chain: Chain, source: Chain) -> None:
    """The tail: what is final behind the snapshot."""
    store.adopt(chain, tuple(source.history.blocks(chain.head.height + 1, 1000)))


# Chunks


def test_the_longest_rows_of_a_table_fit_their_chunk():
    """Numbers take 9 bytes at most, ids 34; a table with anything else in its rows has the lowest level."""
    for name, kind in KINDS.items():
        size = limits.ROW_BYTES
        if name in snapshot.LEVELS:
            types = [getattr(field.type, "__supertype__", field.type) for field in msgspec.structs.fields(kind)]
            assert all(issubclass(each, int | bytes) for each in types), name
            size = 3 + sum(9 if issubclass(each, int) else 34 for each in types)
        assert size << snapshot.level_of(name) <= limits.SNAPSHOT_CHUNK_BYTES, (name, size)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_fold_to_the_state_root_for_any_number_of_rows():
    owners = tuple(local_key(9, "owner", number) for number in range(19))
    for count in range(1, 20):
        accounts = tuple((key.public, 5) for key in owners[:count])
        chain = Chain(Genesis("count", 0, accounts, (VALIDATOR.public,)), VALIDATOR)
        block, _ = chain.propose((), 1)
        chain.adopt(block)
        manifest = manifest_at(chain)
        check_manifest(manifest, light_client.trust_in(chain.genesis))
        for listing in manifest.tables:
            for number in range(snapshot.chunks_of(listing)):
                rows = chunk_of(chain.state, listing.table, number)
                assert rows is not None
                check_chunk(listing, number, rows)
            assert chunk_of(chain.state, listing.table, snapshot.chunks_of(listing)) is None


def test_there_is_no_chunk_of_what_there_is_not():
    chain = history()
    for table, number in (("nothing", 0), ("accounts", -1), ("accounts", 1), ("accounts", 1 << 60)):
        assert chunk_of(chain.state, table, number) is None
    assert q.reply(Chain(genesis()), snapshot.GetSnapshot()) == snapshot.SnapshotReply(None)


def test_a_server_holds_two_snapshots_and_takes_a_new_one_when_asked_late(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SNAPSHOT_BLOCKS", 3)
    chain, held, seen = Chain(genesis(), VALIDATOR), SnapshotCache(), []
    for _ in range(9):
        block, _ = chain.propose((), chain.head.time + 1)
        chain.adopt(block)
        manifest = held.manifest(chain.state, chain.head, chain.certificate)
        assert manifest is not None
        seen.append(manifest.header.height)
    assert seen == [1, 1, 1, 4, 4, 4, 7, 7, 7]
    assert [held.chunk(height, "accounts", 0) is not None for height in (1, 3, 4, 7, 9)] == [
        False,
        False,
        True,
        True,
        False,
    ]


# From a snapshot alone


@pytest.mark.usefixtures("small_chunks")
def test_catching_up_from_a_snapshot_is_replaying_all_blocks(tmp_path: Path):
    source, path = history(batches()[:4]), tmp_path / "ledger.db"
    take(path, source)
    rest = history()
    store = LedgerStore.open(path, source.genesis)
    chain = store.load()
    assert contents(chain.state) == contents(source.state)
    follow(store, chain, rest)
    store.close()
    store = LedgerStore.open(path, source.genesis)
    chain = store.load()
    assert (chain.head, chain.certificate) == (rest.head, rest.certificate)
    assert contents(chain.state) == contents(rest.state)
    assert audit(store, chain) == 0
    names = [transactions.tx_id(each) for block in rest.blocks for each in block.txs]
    known = [rest.history.find(name) for name in names]
    assert [chain.history.find(name) for name in names] == [
        place if place and place[0] > 4 else None for place in known
    ]
    said = [q.reply(chain, q.GetBlocks(height)) for height in (1, 4, 5, 6, 7)]
    assert [getattr(each, "code", "") for each in said] == ["FF-LEDG-330", "FF-LEDG-330", "", "", ""]
    assert said[2] == q.reply(rest, q.GetBlocks(5))
    store.close()


@pytest.mark.usefixtures("small_chunks")
def test_a_fetch_that_was_cut_short_goes_on_with_what_it_has(tmp_path: Path):
    chain, path = history(), tmp_path / "ledger.db"
    held = SnapshotDownload(path, chain.genesis)
    held.begin(manifest_at(chain), ())
    wanted = list(held.missing())
    for table, number in wanted[:7]:
        rows = chunk_of(chain.state, table, number)
        assert rows is not None
        held.put(table, number, rows)
    held.close()
    held = SnapshotDownload(path, chain.genesis)
    assert held.manifest == manifest_at(chain)
    assert list(held.missing()) == wanted[7:]
    held._file.connection.execute("UPDATE rows SET row = x'93' WHERE kind = 'accounts' AND place = 1")
    with closing(LedgerStore.open(path, chain.genesis)) as store, pytest.raises(RunError, match="FF-LEDG-331"):
        held.replace(store)
    held.close()
    held = SnapshotDownload(path, chain.genesis)
    assert list(held.missing()) == [("accounts", 0), *wanted[7:]], "a damaged chunk is asked for again"
    block, _ = chain.propose([signed(chain, NODES[0], transactions.Transfer(STRANGER.public, 5))], chain.head.time + 1)
    chain.adopt(block)
    held.begin(manifest_at(chain), ())
    kept = len(wanted) - len(list(held.missing()))
    assert 0 < kept < 7, "what the newer manifest names as well stays"
    for table, number in set(wanted) - set(held.missing()):
        rows = held._file.rows("SELECT row FROM rows WHERE kind = ? AND place / 2 = ?", table, number)
        assert tuple(row for (row,) in rows) == chunk_of(chain.state, table, number)
    held.close()
    take(path, chain)
    store = LedgerStore.open(path, chain.genesis)
    assert contents(store.load().state) == contents(chain.state)
    store.close()


def test_a_file_of_later_blocks_is_not_replaced(tmp_path: Path):
    chain, path = history(), tmp_path / "ledger.db"
    take(path, chain)
    with pytest.raises(RunError, match="FF-LEDG-331"):
        take(path, history(batches()[:3]))


def test_a_vote_log_outlives_the_file_beside_it(tmp_path: Path):
    chain, path = history(), tmp_path / "ledger.db"
    store = LedgerStore.open(path, chain.genesis)
    votes = open_votes(store, VALIDATOR.public)
    votes.append([b"vote"])
    votes.close()
    store.close()
    take(path, chain)
    store = LedgerStore.open(path, chain.genesis)
    assert store.marks == [votes.path.name]
    votes = open_votes(store, VALIDATOR.public)
    assert votes.records == (b"vote",)
    votes.close()
    votes.path.unlink()
    with pytest.raises(RunError, match="FF-LEDG-332") as caught:
        open_votes(store, VALIDATOR.public)
    assert "new key" in caught.value.hint
    open_votes(store, STRANGER.public).close()
    store.close()


def test_all_node_keys_are_told_behind_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody knows when they were changed: so all of them, from the last page to the first, then what is new."""
    owners = tuple(local_key(7, "owner", index) for index in range(10))
    source = Chain(genesis(owners=(VALIDATOR, *owners)), VALIDATOR)
    for owner in owners:
        block, _ = source.propose([signed(source, owner, transactions.KeyCertify(STRANGER.public, 1, 9, 9))], 1)
        source.adopt(block)
    path = tmp_path / "ledger.db"
    take(path, source)
    store = LedgerStore.open(path, source.genesis)
    chain = store.load(VALIDATOR)
    store.commit(chain, [signed(chain, owners[3], transactions.KeyRevoke(1))], 1)
    monkeypatch.setattr(q, "PAGE", 4)
    for start in (0, 3, 9):
        height, seen = start, dict[bytes, KeyRow]()
        heights = []
        while height != chain.head.height:
            said = q.reply(chain, q.GetKeys(height))
            assert isinstance(said, q.KeysReply)
            assert len(said.keys) <= 4
            seen.update({row.account: row for row in said.keys})
            height = said.height
            heights.append(height)
        assert heights == [-2, -1, 10, 11]
        assert seen == {owner.public: chain.state.find(KeyRow, owner.public) for owner in owners}
    store.close()


# Committees


@pytest.mark.usefixtures("small_chunks")
def test_a_snapshot_of_a_later_committee_is_believed_by_who_knows_genesis_only(tmp_path: Path):
    committee = Reign()
    committee.grow(4)
    committee.grow(3)
    committee.step()
    source = committee.chain
    assert source.head.epoch == 2
    path = tmp_path / "ledger.db"
    take(path, source)
    store = LedgerStore.open(path, source.genesis)
    chain = store.load()
    assert (chain.head, chain.steps) == (source.head, source.steps)
    assert contents(chain.state) == contents(source.state)
    assert audit(store, chain) == 0
    store.close()
    held = SnapshotDownload(tmp_path / "other.db", source.genesis)
    with pytest.raises(VerificationError, match="FF-LEDG-325"):
        held.begin(manifest_at(source), ())
    with pytest.raises(VerificationError, match="FF-LEDG-07"):
        held.begin(manifest_at(source), source.steps[1:])
    held.close()


# Pruning


def test_transactions_that_nobody_can_dispute_are_forgotten_and_headers_stay(tmp_path: Path):
    params = replace(PARAMS, unbonding_ms=20_000)
    store = LedgerStore.open(tmp_path / "ledger.db", genesis(params), keep_ms=5_000)
    chain, sent = store.load(VALIDATOR), []
    for number in range(40):
        payment = signed(chain, NODES[number % 3], transactions.Transfer(NODES[(number + 1) % 3].public, 1))
        store.commit(chain, [payment], chain.head.time + LOGICAL_MS)
        sent.append(payment)
    assert store.first == 20, "unbonding_ms is longer than what was asked for, and 20 blocks"
    assert [place for place in range(40) if store.find(transactions.tx_id(sent[place]))] == list(range(19, 40))
    store.close()
    store = LedgerStore.open(tmp_path / "ledger.db", genesis(params), keep_ms=5_000)
    again = store.load(VALIDATOR)
    assert (again.head, contents(again.state)) == (chain.head, contents(chain.state))
    assert (store.first, len(list(store.headers())), audit(store, again)) == (20, 40, 0)
    said = q.reply(again, q.GetBlocks(3))
    assert isinstance(said, q.QueryErrorReply)
    assert said.code == "FF-LEDG-330"
    _, results = store.commit(again, [sent[2], sent[30]], again.head.time + LOGICAL_MS)
    assert [type(each).__name__ for each in results] == ["RejectedResult", "AlreadyAppliedResult"]
    store.close()


def test_nothing_is_forgotten_unless_asked_for(tmp_path: Path):
    store = LedgerStore.open(tmp_path / "ledger.db", genesis(replace(PARAMS, unbonding_ms=0)))
    chain = store.load(VALIDATOR)
    for _ in range(9):
        store.commit(chain, (), chain.head.time + LOGICAL_MS)
    assert (store.first, len(chain.blocks)) == (1, 9)
    store.close()
