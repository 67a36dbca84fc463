"""Defines canonical arithmetic: float operations whose bits are the same on every machine.

Only IEEE-754 operations that are correctly rounded everywhere (+, -, *, /, sqrt, conversions), applied
element by element by NumPy in the written order: no fused multiply-add, no re-ordered sum. The outer steps are the
last of a round (docs/concepts/roundlog, law 1). Vectors have shape (size,); none is written into.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.tensor_layout import Float32

FRACTION_BITS: Final = 24  # fixed point: one unit is 2^-24
SATURATION: Final = 1 << 30  # |value| <= 2^30 units = 64.0

Int64 = NDArray[np.int64]


def to_fixed(values: Float32) -> Int64:
    """float32 → 64-bit fixed point: times 2^24, half to even, saturated at ±2^30. Input is finite."""
    scaled = values.astype(np.float64) * float(1 << FRACTION_BITS)
    return np.clip(np.rint(scaled), -SATURATION, SATURATION).astype(np.int64)


def mean_from_fixed(total: Int64, weight: int) -> Float32:
    """Weighted sum in fixed point, and its total weight → float32 mean (one division, one rounding)."""
    mean = total.astype(np.float64) / float(weight)
    return (mean * (1.0 / (1 << FRACTION_BITS))).astype(np.float32)


def cosine(turn: float) -> float:
    """cos(π turn) for 0 ≤ turn ≤ 1, within 1e-15: libraries' own cosines differ in their last bits.

    1 - 2 sin²(π turn / 2), the sine by its Taylor series to x^21: multiplications and additions of binary64 alone.
    """
    x = math.pi * turn * 0.5
    square, term, sine = x * x, x, x
    for n in range(2, 22, 2):
        term = -term * square / float(n * (n + 1))
        sine = sine + term
    return 1.0 - 2.0 * sine * sine


def decayed(params: Float32, mask: Float32, factor: float) -> Float32:
    """params - params * mask * factor: decoupled weight decay where `mask` is 1 (0 elsewhere)."""
    left: Float32 = params - params * mask * np.float32(factor)
    return left


def apply_sign(params: Float32, mean: Float32, lr: float) -> Float32:
    """params + lr sign(mean): the outer step of DeMo (Peng et al. 2024, arXiv 2411.19870, algorithm 1)."""
    direction: Float32 = np.sign(mean)
    return params + np.float32(lr) * direction


def apply_adamw(
    params: Float32,
    first: Float32,
    second: Float32,
    mean: Float32,
    done: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> tuple[Float32, Float32, Float32]:
    """AdamW's step `done` ≥ 1 (Loshchilov & Hutter 2019, algorithm 2, without the decay) downhill along `mean`.

    Returns params and both moments. Bias corrections are powers by repeated squaring: `pow` differs between libraries.
    """
    b1, b2 = np.float32(betas[0]), np.float32(betas[1])
    first = b1 * first + (np.float32(1.0) - b1) * mean
    second = b2 * second + (np.float32(1.0) - b2) * (mean * mean)
    rate = np.float32(lr / (1.0 - power(betas[0], done)))
    scale = np.float32(math.sqrt(1.0 - power(betas[1], done)))
    root: Float32 = np.sqrt(second)
    direction: Float32 = first / (root / scale + np.float32(eps))
    return params + rate * direction, first, second


def power(base: float, exponent: int) -> float:
    """base^exponent, exponent ≥ 0, by repeated squaring: the same bits everywhere, which libraries' `pow` are not."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def apply_outer(
    params: Float32, momentum: Float32 | None, mean: Float32, lr: float, beta: float, nesterov: bool
) -> tuple[Float32, Float32 | None]:
    """One outer step on flat vectors of shape (size,): multiply, then add, in float32.

    `mean` points downhill (it is the mean of P_end - P_start). momentum None: plain averaging, P + lr * mean.
    Otherwise DiLoCo's outer optimizer (Douillard et al. 2023, algorithm 1; Nesterov as in Sutskever et al. 2013).
    """
    step = np.float32(lr)
    if momentum is None:
        return params + step * mean, None
    decay = np.float32(beta)
    moved = decay * momentum + mean
    direction = mean + decay * moved if nesterov else moved
    return params + step * direction, moved
