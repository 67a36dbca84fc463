"""Measures the folders that files go to: free space, durable write rate, permissions, file times."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from farflung.core.limits import MIB
from farflung.host.machine_readings import ClockReading, DiskReading, FolderReading, SystemCallFailure

WRITTEN: Final = 4 * MIB  # about one state of the default run's model
RECORD: Final = 4096
RECORDS: Final = 5
WINDOW: Final = 0.5  # seconds over which the clock is watched
READINGS: Final = 20  # of both clocks: another thread may run between them
TIME_ERROR: Final = 5  # what adjtimex returns while no time service keeps the clock (Linux, adjtimex(2))


def broken(error: OSError) -> SystemCallFailure:
    """An error of the system as data."""
    return SystemCallFailure(error.errno or 0, error.strerror or str(error))


def standing(folder: Path) -> Path:
    """`folder`, or the nearest parent of it that is there. Raises NotADirectoryError: that is no folder."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(20, "it is no folder", str(folder))
    return folder


def disk(folder: Path) -> DiskReading:
    """Writes a few MB and some records into a file without a name: it is gone however this ends."""
    folder = folder.absolute()
    free = 0
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(standing(folder)).free
    try:
        with tempfile.TemporaryFile(dir=standing(folder), buffering=0) as file:
            start = time.perf_counter()
            file.write(os.urandom(WRITTEN))
            os.fsync(file.fileno())
            rate = WRITTEN / max(1e-9, time.perf_counter() - start)
            waits = [_sync(file.fileno()) for _ in range(RECORDS)]
    except OSError as error:
        return DiskReading(str(folder), free, broken=broken(error))
    return DiskReading(str(folder), free, rate, statistics.median(waits))


def _sync(file: int) -> float:
    start = time.perf_counter()
    os.write(file, bytes(RECORD))
    os.fsync(file)
    return time.perf_counter() - start


def folder(path: Path, variable: str) -> FolderReading:
    """Makes a file in `path`, or where `path` would be made, and removes it."""
    try:
        with tempfile.NamedTemporaryFile(dir=standing(path.absolute()), prefix=".farflung-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return FolderReading(str(path.absolute()), variable, path.exists(), broken(error))
    return FolderReading(str(path.absolute()), variable, path.exists())


def temporary() -> FolderReading:
    """The folder for temporary files, as Python finds it: one that cannot be written is passed over in silence."""
    named = os.environ.get("TMPDIR", "")
    try:
        used = Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # none of the usual ones can be written
        return FolderReading(named or "/tmp", "TMPDIR", False, broken(error))  # noqa: S108 - to name it
    found = folder(used, "TMPDIR")
    is_used = not named or Path(named).absolute() == used.absolute()
    return found if is_used else msgspec.structs.replace(found, ignored=named)


def clock() -> ClockReading:
    """Watches the clock for half a second, and compares it with what is at hand."""
    wall, steady = _both()
    time.sleep(WINDOW)
    now, later = _both()
    window = later - steady
    newest = max(path.stat().st_mtime for path in _package_files())
    return ClockReading(now, window, now - wall - window, _file_skew(), now - newest, _is_kept())


def _both() -> tuple[float, float]:
    """Wall and monotonic clock of one moment: of some readings the one that was disturbed least."""
    readings = []
    for _ in range(READINGS):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        readings.append((after - before, wall, (before + after) / 2))
    _, wall, steady = min(readings)
    return wall, steady


def _package_files() -> list[Path]:
    here = Path(__file__)
    return [here, here.parents[2] / "__init__.py"]


def _file_skew() -> float | None:
    """How far the time of a new file lies outside of the moment in which it was written."""
    try:
        with tempfile.TemporaryFile() as file:
            before = time.time()
            file.write(b"x")
            file.flush()
            made, after = os.fstat(file.fileno()).st_mtime, time.time()
    except OSError:
        return None
    return made - after if made > after else min(0.0, made - before)


def _is_kept() -> bool | None:
    if sys.platform != "linux":
        return None
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))  # all zero: it only reads
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR
