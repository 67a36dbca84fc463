"""Reads a file whose size and kind cannot be trusted, within a bound."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from farflung.core.errors import RunError


def read_file(path: Path, limit: int) -> bytes:
    """An ordinary file of at most `limit` bytes; raises RunError FF-APP-161."""
    data = b""
    try:
        # A pipe does not make us wait.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                cause = "it is a folder, a pipe or a device"
            elif status.st_size > limit:
                cause = f"it has more than {limit} bytes"
            else:
                data, cause = file.read(status.st_size), ""  # no more memory than it has bytes
    except OSError as error:
        cause = error.strerror or str(error)
    if cause:
        raise unreadable(path, cause)
    return data


def unreadable(path: Path, cause: str) -> RunError:
    """The error FF-APP-161."""
    return RunError(
        "FF-APP-161", f"cannot read {path}", cause=cause, hint="see that the file is there and yours to read"
    )
