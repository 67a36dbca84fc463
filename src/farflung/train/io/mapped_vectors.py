"""Holds a worker's vectors in a file that its agent made for it (host.io.worker_process): sparse, without a name.

The worker may write no file of such a size, but it may map one that it was given. A vector in it takes disk where the
file lies, and memory only while somebody reads it: the kernel keeps its pages as long as nobody needs their place.
"""

from __future__ import annotations

import mmap
import os
import weakref
from bisect import insort
from pathlib import Path
from typing import Final

import numpy as np

from farflung.core.io.durable_files import full_disk
from farflung.core.io.spool_file import state_file
from farflung.core.tensor_layout import Float32
from farflung.train.vector_store import IN_MEMORY

LEAST: Final = 1 << 18  # elements; a shorter vector is no burden
_SHED: Final = getattr(mmap, "MADV_DONTNEED", None)  # of a shared file: its pages stay in the file


def in_folder(folder: Path, size: int) -> MappedVectors:
    """A store in a file of `size` bytes of its own, for a process that starts no sandbox around itself. Raises RunError
    FF-CORE-050.
    """
    try:
        descriptor = state_file(folder, size)
    except OSError as error:
        raise full_disk(folder / "the run's states", error) from error
    store = MappedVectors(descriptor)
    weakref.finalize(store, os.close, descriptor)  # its maps have descriptors of their own
    return store


class MappedVectors:
    """The file behind `descriptor`, cut into places as vectors are asked for; full, or none (-1): memory."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._room = os.fstat(descriptor).st_size if descriptor >= 0 else 0
        self._end = 0  # of the places that were ever used
        self._free: dict[int, list[int]] = {}  # of places by their length, lowest first
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def new(self, size: int) -> Float32:
        """See `VectorStore.new`."""
        length = 4 * size + -4 * size % mmap.ALLOCATIONGRANULARITY
        place = self._place(length) if size >= LEAST else None
        if place is None:
            return IN_MEMORY.new(size)
        mapping = mmap.mmap(self._file, length, offset=place)
        weakref.finalize(mapping, insort, self._free.setdefault(length, []), place).atexit = False
        self._maps.add(mapping)
        return np.frombuffer(mapping, np.float32, size)

    def _place(self, length: int) -> int | None:
        if free := self._free.get(length):
            return free.pop(0)
        if self._end + length > self._room:
            return None
        self._end += length
        return self._end - length

    def rest(self) -> None:
        """See `VectorStore.rest`."""
        if _SHED is not None:
            for mapping in tuple(self._maps):
                mapping.madvise(_SHED)
