"""Provides compiled twins of what verify.canon.tensor_kernels computes, products aside: importing it imports numba.

Every float operation is rounded by itself and in the twin's order, whatever the processor: LLVM may use its vectors
only across columns, where no result depends on another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.numba_compile import keep, loop, part
from farflung.core.canon import math_functions

_ZERO = np.float32(0.0)
_EXP, _LOG, _ERF_NEAR = (np.array(math_functions.EXP), np.array(math_functions.LOG), np.array(math_functions.ERF_NEAR))
_ERF_FAR = math_functions.ERF_FAR
_MANTISSA, _ONE = (1 << 52) - 1, 1023 << 52  # of a binary64; the bits of 1.0


@loop
def tree_sum(values):
    """Twin of core.canon.elements.tree_sum, for rows."""
    rows, count = values.shape
    width = 1
    while width < count:
        width *= 2
    out, line = np.empty(rows, np.float32), np.empty(width, np.float32)
    for row in range(rows):
        for j in range(count):
            line[j] = values[row, j]
        for j in range(count, width):
            line[j] = _ZERO
        half = width // 2
        while half:
            for j in range(half):
                line[j] = line[j] + line[half + j]
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


@part
def _polynomial(coefficients, x):
    made = coefficients[coefficients.size - 1]
    for n in range(coefficients.size - 2, -1, -1):
        made = made * x + coefficients[n]
    return made


@part
def _power(y):
    """The exponent of functions._reduced, and 2 to it."""
    k = (y * math_functions.LOG2_E + math_functions.TO_WHOLE) - math_functions.TO_WHOLE
    return k, np.int64((np.int64(k) + 1023) << 52).view(np.float64)


@part
def _grown(y, k):
    """e^r - 1 of functions._reduced."""
    r = (y - k * math_functions.LN2_HIGH) - k * math_functions.LN2_LOW
    return r * _polynomial(_EXP, r)


@part
def _signed(made, x):
    return made if x > 0.0 else (-made if x < 0.0 else x)


@loop
def exp(values):
    """Twin of functions.exp."""
    out = np.empty(values.size, np.float32)
    for i in range(values.size):
        x = np.float64(values[i])
        y = 90.0 if x > 90.0 else (x if x >= -110.0 else -110.0)
        k, power = _power(y)
        made = (1.0 + _grown(y, k)) * power
        out[i] = np.float32(made if x == x else np.nan)
    return out


@loop
def log(values):
    """Twin of functions.log."""
    out = np.empty(values.size, np.float32)
    for i in range(values.size):
        x = np.float64(values[i])
        is_plain = x > 0.0 and x < np.inf
        plain = x if is_plain else 1.0
        bits = np.float64(plain).view(np.int64)
        m = np.int64((bits & _MANTISSA) | _ONE).view(np.float64)
        is_high = m > math_functions.ROOT_2
        m = m * 0.5 if is_high else m
        e = np.float64((bits >> 52) - 1023 + np.int64(is_high))
        s = (m - 1.0) / (m + 1.0)
        made = e * math_functions.LN2_HIGH + (2.0 * s * _polynomial(_LOG, s * s) + e * math_functions.LN2_LOW)
        rest = -np.inf if x == 0.0 else (np.inf if x > 0.0 else np.nan)
        out[i] = np.float32(made if is_plain else rest)
    return out


@loop
def erf(values):
    """Twin of functions.erf."""
    out = np.empty(values.size, np.float32)
    for i in range(values.size):
        x = np.float64(values[i])
        a = abs(x)
        if a < 1.0:
            made = math_functions.TWO_OVER_ROOT_PI * a * _polynomial(_ERF_NEAR, a * a)
        elif a < 4.0:
            row = np.int64((a - 1.0) * 2.0)
            made = _polynomial(_ERF_FAR[row], a - (np.float64(row) * 0.5 + 1.25))
        else:
            made = 1.0
        out[i] = np.float32(_signed(made, x))
    return out


@loop
def tanh(values):
    """Twin of functions.tanh."""
    out = np.empty(values.size, np.float32)
    for i in range(values.size):
        x = np.float64(values[i])
        a = abs(x)
        y = 2.0 * (a if a <= 20.0 else 20.0)
        k, power = _power(y)
        t = _grown(y, k) * power + (power - 1.0)
        out[i] = np.float32(_signed(t / (t + 2.0), x) if x == x else np.nan)
    return out


LOOPS: dict[str, Callable[..., Any]] = {
    "tree_sum": tree_sum, "put_add": put_add, "exp": exp, "log": log, "erf": erf, "tanh": tanh,
}  # fmt: skip


def load(cache: str) -> dict[str, Any]:
    """The loops, one of them compiled and run; raises what numba raises where it does not work."""
    keep(LOOPS, cache)
    one = np.ones((1, 1), np.float32)
    if LOOPS["tree_sum"](one)[0] != one[0, 0]:
        raise RuntimeError("the compiler is broken")
    return dict(LOOPS)
