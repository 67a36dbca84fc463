"""Writes files so that they survive a crash, and defines the points at which a test may cause one.

`write_atomic` replaces a whole file; `AppendLog` adds checksummed records. Each write, fsync and rename passes
a named *failpoint*: with FARFLUNG_FAILPOINT=NAME[@N] the N-th passing kills the whole process group with
SIGKILL (at a write, after half of the bytes went out), and FARFLUNG_FAILPOINT_LOG=FILE lists the points passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError, RunError, VerificationError
from farflung.core.io.ordinary_files import ForeignFileError, open_ordinary, open_own
from farflung.core.io.record_search import holds_record
from farflung.core.mapped_pages import walked

_HEAD: Final = 8  # bytes of a record's length and checksum

_TEMPORARY: Final = re.compile(r".\.[0-9a-f]{8}\.tmp$")

_passed: Counter[str] = Counter()


def _armed() -> tuple[str, int]:
    name, _, count = os.environ.get("FARFLUNG_FAILPOINT", "").partition("@")
    return name, int(count or "1")


def _is_due(name: str) -> bool:
    log = os.environ.get("FARFLUNG_FAILPOINT_LOG")
    if log:
        with open(log, "a", encoding="ascii") as file:
            file.write(name + "\n")
    wanted, count = _armed()
    if name != wanted:
        return False
    _passed[name] += 1
    return _passed[name] == count


def _die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def failpoint(name: str) -> None:
    """A place where a test may kill the whole tree."""
    if _is_due(name):
        _die()


def foreign_file(path: Path, cause: str) -> RunError:
    """The error FF-CORE-085."""
    return RunError(
        "FF-CORE-085",
        f"{path.name} is not ours to write",
        cause=cause,
        hint=f"see who put {path} there, and move it away; nothing was changed",
    )


def full_disk(path: Path, error: OSError) -> RunError:
    """The error FF-CORE-050 of a file that cannot be written, or FF-CORE-085."""
    if isinstance(error, ForeignFileError):
        return foreign_file(path, error.cause)
    return RunError(
        "FF-CORE-050",
        f"cannot write {path.name}",
        cause=error.strerror or str(error),
        hint=f"free some space on the disk of {path.parent}, then give the command again; `farflung resume` goes on",
    )


def _write(file: int, data: bytes | bytearray | memoryview, name: str) -> None:
    view = memoryview(data)
    if _is_due(name):
        os.write(file, view[: len(view) // 2])
        _die()
    for piece in walked(view):
        left = piece
        while left:
            left = left[os.write(file, left) :]


def sync_folder(folder: Path, label: str) -> None:
    """Makes names created or replaced in `folder` durable."""
    failpoint(f"{label}.dirsync")
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_left(path: Path) -> bool:
    """Whether a file is what `write_atomic` leaves when it is killed."""
    return _TEMPORARY.search(path.name) is not None


def write_atomic(
    path: Path,
    data: bytes | bytearray | memoryview | Iterator[bytes | memoryview],
    label: str,
    *,
    private: bool = False,
) -> None:
    """Replaces `path` by `data`, wholly or not at all; durable on return. Raises RunError FF-CORE-050.

    An iterator's pieces are written one behind the other, so that nobody holds them all.

    The bytes lie in a new file first, of a name that nobody can have prepared, and with its mode from the beginning.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        handle = open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        try:
            for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
                _write(handle, piece, f"{label}.write")
            failpoint(f"{label}.fsync")
            os.fsync(handle)
        finally:
            os.close(handle)
        failpoint(f"{label}.rename")
        os.replace(temporary, path)
        sync_folder(path.parent, label)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise full_disk(path, error) from error
    except FarflungError:  # of what makes the pieces
        temporary.unlink(missing_ok=True)
        raise


def write_at(path: Path, offset: int, data: bytes | memoryview, label: str, *, private: bool = False) -> None:
    """Writes inside a file of our own, made if missing; durable after `sync_file`.

    Raises RunError FF-CORE-050, FF-CORE-085.
    """
    try:
        handle = open_own(path, os.O_WRONLY | os.O_CREAT, 0o600 if private else 0o644)
        try:
            os.lseek(handle, offset, os.SEEK_SET)
            _write(handle, data, f"{label}.write")
        finally:
            os.close(handle)
    except OSError as error:
        raise full_disk(path, error) from error


def sync_file(path: Path, label: str) -> None:
    """Makes a file written by `write_at`, and its name, durable. Raises RunError FF-CORE-050."""
    failpoint(f"{label}.fsync")
    try:
        handle = open_own(path, os.O_WRONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(path.parent, label)
    except OSError as error:
        raise full_disk(path, error) from error


def remove(path: Path, label: str) -> None:
    """Deletes a file, if it is there; durable on return. Raises RunError FF-CORE-050."""
    failpoint(f"{label}.unlink")
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent, label)
    except OSError as error:
        raise full_disk(path, error) from error


def append_whole(handle: int, path: Path, data: bytes, label: str, *, sync: bool = True) -> None:
    """Adds `data` at the end of the open file, where it stands; with `sync` it is durable on return.

    When the disk is full the part that was written is cut off again. Raises RunError FF-CORE-050.
    """
    end = os.lseek(handle, 0, os.SEEK_END)
    try:
        _write(handle, data, f"{label}.write")
        if sync:
            failpoint(f"{label}.fsync")
            os.fsync(handle)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise full_disk(path, error) from error


class AppendLog:
    """Records in one file: length (4 bytes), CRC-32 (4 bytes), body. A torn last record is cut off when opened.

    The CRC finds torn writes and damage, not tampering: what must not be altered carries its own hash chain and
    signature. Before anything is changed it raises VerificationError FF-CORE-052 (`read_records`), and RunError
    FF-CORE-085 for a link, another user's file, or a file that did not begin as a log.
    """

    def __init__(self, path: Path, label: str, head: bytes = b"") -> None:
        """`head`: the first record of a log that begins here."""
        self.path, self._label = path, label
        is_new = not path.exists()
        try:
            self._handle = open_own(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise full_disk(path, error) from error
        try:
            if is_new:
                sync_folder(path.parent, label)
            self.records, end = self._scan()
            self._cut(end)
            if head and not self.records:
                append_whole(self._handle, path, _framed(head), f"{label}.head")
                self.records.append(head)
        except OSError as error:
            os.close(self._handle)
            raise full_disk(path, error) from error
        except (RunError, VerificationError):
            os.close(self._handle)
            raise

    def _scan(self) -> tuple[list[bytes], int]:
        records: list[bytes] = []
        end = 0
        for record, place in read_records(self.path):
            records.append(record)
            end = place
        if not records and not _begins(os.pread(self._handle, _HEAD + limits.LOG_RECORD_BYTES + 1, 0)):
            raise foreign_file(self.path, "it does not begin as a log does")
        return records, end

    def _cut(self, end: int) -> None:
        """Drops the torn tail durably: else bytes of it could stand behind a record that is torn next."""
        if os.fstat(self._handle).st_size > end:
            failpoint(f"{self._label}.cut")
            os.ftruncate(self._handle, end)
            os.fsync(self._handle)
        os.lseek(self._handle, end, os.SEEK_SET)

    def append(self, record: bytes) -> None:
        """Adds one record of 1 byte or more; durable on return. Raises RunError FF-CORE-050, FF-CORE-051."""
        if not 0 < len(record) <= limits.LOG_RECORD_BYTES:
            raise RunError("FF-CORE-051", f"log record of {len(record)} bytes is empty or over the limit")
        append_whole(self._handle, self.path, _framed(record), self._label)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._handle)


def _framed(record: bytes) -> bytes:
    return len(record).to_bytes(4, "little") + zlib.crc32(record).to_bytes(4, "little") + record


def read_records(path: Path) -> Iterator[tuple[bytes, int]]:
    """The whole records of a log with the offset behind each; a torn last one is left out.

    A record is durable before the next one is written, so only the last can be torn. Raises VerificationError
    FF-CORE-052 when there is more behind a bad record: that is damage, and what follows must not be dropped; OSError
    when it is no ordinary file.
    """
    with open_ordinary(path, os.O_NOFOLLOW) as file:
        place = 0
        while True:
            head = file.read(_HEAD)
            size = int.from_bytes(head[:4], "little")
            body = file.read(size) if 0 < size <= limits.LOG_RECORD_BYTES else b""
            if not _is_record(head, body):
                break
            place += _HEAD + size
            yield body, place
        file.seek(place)
        rest = file.read(_HEAD + limits.LOG_RECORD_BYTES + 1)
    if not _is_torn(rest):
        raise _damaged(path, place)


def _is_record(head: bytes, body: bytes) -> bool:
    size, check = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
    return len(head) == _HEAD and 0 < size == len(body) and zlib.crc32(body) == check


def _is_torn(rest: bytes) -> bool:
    """Whether `rest`, which does not begin with a whole record, can be what a crash left of one write."""
    size = int.from_bytes(rest[:4], "little")
    if not any(rest):
        return True  # the file grew, and its data never came
    if len(rest) > _HEAD + limits.LOG_RECORD_BYTES:
        return False
    if 0 < size <= limits.LOG_RECORD_BYTES and any(rest[_HEAD + size :]):
        return False
    return not holds_record(rest)


def _begins(data: bytes) -> bool:
    """Whether a log without a whole record is one that a crash tore: nothing of it came, or a part of one record."""
    size = int.from_bytes(data[:4], "little")
    return not any(data) or len(data) < 4 or (0 < size <= limits.LOG_RECORD_BYTES and not any(data[_HEAD + size :]))


def _damaged(path: Path, place: int) -> VerificationError:
    return VerificationError(
        "FF-CORE-052",
        f"{path.name} is damaged",
        cause=f"the record at byte {place} is not what was written, and others follow it",
        hint="restore the file from a copy; nothing was changed, and nothing was computed from this record",
    )
