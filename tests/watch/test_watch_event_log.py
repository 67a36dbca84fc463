"""The event log loses at most its torn last line, wherever a crash falls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farflung.core.errors import RunError
from farflung.core.events import EvaluationEvent, to_json
from farflung.watch.io.event_log import LINE_BYTES, EventLog, EventLogReader, read

FIRST = [EvaluationEvent(at=float(i), round=i, loss=1.5, tokens=10) for i in range(3)]


def write(path: Path, count: int = 3) -> None:
    log = EventLog(path)
    for event in FIRST[:count]:
        log.append(event, durable=True)
    log.close()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    assert list(read(path)) == FIRST
    log = EventLog(path)
    assert log.events == tuple(FIRST)
    log.append(FIRST[0])
    log.close()
    assert list(read(path)) == [*FIRST, FIRST[0]]


def test_a_tail_torn_at_any_byte_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(read(path)) == FIRST[:2]
        log = EventLog(path)
        log.append(FIRST[2], durable=True)
        log.close()
        assert path.read_bytes() == whole, cut


@pytest.mark.parametrize("rubbish", [b"\0" * 64, b'{"event":"nobody"}\n', b"\xff\xfe\n", b"[]\n"])
def test_rubbish_behind_the_last_event_is_dropped(tmp_path: Path, rubbish: bytes) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole + rubbish)
    EventLog(path).close()
    assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(rows[0] + b"{" + rows[1] + rows[2])
    log = EventLog(path)
    assert log.events == (FIRST[0], FIRST[2])
    log.close()
    assert path.read_bytes().endswith(rows[2])


def test_an_unwritable_folder_is_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError) as error:
        EventLog(tmp_path / "missing" / "events.jsonl")
    assert error.value.code == "FF-WATCH-001"


CHILD = """
import sys
from pathlib import Path
from farflung.core.events import EvaluationEvent
from farflung.watch.io.event_log import EventLog
log = EventLog(Path(sys.argv[1]))
for i in range(3):
    log.append(EvaluationEvent(at=float(i), round=i, loss=1.5, tokens=10), durable=True)
log.close()
"""


@pytest.mark.parametrize("point", ["watch.events.dirsync", "watch.events.write@2", "watch.events.fsync@2"])
def test_a_kill_at_each_failpoint_leaves_whole_events_only(tmp_path: Path, point: str) -> None:
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        env={**os.environ, "FARFLUNG_FAILPOINT": point},
        start_new_session=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    kept = list(read(path))
    assert kept == FIRST[: len(kept)]
    assert len(kept) == {"watch.events.dirsync": 0, "watch.events.write@2": 1, "watch.events.fsync@2": 2}[point]
    EventLog(path).close()
    assert path.read_bytes() == b"".join(to_json(event).encode() + b"\n" for event in kept)


def test_a_follower_reads_what_was_added_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    follower = EventLogReader(path)
    assert follower.new() == []  # there is no file yet
    lines = [to_json(event).encode() + b"\n" for event in FIRST]
    path.write_bytes(lines[0] + lines[1][:9])
    assert follower.new() == FIRST[:1]
    assert follower.new() == []
    path.write_bytes(b"".join(lines))
    assert follower.new() == FIRST[1:]


def test_a_follower_passes_over_what_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = to_json(FIRST[0]).encode() + b"\n"
    path.write_bytes(b"{}\n" + b"x" * (LINE_BYTES + 5) + b"\n" + line)
    assert EventLogReader(path).new() == FIRST[:1]
