"""Provides the operations of a canonical graph that are worth compiling: their NumPy forms, and the choice of
form.

A `KernelRegistry` of compress.kernels decides: the NumPy functions, most of which are `core.canon`'s own, say what
is computed, in which order, and are the twins of verify.canon.numba_kernels. Both give the same bits but for the
payload of a NaN, which is nobody's (`canonical_bytes`). Arrays are C-contiguous; none is written into.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.compress.kernels import KernelRegistry
from farflung.core.canon import array_operations, math_functions
from farflung.core.tensor_layout import Float32

# Nanoseconds of a twin for each element of its work, as measured on one busy machine: their order is what matters.
COSTS: Final = {"matmul": 1, "tree_sum": 1, "put_add": 4, "exp": 40, "log": 75, "erf": 160, "tanh": 45}
KERNELS: Final = KernelRegistry("farflung.verify.canon.numba_kernels", COSTS)


def _products(left: Float32, right: Float32) -> int:
    return int(left.size * right.shape[2])


@KERNELS.compiled("matmul", work=_products)
def matmul(left: Float32, right: Float32) -> Float32:
    """[B, M, K] times [B, K, N]: from +0.0, products are added with k ascending, each product and each sum rounded."""
    batches, rows, inner = left.shape
    out = np.zeros((batches, rows, right.shape[2]), np.float32)
    product = np.empty_like(out)
    for k in range(inner):
        np.multiply(left[:, :, k, None], right[:, k, None, :], out=product)
        np.add(out, product, out=out)
    return out


@KERNELS.compiled("put_add")
def put_add(rows: Float32, index: NDArray[np.int64], height: int) -> Float32:
    """[n, D] → [height, D]: row after row is added, n ascending, to row `index[n]` of zeros; left out if there is none.

    A loop: NumPy does not say in which order `add.at` adds.
    """
    out = np.zeros((height, rows.shape[1]), np.float32)
    for n in np.flatnonzero((index >= 0) & (index < height)):
        out[index[n]] += rows[n]
    return out


tree_sum = KERNELS.compiled("tree_sum")(array_operations.tree_sum)  # [R, n] → [R]

FUNCTIONS: Final[dict[str, Callable[[Float32], Float32]]] = {  # [n] → [n]
    "exp": KERNELS.compiled("exp")(math_functions.exp),
    "log": KERNELS.compiled("log")(math_functions.log),
    "erf": KERNELS.compiled("erf")(math_functions.erf),
    "tanh": KERNELS.compiled("tanh")(math_functions.tanh),
}
