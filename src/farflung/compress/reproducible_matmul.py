"""Computes matrix products and orthonormal columns, bit for bit the same everywhere, at the speed of the local
BLAS.

A BLAS sums in an order of its own, with or without fused operations. Sums of integers below 2^53 in binary64 are exact
in any order, so both sides of a product become integers first (docs/concepts/roundlog, law 1):
    x  ->  rint(x 2^(24 - e)),  e the exponent of the matrix' largest magnitude:  at most 24 bits
    k <= 32 summands      24 + 24 + 5 bits
    more, up to 2^16      the right side as two limbs of 12 bits: 24 + 12 + 16 bits a limb
    more still            blocks of 2^16, added in ascending order
What follows is element-wise binary64 in a fixed order, then one rounding to binary32. The cost against an ordinary
product is an error of at most 2^-24 of the largest magnitude for each element of either side.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.crypto import NS_QUERY, derive
from farflung.core.tensor_layout import Float32

Float64 = NDArray[np.float64]

BITS: Final = 24
LIMB_BITS: Final = 12
SHORT: Final = 1 << (53 - 2 * BITS)  # summands that need no limbs
LONG: Final = 1 << 16  # summands of one exact sum
_ELEMENTS: Final = 1 << 17  # of a temporary: 1 MiB stays in a core's own cache
_VANISHED: Final = 2.0**-40  # of a column's square: what is left is rounding of binary32
_LIMB: Final = float(1 << LIMB_BITS)
_PUBLIC_KEY: Final = bytes(32)  # replacements are the same in every job


def product(left: Float32 | Float64, right: Float32 | Float64) -> Float64:
    """left (a, k) times right (k, b), finite → (a, b). `right` is thin, or k is short."""
    rows, inner = left.shape
    up, across = _exponent(left), _exponent(right)
    thin, is_short = _limbs(right, across)
    total = np.zeros((rows, right.shape[1]), np.float64)
    step = max(1, _ELEMENTS // max(min(inner, LONG), thin.shape[1]))
    for top in range(0, rows, step):
        for start in range(0, inner, LONG):
            exact = _whole(left[top : top + step, start : start + LONG], up) @ thin[start : start + LONG]
            total[top : top + step] += exact if is_short else _joined(exact)
    total *= math.ldexp(1.0, up + across - 2 * BITS)
    return total


def product_across(left: Float32 | Float64, right: Float32 | Float64) -> Float64:
    """The transpose of left (k, a) times right (k, b) → (a, b): product(left.T, right), but reading left by rows."""
    inner, columns = left.shape
    up, across = _exponent(left), _exponent(right)
    thin, is_short = _limbs(right, across)
    total = np.zeros((columns, right.shape[1]), np.float64)
    step = max(1, _ELEMENTS // columns)
    for start in range(0, inner, LONG):
        exact = np.zeros((thin.shape[1], columns), np.float64)
        for top in range(start, min(start + LONG, inner), step):
            rows = slice(top, min(top + step, start + LONG))
            exact += thin[rows].T @ _whole(left[rows], up)  # of integers: where it is cut does not matter
        total += exact.T if is_short else _joined(exact.T)
    total *= math.ldexp(1.0, up + across - 2 * BITS)
    return total


def orthonormal(matrix: Float32) -> Float32:
    """Columns of shape (n, r), r ≤ n, made orthonormal from left to right: Gram and Schmidt's process, done twice.

    A column of which nothing is left is replaced by signs drawn from (n, its number), or where those vanish too by
    the unit vector that lies farthest from the columns before it: the result always has r columns.
    """
    rows, count = matrix.shape
    basis = np.zeros((rows, count), np.float64)
    for index in range(count):
        before = basis[:, :index]
        column = _unit(matrix[:, index].astype(np.float64), before)
        if column is None:
            column = _unit(signs(_PUBLIC_KEY, rows, index), before)
        if column is None:
            column = _unit(_farthest(before), before)
        assert column is not None
        basis[:, index] = column.astype(np.float32)
    return basis.astype(np.float32)


def signs(key: bytes, rows: int, *parts: int) -> Float64:
    """`rows` signs, ±1, drawn from a key of 32 bytes and the numbers `parts`."""
    named = (number.to_bytes(8, "little") for number in (rows, *parts))
    raw = np.frombuffer(derive(NS_QUERY, key, *named, length=-(-rows // 8)), np.uint8)
    bits = np.unpackbits(raw, count=rows, bitorder="little")
    return 1.0 - 2.0 * bits.astype(np.float64)


def _unit(column: Float64, before: Float64) -> Float64 | None:
    """`column` (n,) without its parts along `before` (n, j), of length 1; None when rounding is all that is left."""
    square = _dot(column, column)
    rest = column
    for _ in range(2):  # once leaves parts of the order of the rounding; twice is enough (Giraud et al. 2005)
        along = product_across(before, rest[:, None])[:, 0] if before.shape[1] else ()
        for index, length in enumerate(along):
            rest = rest - length * before[:, index]
    left = _dot(rest, rest)
    return rest / math.sqrt(left) if left > square * _VANISHED else None


def _farthest(before: Float64) -> Float64:
    """The unit vector of which the least lies along `before` (n, j); of equal ones the first."""
    along = np.zeros(before.shape[0], np.float64)
    for index in range(before.shape[1]):
        along += before[:, index] * before[:, index]
    unit = np.zeros_like(along)
    unit[int(np.argmin(along))] = 1.0
    return unit


def _dot(one: Float64, other: Float64) -> float:
    return float(product(one[None, :], other[:, None])[0, 0])


def _exponent(matrix: Float32 | Float64) -> int:
    """e with |x| < 2^e for all x, the least such; 0 for zeros."""
    return math.frexp(max(float(matrix.max()), -float(matrix.min())))[1] if matrix.size else 0


def _whole(matrix: Float32 | Float64, exponent: int) -> Float64:
    """Integers of at most BITS bits: x 2^(BITS - exponent), half to even."""
    scaled = np.multiply(matrix, math.ldexp(1.0, BITS - exponent), dtype=np.float64)
    return np.rint(scaled, out=scaled)


def _limbs(right: Float32 | Float64, exponent: int) -> tuple[Float64, bool]:
    """Integers (k, b) as they are when a sum of k is short, else high and low limbs side by side, (k, 2 b)."""
    whole = _whole(right, exponent)
    if right.shape[0] <= SHORT:
        return whole, True
    high = np.floor(whole / _LIMB)
    return np.concatenate((high, whole - high * _LIMB), axis=1), False


def _joined(limbs: Float64) -> Float64:
    width = limbs.shape[1] // 2
    return limbs[:, :width] * _LIMB + limbs[:, width:]
