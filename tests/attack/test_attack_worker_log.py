"""A model that prints what a terminal obeys: when it has ended its log, which hints tell people to read, is text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farflung.host.io import worker_process
from farflung.host.io.worker_process import make_printable, start_worker

SAID = {
    "title": (b"\x1b]0;owned\x07", b"\\x1b]0;owned\\x07"),
    "clear": (b"a\x1b[2Jb\rc\x08\n", b"a\\x1b[2Jb\\x0dc\\x08\n"),
    "C1": ("\x9b31m".encode(), b"\\x9b31m"),
    "raw C1": (b"\x9b31m\xff", b"\\x9b31m\\xff"),
    "direction": ("\u202ex\u2066".encode(), b"\\x202ex\\x2066"),
    "text": ("Grüße\tan Ada\n".encode(), "Grüße\tan Ada\n".encode()),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("kind", SAID)
def test_what_a_terminal_would_obey_is_written_as_numbers(tmp_path: Path, kind: str) -> None:
    raw, text = SAID[kind]
    (tmp_path / "worker.log").write_bytes(raw)
    make_printable(tmp_path / "worker.log")
    assert (tmp_path / "worker.log").read_bytes() == text


def test_a_log_does_not_grow_beyond_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "LOG_BYTES", 64)
    (tmp_path / "worker.log").write_bytes(b"\x1b" * 100 + b"the end")
    make_printable(tmp_path / "worker.log")
    held = (tmp_path / "worker.log").read_bytes()
    assert len(held) == 64
    assert held.endswith(b"the end")


def test_the_log_of_a_worker_that_ended_is_text(tmp_path: Path) -> None:
    program = r"import sys; sys.stderr.write('\x1b]0;owned\x07 done')"
    worker = start_worker(
        tmp_path / "scratch", tmp_path / "worker.log", command=(sys.executable, "-c", program), tier="limits"
    )
    worker.wait(30)
    assert (tmp_path / "worker.log").read_bytes().endswith(b"\\x1b]0;owned\\x07 done")
    worker.terminate(0)
