"""Reads a file of a run folder, whose size and kind cannot be trusted, within a bound."""

from __future__ import annotations

from pathlib import Path

from farflung.core.errors import RunError
from farflung.core.io.ordinary_files import read_bounded


def read_file(path: Path, limit: int, flags: int = 0) -> bytes:
    """An ordinary file of at most `limit` bytes; `flags` are os.open's further ones. Raises RunError FF-APP-161."""
    try:
        return read_bounded(path, limit, flags)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None


def unreadable(path: Path, cause: str) -> RunError:
    """The error FF-APP-161."""
    return RunError(
        "FF-APP-161", f"cannot read {path}", cause=cause, hint="see that the file is there and yours to read"
    )
