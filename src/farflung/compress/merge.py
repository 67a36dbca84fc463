"""The one merge: weighted sum of contributions in 64-bit fixed point, each clipped to the median norm.

Exact (docs/architecture, law 1): integers commute, so the bits are the same whatever the order of arrival, library or
machine. One unit is 2^-24; values saturate at 2^30 units; N * weight * range stays below 2^62.

Clip, for each tensor t by itself (as SparseLoCo's validators do, arXiv 2508.15706):
    s_i  = Σ x²           exact, of peer i's fixed-point values
    m    = lower median of all s_i
    f_i  = floor(2^30 √(m / s_i))   if s_i > m, else no scaling
    y_i  = x_i f_i / 2^30           half to even
so nobody is scaled up, and one peer among N ≥ 3 has no more weight than an honest one's norm gives it (up to half a
unit an element from the rounding). With an honest majority the median is at most the largest honest norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from farflung.core import canon, limits
from farflung.core.canon import Int64
from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId, short
from farflung.core.layout import Float32, Layout

FACTOR_BITS: Final = 30
_BLOCK: Final = 1 << 20  # elements squared at a time: both limbs stay below 2^52
_LIMB: Final = 32

assert limits.PEERS * limits.WEIGHT * canon.SATURATION < 1 << 62  # law 1


class Part(NamedTuple):
    """One accepted contribution: `values` is what its payload decodes to, shape (layout.size,)."""

    peer: PeerId
    weight: int
    values: Float32


class Merged(NamedTuple):
    """Σ weight * value in units of 2^-24, shape (layout.size,), and Σ weight."""

    total: Int64
    weight: int


def merge(layout: Layout, parts: Sequence[Part]) -> Merged:
    """The clipped weighted sum of `parts`, in any order.

    Raises VerificationError: FF-COMP-040 no part, or more than limits.PEERS; 041 a peer twice; 042 a weight out of
    range; 043 values of another shape; 044 values that are not finite.
    """
    _check(layout, parts)
    total = np.zeros(layout.size, np.int64)
    for _, place in layout.slices():
        squares = [sum_of_squares(canon.to_fixed(part.values[place])) for part in parts]
        ceiling = sorted(squares)[(len(squares) - 1) // 2]
        for part, square in zip(parts, squares, strict=True):
            total[place] += part.weight * clip(canon.to_fixed(part.values[place]), square, ceiling)
    return Merged(total, sum(part.weight for part in parts))


def mean(merged: Merged) -> Float32:
    """The weighted mean, float32, shape (layout.size,)."""
    return canon.mean_from_fixed(merged.total, merged.weight)


def sum_of_squares(fixed: Int64) -> int:
    """Σ x² of fixed-point values, |x| ≤ 2^30, exactly: two limbs of 32 bits, block by block."""
    total = 0
    for start in range(0, fixed.size, _BLOCK):
        square = fixed[start : start + _BLOCK] ** 2
        total += (int((square >> _LIMB).sum()) << _LIMB) + int((square & ((1 << _LIMB) - 1)).sum())
    return total


def clip(fixed: Int64, square: int, ceiling: int) -> Int64:
    """Values whose sum of squares is `square`, scaled down so that it is `ceiling` if that is less.

    |x| ≤ 2^30 and the factor is below 2^30: no product overflows. x f / 2^30 is rounded half to even.
    """
    if square <= ceiling:
        return fixed
    factor = math.isqrt((ceiling << (2 * FACTOR_BITS)) // square)
    product = fixed * factor
    odd = (product >> FACTOR_BITS) & 1
    return (product + (1 << (FACTOR_BITS - 1)) - 1 + odd) >> FACTOR_BITS


def _check(layout: Layout, parts: Sequence[Part]) -> None:
    if not 0 < len(parts) <= limits.PEERS:
        raise VerificationError("FF-COMP-040", f"cannot merge {len(parts)} contributions")
    if len({bytes(part.peer) for part in parts}) != len(parts):
        raise VerificationError("FF-COMP-041", "a peer contributes twice to one round")
    for part in parts:
        who = f"the contribution of {short(part.peer)}"
        if not 1 <= part.weight <= limits.WEIGHT:
            raise VerificationError("FF-COMP-042", f"{who} has weight {part.weight}")
        if part.values.shape != (layout.size,) or part.values.dtype != np.float32:
            raise VerificationError("FF-COMP-043", f"{who} has shape {part.values.shape}")
        if not np.isfinite(part.values).all():
            raise VerificationError("FF-COMP-044", f"{who} is not finite")
