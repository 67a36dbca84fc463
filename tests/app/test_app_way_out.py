"""What a command says where it cannot go on names what is wrong there, and a way out that works."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farflung.app.cli import ledger_seats, receipt
from farflung.app.cli.main import main
from farflung.core.errors import FarflungError, NetworkError, RunError, SpecError
from farflung.core.io import durable_files
from farflung.core.io.process_mark import namespace, own_mark
from farflung.host.io import temporary_folders
from farflung.job.io.job_files import read_job
from farflung.local.jobs import preflight_checks


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my text.txt", b"Once upon a time, there was a text.\n"),
        ("large.txt", b"word " * 200_000),
        ("latin.txt", "naïve".encode("latin-1")),
        ("notes.md", b"# Notes\n\n- one\n"),
        ("noname", b"\x7fELF\x00\x01"),
    ],
)
def test_a_text_given_as_a_job_is_told_how_to_be_trained_on(name: str, text: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(SpecError, match="FF-JOB-003") as error:
        read_job(path)
    shown = f"'{path}'" if " " in name else str(path)
    assert error.value.hint == f"to train on this file: farflung init --data {shown}"


def test_a_job_file_is_read_whatever_it_is_called_and_its_faults_have_lines(tmp_path: Path) -> None:
    for name in ("job.toml", "job", "job.txt"):
        (tmp_path / name).write_text("rounds = 3\n")
        assert read_job(tmp_path / name) == "rounds = 3\n"
    (tmp_path / "job.toml").write_text("rounds = \n")
    assert read_job(tmp_path / "job.toml")  # who loads it says which line


def test_a_full_disk_names_the_disk_and_not_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable_files, "_write", full)
    with pytest.raises(RunError, match="FF-CORE-050") as error:
        durable_files.write_atomic(tmp_path / "000177.bin", b"x", "run.snapshot")
    hint = error.value.hint or ""
    assert str(tmp_path) in hint
    assert "another folder" not in hint
    assert "farflung resume" in hint


def test_a_computer_that_does_not_reach_itself_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preflight_checks.check_loopback()

    def none(*_: Any) -> socket.socket:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(preflight_checks.socket, "create_connection", none)
    with pytest.raises(NetworkError, match="FF-APP-489") as error:
        preflight_checks.check_loopback()
    assert "loopback" in (error.value.hint or "")


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else_is(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone, here = f"{ended.pid}.{namespace()}", own_mark()
    left = tmp_path / f"farflung-gauger-{gone}-abc"
    other, linked = tmp_path / f"farflung-teller-{gone}-abc", tmp_path / f"farflung-gauger-{gone}-link"
    alive, nameless = tmp_path / f"farflung-gauger-{here}-abc", tmp_path / "farflung-gauger-abc"
    elsewhere = tmp_path / f"farflung-gauger-{ended.pid}.{namespace() + 1}-abc"  # of a container with the same /tmp
    for folder in (left / "scratch", other, alive, nameless, elsewhere):
        folder.mkdir(parents=True)
    linked.symlink_to(other)
    made = temporary_folders.make("farflung-gauger-", tmp_path)
    assert not left.exists()
    assert all(path.exists() for path in (other, alive, nameless, elsewhere, linked, made))


@pytest.mark.parametrize(
    ("codes", "hint"),
    [
        (["FF-NET-043"], "farflung ledger validator CONFIG starts one"),
        (["FF-NET-043", "FF-NET-020"], "something else answers there"),
        (["FF-NET-045"], "something else answers there"),
    ],
)
def test_where_something_else_runs_nobody_is_told_to_start_it(codes: list[str], hint: str) -> None:
    assert ledger_seats._way_out([FarflungError(code, "said") for code in codes]).startswith(hint)


def test_several_receipts_are_verified_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    first = Path(__file__).parents[1] / "old" / "first" / "run" / "export" / "receipts"
    files = [str(path) for path in sorted(first.glob("*.receipt"))][:3]
    main(["receipt", "verify", *files])
    text = capsys.readouterr().out
    assert [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("File ")] == files
    main(["receipt", "verify", files[0]])
    assert "File " not in capsys.readouterr().out
    main(["receipt", "verify", "--json", *files])
    assert len(capsys.readouterr().out.splitlines()) == len(files)
    assert receipt.verify.params[0].nargs == -1
