"""Run folders that somebody else prepared: links, devices, lies about who owns them; and who may read our own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farflung.app.cli import status
from farflung.app.cli.main import main
from farflung.core.errors import RunError, VerificationError
from farflung.core.io.process_mark import namespace
from farflung.peers.rundir import export, folder
from farflung.peers.rundir.folder import RunFolder, RunIdentity

IDENTITY = RunIdentity(folder.FORMAT, 0.0, "", "/")


@contextmanager
def held(root: Path, content: bytes) -> Iterator[RunFolder]:
    """A run that another process holds, with this in its lock file."""
    (root / "lock").write_bytes(content)
    handle = os.open(root / "lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield RunFolder(root)
    finally:
        os.close(handle)


def test_a_run_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    made = folder.create(tmp_path / "r", IDENTITY)
    assert made.root.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content", [b"-1", b"0", b"1", b"", b"x", b"12 34", b"1e3", b"\xff\xfe", b"-4711", b"1.7", b"4711."]
)
def test_a_lock_that_names_no_process_is_nobodys(tmp_path: Path, content: bytes) -> None:
    with held(tmp_path, content) as run:
        assert run.owner() is None


def test_a_lock_that_names_a_process_is_that_processs(tmp_path: Path) -> None:
    with held(tmp_path, b"4711") as run:
        assert run.owner() == 4711


def test_a_process_of_another_container_is_sent_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(status.os, "kill", lambda pid, number: sent.append(pid))
    folder.create(tmp_path / "r", IDENTITY).unlock()
    for where, is_here in ((namespace(), True), (namespace() + 1, False)):
        with held(tmp_path / "r", f"4711.{where}".encode()) as run:
            assert (run.owner(), run.is_owner_here()) == (4711, is_here)
            if is_here:
                main(["stop", str(run.root)])
                assert sent == [4711]
                continue
            with pytest.raises(SystemExit):
                main(["stop", str(run.root)])
            assert "FF-APP-497" in capsys.readouterr().err
    assert sent == [4711]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    root = tmp_path / "r"
    root.mkdir()
    (root / "lock").symlink_to(precious)
    with pytest.raises(RunError, match="FF-APP-017"):
        RunFolder(root).lock()
    assert RunFolder(root).owner() is None
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("kind", ["endless", "waiting", "folder", "nothing"])
def test_an_export_of_devices_and_pipes_is_not_read(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "export"
    root.mkdir()
    path = root / "genesis.bin"
    if kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "waiting":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(VerificationError, match="FF-APP-080"):
        export.read_export(RunFolder(tmp_path))


def test_an_export_over_its_bounds_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    with (tmp_path / "export" / "genesis.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(VerificationError, match="FF-APP-081"):
        export.read_export(RunFolder(tmp_path))
