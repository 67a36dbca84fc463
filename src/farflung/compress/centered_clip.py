"""Computes CenteredClip exactly: each contribution is clipped around the centre of all, not around zero.

Karimireddy, He & Jaggi 2021 (arXiv 2012.10333), section 4, for each tensor by itself, v_0 = 0, STEPS steps:

    d_i     = x_i - v_l                                 in fixed point, |d_i| ≤ 2^31
    s_i     = Σ d_i²                                    exact
    m       = lower median of all s_i                   the radius is √m: no number that somebody has to choose
    y_i     = clip(d_i, s_i, m)                         compress.norm_clip, half to even
    v_{l+1} = v_l + Σ w_i y_i / Σ w_i                   half to even, in units of 2^-24

Every step is a sum of integers and a median, so the bits depend on nobody's order. The first step from v_0 = 0 is the
clip to the median norm (compress.merge). The last one is not divided: Σ w_i (v_l + y_i) goes on as any merge's total.
v + y lies between v and x up to half a unit, so nothing that the limits allow overflows.

The centre starts at zero and not at the last round's, as the paper's does with momentum: a joiner would need it, and
it measured the same. Steps after the first find out who stands apart from all, whatever its norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from farflung.compress.norm_clip import BLOCK, clip, sum_of_squares
from farflung.core.canon.float_operations import Int64, to_fixed
from farflung.core.tensor_layout import Float32

STEPS: Final = 3


def centre(total: Int64, values: Sequence[Float32], weights: Sequence[int]) -> None:
    """Carries on from the first step: `total` holds Σ w_i y_i of it, shape (size,), and gets that of the last one.

    `values`: one array of that shape for each contribution, finite. One block of temporaries, however many there are.
    """
    whole = sum(weights)
    for _ in range(1, STEPS):
        total[:] = _divided(total, whole)
        squares = [_square(total, each) for each in values]
        radius = sorted(squares)[(len(squares) - 1) // 2]
        for place in _blocks(total.size):
            centre_of = total[place].copy()
            total[place] *= whole
            for each, square, weight in zip(values, squares, weights, strict=True):
                total[place] += weight * clip(to_fixed(each[place]) - centre_of, square, radius)


def _square(centre_of: Int64, values: Float32) -> int:
    """Σ (x - v)²."""
    return sum(sum_of_squares(to_fixed(values[place]) - centre_of[place]) for place in _blocks(centre_of.size))


def _divided(total: Int64, whole: int) -> Int64:
    """total / whole, half to even."""
    quotient, rest = np.divmod(total, whole)
    is_up = (2 * rest > whole) | ((2 * rest == whole) & (quotient & 1 == 1))
    divided: Int64 = quotient + is_up
    return divided


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))
