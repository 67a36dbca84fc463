"""The ledger on disk: whole blocks or none, whatever kills the process, and no damage goes unseen."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_history import batches, contents, history, signed
from ledger_world import NODES, REQUESTER, VALIDATOR, genesis
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.errors import RunError
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.io import ledger_store as store_module
from farflung.ledger.io import sqlite_file as file_module
from farflung.ledger.io.file_audit import audit
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.sqlite_file import sealed
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, RejectedResult

LAST = history()
CREATION = ("begin", "commit", "committed", "unlink", "dirsync", "rename")
CRASHER = Path(__file__).with_name("ledger_crasher.py")


def write_history(path: Path, blocks: int = 99) -> Chain:
    store = LedgerStore.open(path, genesis())
    chain = store.load(VALIDATOR)
    for batch in batches()[chain.head.height : blocks]:
        txs = [signed(chain, key, op) for key, op in batch]
        _, results = store.commit(chain, txs, chain.head.time + LOGICAL_MS)
        assert all(isinstance(result, AppliedResult) for result in results)
    store.close()
    return chain


@contextmanager
def opened(path: Path) -> Iterator[tuple[LedgerStore, Chain]]:
    store = LedgerStore.open(path, genesis())
    try:
        yield store, store.load(VALIDATOR)
    finally:
        store.close()


def reload(path: Path) -> Chain:
    """What stands in the file; whatever opening believes, an audit must find true as well."""
    with opened(path) as (store, chain):
        assert audit(store, chain) == chain.head.height
        return chain


def test_a_store_gives_back_the_same_chain(tmp_path: Path):
    chain = write_history(tmp_path / "ledger.db")
    with opened(tmp_path / "ledger.db") as (_, again):
        assert (again.head, again.certificate) == (chain.head, chain.certificate)
        assert contents(again.state) == contents(chain.state)
        assert again.state.root == history().state.root
        replayed = Chain(genesis(), audits=True)
        for block in again.blocks:
            replayed.adopt(block)
        assert (replayed.head, contents(replayed.state)) == (chain.head, contents(chain.state))
        names = [transactions.tx_id(each) for block in replayed.blocks for each in block.txs]
        assert [again.history.find(name) for name in names] == [replayed.history.find(name) for name in names]
        assert again.history.keyed(0, 99) == replayed.history.keyed(0, 99) != []


def test_an_empty_store_is_the_genesis(tmp_path: Path):
    LedgerStore.open(tmp_path / "ledger.db", genesis()).close()
    assert reload(tmp_path / "ledger.db").head == Chain(genesis()).head


def test_every_commit_is_synced(tmp_path: Path):
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    assert store._file.one("PRAGMA synchronous") == 2
    assert store._file.one("PRAGMA journal_mode") == "truncate"
    store.close()


def test_a_store_of_another_genesis_is_refused(tmp_path: Path):
    write_history(tmp_path / "ledger.db")
    with pytest.raises(RunError, match="FF-LEDG-080") as caught:
        LedgerStore.open(tmp_path / "ledger.db", genesis(name="another"))
    assert caught.value.hint


def test_a_store_that_is_open_is_not_opened_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_module, "_LOCK_SECONDS", 0)
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    with pytest.raises(RunError, match="FF-LEDG-083"):
        LedgerStore.open(tmp_path / "ledger.db", genesis())
    store.close()
    LedgerStore.open(tmp_path / "ledger.db", genesis()).close()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(RunError, match="FF-LEDG-082"):
        LedgerStore.open(tmp_path / "nowhere" / "ledger.db", genesis())


def fill(store: LedgerStore, chain: Chain) -> None:
    for _ in range(60):
        store.commit(chain, (), chain.head.time + LOGICAL_MS)


def test_a_full_disk_is_told_and_leaves_the_chain_where_it_was(tmp_path: Path):
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    chain = store.load(VALIDATOR)
    pages = store._file.one("PRAGMA page_count")
    store._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RunError, match="FF-LEDG-082"):
        fill(store, chain)
    head = chain.head
    assert head.height < 60
    assert store._file.connection.execute("SELECT MAX(height) FROM headers").fetchone() == (head.height or None,)
    store._file.connection.execute("PRAGMA max_page_count = 10000")
    store.commit(chain, (), head.time + LOGICAL_MS)
    store.close()
    assert reload(tmp_path / "ledger.db").head == chain.head


def test_handing_in_again_after_a_crash_makes_no_block(tmp_path: Path):
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    chain = store.load(VALIDATOR)
    payment = signed(chain, NODES[0], transactions.Transfer(NODES[1].public, 5))
    store.commit(chain, [payment], 0)
    store.close()
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    chain = store.load(VALIDATOR)
    head = chain.head
    block, results = store.commit(chain, [payment], head.time + LOGICAL_MS)
    assert (block, results) == (None, (AlreadyAppliedResult(transactions.tx_id(payment), 1),))
    wrong = transactions.sign_tx(REQUESTER, replace(payment.tx, nonce=7))
    block, results = store.commit(chain, [wrong], head.time + LOGICAL_MS)
    assert block is None
    assert isinstance(results[0], RejectedResult)
    assert chain.head == head
    assert store.commit(chain, (), head.time + LOGICAL_MS)[0] is not None
    store.close()


@pytest.mark.parametrize("height", [0, 2, 7])
def test_a_block_is_stored_at_its_height_only(tmp_path: Path, height: int):
    write_history(tmp_path / "ledger.db", blocks=2)
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    chain = store.load(VALIDATOR)
    block, _ = chain.propose((), 0)
    wrong = replace(block, header=replace(block.header, height=height))
    with pytest.raises(RunError, match="FF-LEDG-084"):
        store._append(chain.state, (wrong,), chain.judge((block,)))
    store.adopt(chain, (block,))
    store.close()
    assert reload(tmp_path / "ledger.db").head == block.header


def test_a_block_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    chain = store.load(VALIDATOR)
    block, _ = chain.propose((), 0)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "changed_rows", lambda *_: [("jobs", 0, None)])
        with pytest.raises(RunError, match="FF-LEDG-081"):
            store.adopt(chain, (block,))
    assert chain.head.height == 0
    store.adopt(chain, (block,))
    store.close()
    assert reload(tmp_path / "ledger.db").head == block.header


# Damage


def tampered(path: Path, statement: str, *values: bytes) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def refused(path: Path) -> None:
    """Without looking at more than opening does."""
    with pytest.raises(RunError, match="FF-LEDG-081") as caught:
        with opened(path):
            pass
    assert caught.value.hint


TAMPERED = [
    "UPDATE bodies SET txs = substr(txs, 1, length(txs) - 1) WHERE height = 3",
    "UPDATE bodies SET txs = (SELECT txs FROM bodies WHERE height = 4) WHERE height = 3",
    "UPDATE headers SET header = (SELECT header FROM headers WHERE height = 4) WHERE height = 3",
    "UPDATE headers SET header = substr(header, 1, length(header) - 1) WHERE height = 3",
    "UPDATE headers SET height = 7 WHERE height = 6",
    "DELETE FROM headers WHERE height = 2",
    "DELETE FROM headers WHERE height = 6",
    "DELETE FROM bodies WHERE height = 2",
    "DELETE FROM bodies WHERE height = 6",
    "DELETE FROM rows WHERE kind = 'jobs'",
    "INSERT INTO rows VALUES ('accounts', 99, x'00')",
    "UPDATE rows SET row = (SELECT row FROM rows WHERE kind = 'accounts' AND place = 1) WHERE place = 0",
    "UPDATE meta SET value = x'00' WHERE name = 'format'",
    "DELETE FROM meta",
    "DROP TABLE meta",
    "DROP TABLE bodies",
    "DELETE FROM rows WHERE kind = 'committees'",
    "UPDATE rows SET kind = 'nothing' WHERE kind = 'jobs'",
    "UPDATE rows SET row = (SELECT row FROM rows WHERE kind = 'nodes' AND place = 0) WHERE kind = 'nodes'",
]


def test_a_tampered_store_is_refused(tmp_path: Path):
    write_history(tmp_path / "ledger.db")
    for number, statement in enumerate(TAMPERED):
        copy = shutil.copy(tmp_path / "ledger.db", tmp_path / f"{number}.db")
        tampered(copy, statement)
        refused(copy)


MISLEADING = [
    "DELETE FROM txs WHERE id = (SELECT MIN(id) FROM txs)",
    "UPDATE txs SET place = (SELECT place FROM txs ORDER BY id DESC LIMIT 1)",
    "INSERT INTO txs VALUES (x'00', x'00')",
    "DELETE FROM keyed",
    "INSERT INTO keyed VALUES (5, x'00')",
]


def test_an_index_that_is_not_of_its_blocks_is_found_by_an_audit(tmp_path: Path):
    """No root covers it: an answer less, about an old transaction, is all that it can lead to."""
    chain = write_history(tmp_path / "ledger.db")
    for number, statement in enumerate(MISLEADING):
        copy = shutil.copy(tmp_path / "ledger.db", tmp_path / f"{number}.db")
        tampered(copy, statement)
        with opened(copy) as (_, again):
            assert contents(again.state) == contents(chain.state), statement
        with pytest.raises(RunError, match="FF-LEDG-081"):
            reload(copy)


def test_where_a_transaction_is_and_what_became_of_it_is_checked_when_it_is_read(tmp_path: Path):
    """A flipped bit is told, whichever it is; nobody is sent to another block, or told of a failure that was none."""
    path = tmp_path / "ledger.db"
    write_history(path)
    name = transactions.tx_id(next(block for block in history().blocks if block.txs).txs[0])
    with opened(path) as (store, again):
        place = again.find(name)
        assert place is not None
        whole = store._file.one("SELECT place FROM txs WHERE id = ?", name)
        other = store._file.one("SELECT place FROM txs WHERE id != ? LIMIT 1", name)
        changed = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
        for data in (*changed, other, b""):
            store._file.connection.execute("UPDATE txs SET place = ? WHERE id = ?", (data, name))
            with pytest.raises(RunError, match="FF-LEDG-081"):
                again.find(name)
        store._file.connection.execute("UPDATE txs SET place = ? WHERE id = ?", (whole, name))
        assert again.find(name) == place


def test_an_old_block_is_checked_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opening looks at the last ones only."""
    monkeypatch.setattr(store_module, "_WHOLE", 2)
    write_history(tmp_path / "ledger.db")
    tampered(tmp_path / "ledger.db", "UPDATE bodies SET txs = zeroblob(length(txs)) WHERE height = 2")
    with opened(tmp_path / "ledger.db") as (store, _):
        assert len(list(store.blocks(3, 9))) == 4
        with pytest.raises(RunError, match="FF-LEDG-081"):
            list(store.blocks(1, 9))
        store._file.connection.execute("DELETE FROM bodies WHERE height = 3")
        with pytest.raises(RunError, match="FF-LEDG-081"):
            list(store.blocks(3, 9))
    with pytest.raises(RunError, match="FF-LEDG-081"):
        reload(tmp_path / "ledger.db")


def test_a_block_rewritten_without_the_validators_key_is_refused(tmp_path: Path):
    chain = write_history(tmp_path / "ledger.db")
    forged = replace(chain.head, time=chain.head.time + 1)
    data = sealed("header 6", encode(store_module._CertifiedHeader(forged, chain.certificate)))
    tampered(tmp_path / "ledger.db", "UPDATE headers SET header = ? WHERE height = 6", data)
    refused(tmp_path / "ledger.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 500)
    with pytest.raises(RunError, match="FF-LEDG-081"):
        LedgerStore.open(tmp_path / "ledger.db", genesis())


def test_a_file_with_flipped_bytes_is_refused_or_whole(tmp_path: Path):
    """Flips in slack space change nothing; any other is told. None gives another chain."""
    path = tmp_path / "ledger.db"
    chain = write_history(path)
    image, codes = path.read_bytes(), set[str]()
    for place in range(0, len(image), 1501):
        path.write_bytes(image[:place] + bytes([image[place] ^ 0x55]) + image[place + 1 :])
        try:
            again = reload(path)
        except RunError as error:
            codes.add(error.code)
        else:
            assert again.head == chain.head
    assert "FF-LEDG-081" in codes
    assert codes <= {"FF-LEDG-080", "FF-LEDG-081", "FF-LEDG-082"}


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_and_any_cut_is_told_or_changes_nothing(tmp_path: Path, data: st.DataObject):
    path, kept = tmp_path / "ledger.db", tmp_path / "kept.db"
    if not kept.exists():
        write_history(kept)
    image = kept.read_bytes()
    place = data.draw(st.integers(0, len(image) - 1), "place")
    bit = data.draw(st.sampled_from((None, *range(8))), "bit (or cut)")
    flipped = b"" if bit is None else bytes([image[place] ^ 1 << bit]) + image[place + 1 :]
    path.write_bytes(image[:place] + flipped)
    found = ""
    try:
        with opened(path) as (_, again):
            assert again.state.root == LAST.state.root
    except RunError as error:
        found = error.code
    assert found in {"", "FF-LEDG-080", "FF-LEDG-081", "FF-LEDG-082"}


# Crashes


def run_crasher(path: Path, failpoint: str = "", log: Path | None = None) -> int:
    environment = dict(os.environ, FARFLUNG_FAILPOINT=failpoint)
    environment.pop("FARFLUNG_FAILPOINT_LOG", None)
    if log:
        environment["FARFLUNG_FAILPOINT_LOG"] = str(log)
    return subprocess.run(
        [sys.executable, str(CRASHER), str(path)], env=environment, start_new_session=True, timeout=60
    ).returncode


def test_failpoints_are_where_the_crash_tests_expect_them(tmp_path: Path):
    assert run_crasher(tmp_path / "ledger.db", log=tmp_path / "log") == 0
    block = ["ledger.block.begin", "ledger.block.commit", "ledger.block.committed"]
    create = [f"ledger.create.{point}" for point in (*CREATION, "dirsync")]
    assert (tmp_path / "log").read_text().split() == create + block * len(batches())


@pytest.mark.whole
@pytest.mark.parametrize(
    ("failpoint", "height"),
    [
        *((f"ledger.create.{point}", 0) for point in (*CREATION, "dirsync@2")),
        ("ledger.block.begin", 0),
        ("ledger.block.commit", 0),
        ("ledger.block.committed", 1),
        ("ledger.block.begin@4", 3),
        ("ledger.block.commit@4", 3),
        ("ledger.block.committed@4", 4),
    ],
)
def test_a_killed_validator_has_the_old_or_the_new_block_whole(tmp_path: Path, failpoint: str, height: int):
    path = tmp_path / "ledger.db"
    assert run_crasher(path, failpoint) == -signal.SIGKILL
    assert reload(path).head.height == height
    assert write_history(path).state.root == history().state.root


def test_one_flipped_bit_after_a_kill_never_loses_a_block_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that was killed closed nothing. A write-ahead log lost blocks here, each time, without a word."""
    with monkeypatch.context() as killed:
        killed.setattr(LedgerStore, "close", lambda self: None)
        height = write_history(tmp_path / "ledger.db").head.height
    files = [path for path in tmp_path.iterdir() if path.stat().st_size]
    largest = max(files, key=lambda path: path.stat().st_size)
    draw = random.Random(7)
    outcomes = set()
    for trial in range(40):
        copy = tmp_path / f"copy{trial}"
        copy.mkdir()
        for path in files:
            (copy / path.name).write_bytes(path.read_bytes())
        data = bytearray((copy / largest.name).read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        (copy / largest.name).write_bytes(bytes(data))
        try:
            outcomes.add(reload(copy / "ledger.db").head.height)
        except RunError as error:
            outcomes.add(error.code)
    assert height in outcomes
    assert outcomes <= {height, "FF-LEDG-080", "FF-LEDG-081", "FF-LEDG-082"}
