"""The operations of a canonical graph that are worth compiling: their NumPy forms, and which form runs.

A `Shelf` of compress/kernels decides: the NumPy functions below say what is computed, in which order, and are the twins
of verify.canon.loops. Both give the same bits but for the payload of a NaN, which is nobody's (`canonical_bytes`).
Arrays are C-contiguous; none is written into.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.compress.kernels import Shelf

Float32 = NDArray[np.float32]

COSTS: Final = {
    "matmul": 1,
    "tree_sum": 2,
    "put_add": 2,
}  # nanoseconds of a twin for each of its elements of work
SHELF: Final = Shelf("farflung.verify.canon.loops", COSTS)


def _products(left: Float32, right: Float32) -> int:
    return int(left.size * right.shape[2])


@SHELF.compiled("matmul", work=_products)
def matmul(left: Float32, right: Float32) -> Float32:
    """[B, M, K] times [B, K, N]: from +0.0, products are added with k ascending, each product and each sum rounded."""
    batches, rows, inner = left.shape
    out = np.zeros((batches, rows, right.shape[2]), np.float32)
    product = np.empty_like(out)
    for k in range(inner):
        np.multiply(left[:, :, k, None], right[:, k, None, :], out=product)
        np.add(out, product, out=out)
    return out


@SHELF.compiled("tree_sum")
def tree_sum(values: Float32) -> Float32:
    """[R, n] → [R]: rows are padded with +0.0 to a power of two, then their halves are added until one is left."""
    rows, count = values.shape
    half = 1 << (count - 1).bit_length()
    padded = np.zeros((rows, half), np.float32)
    padded[:, :count] = values
    while half > 1:
        half //= 2
        padded = padded[:, :half] + padded[:, half:]
    return padded[:, 0]


@SHELF.compiled("put_add")
def put_add(rows: Float32, index: NDArray[np.int64], height: int) -> Float32:
    """[n, D] → [height, D]: row after row is added, n ascending, to row `index[n]` of zeros; left out if there is none.

    A loop: NumPy does not say in which order `add.at` adds.
    """
    out = np.zeros((height, rows.shape[1]), np.float32)
    for n in np.flatnonzero((index >= 0) & (index < height)):
        out[index[n]] += rows[n]
    return out
