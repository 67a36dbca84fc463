"""Says where a worker's vectors lie while nobody computes with them: in memory here, in a file for a real worker
(train.io.mapped_vectors).

What a step reads and writes is in memory: weights, gradients, and what the optimizer keeps. All else that is as long as
the weights (public state, states at borders, what is unsent, decoded payloads) is put here and read where it lies.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32

BLOCK: Final = 1 << 20  # elements that are worked on at once where an operation would copy its whole vector


class VectorStore(Protocol):
    """Places for vectors. One is free again when its array, and every view of it, is gone."""

    def new(self, size: int) -> Float32:
        """A vector of shape (size,) to write to; what it holds is not said."""

    def rest(self) -> None:
        """Lets every vector of this store leave memory until it is read again."""


class MemoryStore:
    """Everything stays in memory."""

    def new(self, size: int) -> Float32:
        """See `VectorStore.new`."""
        return np.empty(size, np.float32)

    def rest(self) -> None:
        """Nothing."""


IN_MEMORY: Final = MemoryStore()


def kept(store: VectorStore, vector: Float32) -> Float32:
    """A read-only copy of a vector in the store."""
    own = store.new(vector.size)
    copy(own, vector)
    own.flags.writeable = False
    return own


def copy(into: Float32, vector: Float32) -> None:
    """Copies a vector to another one, block by block: no more than a block of either stays in memory on its account."""
    for place in blocks(slice(0, vector.size)):
        into[place] = vector[place]
        leave(into[place])
        leave(vector[place])


def difference(end: Float32, start: Float32) -> Float32:
    """end - start in memory, shape (size,), read likewise."""
    found = np.empty(end.size, np.float32)
    for place in blocks(slice(0, end.size)):
        np.subtract(end[place], start[place], out=found[place])
        leave(end[place])
        leave(start[place])
    return found


def zeros(store: VectorStore, size: int) -> Float32:
    """Zeros in the store, to be written to."""
    own = store.new(size)
    for place in blocks(slice(0, size)):
        own[place] = 0.0
        leave(own[place])
    return own


def blocks(place: slice) -> list[slice]:
    """The same place cut into at most BLOCK elements each."""
    return [slice(at, min(at + BLOCK, place.stop)) for at in range(place.start, place.stop, BLOCK)]


def are_equal(one: Float32, other: Float32) -> bool:
    """Whether two vectors of one length hold the same numbers."""
    for place in blocks(slice(0, one.size)):
        if not np.array_equal(one[place], other[place]):
            return False
        leave(one[place])
        leave(other[place])
    return True


def is_finite(vector: Float32) -> bool:
    """Whether no element is NaN or infinite."""
    for place in blocks(slice(0, vector.size)):
        if not np.isfinite(vector[place]).all():
            return False
        leave(vector[place])
    return True
