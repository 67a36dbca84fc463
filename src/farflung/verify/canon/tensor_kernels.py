"""Provides the operations of a canonical graph that are worth compiling: their NumPy forms, and the choice of
form.

A `KernelRegistry` of compress.kernels decides: the NumPy functions, most of which are `core.canon`'s own, say what
is computed, in which order, and are the twins of verify.canon.numba_kernels and, of products, of
verify.canon.product_kernel. Both give the same bits but for the payload of a NaN, which is nobody's
(`canonical_bytes`). Arrays are C-contiguous; none is written into. Products of matrices are nearly all of a step's
work, and so have a registry of their own: their loop alone is soon compiled, and without numba.
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
COSTS: Final = {"tree_sum": 1, "put_add": 4, "exp": 40, "log": 75, "erf": 160, "tanh": 45}
MODULE: Final = "farflung.verify.canon.numba_kernels"
KERNELS: Final = KernelRegistry(MODULE, COSTS)
# Importing llvmlite and compiling this one loop takes 0.1 s; a twin's product 0.45 ns, the loop's 0.04.
PRODUCTS: Final = KernelRegistry("farflung.verify.canon.product_kernel", {"matmul": 1}, pays=250_000_000)


def registry(name: str) -> KernelRegistry:
    """The one that decides the form of a kernel."""
    return PRODUCTS if name == "matmul" else KERNELS


def foresee(products: int) -> None:
    """So many products of two numbers are about to be added: the loop runs from the first on if that pays."""
    PRODUCTS.foresee(products)


def _products(left: Float32, right: Float32) -> int:
    return int(left.size * right.shape[2])


@PRODUCTS.compiled("matmul", work=_products)
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
