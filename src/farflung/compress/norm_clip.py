"""Computes exact norms and the exact clip on which the robust merges build (compress.merge,
compress.centered_clip).

    s = Σ x²                                        an integer, whatever the order of the sum
    f = floor(2^30 √(ceiling / s))                  for s > ceiling
    y = x f / 2^30                                  half to even

Values are in fixed point, one unit is 2^-24 (core.canon.float_operations). |x| ≤ 2^31: the difference of two saturated
values.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.canon.float_operations import Int64

FACTOR_BITS: Final = 30
BLOCK: Final = 1 << 15  # elements at a time: temporaries stay in the cache
EXACT: Final = 1 << 53  # float64 holds every integer up to here
_LIMB: Final = 15
_LARGEST: Final = 1 << 31

Float64 = NDArray[np.float64]


def block_square(fixed: Float64, peak: int) -> int:
    """Σ x² of at most 2^15 integers |x| ≤ peak ≤ 2^31, exactly: sums of products that float64 holds."""
    if peak * peak * fixed.size <= EXACT:
        return int(fixed @ fixed)
    high = np.rint(fixed * 2.0**-_LIMB)
    low = fixed - high * 2.0**_LIMB
    return (int(high @ high) << (2 * _LIMB)) + (int(high @ low) << (_LIMB + 1)) + int(low @ low)


def sum_of_squares(fixed: Int64) -> int:
    """Σ x² of fixed-point values, |x| ≤ 2^31, exactly."""
    total = 0
    for start in range(0, fixed.size, BLOCK):
        block = fixed[start : start + BLOCK].astype(np.float64)
        total += block_square(block, _LARGEST)
    return total


def factor(square: int, ceiling: int) -> int:
    """f = floor(2^30 √(ceiling / square)), below 2^30, for square > ceiling."""
    return math.isqrt((ceiling << (2 * FACTOR_BITS)) // square)


def clip(fixed: Int64, square: int, ceiling: int) -> Int64:
    """Values whose sum of squares is `square`, scaled down so that it is `ceiling` if that is less.

    |x| ≤ 2^31 and the factor is below 2^30: no product overflows. x f / 2^30 is rounded half to even.
    """
    if square <= ceiling:
        return fixed
    return scaled(fixed, factor(square, ceiling))


def scaled(fixed: Int64, scale: int) -> Int64:
    """x scale / 2^30, half to even."""
    product = fixed * scale
    odd = (product >> FACTOR_BITS) & 1
    return (product + (1 << (FACTOR_BITS - 1)) - 1 + odd) >> FACTOR_BITS
