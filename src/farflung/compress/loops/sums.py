"""Sums element by element: error feedback, and the fixed point of the merge; twins in compress/codecs and merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.numba_compile import loop

_EXPONENT = np.uint32(0x7F800000)
_FRACTION = float(1 << 24)  # core.canon.float_operations: one unit is 2^-24, |x| ≤ 2^30 units
_SATURATION = float(1 << 30)
_FACTOR_BITS = 30
_HALF = 36
_LOWER = (1 << _HALF) - 1


@loop
def _fixed(value):
    """core.canon.steps.to_fixed of one value."""
    return np.int64(min(max(np.rint(np.float64(value) * _FRACTION), -_SATURATION), _SATURATION))


@loop
def accumulate(values, state, decay):
    """Twin of codecs._decayed: decay * state rounded to float32, plus values; and whether all results are finite."""
    total = np.empty(values.size, np.float32)
    for i in range(values.size):
        total[i] = decay * state[i] + values[i]
    bits = total.view(np.uint32)
    bad = np.uint32(0)
    for i in range(values.size):
        bad += np.uint32((bits[i] & _EXPONENT) == _EXPONENT)
    return total, bad == 0


@loop
def measured(values, width):
    """Twin of merge._measured: Σ x² in two parts, and the largest |x| of each `width` ≤ 2^15 values."""
    peaks = np.empty((values.size + width - 1) // width, np.int64)
    high, low = 0, 0
    for row in range(peaks.size):
        block = values[row * width : (row + 1) * width]
        upper, peak = 0, 0
        for i in range(block.size):
            fixed = abs(_fixed(block[i]))
            peak = max(peak, fixed)
            square = fixed * fixed
            upper += square >> _HALF
            low += square & _LOWER
        peaks[row] = peak
        high += upper + (low >> _HALF)
        low &= _LOWER
    return high, low, peaks


@loop
def add(values, block, weight, peak, scale):
    """Twin of merge._add: block += weight * x in place, x scaled by scale / 2^30 half to even unless that is 1."""
    if scale == 1 << _FACTOR_BITS:
        for i in range(values.size):
            block[i] += weight * _fixed(values[i])
    else:
        for i in range(values.size):
            product = _fixed(values[i]) * scale
            odd = (product >> _FACTOR_BITS) & 1
            block[i] += weight * ((product + ((1 << (_FACTOR_BITS - 1)) - 1) + odd) >> _FACTOR_BITS)


LOOPS: dict[str, Callable[..., Any]] = {"accumulate": accumulate, "measured": measured, "add": add}
