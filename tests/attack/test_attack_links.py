"""Run folders in which links lie where farflung writes: what they lead to is neither emptied, added to nor replaced."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.core.errors import FarflungError, RunError, VerificationError
from farflung.core.io import durable_files, ordinary_files
from farflung.core.io.durable_files import AppendLog, write_at, write_atomic
from farflung.host.io.worker_process import start_worker
from farflung.peers.process.child import ChildProcess
from farflung.peers.rundir import export, folder
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.watch.io import event_log
from farflung.watch.io.event_log import EventLog

LETTER = b"Dear Ada,\nthis is mine.\n"
IDENTITY = RunIdentity(folder.FORMAT, 0.0, "", "/")


def _child(path: Path) -> None:
    asyncio.run(ChildProcess.start("provider-0", "provider", path, path, lambda *_: None))


WRITERS: dict[str, Callable[[Path], object]] = {
    "events": EventLog,
    "records": lambda path: AppendLog(path, "test"),
    "chunk": lambda path: write_at(path, 0, b"x", "test"),
    "worker": lambda path: start_worker(path.parent / "scratch", path, command=("true",), tier="limits"),
    "process": _child,
    "lock": lambda path: RunFolder(path.parent)._lock_file(path.name),
}


def _link(path: Path, to: Path) -> None:
    path.symlink_to(to)


def _pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _hard(path: Path, to: Path) -> None:
    os.link(to, path)


def _folder(path: Path, _: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("trap", [_link, _hard, _pipe, _folder])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_in_place_is_an_ordinary_file_of_our_own(
    tmp_path: Path, writer: str, trap: Callable[[Path, Path], None]
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_bytes(LETTER)
    run = tmp_path / "run"
    run.mkdir()
    trap(run / "file", letter)
    with pytest.raises(FarflungError) as error:
        WRITERS[writer](run / "file")
    assert error.value.code in ("FF-CORE-085", "FF-APP-017", "FF-CORE-050", "FF-WATCH-001", "FF-HOST-001", "FF-APP-024")
    assert error.value.cause
    assert error.value.hint
    assert letter.read_bytes() == LETTER


@pytest.mark.parametrize("writer", WRITERS)
def test_what_belongs_to_another_user_is_not_written(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(ordinary_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RunError, match=r"FF-CORE-085|FF-APP-017"):
        WRITERS[writer](tmp_path / "file")


@pytest.mark.parametrize(
    "text", [LETTER, LETTER * 1000, b"{}\n\n", b'{"event":"nobody"}\n', b"\x10" + bytes(7) + b"x" * 99]
)
@pytest.mark.parametrize("writer", ["events", "records"])
def test_a_file_that_did_not_begin_as_a_log_is_not_cut(tmp_path: Path, writer: str, text: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(FarflungError, match=r"FF-CORE-085|FF-CORE-052"):
        WRITERS[writer](path)
    assert path.read_bytes() == text


@pytest.mark.parametrize("torn", [b"", bytes(4096), b"{", b'{"event":"beg'])
def test_an_event_log_that_was_torn_in_its_first_line_begins_anew(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(torn)
    EventLog(path).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "name", ["events.jsonl", "rounds.log", "worker.log", "report.html", "ledger/chain.db", "providers/0/process.log"]
)
@pytest.mark.parametrize("trap", [_link, _hard, _pipe])
def test_a_run_with_a_trap_in_its_folder_is_not_taken(
    tmp_path: Path, name: str, trap: Callable[[Path, Path], None]
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_bytes(LETTER)
    run = folder.create(tmp_path / "run", IDENTITY)
    run.unlock()
    (run.root / name).parent.mkdir(exist_ok=True)
    trap(run.root / name, letter)
    with pytest.raises(RunError, match="FF-APP-470") as error:
        run.lock()
    assert name in error.value.cause
    assert letter.read_bytes() == LETTER
    (run.root / name).unlink()
    run.lock()


@pytest.mark.parametrize("name", ["export", "snapshots", "store", "evidence", "providers/0", "ledger", "scratch"])
def test_a_run_with_a_linked_folder_is_not_taken(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    run = folder.create(tmp_path / "run", IDENTITY)
    run.unlock()
    path = run.root / name
    if path.exists():
        path.rmdir()
    path.symlink_to(mine)
    with pytest.raises(RunError, match="FF-APP-470"):
        run.lock()
    assert list(mine.iterdir()) == []
    if name == "scratch":
        with pytest.raises(RunError, match="FF-CORE-085"):
            start_worker(path, run.root / "worker.log", command=("true",), tier="limits")
        assert stat.S_IMODE(mine.stat().st_mode) == 0o755


def test_what_a_worker_left_in_its_scratch_does_not_keep_the_run_from_going_on(tmp_path: Path) -> None:
    run = folder.create(tmp_path / "run", IDENTITY)
    run.unlock()
    scratch = run.home("provider", 0) / "scratch"
    scratch.mkdir(parents=True)
    (scratch / "link").symlink_to("/etc/passwd")
    run.lock()


def test_what_a_kill_left_half_written_goes_when_the_run_is_taken(tmp_path: Path) -> None:
    run = folder.create(tmp_path / "run", IDENTITY)
    run.unlock()
    (run.snapshots / "000004.bin.0a1b2c3d.tmp").write_bytes(b"half")
    (run.root / "mine.tmp").write_bytes(b"mine")
    run.lock()
    assert list(run.snapshots.iterdir()) == []
    assert (run.root / "mine.tmp").exists()


@pytest.mark.parametrize("name", ["export", "export/receipts", "export/rounds.log", "export/terms.bin"])
def test_an_export_is_not_read_through_links(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    for part in ("receipts", "blocks", "payloads"):
        (run.export / part).mkdir(parents=True)
    for part in ("genesis.bin", "terms.bin", "initial.bin", "rounds.log", "../model.safetensors"):
        (run.export / part).write_bytes(b"")
    export.read_export(run)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VerificationError, match="FF-APP-080"):
        export.read_export(run)


def test_identity_and_events_are_not_read_through_links(tmp_path: Path) -> None:
    run = folder.create(tmp_path / "run", IDENTITY)
    run.identity_file.rename(tmp_path / "there")
    run.identity_file.symlink_to(tmp_path / "there")
    run.events_file.symlink_to(tmp_path / "there")
    with pytest.raises(RunError, match="FF-APP-011"):
        run.read_identity()
    with pytest.raises(RunError, match="FF-WATCH-002"):
        list(event_log.read(run.events_file))


def test_a_private_file_is_private_from_its_first_byte_whatever_lay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        durable_files, "_write", lambda file, data, name: seen.append(stat.S_IMODE(os.fstat(file).st_mode))
    )
    for name in ("p.key", "p.key.tmp"):
        (tmp_path / name).write_bytes(b"mine")
        (tmp_path / name).chmod(0o666)
    write_atomic(tmp_path / "p.key", b"secret", "test", private=True)
    assert seen == [0o600]
    assert stat.S_IMODE((tmp_path / "p.key").stat().st_mode) == 0o600
    assert (tmp_path / "p.key.tmp").read_bytes() == b"mine"
