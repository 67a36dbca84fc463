"""Says where a worker's vectors lie while nobody computes with them: in memory here, in a file for a real worker
(train.io.mapped_vectors).

What a step reads and writes is in memory: weights, gradients, and what the optimizer keeps. All else that is as long as
the weights (public state, states at borders, what is unsent, decoded payloads) is put here and read where it lies.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

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
    copy = store.new(vector.size)
    copy[:] = vector
    copy.flags.writeable = False
    store.rest()
    return copy


def blocks(place: slice) -> list[slice]:
    """The same place cut into at most BLOCK elements each."""
    return [slice(at, min(at + BLOCK, place.stop)) for at in range(place.start, place.stop, BLOCK)]


def is_finite(vector: Float32) -> bool:
    """Whether no element is NaN or infinite."""
    return all(bool(np.isfinite(vector[place]).all()) for place in blocks(slice(0, vector.size)))
