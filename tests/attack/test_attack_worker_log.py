"""A model that prints what a terminal obeys: its log, which hints tell people to read, is text at any time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farflung.host import sandbox
from farflung.host.io import sandbox_tiers
from farflung.host.io.watchdog import TextLog
from farflung.host.io.worker_process import WorkerProcess, start_worker

SAID = {
    "title": (b"\x1b]0;owned\x07", b"\\x1b]0;owned\\x07"),
    "clear": (b"a\x1b[2Jb\rc\x08\n", b"a\\x1b[2Jb\\x0dc\\x08\n"),
    "C1": ("\x9b31m".encode(), b"\\x9b31m"),
    "raw C1": (b"\x9b31m\xff", b"\\x9b31m\\xff"),
    "direction": ("\u202ex\u2066".encode(), b"\\x202ex\\x2066"),
    "text": ("Grüße\tan Ada\n".encode(), "Grüße\tan Ada\n".encode()),
    "nothing": (b"", b""),
}
TEXT = b"\\x1b]0;owned\\x07 done"


def log(folder: Path, pieces: list[bytes], most: int = 1 << 20) -> tuple[bytes, list[bool]]:
    """What stands in a log after these writes, and whether it had room for more after each."""
    with (folder / "worker.log").open("wb", 0) as file:
        text = TextLog(file.fileno(), most)
        said = [text.write(piece, piece is pieces[-1]) for piece in pieces]
    return (folder / "worker.log").read_bytes(), said


@pytest.mark.parametrize("kind", SAID)
def test_what_a_terminal_would_obey_is_written_as_numbers(tmp_path: Path, kind: str) -> None:
    raw, text = SAID[kind]
    assert log(tmp_path, [raw]) == (text, [True])
    assert log(tmp_path, [raw[:1], raw[1:]])[0] == text  # however it comes
    assert log(tmp_path, [*(raw[at : at + 1] for at in range(len(raw))), b""])[0] == text


def test_a_log_does_not_grow_beyond_its_bound(tmp_path: Path) -> None:
    assert log(tmp_path, [b"the start", b"\x1b" * 100, b"the end"], 64) == (
        b"the start" + (b"\\x1b" * 14)[:55],
        [True, False, False],
    )
    assert log(tmp_path, ["aü".encode()], 2) == (b"a", [False])


def says(folder: Path, tier: str, more: str = "") -> WorkerProcess:
    if why := sandbox_tiers.probe(tier):
        pytest.skip(f"tier {tier} does not work here: {why}")
    program = r"import sys; sys.stderr.write('\x1b]0;owned\x07 done'); sys.stderr.flush()"
    return start_worker(
        folder / "scratch", folder / "worker.log", command=(sys.executable, "-c", program + more), tier=tier
    )


@pytest.mark.parametrize("tier", sandbox.ORDER)
def test_the_log_of_a_worker_is_text_once_it_has_ended_and_while_it_runs(tmp_path: Path, tier: str) -> None:
    ended = says(tmp_path, tier)
    ended.wait(100)
    assert (tmp_path / "worker.log").read_bytes() == TEXT
    ended.terminate(0)
    runs = says(tmp_path, tier, "; import time; time.sleep(60)")
    while not (held := (tmp_path / "worker.log").read_bytes()):
        assert runs.is_running()
    assert TEXT.startswith(held)
    runs.terminate(0)
    assert (tmp_path / "worker.log").read_bytes() == TEXT
