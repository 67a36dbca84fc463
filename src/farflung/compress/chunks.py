"""Cuts a layout into chunks, and selects the largest coefficients of each chunk.

Each tensor is flattened and cut in chunks of `chunk` elements; tensors smaller than one chunk are joined, in layout
order, into one pseudo tensor after all others. (No divisor is searched, so odd shapes cost nothing.) The last chunk
of a tensor is short: it is as if padded with zeros that are never chosen. Up to 2^20 / chunk chunks of a tensor form a
*slab*, which has its own levels; slabs of some 2^22 elements form a *section*, which has its own streams and can be
decoded alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.compress.bits import Int64, rice_mean, rice_parameter
from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import Float32, TensorLayout, TensorSpec

SLAB: Final = 1 << 20  # elements
SECTION: Final = 1 << 22  # elements after which a section ends with the slab
NARROWEST: Final = 32  # elements of a row that is one
ROW: Final = 64  # elements of a row where there is no matrix


@dataclass(frozen=True)
class Slab:
    """Up to 2^20 elements (at least one chunk) of tensor number `tensor`; each chunk sends `topk` of them.

    `start`: in the vector of the plan; `origin`: in the tensor, whose rows have `width` elements.
    """

    start: int
    size: int
    chunk: int
    topk: int
    tensor: int = 0
    origin: int = 0
    width: int = ROW

    @property
    def place(self) -> slice:
        """Where the slab lies in the plan's vector."""
        return slice(self.start, self.start + self.size)

    @property
    def rows(self) -> int:
        """Chunks, the last one perhaps short."""
        return -(-self.size // self.chunk)

    @property
    def tail(self) -> int:
        """Elements of the last chunk."""
        return self.size - (self.rows - 1) * self.chunk

    @property
    def count(self) -> int:
        """Coefficients sent: topk of each full chunk, min(topk, tail) of the last."""
        return (self.rows - 1) * self.topk + min(self.topk, self.tail)

    @property
    def rice(self) -> int:
        """The Rice parameter of the gaps."""
        return rice_parameter(self.count, self.rows, self.size)

    @property
    def unary_bound(self) -> int:
        """Most bits that the unary plane can have: in each chunk all skipped elements in one gap."""
        skipped = (self.rows - 1) * ((self.chunk - self.topk) >> self.rice)
        return self.count + skipped + (max(0, self.tail - self.topk) >> self.rice)

    @property
    def rice_mean(self) -> float:
        """Expected bits of Rice's code when every support is as likely as any other."""
        last = min(self.topk, self.tail)
        bits = last * rice_mean(last, self.tail, self.rice)
        if self.rows > 1:
            bits += (self.rows - 1) * self.topk * rice_mean(self.topk, self.chunk, self.rice)
        return bits + self.count * self.rice


class ChunkPlan(NamedTuple):
    """How a layout is cut. `order`: the tensors' places in the flat vector, in the order of the format.

    `places`: each slab's in the flat vector; of the last tensor, where that is several (`joined`: theirs), in these.
    """

    order: tuple[slice, ...]
    slabs: tuple[Slab, ...]
    places: tuple[slice, ...]
    joined: tuple[slice, ...] = ()

    def gather(self, flat: Float32) -> tuple[list[Float32], Float32]:
        """The values of each slab: views of the flat vector, or of a copy of what is joined; and that copy."""
        small = np.concatenate([flat[:0], *(flat[place] for place in self.joined)])
        first = self.slabs[-1].tensor if self.joined else len(self.slabs)
        views = [
            (flat if slab.tensor < first else small)[place] for slab, place in zip(self.slabs, self.places, strict=True)
        ]
        return views, small

    def scatter(self, small: Float32, flat: Float32) -> None:
        """Writes what is joined back to its places."""
        start = 0
        for place in self.joined:
            stop = start + place.stop - place.start
            flat[place] = small[start:stop]
            start = stop

    def sections(self) -> Iterator[Sequence[Slab]]:
        """The slabs of each section."""
        return sections(self.slabs)


def plan(layout: TensorLayout, chunk: int, topk: int) -> ChunkPlan:
    """How a layout is cut in chunks, small tensors joined."""
    tensors = list(layout.slices())
    large = [(width_of(tensor), (place,)) for tensor, place in tensors if tensor.size >= chunk]
    small = tuple(place for tensor, place in tensors if tensor.size < chunk)
    parts = [*large, (ROW, small)] if small else large
    step = max(1, SLAB // chunk) * chunk
    slabs = tuple(_slabs(((w, _total(places)) for w, places in parts), step, chunk, topk))
    starts = [places[0].start for _, places in large] + [0]
    places = tuple(slice(start, start + slab.size) for slab in slabs for start in [starts[slab.tensor] + slab.origin])
    return ChunkPlan(tuple(place for _, own in parts for place in own), slabs, places, small)


def plan_whole(layout: TensorLayout, chunk: int) -> ChunkPlan:
    """How a layout is cut when all is sent: every tensor by itself, in runs of 2^20 elements."""
    places = tuple(place for _, place in layout.slices())
    slabs = tuple(_slabs(((ROW, _total([place])) for place in places), SLAB, chunk, chunk))
    return ChunkPlan(places, slabs, tuple(slab.place for slab in slabs))


def _total(places: Iterable[slice]) -> int:
    return sum(place.stop - place.start for place in places)


def _slabs(parts: Iterable[tuple[int, int]], step: int, chunk: int, topk: int) -> Iterator[Slab]:
    """The slabs of parts given as width and size."""
    start = 0
    for number, (width, size) in enumerate(parts):
        for origin in range(0, size, step):
            length = min(step, size - origin)
            yield Slab(start, length, chunk, topk, number, origin, width)
            start += length


def width_of(tensor: TensorSpec) -> int:
    """Elements of a row of a tensor: its last sides but the first, as many as make 32; 64 if there are no such."""
    width = 1
    for side in reversed(tensor.shape[1:]):
        width *= side
        if width >= NARROWEST:
            return width
    return ROW


def sections(slabs: Iterable[Slab]) -> Iterator[Sequence[Slab]]:
    """Consecutive slabs, as many as make 2^22 elements."""
    some: list[Slab] = []
    size = 0
    for slab in slabs:
        some.append(slab)
        size += slab.size
        if size >= SECTION:
            yield some
            some, size = [], 0
    if some:
        yield some


def select(values: Float32, slab: Slab) -> Int64:
    """Indices (ascending, shape (count,)) of each chunk's largest |v|; of equals the lower index."""
    return largest(values, slab.chunk, slab.topk)


@compiled("largest")
def largest(values: Float32, chunk: int, topk: int) -> Int64:
    """Indices (ascending) of the `topk` largest |v| of each `chunk` finite values, of fewer in a short last chunk."""
    full = values.size // chunk * chunk
    head = _largest(values[:full].reshape(-1, chunk), topk)
    head += np.arange(len(head), dtype=np.int64)[:, None] * chunk
    if full == values.size:
        return head.reshape(-1)
    tail = _largest(values[full:].reshape(1, -1), min(topk, values.size - full)) + full
    return np.concatenate([head.reshape(-1), tail.reshape(-1)])


def _largest(rows: Float32, count: int) -> Int64:
    """Columns of the `count` largest |v| of each row, ascending: shape (rows, count).

    The bits of a non-negative float order like the float; the column below them makes all keys different, so the
    chosen set is unique whatever partition algorithm NumPy has on this machine.
    """
    width = rows.shape[1]
    bits = np.ascontiguousarray(rows).view(np.uint32) & np.uint32(0x7FFFFFFF)
    backward = np.arange(width - 1, -1, -1, dtype=np.uint64)
    keys: NDArray[np.uint64] = (bits.astype(np.uint64) << np.uint64(32)) | backward
    keys.partition(width - count, axis=1)
    chosen: Int64 = width - 1 - (keys[:, width - count :] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    chosen.sort(axis=1)
    return chosen


def to_gaps(indices: Int64, slab: Slab) -> Int64:
    """Elements skipped before each index, counted anew in each chunk."""
    previous = np.empty_like(indices)
    previous[1:] = indices[:-1]
    previous[:: slab.topk] = np.arange(slab.rows, dtype=np.int64) * slab.chunk - 1
    gaps: Int64 = indices - previous - 1
    return gaps


def from_gaps(gaps: Int64, slab: Slab) -> Int64:
    """The inverse of `to_gaps`: ascending and different by construction.

    Raises ProtocolError FF-COMP-014 when an index lies beyond its chunk (or in the padding of the last one).
    """
    rows = np.arange(slab.rows, dtype=np.int64)
    walked = np.cumsum(gaps + 1)
    origin = rows * slab.chunk - 1 - (walked[:: slab.topk] - gaps[:: slab.topk] - 1)
    indices: Int64 = walked + np.repeat(origin, slab.topk)[: slab.count]
    last = indices[np.minimum((rows + 1) * slab.topk, slab.count) - 1]
    if (last >= np.minimum((rows + 1) * slab.chunk, slab.size)).any():
        raise ProtocolError("FF-COMP-014", "index outside its chunk", cause=f"chunks of {slab.chunk} elements")
    return indices
