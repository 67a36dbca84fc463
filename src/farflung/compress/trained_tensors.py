"""Says which tensors of a layout a sparse payload is about: those that its maker trained.

A tensor that was not trained takes no place among the largest of a chunk, and a small one that was trained, of which
nothing is sent, is told from it. The plane, one bit a tensor in layout order, lowest bit first, is at the start of
the body of a payload whose header has the flag PARTIAL; without the flag all tensors were trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from farflung.compress.payload import BodyReader
from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import Float32, TensorLayout


class TrainedTensors(NamedTuple):
    """The tensors that were trained, as a layout of their own, and their places in the whole vector."""

    whole: TensorLayout
    layout: TensorLayout
    places: tuple[slice, ...]

    @classmethod
    def of(cls, layout: TensorLayout, trained: Sequence[bool] | None) -> TrainedTensors:
        """Those of which `trained` says so; None: all."""
        if trained is None or all(trained):
            return cls(layout, layout, (slice(0, layout.size),))
        own = [each for each, is_one in zip(layout.slices(), trained, strict=True) if is_one]
        return cls(layout, TensorLayout(tuple(tensor for tensor, _ in own)), tuple(place for _, place in own))

    @classmethod
    def read(cls, layout: TensorLayout, body: BodyReader) -> TrainedTensors:
        """From the plane at the start of a body. Raises ProtocolError FF-COMP-011, FF-COMP-016."""
        plane = np.frombuffer(body.take(plane_bytes(layout)), np.uint8)
        bits = np.unpackbits(plane, bitorder="little")
        own, padding = bits[: len(layout.tensors)], bits[len(layout.tensors) :]
        if padding.any() or own.all():
            raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a plane of trained tensors")
        return cls.of(layout, [bool(bit) for bit in own])

    @property
    def is_partial(self) -> bool:
        """Whether any tensor was left out."""
        return self.layout is not self.whole

    @property
    def plane(self) -> bytes:
        """What tells them to a reader; nothing where none was left out."""
        if not self.is_partial:
            return b""
        starts = {place.start for place in self.places}
        bits = [place.start in starts for _, place in self.whole.slices()]
        return np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()

    def take(self, flat: Float32) -> Float32:
        """Of a vector of the whole layout the values of these tensors; the vector itself where they are all."""
        if not self.is_partial:
            return flat
        return np.concatenate([flat[:0], *(flat[place] for place in self.places)])

    def put(self, values: Float32, others: Float32 | None) -> Float32:
        """The whole vector with these tensors' `values`, and `others` (None: zeros) in all else."""
        if not self.is_partial:
            return values
        flat = np.zeros(self.whole.size, np.float32) if others is None else others.copy()
        start = 0
        for place in self.places:
            stop = start + place.stop - place.start
            flat[place] = values[start:stop]
            start = stop
        return flat


def plane_bytes(layout: TensorLayout) -> int:
    """The length of the plane."""
    return -(-len(layout.tensors) // 8)
