"""Reads one input file of a job, measured before it is opened: a pipe is never waited for, a large file never read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from farflung.core.errors import SpecError


def read_input(path: Path, limit: int) -> bytes:
    """All bytes of a regular file. Raises SpecError FF-JOB-010, -011, -012."""
    check_input(path, limit)  # before it is opened: opening a pipe waits for its writer
    try:
        with path.open("rb") as file:
            _measure(path, os.fstat(file.fileno()), limit)
            data = file.read(limit + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > limit:
        raise too_large(path, "it grew while it was read")
    return data


def _measure(path: Path, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(
            "FF-JOB-011", f"cannot read {path}", cause="it is not a regular file", hint="name a file or a folder"
        )
    if status.st_size > limit:
        raise too_large(path, f"{status.st_size} bytes; the limit is {limit}")


def unreadable(path: Path, error: OSError) -> SpecError:
    """The error FF-JOB-010 or FF-JOB-011."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        hint = f"check the path; it was looked for in {path.absolute().parent}"
        return SpecError("FF-JOB-010", f"{path} is not there", cause="no such file or folder", hint=hint)
    cause = error.strerror or str(error)
    return SpecError("FF-JOB-011", f"cannot read {path}", cause=cause, hint="name a file that you may read")


def too_large(path: Path, cause: str) -> SpecError:
    """The error FF-JOB-012."""
    return SpecError("FF-JOB-012", f"{path} is too large", cause=cause, hint="use a smaller part")


def check_input(path: Path, limit: int) -> int:
    """Bytes of a regular file. Raises SpecError FF-JOB-010, -011, -012."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    _measure(path, status, limit)
    return status.st_size
