"""The power fails behind any step of a validator's life and takes what the disk did not hold: nothing that was said."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from ledger_crash_points import live
from ledger_outage import FOLDER, Disk, Recorder, Said, Step, Synced, Wrote
from ledger_world import PARAMS, VALIDATOR, genesis

from farflung.core.errors import RunError
from farflung.ledger.block import read_block
from farflung.ledger.io import sqlite_file as ledger_file
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.votelog import open_votes
from farflung.ledger.sdbft import votelog_format

BLOCKS, WAYS = 2, 20  # of a life; folders that are made again for each step of it


class Forgot(AssertionError):
    """What was said is not there any more."""


def lived(folder: Path, blocks: int = BLOCKS, life: int = 1) -> list[Step]:
    """What a validator's life did, step by step."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(folder, patch)
        live(folder, blocks, life, recorder.say)
    return recorder.steps


def reopen(folder: Path, said: Sequence[Said]) -> None:
    """Begins again from what is left. Raises RunError where that is refused, Forgot where something is missing."""
    with closing(LedgerStore.open(folder / "chain.db", genesis(PARAMS))) as store:
        chain = store.load(VALIDATOR)
        with closing(open_votes(store, VALIDATOR.public)) as votes:
            voted = {block.header.id for block in map(read_block, votes.records)}
        final = {block.header.id for block in chain.blocks}
    for each in said:
        if each.name not in final and (each.word == "final" or each.name not in voted):
            raise Forgot(each)


def cut(folder: Path, steps: Sequence[Step], ways: int, seed: int, first: int = 0) -> int:
    """All steps from `first` on, and some of what may be left behind each. Returns how many folders there were."""
    made = 0
    for count in range(first, len(steps) + 1):
        if count < len(steps) and isinstance(steps[count], Said):
            continue  # it takes nothing to the disk: the cut behind it is the harder one
        disk = Disk(steps[:count])
        said = [step for step in steps[:count] if isinstance(step, Said)]
        for way in range(ways):
            folder.mkdir()
            disk.left(folder, random.Random(f"{seed} {count} {way}"))
            try:
                reopen(folder, said)
            except (RunError, Forgot) as error:
                raise Forgot(f"seed {seed}, cut behind step {count}, way {way}: {error}") from error
            shutil.rmtree(folder)
            made += 1
    return made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is opened again does not wait for the real disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    settings = tuple(s for s in ledger_file._SETTINGS if not s.startswith("synchronous"))
    monkeypatch.setattr(ledger_file, "_SETTINGS", (*settings, "synchronous = OFF"))


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_power_cut_at_any_step_takes_nothing_that_was_said(tmp_path: Path):
    steps = lived(tmp_path / "lived")
    assert sum(isinstance(step, Said) for step in steps) == 2 * BLOCKS
    assert cut(tmp_path / "left", steps, WAYS, 1) >= 100


def again(folder: Path, steps: Sequence[Step], count: int, seed: int) -> list[Step]:
    """The life that begins from what a cut left: it votes for nothing else, and what both said is at the end."""
    folder.mkdir()
    Disk(steps[:count]).left(folder, random.Random(seed))
    said = [step for step in steps[:count] if isinstance(step, Said)]
    more = lived(folder, BLOCKS, 2)
    both = {*said, *(step for step in more if isinstance(step, Said))}
    assert len({(each.word, each.height) for each in both}) == len(both), f"seed {seed}, cut behind step {count}"
    return [*said, *more]


@pytest.mark.usefixtures("hasty")
def test_the_next_life_votes_for_nothing_else_and_may_be_cut_off_too(tmp_path: Path):
    steps = lived(tmp_path / "lived")
    for count in range(0, len(steps), 3):
        second = again(tmp_path / f"second {count}", steps, count, count)
        if count % 9 == 0:
            cut(tmp_path / "left", second, 1, count, second.index(Synced(FOLDER)) + 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("blocks", "ways"), [(5, 6), pytest.param(10, 40, marks=pytest.mark.soak)])
def test_a_power_cut_at_any_step_of_many_blocks_takes_nothing_that_was_said(tmp_path: Path, blocks: int, ways: int):
    cut(tmp_path / "left", lived(tmp_path / "lived", blocks), ways, 2)


def unsynced(steps: Sequence[Step]) -> list[Step]:
    """The life of one that does not wait for its vote log."""
    appended = {step.file for step in steps if isinstance(step, Wrote)}
    return [step for step in steps if not (isinstance(step, Synced) and step.file in appended)]


def unsynced_names(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step != Synced(FOLDER)]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("careless", [unsynced, unsynced_names])
def test_a_validator_that_does_not_wait_for_its_disk_is_found_out(tmp_path: Path, careless):
    steps = careless(lived(tmp_path / "lived"))
    with pytest.raises(Forgot):
        cut(tmp_path / "left", steps, WAYS, 3)


@pytest.mark.usefixtures("hasty")
def test_a_torn_append_that_counts_as_damage_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    steps = lived(tmp_path / "lived")
    monkeypatch.setattr(votelog_format, "_is_torn", lambda *_: False)
    with pytest.raises(Forgot, match="FF-LEDG-320"):
        cut(tmp_path / "left", steps, WAYS, 4)


def test_no_write_passes_the_recorder_by(tmp_path: Path):
    """What it wrote down, put together, is what the files are."""
    steps = lived(tmp_path / "lived")
    (tmp_path / "left").mkdir()
    Disk([*steps, Synced(FOLDER)]).left(tmp_path / "left", random.Random(0))
    names = {path.name for path in (tmp_path / "lived").iterdir()} - {"chain.db-journal"}
    assert names == {path.name for path in (tmp_path / "left").iterdir()}
    for name in names:
        assert (tmp_path / "left" / name).read_bytes() == (tmp_path / "lived" / name).read_bytes()
