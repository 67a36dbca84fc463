"""The codec that sends the largest coefficients of each chunk, two bits each, with error feedback (`topk_2bit`).

SparseLoCo (arXiv 2508.15706) without its 12-bit indices: gaps in Rice's code cost 7.5 bits at 64 of 4096, where
the floor for a uniform support is log2 C(4096, 64) / 64 = 7.36.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from farflung.compress.bits import pack_plane, pack_rice, plane_bytes, unpack_plane, unpack_rice
from farflung.compress.chunks import Slab, from_gaps, groups, select, slabs, to_gaps
from farflung.compress.codecs import accumulate, check_bound, seal, unseal
from farflung.compress.payload import HEADER_BYTES, About, Cursor
from farflung.compress.quantise import LEVELS_BYTES, check_canonical, pack_levels, quantise, restore
from farflung.core.errors import ProtocolError
from farflung.core.layout import Float32, Layout

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True)
class TopK2Bit:
    """`topk` of every `chunk` elements. 1 ≤ topk ≤ chunk ≤ 2^20.

    Body, for each slab: levels, bytes of the unary plane (u32), unary plane, remainder plane, sign plane,
    magnitude plane. Nothing else is sent: counts follow from the layout, the Rice parameter from the counts.
    """

    topk: int
    chunk: int
    error_decay: float
    name = "topk_2bit"
    id = 3

    def encode(
        self, state: Float32 | None, values: Float32, layout: Layout, about: About
    ) -> tuple[Float32 | None, bytes]:
        """See `Codec.encode`."""
        check_bound(self, layout)
        residual = accumulate(state, values, self.error_decay, layout)
        parts: list[bytes] = []
        for group in groups(layout, self.chunk):
            vector = group.gather(residual)
            for slab in slabs(group, self.chunk, self.topk):
                parts += _encode_slab(vector[slab.place], slab)
            group.scatter(vector, residual)
        return residual, seal(self, layout, about, parts)

    def decode(self, payload: bytes, layout: Layout, about: About) -> Float32:
        """See `Codec.decode`. Elements that were not sent are zero."""
        body = unseal(self, payload, layout, about)
        values = np.zeros(layout.size, np.float32)
        for group in groups(layout, self.chunk):
            vector = group.gather(values)
            for slab in slabs(group, self.chunk, self.topk):
                _decode_slab(body, slab, vector[slab.place])
            group.scatter(vector, values)
        body.close()
        return values

    def bound(self, layout: Layout) -> int:
        """Reached when every chunk chooses its last elements."""
        slots = (_fixed_bytes(slab) + plane_bytes(slab.unary_bound) for slab in self._slabs(layout))
        return HEADER_BYTES + sum(slots)

    def expect(self, layout: Layout) -> float:
        """Mean over uniform supports; half a byte of padding in each unary plane."""
        means = (_fixed_bytes(slab) + slab.unary_mean / 8 + 0.4375 for slab in self._slabs(layout))
        return HEADER_BYTES + sum(means)

    def _slabs(self, layout: Layout) -> Iterator[Slab]:
        for group in groups(layout, self.chunk):
            yield from slabs(group, self.chunk, self.topk)


def _fixed_bytes(slab: Slab) -> int:
    """All of a slab but its unary plane."""
    planes = plane_bytes(slab.count * slab.rice) + 2 * plane_bytes(slab.count)
    return LEVELS_BYTES + _LENGTH.size + planes


def _encode_slab(values: Float32, slab: Slab) -> list[bytes]:
    """The parts of one slab; what they say is subtracted from `values` in place."""
    indices = select(values, slab)
    quantised = quantise(values[indices])
    values[indices] -= restore(quantised)
    unary, remainders = pack_rice(to_gaps(indices, slab), slab.rice)
    planes = [pack_plane(quantised.negative), pack_plane(quantised.is_high)]
    return [pack_levels(quantised), _LENGTH.pack(len(unary)), unary, remainders, *planes]


def _decode_slab(body: Cursor, slab: Slab, values: Float32) -> None:
    """Reads one slab into `values`, which is zero; every length is checked before it is used."""
    levels = body.take(LEVELS_BYTES)
    (length,) = _LENGTH.unpack(body.take(_LENGTH.size))
    if not plane_bytes(slab.count) <= length <= plane_bytes(slab.unary_bound):
        raise ProtocolError("FF-COMP-013", "broken run of gaps", cause=f"a unary plane of {length} bytes")
    count, rice = slab.count, slab.rice
    unary, remainders = body.take(length), body.take(plane_bytes(count * rice))
    indices = from_gaps(unpack_rice(unary, remainders, count, rice), slab)
    negative = unpack_plane(body.take(plane_bytes(count)), count)
    is_high = unpack_plane(body.take(plane_bytes(count)), count)
    values[indices] = restore(check_canonical(levels, negative, is_high))
