"""Defines named logical tensors: their names, shapes and roots.

A `TensorLayout` fixes the order (sorted by name) and the flat offsets of all public tensors. Public state is one
flat float32 vector in that order; its root is Merkle over fixed chunks of each *named tensor*, so that a
site that holds a part of the tensors can compute its part of the root (docs/concepts/roundlog, law 3).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core import limits, merkle
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_LAYOUT, NS_STATE, NS_TENSOR_CHUNK, digest, digests
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash
from farflung.core.mapped_pages import walked

Float32 = NDArray[np.float32]

ROOT_CHUNK: Final = 1 << 12  # elements of one Merkle leaf of a tensor: one fits into a transaction with its path


class TensorSpec(Wire, frozen=True):
    """One named logical tensor; all public tensors are float32, little-endian, row-major."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def fault(self) -> str:
        """Why it can be no public tensor, in words; the empty text: it can."""
        if not 0 < len(self.name.encode()) <= limits.TENSOR_NAME_BYTES:
            return f"has a name of {len(self.name.encode())} bytes; 1 to {limits.TENSOR_NAME_BYTES} are possible"
        if len(self.shape) > limits.TENSOR_DIMENSIONS:
            return f"has {len(self.shape)} sides; at most {limits.TENSOR_DIMENSIONS} are possible"
        if not all(0 < side <= limits.ELEMENTS for side in self.shape):
            return f"has the shape {self.shape}; a side is 1 to {limits.ELEMENTS}"
        return ""


class TensorLayout(Wire, frozen=True, cache_hash=True):
    """The public tensors of a model, sorted by name. Build with `TensorLayout.of`."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> TensorLayout:
        """A checked layout from names and shapes; raises ProtocolError FF-CORE-040."""
        layout = cls(tuple(TensorSpec(name, tuple(shape)) for name, shape in sorted(shapes.items())))
        layout.check()
        return layout

    def check(self) -> None:
        """Raises ProtocolError FF-CORE-040 when names, shapes or sizes break a bound."""
        if fault := self.fault():
            raise ProtocolError("FF-CORE-040", "bad tensor layout", cause=fault)

    def fault(self) -> str:
        """What breaks a bound, with the name of the tensor, in words; the empty text: nothing."""
        names = [t.name for t in self.tensors]
        if not 0 < len(names) <= limits.TENSORS:
            return f"it has {len(names)} tensors; 1 to {limits.TENSORS} are possible"
        for tensor in self.tensors:
            if fault := tensor.fault():
                return f"{tensor.name[:80]!r} {fault}"
        if names != sorted(set(names)):
            return "its names are not sorted, or one stands there twice"
        if self.size > limits.ELEMENTS:
            return f"it has {self.size} elements; at most {limits.ELEMENTS} are possible"
        return ""

    @property
    def size(self) -> int:
        """Elements of all tensors together."""
        return _elements(self)

    @property
    def id(self) -> Hash:
        """Names, shapes and dtype, hashed: payloads carry it, and no other layout decodes them."""
        return digest(NS_LAYOUT, encode(self))

    def slices(self) -> Iterator[tuple[TensorSpec, slice]]:
        """Each tensor with its place in the flat vector."""
        start = 0
        for tensor in self.tensors:
            yield tensor, slice(start, start + tensor.size)
            start += tensor.size

    def flatten(self, arrays: Mapping[str, NDArray[np.generic]]) -> Float32:
        """Named arrays → flat float32 vector of shape (size,); raises ProtocolError FF-CORE-041."""
        flat = np.empty(self.size, np.float32)
        for tensor, place in self.slices():
            array = arrays.get(tensor.name)
            if array is None or tuple(array.shape) != tensor.shape:
                raise ProtocolError("FF-CORE-041", f"tensor {tensor.name!r} is missing or has another shape")
            flat[place] = array.reshape(-1)
        return flat

    def unflatten(self, flat: Float32) -> dict[str, Float32]:
        """Flat vector → named views of it (no copy)."""
        return {tensor.name: flat[place].reshape(tensor.shape) for tensor, place in self.slices()}


@functools.lru_cache(maxsize=64)
def _elements(layout: TensorLayout) -> int:
    return sum(t.size for t in layout.tensors)


def tensor_root(tensor: TensorSpec, values: Float32) -> Hash:
    """Merkle root of one tensor over chunks of ROOT_CHUNK elements."""
    data = np.ascontiguousarray(values.reshape(-1), dtype="<f4").data.cast("B")
    step = ROOT_CHUNK * np.dtype("<f4").itemsize
    pieces = (piece[i : i + step] for piece in walked(data) for i in range(0, len(piece), step))
    chunks = digests(NS_TENSOR_CHUNK, pieces)
    return digest(NS_STATE, encode(tensor), merkle.root(chunks))


def state_root(layout: TensorLayout, sections: Mapping[str, Float32]) -> Hash:
    """Root of public state: each section (`params`, `momentum`, ...) is a flat vector under the same layout."""
    leaves = [
        encode((section, tensor_root(tensor, flat[place])))
        for section, flat in sorted(sections.items())
        for tensor, place in layout.slices()
    ]
    return merkle.root(leaves)
