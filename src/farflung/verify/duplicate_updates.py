"""Detects updates of a round that are the same work, by the cosine of each pair and the elements that both
chose.

A whole round's updates are looked at block by block, so that beside them a few blocks are held however many peers there
are: a checker that ran out of memory over honest work would end the run. Pairs are sought in floating point, with a
margin that no rounding fills, and judged exactly, in integers, so that every reader finds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.compress.tensor_range import times
from farflung.core.canon.float_operations import Int64, to_fixed
from farflung.core.tensor_layout import Float32

COSINE: Final = (99, 100)
SOUGHT: Final = 0.98  # a cosine above which a pair is judged exactly
_LIMB: Final = 32
_BLOCK: Final = 1 << 17  # elements of all updates that are held in float64 at a time: they stay in the cache

Float64 = NDArray[np.float64]


def duplicates(values: Sequence[Float32], squares: Sequence[int], *, is_chosen: bool, exponent: int = 0) -> list[int]:
    """Both places of each pair, ascending. `values`: one update each, of one shape; `squares`: their exact Σ x²,
    each times 2^`exponent`.

    `is_chosen`: elements that are not zero were chosen by whoever sent them, where they are at most half of all.
    """
    products, common = _compared(values, exponent, is_chosen=is_chosen)
    counts = common.diagonal()
    found: set[int] = set()
    for i in range(len(values)):
        for j in range(i):
            is_sparse = is_chosen and 0 < 2 * counts[i] <= values[i].size
            is_same = is_sparse and common[i, j] == counts[i] == counts[j]
            length = float(products[i, i]) ** 0.5 * float(products[j, j]) ** 0.5
            is_near = float(products[i, j]) > SOUGHT * length
            if is_same or (is_near and _is_parallel(values[i], values[j], squares[i], squares[j], exponent)):
                found |= {i, j}
    return sorted(found)


def _compared(values: Sequence[Float32], exponent: int, *, is_chosen: bool) -> tuple[Float64, Float64]:
    """Products of all pairs, about; elements that both of a pair have, exactly, where they were chosen."""
    count = len(values)
    products, common = np.zeros((count, count)), np.zeros((count, count))
    for place in _blocks(values[0].size if count else 0, count):
        block = np.stack([to_fixed(times(each[place], exponent)) for each in values]).astype(np.float64)
        products += block @ block.T
        if is_chosen:
            chosen = (block != 0).astype(np.float64)
            common += chosen @ chosen.T
    return products, common


def _is_parallel(left: Float32, right: Float32, left_square: int, right_square: int, exponent: int) -> bool:
    """Of two updates whose product is above zero."""
    part, whole = COSINE
    return _dot(left, right, exponent) ** 2 * whole**2 > part**2 * left_square * right_square


def _dot(left: Float32, right: Float32, exponent: int) -> int:
    """Exact, in fixed point: each product is at most 2^60 and is summed in two limbs of 32 bits."""
    total = 0
    for place in _blocks(left.size, 2):
        product: Int64 = to_fixed(times(left[place], exponent)) * to_fixed(times(right[place], exponent))
        total += (int((product >> _LIMB).sum()) << _LIMB) + int((product & ((1 << _LIMB) - 1)).sum())
    return total


def _blocks(size: int, updates: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, updates))
    return (slice(start, start + step) for start in range(0, size, step))
