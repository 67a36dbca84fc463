"""What was promised to be on disk is there, whole, wherever the crash fell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from farflung.core import limits
from farflung.core.errors import RunError, VerificationError
from farflung.core.io import record_search
from farflung.core.io.durable_files import AppendLog, append_whole, read_records, write_atomic

RECORDS = [b"first", b"\0" * 9, b"third record"]


def fill(path: Path) -> bytes:
    log = AppendLog(path, "test")
    for record in RECORDS:
        log.append(record)
    log.close()
    return path.read_bytes()


def kept(path: Path) -> list[bytes]:
    return [record for record, _ in read_records(path)]


def test_a_log_reads_back_in_order_and_goes_on_after_reopening(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    log = AppendLog(tmp_path / "log", "test")
    assert log.records == RECORDS
    log.append(b"fourth")
    log.close()
    assert kept(tmp_path / "log") == [*RECORDS, b"fourth"]


def test_a_log_torn_at_any_byte_keeps_its_whole_records_and_takes_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = fill(path)
    ends = [end for _, end in read_records(path)]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        log = AppendLog(path, "test")
        count = sum(end <= cut for end in ends)
        assert log.records == RECORDS[:count], cut
        log.append(b"new")
        log.close()
        assert kept(path) == [*RECORDS[:count], b"new"], cut


def test_a_flipped_bit_is_refused_unless_it_can_be_a_torn_last_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = fill(path)
    last = [end for _, end in read_records(path)][-2]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        if place < last:
            for read in (lambda: kept(path), lambda: AppendLog(path, "test")):
                with pytest.raises(VerificationError, match="FF-CORE-052"):
                    read()
        else:
            assert kept(path) == RECORDS[:-1], place
        assert path.read_bytes() == damaged  # nothing is dropped from what is read again


def test_a_bad_record_with_only_another_bad_one_behind_it_is_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = fill(path)
    first, second, _ = [end for _, end in read_records(path)]
    for cut in range(second + 1, len(whole)):  # the third record is torn, the second was flipped since
        damaged = bytearray(whole[:cut])
        damaged[first + 9] ^= 1
        path.write_bytes(damaged)
        if any(damaged[second:]):
            with pytest.raises(VerificationError, match="FF-CORE-052"):
                kept(path)


def test_more_bytes_than_one_record_can_have_are_no_torn_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_RECORD_BYTES", 64)
    path = tmp_path / "log"
    whole = fill(path)
    path.write_bytes(whole + b"\xff" * 72)
    assert kept(path) == RECORDS
    path.write_bytes(whole + b"\xff" * 73)
    with pytest.raises(VerificationError, match="FF-CORE-052"):
        kept(path)


def test_zeros_behind_the_last_record_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = fill(path)
    path.write_bytes(whole + bytes(4096))
    log = AppendLog(path, "test")
    log.close()
    assert log.records == RECORDS
    assert path.read_bytes() == whole


def test_empty_and_oversized_records_are_refused(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "log", "test")
    for bad in (b"", bytes(limits.LOG_RECORD_BYTES + 1)):
        with pytest.raises(RunError, match="FF-CORE-051"):
            log.append(bad)
    log.close()
    assert kept(tmp_path / "log") == []


def test_a_length_beyond_the_limit_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xff\xff\xff" + bytes(4))
    assert kept(path) == []


def test_write_atomic_replaces_and_can_keep_a_file_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old", "test")
    write_atomic(path, b"new", "test", private=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_a_run_error_with_a_way_on(tmp_path: Path) -> None:
    for action in (
        lambda: write_atomic(tmp_path / "no" / "file", b"x", "test"),
        lambda: AppendLog(tmp_path / "no" / "log", "test"),
    ):
        with pytest.raises(RunError) as error:
            action()
        assert error.value.code == "FF-CORE-050"
        assert "farflung resume" in error.value.hint


CHILD = """
import sys
from pathlib import Path
from farflung.core.io.durable_files import AppendLog, write_atomic
folder = Path(sys.argv[1])
write_atomic(folder / "file", b"new" * 1000, "file")
log = AppendLog(folder / "log", "log")
for i in range(3):
    log.append(b"record %d" % i)
log.close()
"""


def run(folder: Path, **environment: str) -> int:
    """The child in a process group of its own, so that a failpoint's kill ends it alone."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        env={**os.environ, **environment},
        start_new_session=True,
        check=False,
    )
    return done.returncode


POINTS = {
    # point: (content of `file`, whole records in `log`)
    "file.write": (b"old", 0),
    "file.fsync": (b"old", 0),
    "file.rename": (b"old", 0),
    "file.dirsync": (b"new" * 1000, 0),
    "log.dirsync": (b"new" * 1000, 0),
    "log.write": (b"new" * 1000, 0),
    "log.fsync": (b"new" * 1000, 1),
    "log.write@3": (b"new" * 1000, 2),
    "log.fsync@3": (b"new" * 1000, 3),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_failpoint_leaves_all_or_nothing(tmp_path: Path, point: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    assert run(tmp_path, FARFLUNG_FAILPOINT=point) == -signal.SIGKILL
    content, records = POINTS[point]
    assert (tmp_path / "file").read_bytes() == content
    if (tmp_path / "log").exists():
        assert kept(tmp_path / "log") == [b"record %d" % i for i in range(records)]
    assert run(tmp_path) == 0  # and the same work can be done again
    assert (tmp_path / "file").read_bytes() == b"new" * 1000


def test_the_table_above_names_every_failpoint_that_is_passed(tmp_path: Path) -> None:
    listing = tmp_path / "points"
    (tmp_path / "work").mkdir()
    assert run(tmp_path / "work", FARFLUNG_FAILPOINT_LOG=str(listing)) == 0
    passed = set(listing.read_text().split())
    assert passed == {point.partition("@")[0] for point in POINTS}


FULL = """
import resource, sys
from pathlib import Path
from farflung.core.errors import RunError, VerificationError
from farflung.core.io.durable_files import AppendLog, read_records, write_atomic
folder = Path(sys.argv[1])
log = AppendLog(folder / "log", "log")
log.append(b"x" * 400)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for action in (lambda: write_atomic(folder / "file", bytes(5000), "file"), lambda: log.append(b"y" * 900)):
    try:
        action()
    except RunError as error:
        print(error.code)
log.append(b"z" * 100)
log.close()
print(*[record[:1].decode() for record, _ in read_records(folder / "log")])
print(*sorted(p.name for p in folder.iterdir()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE stands in for a full disk")
def test_a_full_disk_is_a_run_error_and_leaves_no_torn_record_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:4] == ["FF-CORE-050", "FF-CORE-050", "x z", "file log"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_append_whole_writes_at_the_end_whatever_the_position(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    handle = os.open(path, os.O_RDWR)
    append_whole(handle, path, b"def", "test", sync=False)
    os.close(handle)
    assert path.read_bytes() == b"abcdef"


def test_a_tail_of_lying_lengths_is_searched_without_hashing_each_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    crc32 = zlib.crc32
    monkeypatch.setattr(record_search.zlib, "crc32", lambda data, *more: hashed.append(len(data)) or crc32(data, *more))
    tail = b"\xff" * 4 + (64 << 10).to_bytes(4, "little") * (40 << 10)
    path = tmp_path / "log"
    path.write_bytes(tail)
    assert kept(path) == []
    assert sum(hashed) < 4 * len(tail)


@pytest.mark.parametrize("hashed", [1 << 20, -1])  # bodies one by one, or by the beginnings
def test_a_whole_record_is_found_wherever_it_begins_and_nothing_else_is(
    hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "_FEW", hashed)
    record = len(RECORDS[0]).to_bytes(4, "little") + zlib.crc32(RECORDS[0]).to_bytes(4, "little") + RECORDS[0]
    sizes = b"".join((4000 - 12 * i).to_bytes(4, "little") + b"crc?body" for i in range(300))
    for lead in (b"\xff", b"\xff" * 9, sizes):
        assert record_search.holds_record(lead + record)
        assert record_search.holds_record(lead + record + b"torn")
        assert not record_search.holds_record(lead + record[:-1])
        assert not record_search.holds_record(lead)
    assert not record_search.holds_record(record)  # it begins at the first byte
