"""Reads long byte strings piece by piece, and lets the pages of those that lie in a mapped file leave memory again.

Whoever reads a mapped state from its beginning to its end would else count all of it as its own memory. What left is
read from the file again when somebody wants it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, Final

PIECE_BYTES: Final = 1 << 22  # that are read between two looks
_LEAVE: Final = getattr(mmap, "MADV_DONTNEED", None)  # of a shared file: what was written stays in it


def walked(data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """All of it in pieces of PIECE_BYTES, in order; the pages of each leave when the next one is asked for."""
    view = memoryview(data).cast("B")
    mapping = _mapping(view)
    for at in range(0, len(view), PIECE_BYTES):
        piece = view[at : at + PIECE_BYTES]
        yield piece
        if mapping is not None:
            _leave(mapping, piece)


def leave(data: Any) -> None:
    """Lets the pages of an array, or of bytes, leave memory where they lie in a mapped file."""
    mapping = _mapping(data)
    if mapping is not None:
        _leave(mapping, data)


def _mapping(data: Any) -> mmap.mmap | None:
    """The file in which it lies; None: it lies in memory."""
    while data is not None and not isinstance(data, mmap.mmap):
        data = data.obj if isinstance(data, memoryview) else getattr(data, "base", None)
    return data


def _leave(mapping: mmap.mmap, data: Any) -> None:
    if _LEAVE is None or not (size := memoryview(data).nbytes):
        return
    start = _address(data) - _address(mapping)
    first = start - start % mmap.PAGESIZE
    mapping.madvise(_LEAVE, first, min(len(mapping), start + size) - first)


def _address(data: Any) -> int:
    import numpy as np  # whoever maps states has loaded it; commands that hash a line start without it

    place: int = np.frombuffer(data, np.uint8, 1).__array_interface__["data"][0]
    return place
