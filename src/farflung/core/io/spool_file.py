"""Holds what travels beside a message in an unlinked file, which its readers map instead of copying it.

The agent makes all such files. A worker maps the one that came with a request, and can only read it. What a worker
replies the agent writes into a file of its own as it comes: no process maps a file that another one could cut off.
A file has no name: it is gone with those who hold it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from farflung.core.io.durable_files import full_disk
from farflung.core.io.ordinary_files import open_ordinary
from farflung.core.mapped_pages import walked

ALIGNMENT: Final = 64  # of each blob's place: its vectors can be used where they lie


class SpoolFile:
    """One file that is being written."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: on the disk that has room for it; None: where temporary files lie. Raises RunError FF-CORE-050."""
        self._place = Path(folder or tempfile.gettempdir()) / "a state of the model"
        try:
            descriptor, name = tempfile.mkstemp(prefix=".spool-", dir=folder)
        except OSError as error:
            raise full_disk(self._place, error) from error
        try:
            self.readable = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.unlink(name)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self.sizes: list[int] = []

    def begin(self) -> None:
        """What is written from now on is the next blob."""
        self._file.seek(-self._file.tell() % ALIGNMENT, os.SEEK_CUR)
        self.sizes.append(0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Raises RunError FF-CORE-050 where the disk is full."""
        for piece in walked(data):
            self._write(piece)

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                written = self._file.write(view)
            except OSError as error:
                raise full_disk(self._place, error) from error
            self.sizes[-1] += written
            view = view[written:]

    def views(self) -> list[memoryview]:
        """All blobs, read-only, when they are written; the file is closed, its content stays as long as they do."""
        try:
            return mapped(self.readable, self.sizes)
        finally:
            self.close()

    def close(self) -> None:
        """Gives the file up."""
        self._file.close()
        if self.readable >= 0:
            os.close(self.readable)
        self.readable = -1


def state_file(folder: Path, size: int) -> int:
    """The descriptor of a file of `size` bytes to map and write to: without a name, and without disk before it is
    written. Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=".states-", dir=folder)
    try:
        os.unlink(name)
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def spooled(blobs: Iterable[Sequence[bytes | memoryview]], folder: Path | None) -> SpoolFile:
    """A file with all of these, each given in parts. Raises RunError FF-CORE-050."""
    spool = SpoolFile(folder)
    try:
        for parts in blobs:
            spool.begin()
            for part in parts:
                spool.write(part)
    except BaseException:
        spool.close()
        raise
    return spool


def mapped_file(path: Path, flags: int = 0) -> memoryview:
    """Read-only view of an ordinary file that lies there, and that nobody cuts off. `flags`: os.open's further ones.

    Raises OSError.
    """
    with open_ordinary(path, flags) as file:
        return mapped(file.fileno(), [os.fstat(file.fileno()).st_size])[0]


def mapped(descriptor: int, sizes: Sequence[int]) -> list[memoryview]:
    """Read-only views of the blobs of a file. Raises OSError, ValueError: it is shorter."""
    places, end = [], 0
    for size in sizes:
        start = end + -end % ALIGNMENT if size else end
        places.append(slice(start, end := start + size))
    whole = memoryview(mmap.mmap(descriptor, end, access=mmap.ACCESS_READ)) if any(sizes) else memoryview(b"")
    return [whole[place] for place in places]
