"""Whether a run repeats an earlier one: judged by its terms, its cheat and its versions, and told when it does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from farflung.core.events import RepeatedRunEvent
from farflung.local.network.forecast import repeated_run
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import read_timeline

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("tree")]


@pytest.fixture
def two(tiny: Any, tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    """The same finished run under two names, of which the first is the older."""
    command, ended = tiny
    for name in ("older", "newer"):
        shutil.copytree(command.runs / ended.result["run"], tmp_path / name)
    return RunFolder(tmp_path / "older"), RunFolder(tmp_path / "newer")


def told(run: RunFolder) -> RepeatedRunEvent | None:
    timeline = read_timeline(run)
    assert timeline.result is not None
    return repeated_run(run, timeline, timeline.result)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_same_run_again_is_said_to_be_the_same(two: tuple[RunFolder, RunFolder]) -> None:
    assert told(two[1]) == RepeatedRunEvent(run="older", differs=())


def test_what_differs_is_named(two: tuple[RunFolder, RunFolder]) -> None:
    result = read_timeline(two[0]).result
    assert result is not None
    edit(two[0].events_file, result.model_hash, "00" * 32)
    assert told(two[1]) == RepeatedRunEvent(run="older", differs=("model_hash",))


@pytest.mark.parametrize("what", ["terms", "cheat", "version", "unfinished", "damaged", "alone"])
def test_another_job_another_version_or_no_result_is_no_repetition(two: tuple[RunFolder, RunFolder], what: str) -> None:
    older = two[0]
    match what:
        case "terms":
            older.terms_file.write_bytes(older.terms_file.read_bytes() + b"x")
        case "cheat":
            edit(older.identity_file, '"cheat":"none"', '"cheat":"skip"')
        case "version":
            edit(older.events_file, '"version":"', '"version":"9')
        case "unfinished":
            edit(older.events_file, '"event":"result"', '"event":"nothing"')
        case "damaged":
            older.identity_file.write_bytes(b"{")
        case "alone":
            shutil.rmtree(older.root)
    assert told(two[1]) is None
