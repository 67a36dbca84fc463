"""Two bits a value: its sign, and which of two magnitudes. Levels are fp16 and the same bytes on every machine.

Magnitudes become integers (a power of two puts the largest below 2^26), are split at their mean, and the split is
moved three times to the middle of the two classes' means (Lloyd 1982; Max 1960). All sums are of integers, so their
order does not matter; a level is rounded half to even, to fp16. Research: MuLoCo (arXiv 2505.23725) and SparseLoCo
(arXiv 2508.15706) send 2-bit values with error feedback.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.compress.bits import Bools
from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError
from farflung.core.layout import Float32

LEVELS_BYTES: Final = 4
LARGEST: Final = 65504.0  # largest finite fp16; levels saturate here, and error feedback keeps the rest

Symbols = NDArray[np.unsignedinteger[Any]]

_MAGNITUDE_BITS: Final = 26  # 2^26 * limits.ELEMENTS = 2^62
_LLOYD_STEPS: Final = 3


class Quantised(NamedTuple):
    """Values of shape (count,) as levels and two planes. 0 ≤ low ≤ high, both exact in fp16."""

    low: float
    high: float
    negative: Bools
    is_high: Bools


def quantise(values: Float32) -> Quantised:
    """The canonical 2-bit form of finite values of shape (count,), count ≥ 1."""
    magnitudes, units = _magnitudes(values, _MAGNITUDE_BITS)
    threshold, low, high = _levels(magnitudes, units)
    is_high = (magnitudes > threshold) & (low < high)
    level = np.where(is_high, high, low)
    return Quantised(low, high, (values < 0) & (level > 0), is_high)


@compiled("magnitudes")
def _magnitudes(values: Float32, bits: int) -> tuple[NDArray[np.int32], int]:
    """|v| in units of 2^-u, half to even, at most 2^bits; and u."""
    absolute = np.abs(values)
    units = bits - math.frexp(float(absolute.max()))[1]
    return np.rint(absolute.astype(np.float64) * math.ldexp(1.0, units)).astype(np.int32), units


@compiled("above")
def _above(magnitudes: NDArray[np.int32], threshold: int) -> tuple[int, int]:
    """How many lie above a threshold, and their sum."""
    above = magnitudes[magnitudes > threshold]
    return above.size, int(above.sum(dtype=np.int64))


@compiled("ranked")
def _ranked(
    values: Float32, magnitudes: NDArray[np.int32], threshold: int, is_zero: bool
) -> NDArray[np.uint8]:
    """Symbols 0..3 = -high, -low, +low, +high; `is_zero`: low is 0 and has no sign."""
    rank = (magnitudes > threshold).astype(np.uint8)
    negative = values < 0
    if is_zero:
        negative &= rank > 0
    return np.where(negative, 1 - rank, 2 + rank).astype(np.uint8)


@compiled("looked_up")
def _looked_up(symbols: Symbols, table: Float32) -> Float32:
    """The table's entry for each symbol."""
    found: Float32 = table[symbols]
    return found


def _levels(magnitudes: NDArray[np.int32], units: int) -> tuple[int, float, float]:
    """Threshold in integer units, and the means at or below and above it as fp16 values."""
    count, total = magnitudes.size, _above(magnitudes, -1)[1]
    threshold = total // count
    for step in range(_LLOYD_STEPS + 1):
        many, much = _above(magnitudes, threshold)
        if not many:  # all magnitudes are equal
            level = _half(total, count, units)
            return threshold, level, level
        few, little = count - many, total - much
        if step < _LLOYD_STEPS:
            threshold = (little * many + much * few) // (2 * few * many)
    return threshold, _half(little, few, units), _half(much, many, units)


def _half(total: int, count: int, units: int) -> float:
    """total / count / 2^units, rounded to fp16 half to even and saturated."""
    exact = min(math.ldexp(total / count, -units), LARGEST)
    return float(struct.unpack("<e", struct.pack("<e", exact))[0])


def restore(quantised: Quantised) -> Float32:
    """The values that the two planes and levels stand for, shape (count,)."""
    low, high, negative, is_high = quantised
    level = np.where(is_high, np.float32(high), np.float32(low))
    return np.where(negative, -level, level)


def pack_levels(quantised: Quantised) -> bytes:
    """The two levels: fp16, little-endian, low first."""
    return struct.pack("<ee", quantised.low, quantised.high)


def check_canonical(levels: bytes | memoryview, negative: Bools, is_high: Bools) -> Quantised:
    """Levels and planes from elsewhere, if `quantise` could have made them.

    Raises ProtocolError FF-COMP-015: levels are not finite, negative (-0 included) or not ordered;
    FF-COMP-016: planes say nothing or the same in two ways (a class that nobody is in, a sign of zero).
    """
    low, high = struct.unpack("<ee", levels)
    if not 0.0 <= low <= high <= LARGEST or math.copysign(1.0, low) < 0 or math.copysign(1.0, high) < 0:
        raise ProtocolError("FF-COMP-015", "bad quantiser levels", cause=f"low {low}, high {high}")
    many = int(np.count_nonzero(is_high))
    if (many > 0) != (low < high) or many == is_high.size:
        raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a level that no value has")
    if low == 0.0 and bool((negative & ~is_high).any()):
        raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a zero with a sign")
    return Quantised(low, high, negative, is_high)


def to_symbols(values: Float32, bits: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Levels and symbols of one or two bits (module `values`) of finite values, shape (count,)."""
    if not values.size:
        return bytes(2 * bits), np.empty(0, np.uint8)
    if bits == 1:
        level, negative = _one_level(values)
        return struct.pack("<e", level), (~negative).astype(np.uint8)
    magnitudes, units = _magnitudes(values, _MAGNITUDE_BITS)
    threshold, low, high = _levels(magnitudes, units)
    limit = threshold if low < high else 1 << _MAGNITUDE_BITS
    return struct.pack("<ee", low, high), _ranked(values, magnitudes, limit, low == 0.0)


def _one_level(values: Float32) -> tuple[float, Bools]:
    """The mean of |v| as fp16, and who is negative."""
    magnitudes, units = _magnitudes(values, _MAGNITUDE_BITS)
    level = _half(_above(magnitudes, -1)[1], magnitudes.size, units)
    return level, (values < 0) & (level > 0)


def from_symbols(levels: bytes | memoryview, symbols: Symbols, bits: int) -> Float32:
    """The values of canonical levels and symbols, shape (count,)."""
    steps = np.frombuffer(levels, "<f2").astype(np.float32)
    table = np.concatenate([-steps[::-1], steps])
    return _looked_up(symbols, table)


def check_symbols(levels: bytes | memoryview, symbols: Symbols, bits: int) -> None:
    """Raises ProtocolError FF-COMP-015, 016 unless `to_symbols` could have made them (all are in the alphabet)."""
    if bits == 1:
        (level,) = struct.unpack("<e", levels)
        if not 0.0 <= level <= LARGEST or math.copysign(1.0, level) < 0:
            raise ProtocolError("FF-COMP-015", "bad quantiser levels", cause=f"level {level}")
        if level == 0.0 and not symbols.all():
            raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a zero with a sign")
        if level > 0.0 and not symbols.size:
            raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a level that no value has")
    elif symbols.size:
        check_canonical(levels, symbols < 2, (symbols == 0) | (symbols == 3))
    elif any(levels):
        raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="levels that no value has")
