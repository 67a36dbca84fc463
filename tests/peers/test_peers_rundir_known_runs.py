"""Every run of a user is found, wherever it was made; and what is there instead of a run is said."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from farflung.core.errors import RunError, UsageError
from farflung.peers.rundir import folder, known_runs
from farflung.peers.rundir.folder import RunFolder

IDENTITY = folder.RunIdentity(folder.FORMAT, 0.0, "", "/")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FARFLUNG_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(root: Path) -> RunFolder:
    run = folder.create(root, IDENTITY)
    run.unlock()
    return run


def test_a_run_made_elsewhere_is_found_by_name_and_as_the_newest(here: Path) -> None:
    made(here / "runs" / "one")
    away = made(here / "elsewhere" / "two")
    os.utime(here / "runs" / "one" / "run.json", (1, 1))
    assert [run.name for run in folder.all_known(Path("runs"))] == ["one", "two"]
    assert folder.find(Path("runs"), "two").root == away.root
    assert folder.find(Path("runs"), None).name == "two"
    with pytest.raises(UsageError, match="FF-APP-014") as error:
        folder.find(Path("runs"), "tow")
    assert "did you mean two" in (error.value.hint or "")
    assert "runs in runs and elsewhere: one, two" in error.value.cause


@pytest.mark.parametrize("spoil", ["deleted", "link", "no run"])
def test_what_is_gone_or_a_link_is_forgotten(here: Path, spoil: str) -> None:
    kept, lost = made(here / "a" / "kept"), made(here / "a" / "lost")
    lost.root.rename(here / "moved")
    if spoil == "link":
        lost.root.symlink_to(here / "moved")
    elif spoil == "no run":
        lost.root.mkdir()
    assert known_runs.elsewhere() == [kept.root]
    made(here / "b" / "next")
    text = (Path(os.environ["XDG_STATE_HOME"]) / "farflung" / known_runs.FILE).read_text()
    assert text.splitlines() == [str(kept.root), str(here / "b" / "next")]


def test_one_folder_alone_counts_where_it_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(here / "a" / "one")
    monkeypatch.setenv("FARFLUNG_RUNS", str(here / "runs"))
    made(here / "b" / "two")
    assert folder.all_known(here / "runs") == []
    monkeypatch.delenv("FARFLUNG_RUNS")
    assert [run.name for run in folder.all_known(here / "runs")] == ["one"]


@pytest.mark.parametrize("text", [b"\xff\xfe\n/\x00\nrelative\n", b"/nowhere\n" * 5000, b"x" * (known_runs.BYTES + 1)])
def test_a_list_of_nonsense_is_no_list_and_a_run_begins_all_the_same(here: Path, text: bytes) -> None:
    path = Path(os.environ["XDG_STATE_HOME"]) / "farflung" / known_runs.FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    assert known_runs.elsewhere() == []
    run = made(here / "a" / "one")
    assert known_runs.elsewhere() == [run.root]


def test_a_list_that_is_a_link_is_not_followed_and_the_list_is_bounded(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(os.environ["XDG_STATE_HOME"]) / "farflung" / known_runs.FILE
    path.parent.mkdir(parents=True)
    run = made(here / "a" / "one")
    path.rename(here / "list")
    path.symlink_to(here / "list")
    assert known_runs.elsewhere() == []
    path.unlink()
    monkeypatch.setattr(known_runs, "MOST", 2)
    for name in ("two", "three", "four"):
        run = made(here / "a" / name)
    assert [root.name for root in known_runs.elsewhere()] == ["three", run.name]


def _finish(run: RunFolder) -> None:
    run.model_file.write_bytes(b"")


def _hold(run: RunFolder) -> None:
    handle = os.open(run.root / "lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)


@pytest.mark.parametrize(
    ("change", "cause", "hint"),
    [
        (lambda run: None, "has not ended", "farflung resume"),
        (_finish, "a finished run", "--rounds +N"),
        (_hold, "process {pid} is working", "farflung watch"),
    ],
)
def test_a_folder_in_use_says_which_run_is_in_it(
    here: Path, change: Callable[[RunFolder], None], cause: str, hint: str
) -> None:
    run = made(here / "r")
    change(run)
    with pytest.raises(RunError, match="FF-APP-012") as error:
        folder.create(run.root, IDENTITY)
    assert cause.format(pid=os.getpid()) in error.value.cause
    assert hint in (error.value.hint or "")


def test_a_folder_or_file_that_is_no_run_is_called_that(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "letter.txt").write_text("precious")
    for path, cause in (("mine", "other files, and no run"), ("mine/letter.txt", "it is a file")):
        with pytest.raises(RunError, match="FF-APP-012") as taken:
            folder.create(here / path, IDENTITY)
        assert cause in taken.value.cause
        assert "resume" not in (taken.value.hint or "")
    for name, said in (
        ("mine", "is a folder without a run.json"),
        ("mine/letter.txt", "is a file"),
        ("a\0b", "runs in"),
    ):
        with pytest.raises(UsageError, match="FF-APP-014") as missing:
            folder.find(here / "runs", name)
        assert said in missing.value.cause


def test_an_identity_is_still_read_as_it_was_written(here: Path) -> None:
    assert made(here / "r").read_identity() == msgspec.structs.replace(IDENTITY, program=folder.VERSION)
