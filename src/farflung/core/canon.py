"""Canonical arithmetic: float operations whose bits are the same on every machine.

Only IEEE-754 operations that are correctly rounded everywhere (+, -, *, /, sqrt, conversions), applied
element by element by NumPy in the written order: no fused multiply-add, no re-ordered sum. `apply` is the last
step of a round (docs/architecture, law 1).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.layout import Float32

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
