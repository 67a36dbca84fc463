"""Codecs that send every element: exact (`dense_fp32`), and two bits each with error feedback (`dense_2bit`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from farflung.compress.bits import pack_plane, plane_bytes, unpack_plane
from farflung.compress.codecs import accumulate, check_bound, check_vector, seal, unseal
from farflung.compress.payload import HEADER_BYTES, About
from farflung.compress.quantise import LEVELS_BYTES, check_canonical, pack_levels, quantise, restore
from farflung.core.errors import ProtocolError
from farflung.core.layout import Float32, Layout

BLOCK: Final = 1 << 20  # elements of one tensor that share a pair of levels; also bounds temporaries


@dataclass(frozen=True)
class DenseFp32:
    """The values as they are: float32, little-endian. No state."""

    name = "dense_fp32"
    id = 1

    def encode(
        self, state: Float32 | None, values: Float32, layout: Layout, about: About
    ) -> tuple[Float32 | None, bytes]:
        """See `Codec.encode`; the state is None in and out."""
        check_bound(self, layout)
        check_vector(values, layout, "values")
        return None, seal(self, layout, about, [values.astype("<f4").tobytes()])

    def decode(self, payload: bytes, layout: Layout, about: About) -> Float32:
        """See `Codec.decode`; ProtocolError FF-COMP-017 for NaN and infinities."""
        body = unseal(self, payload, layout, about)
        values = np.frombuffer(body.take(4 * layout.size), "<f4").astype(np.float32)
        body.close()
        if not np.isfinite(values).all():
            raise ProtocolError("FF-COMP-017", "payload holds NaN or an infinity")
        return values

    def bound(self, layout: Layout) -> int:
        """Header and 4 bytes an element: the length of every payload."""
        return HEADER_BYTES + 4 * layout.size

    def expect(self, layout: Layout) -> float:
        """The exact length."""
        return float(self.bound(layout))


@dataclass(frozen=True)
class Dense2Bit:
    """Sign and one of two magnitudes for every element, levels per tensor (per 2^20 elements of a large one).

    Body, for each block: levels, sign plane, magnitude plane. Error feedback decays by `error_decay` a round.
    """

    error_decay: float
    name = "dense_2bit"
    id = 2

    def encode(
        self, state: Float32 | None, values: Float32, layout: Layout, about: About
    ) -> tuple[Float32 | None, bytes]:
        """See `Codec.encode`."""
        check_bound(self, layout)
        residual = accumulate(state, values, self.error_decay, layout)
        parts: list[bytes] = []
        for place in _blocks(layout):
            quantised = quantise(residual[place])
            residual[place] -= restore(quantised)
            parts += [
                pack_levels(quantised),
                pack_plane(quantised.negative),
                pack_plane(quantised.is_high),
            ]
        return residual, seal(self, layout, about, parts)

    def decode(self, payload: bytes, layout: Layout, about: About) -> Float32:
        """See `Codec.decode`."""
        body = unseal(self, payload, layout, about)
        values = np.empty(layout.size, np.float32)
        for place in _blocks(layout):
            count = place.stop - place.start
            levels = body.take(LEVELS_BYTES)
            negative = unpack_plane(body.take(plane_bytes(count)), count)
            is_high = unpack_plane(body.take(plane_bytes(count)), count)
            values[place] = restore(check_canonical(levels, negative, is_high))
        body.close()
        return values

    def bound(self, layout: Layout) -> int:
        """The length of every payload: about a quarter of a byte an element."""
        sizes = (place.stop - place.start for place in _blocks(layout))
        return HEADER_BYTES + sum(LEVELS_BYTES + 2 * plane_bytes(size) for size in sizes)

    def expect(self, layout: Layout) -> float:
        """The exact length."""
        return float(self.bound(layout))


def _blocks(layout: Layout) -> Iterator[slice]:
    for _, place in layout.slices():
        for start in range(place.start, place.stop, BLOCK):
            yield slice(start, min(start + BLOCK, place.stop))
