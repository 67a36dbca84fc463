"""Statements and exports hold a page of blocks at most, however long the ledger is; a whole one is never in memory."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from ledger_history import signed
from ledger_world import NODES, REQUESTER, VALIDATOR, genesis

from farflung.app.cli.main import cli
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS, Block
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore

SHORT = 300  # blocks: more than a page, and than opening a file looks back
TIMES = 3  # so many times as long is the other ledger
# Bytes that a peak may move by itself (seen: 12 kB); the other ledger's blocks more take many times that.
ROOM = 96 << 10
OFTEN = 50, 2, 2  # new objects that begin a search for garbage, and how many searches a wider one
SLOW = pytest.mark.slow
VERBS = (
    ("export",),
    pytest.param(("statement", REQUESTER.public.hex(), "--csv"), marks=SLOW),
    pytest.param(("statement", REQUESTER.public.hex()), marks=pytest.mark.soak),  # the rows of --csv, in words
    pytest.param(("statement", REQUESTER.public.hex(), "--json"), marks=pytest.mark.soak),
)


def lengthened(path: Path, source: Chain, count: int) -> None:
    """A ledger's file that goes on by `count` blocks of `source`, each of which moves a credit from one to another."""
    store = LedgerStore.open(path, source.genesis)
    made: list[Block] = []
    for _ in range(count):
        block, _ = source.propose(
            [signed(source, REQUESTER, transactions.Transfer(NODES[0].public, 1), fee=1)], source.head.time + LOGICAL_MS
        )
        source.adopt(block)
        made.append(block)
    store.adopt(store.load(), made)
    store.close()


def peak(words: Sequence[str], ledger: Path, tmp_path: Path) -> tuple[int, int]:
    """Bytes that a verb holds at most, and bytes that it wrote.

    CPython keeps freed tuples for the next ones, 2,000 of each length, until all garbage is looked for. They would
    count as held, and how many there are depends on what else ran in this process: so all is looked for often.
    """
    place, out = tmp_path / "read.db", tmp_path / "out"
    shutil.copy(ledger, place)
    gc.collect()
    gc.freeze()
    gc.collect()  # a quarter more than this one found begins the next: of nothing, anything
    usual = gc.get_threshold()
    gc.set_threshold(*OFTEN)
    tracemalloc.start()
    try:
        ended = CliRunner().invoke(
            cli, ["ledger", *words, "--from", str(place), "-o", str(out)], catch_exceptions=False
        )
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.set_threshold(*usual)
    assert ended.exit_code == 0, ended.output
    return held, out.stat().st_size


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files of one ledger, the second of which goes on."""
    folder, source = tmp_path_factory.mktemp("ledgers"), Chain(genesis(), VALIDATOR)
    short, long = folder / "short.db", folder / "long.db"
    lengthened(short, source, SHORT)
    shutil.copy(short, long)
    lengthened(long, source, (TIMES - 1) * SHORT)
    return short, long


@pytest.mark.parametrize("words", VERBS, ids=("export", "csv", "words", "json"))
def test_what_a_reader_writes_of_a_ledger_takes_no_more_memory_for_a_longer_one(
    words: Sequence[str], ledgers: tuple[Path, Path], tmp_path: Path
) -> None:
    short, long = ledgers
    peak(words, short, tmp_path)  # what is built once a process is there
    (less, wrote), (more, wrote_more) = (peak(words, each, tmp_path) for each in (short, long))
    print(f"{words[0]}: {less} and {more} bytes held to write {wrote} and {wrote_more}")
    assert wrote_more > wrote + 2 * ROOM, "too short to tell"
    assert more < less + ROOM
