"""Opens files that somebody else named or wrote: an ordinary file alone, read within a bound, and never waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

NO_FILE: Final = "it is a folder, a pipe or a device"


def open_ordinary(path: Path, flags: int = 0) -> BinaryIO:
    """A file to read; `flags` are os.open's further ones. Raises OSError, whose `strerror` says the cause."""
    # A pipe does not make us wait.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, NO_FILE)
    return os.fdopen(file, "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    """All of a file of at most `limit` bytes, and no more memory than it has bytes. Raises OSError as above."""
    with open_ordinary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(0, f"it has more than {limit} bytes")
        return file.read(size)
