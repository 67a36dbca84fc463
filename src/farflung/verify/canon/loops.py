"""Compiled twins of verify.canon.kernels: importing this module imports numba.

Every float operation is rounded by itself and in the twin's order, whatever the processor: LLVM may use its vectors
only across columns, where no result depends on another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.compiling import keep, loop

_PANEL = (
    64  # rows of the right matrix that are gone through together, so that they stay in the processor's cache
)
_ZERO = np.float32(0.0)


@loop
def matmul(left, right):
    """Twin of kernels.matmul. Four products are added in one pass over a row: the same sums, less to load and store."""
    batches, rows, inner = left.shape
    columns = right.shape[2]
    out = np.zeros((batches, rows, columns), np.float32)
    for batch in range(batches):
        for first in range(0, inner, _PANEL):
            stop = min(first + _PANEL, inner)
            fours = first + (stop - first) // 4 * 4
            for row in range(rows):
                line, factors = out[batch, row], left[batch, row]
                for k in range(first, fours, 4):
                    a, b, c, d = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
                    r, s, t, u = (
                        right[batch, k],
                        right[batch, k + 1],
                        right[batch, k + 2],
                        right[batch, k + 3],
                    )
                    for j in range(columns):
                        line[j] = (((line[j] + a * r[j]) + b * s[j]) + c * t[j]) + d * u[j]
                for k in range(fours, stop):
                    a, r = factors[k], right[batch, k]
                    for j in range(columns):
                        line[j] = line[j] + a * r[j]
    return out


@loop
def tree_sum(values):
    """Twin of kernels.tree_sum, a row at a time."""
    rows, count = values.shape
    width = 1
    while width < count:
        width *= 2
    out, line = np.empty(rows, np.float32), np.empty(width, np.float32)
    for row in range(rows):
        line[:count] = values[row]
        line[count:] = _ZERO
        half = width // 2
        while half:
            lower, upper = line[:half], line[half : 2 * half]
            for j in range(half):
                lower[j] = lower[j] + upper[j]
            half //= 2
        out[row] = line[0]
    return out


@loop
def put_add(rows, index, height):
    """Twin of kernels.put_add."""
    out = np.zeros((height, rows.shape[1]), np.float32)
    for n in range(index.size):
        if 0 <= index[n] < height:
            line, more = out[index[n]], rows[n]
            for j in range(line.size):
                line[j] = line[j] + more[j]
    return out


LOOPS: dict[str, Callable[..., Any]] = {"matmul": matmul, "tree_sum": tree_sum, "put_add": put_add}


def load(cache: str) -> dict[str, Any]:
    """The loops, one of them compiled and run; raises whatever numba raises where it does not work."""
    keep(LOOPS, cache)
    if LOOPS["tree_sum"](np.ones((1, 3), np.float32))[0] != np.float32(3.0):
        raise RuntimeError("the compiler is broken")
    return dict(LOOPS)
