"""A validator that is killed at any write and at any failpoint: nothing is lost that was told, and it votes once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_crash_points import live
from ledger_world import PARAMS, VALIDATOR, genesis

from farflung.core.io import durable_files
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore

HERE = Path(__file__).parent
Said = dict[tuple[str, int], set[bytes]]


class Killed(BaseException):
    """What a failpoint would have done to the process."""


def points(folder: Path, monkeypatch: pytest.MonkeyPatch, blocks: int) -> list[str]:
    """Every failpoint that a life passes until there are so many blocks, as NAME@N; `folder` is then there."""
    listing = folder.with_suffix(".points")
    with monkeypatch.context() as patch:
        patch.setenv("FARFLUNG_FAILPOINT_LOG", str(listing))
        live(folder, blocks, 1, lambda *_: None)
    seen: dict[str, int] = {}
    found = []
    for name in listing.read_text().split():
        seen[name] = seen.get(name, 0) + 1
        found.append(f"{name}@{seen[name]}")
    return found


def killed_at(folder: Path, monkeypatch: pytest.MonkeyPatch, point: str, blocks: int, said: Said) -> None:
    def die() -> None:
        raise Killed

    def tell(word: str, height: int, name: bytes) -> None:
        said.setdefault((word, height), set()).add(name)

    durable_files._passed.clear()
    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "_die", die)
        patch.setenv("FARFLUNG_FAILPOINT", point)
        with pytest.raises(Killed):
            live(folder, blocks, 1, tell)
    end = live(folder, blocks, 2, tell)
    assert end.head.height == blocks
    assert all(len(names) == 1 for names in said.values()), point
    store = LedgerStore.open(folder / "chain.db", genesis(PARAMS))
    again = store.load(VALIDATOR)
    replayed = Chain(genesis(PARAMS), audits=True)
    for block in again.blocks:
        replayed.adopt(block)
        name = block.header.id
        assert said.get(("final", block.header.height), {name}) == {name}
    assert again.state.root == replayed.state.root == end.state.root
    store.close()


def crash_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch, blocks: int) -> int:
    """Each block begins from what the one before it left. Returns the number of points."""
    (folder / "0").mkdir()
    return sum(one_block(folder, monkeypatch, height) for height in range(1, blocks + 1))


def one_block(folder: Path, monkeypatch: pytest.MonkeyPatch, height: int) -> int:
    before, after, case = folder / str(height - 1), folder / str(height), folder / "case"
    shutil.copytree(before, after)
    found = points(after, monkeypatch, height)
    for point in found:
        shutil.copytree(before, case)
        killed_at(case, monkeypatch, point, height, {})
        shutil.rmtree(case)
    return len(found)


def test_a_crash_at_any_failpoint_loses_nothing_and_votes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    assert crash_everywhere(tmp_path, monkeypatch, 2) >= 2 * 9


# A block's failpoints are those of the block before it: a chain of eight for .ci/run, longer ones for `make soak`.
@pytest.mark.parametrize(
    "blocks",
    [pytest.param(8, marks=pytest.mark.slow), pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def test_a_crash_at_any_failpoint_of_many_blocks_loses_nothing_and_votes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    assert crash_everywhere(tmp_path, monkeypatch, blocks) >= blocks * 9


def kill_everywhere(folder: Path, blocks: int) -> int:
    """Real processes, real SQLite, SIGKILL inside of its writes. Returns the number of points."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = folder / "kill_at_write.so"
    source = HERE / "kill_at_write.c"
    build = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    command = [sys.executable, str(HERE / "ledger_crash_points.py"), str(folder), str(blocks)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7000, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


@pytest.mark.whole
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_kill_inside_any_write_of_a_block_loses_nothing_and_votes_once(tmp_path: Path):
    assert kill_everywhere(tmp_path, 1) >= 40


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_kill_inside_any_write_of_many_blocks_loses_nothing_and_votes_once(tmp_path: Path):
    assert kill_everywhere(tmp_path, 50) >= 50 * 20
