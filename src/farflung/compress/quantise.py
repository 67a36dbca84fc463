"""Quantises a value to one or two bits: its sign, and one level or one of two.

Levels are fp16 and the same bytes everywhere.

Magnitudes become integers: a power of two puts the largest below 2^26. One bit: the level is their mean. Two bits: they
are split at their mean, and the split is moved three times to the middle of the two classes' means (Lloyd 1982; Max
1960); the levels are these means. All sums are of integers, so their order does not matter; a level is rounded half to
even, to fp16, and saturates at 65504; what that loses is left to error feedback. Research: MuLoCo (arXiv 2505.23725)
and SparseLoCo (arXiv 2508.15706) send 2-bit values, EF-signSGD (arXiv 1901.09847) one bit, with error feedback.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import Float32

LARGEST: Final = 65504.0  # largest finite fp16

_MAGNITUDE_BITS: Final = 26  # 2^26 * limits.ELEMENTS = 2^62
_LLOYD_STEPS: Final = 3
_BLOCK: Final = 1 << 15
_NOBODY: Final = 1 << _MAGNITUDE_BITS  # a threshold that no magnitude exceeds

Symbols = NDArray[np.unsignedinteger[Any]]
Whole = NDArray[np.int32]


def to_symbols(values: Float32, bits: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Levels and symbols (module `values`) of finite values, shape (count,); `bits` is 1 or 2."""
    if not values.size:
        return bytes(2 * bits), np.empty(0, np.uint8)
    values = np.ascontiguousarray(values)
    whole, units = _magnitudes(values, _MAGNITUDE_BITS)
    if bits == 1:
        level = _half(int(_above(whole, -1)[1]), whole.size, units)
        symbols = _ranked(values, whole, _NOBODY, level == 0.0)
        symbols -= np.uint8(1)
        return struct.pack("<e", level), symbols
    threshold, low, high = _levels(whole, units)
    symbols = _ranked(values, whole, threshold if low < high else _NOBODY, low == 0.0)
    return struct.pack("<ee", low, high), symbols


def from_symbols(levels: bytes | memoryview, symbols: Symbols, values: Float32) -> None:
    """The values of canonical levels and symbols, into `values`, shape (count,)."""
    steps = np.frombuffer(levels, "<f2").astype(np.float32)
    _looked_up(symbols, np.concatenate([-steps[::-1], steps]), values)


def check_symbols(levels: bytes | memoryview, symbols: Symbols) -> None:
    """Levels and symbols from elsewhere, all in their alphabet: could `to_symbols` have made them?

    Raises ProtocolError FF-COMP-015: levels are not finite, negative (-0 included) or not ordered;
    FF-COMP-016: the same could be said in another way (a level that nobody has, a sign of zero).
    """
    steps = np.frombuffer(levels, "<f2").astype(np.float64)
    low, high = float(steps[0]), float(steps[-1])
    if not 0.0 <= low <= high <= LARGEST or np.signbit(steps).any():
        raise ProtocolError("FF-COMP-015", "bad quantiser levels", cause=f"low {low}, high {high}")
    counts = _tallied(symbols, 2 * steps.size)
    inner = counts[steps.size - 1 : steps.size + 1]  # -low and +low
    outer = symbols.size - int(inner.sum())
    if (outer > 0) != (low < high) or outer == symbols.size > 0 or (high > 0.0 and not symbols.size):
        raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a level that no value has")
    if low == 0.0 and inner[0]:
        raise ProtocolError("FF-COMP-016", "payload is not canonical", cause="a zero with a sign")


@compiled("magnitudes")
def _magnitudes(values: Float32, limit: int) -> tuple[Whole, int]:
    """|v| in units of 2^-u, half to even, at most 2^limit; and u."""
    units = limit - math.frexp(max(float(values.max()), -float(values.min())))[1]
    factor = math.ldexp(1.0, units)
    whole = np.empty(values.size, np.int32)
    for place in _blocks(values.size):
        exact = np.abs(values[place]).astype(np.float64)
        exact *= factor
        whole[place] = np.rint(exact, out=exact)
    return whole, units


def _levels(whole: Whole, units: int) -> tuple[int, float, float]:
    """Threshold in integer units, and the means at or below and above it as fp16 values."""
    count, total = whole.size, int(_above(whole, -1)[1])
    threshold = total // count
    for step in range(_LLOYD_STEPS + 1):
        many, much = (int(number) for number in _above(whole, threshold))
        if not many:  # all magnitudes are equal
            level = _half(total, count, units)
            return threshold, level, level
        few, little = count - many, total - much
        if step < _LLOYD_STEPS:
            threshold = (little * many + much * few) // (2 * few * many)
    return threshold, _half(little, few, units), _half(much, many, units)


@compiled("above")
def _above(whole: Whole, threshold: int) -> tuple[int, int]:
    """How many lie above the threshold, and their sum."""
    many = much = 0
    for place in _blocks(whole.size):
        is_above = whole[place] > threshold
        many += int(np.count_nonzero(is_above))
        much += int((whole[place] * is_above).sum(dtype=np.int64))
    return many, much


@compiled("ranked")
def _ranked(values: Float32, whole: Whole, threshold: int, is_zero: bool) -> NDArray[np.uint8]:
    """Symbols -high, -low, +low, +high as 0..3; a low level of zero has no sign."""
    is_high = whole > threshold
    is_negative = values < 0
    if is_zero:
        is_negative &= is_high
    symbols = is_high.view(np.uint8) + np.uint8(2)
    symbols ^= is_negative.view(np.uint8) * np.uint8(3)  # 2 <-> 1, 3 <-> 0
    return symbols


@compiled("tallied")
def _tallied(symbols: Symbols, size: int) -> NDArray[np.int64]:
    """How often each of `size` symbols comes."""
    return np.bincount(symbols, minlength=size).astype(np.int64)


@compiled("looked_up")
def _looked_up(symbols: Symbols, table: Float32, values: Float32) -> None:
    """The table's entry for each symbol, into `values`."""
    values[:] = table[symbols]


def _blocks(count: int) -> Iterator[slice]:
    """Short stretches, so that temporaries stay in the cache."""
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))


def _half(total: int, count: int, units: int) -> float:
    """total / count / 2^units, rounded to fp16 half to even and saturated."""
    exact = min(math.ldexp(total / count, -units), LARGEST)
    return float(struct.unpack("<e", struct.pack("<e", exact))[0])
