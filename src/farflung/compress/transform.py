"""Computes the 2-D cosine transform of chunks exactly, in integers, and decides when it pays.

The bits are the same on every machine.

A chunk of n² elements (n = 16, 32, 64) is read as an n x n block, as DeMo does (arXiv 2411.19870); with the
orthonormal DCT-II matrix C (Ahmed, Natarajan & Rao 1974),
    C[k, j] = a_k cos(pi k (2j + 1) / 2n),  a_0 = √(1/n), else a_k = √(2/n)
    forward   Z = C (X Cᵀ)          inverse   X = Cᵀ (Z C)          rows first: the order is part of the format

Why it is exact. C is stored as integers B = C 2^25, rounded. Before each of the two multiplications the block is scaled
by its own power of two and rounded half to even to integers |x| ≤ 2^24. A row or column of B has Σ|B| ≤ √n 2^25 ≤ 2^28
(Cauchy-Schwarz; a test adds them up), so every partial sum of every order is an integer of at most 2^52, which
float64 holds. Hence a float64 matrix product gives the one right result whatever the library, its blocking, its
threads or fused multiply-add. Scaling by powers of two is exact; rounding is element by element. At the end there is
one rounding to float32.

Errors, with ‖·‖ the Frobenius norm of a block: rounding to 24 bits moves an element by at most 2^-24 of the largest,
so the block by n 2^-24 ‖X‖; B is off by at most half a unit, so ‖B 2^-25 - C‖ ≤ n 2^-26. Both passes and the last
rounding together stay below n 2^-22: ‖forward(X) - C X Cᵀ‖ ≤ n 2^-22 ‖X‖, the same for `inverse`, and
‖inverse(forward(X)) - X‖ ≤ n 2^-21 ‖X‖. That is the worst case; Gaussian blocks show 2 10^-7 and 3 10^-7 of ‖X‖.

No denormal takes part: a block whose largest |x| is below 2^-96 counts as zero, and so does a result below 2^-126.
What is larger than float32's largest number becomes that.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.errors import SpecError
from farflung.core.tensor_layout import Float32

SIDES: Final = {256: 16, 1024: 32, 4096: 64}

_BASIS_BITS: Final = 25
_VALUE_BITS: Final = 24
_LEAST: Final = 2.0**-96
_BATCH: Final = 64  # blocks at a time: temporaries stay in the cache

Float64 = NDArray[np.float64]


def check_chunk(chunk: int) -> None:
    """Raises SpecError FF-COMP-032 when chunks of this size cannot be transformed."""
    if chunk not in SIDES:
        raise SpecError(
            "FF-COMP-032",
            f"chunks of {chunk} elements cannot be transformed",
            cause=f"a block is a square of {', '.join(map(str, SIDES.values()))} a side",
            hint="write sync.chunk = 4096, or sync.transform = 'raw'",
        )


def forward(values: Float32, chunk: int) -> Float32:
    """Coefficients of finite values, shape (size,) to (size,): each full chunk by itself; a short last one as it is.

    Raises SpecError FF-COMP-032.
    """
    check_chunk(chunk)
    return _chunks(values, chunk, basis(SIDES[chunk]))


def inverse(coefficients: Float32, chunk: int) -> Float32:
    """The values of finite coefficients, shape (size,) to (size,). Raises SpecError FF-COMP-032."""
    check_chunk(chunk)
    return _chunks(coefficients, chunk, np.ascontiguousarray(basis(SIDES[chunk]).T))


@functools.cache
def basis(side: int) -> Float64:
    """B = rint(C 2^25), shape (side, side), integers: computed in integers alone, to 128 bits. side ≥ 2 divides 64."""
    one = 1 << 128
    cosine = 0  # of 90 degrees; halved to 90 / side by cos(x/2) = √((1 + cos x) / 2)
    for _ in range(side.bit_length() - 1):
        cosine = math.isqrt((one + cosine) * one // 2)
    steps = [one, cosine]  # cos(m 90 / side) by Chebyshev's recurrence
    while len(steps) <= 4 * side:
        steps.append((2 * cosine * steps[-1] >> 128) - steps[-2])
    first, other = math.isqrt(one * one // side), math.isqrt(2 * one * one // side)
    rows = [
        [(first if row == 0 else other) * steps[row * (2 * column + 1) % (4 * side)] for column in range(side)]
        for row in range(side)
    ]
    half, shift = 1 << (255 - _BASIS_BITS), 256 - _BASIS_BITS
    table = np.array([[(entry + half) >> shift for entry in row] for row in rows], np.float64)
    table.setflags(write=False)
    return table


def _chunks(values: Float32, chunk: int, left: Float64) -> Float32:
    """left X leftᵀ of each full chunk."""
    side = len(left)
    result = values.copy()
    full = values.size // chunk
    blocks = result[: full * chunk].reshape(full, side, side)
    for start in range(0, full, _BATCH):
        batch = blocks[start : start + _BATCH]
        batch[...] = _product(batch, left)
    return result


def _product(blocks: Float32, left: Float64) -> Float32:
    """left X leftᵀ of blocks of shape (count, side, side), rounded once to float32."""
    side = len(left)
    scaled, exponents = _to_integers(blocks)
    half = (scaled.reshape(-1, side) @ left.T).reshape(scaled.shape)
    scaled, more = _to_integers(half)
    exponents = exponents + more - 2 * _BASIS_BITS
    return _to_float32(np.matmul(left, scaled), exponents)


def _to_integers(blocks: Float32 | Float64) -> tuple[Float64, NDArray[np.int32]]:
    """Each block as integers |x| ≤ 2^24, half to even, in units of 2^exponent; blocks below 2^-96 are zero."""
    largest = np.maximum(blocks.max(axis=(1, 2)), -blocks.min(axis=(1, 2))).astype(np.float64)
    exponents = np.frexp(largest)[1] - _VALUE_BITS
    factors = np.where(largest < _LEAST, 0.0, np.ldexp(1.0, -exponents))
    scaled = np.multiply(blocks, factors[:, None, None], dtype=np.float64)
    return np.rint(scaled, out=scaled), exponents


def _to_float32(integers: Float64, exponents: NDArray[np.int32]) -> Float32:
    """integers 2^exponent, rounded half to even, without denormals and infinities."""
    results = integers * np.ldexp(1.0, exponents)[:, None, None]
    if exponents.size and int(exponents.min()) < -126:
        results[np.abs(results) < 2.0**-126] = 0.0
    limit = float(np.finfo(np.float32).max)
    if exponents.size and int(exponents.max()) > 127 - 52:
        np.clip(results, -limit, limit, out=results)
    return results.astype(np.float32)


def choose(raw: Float32, transformed: Float32) -> bool:
    """Whether the values that a slab would send after the transform hold more energy than those it would send raw.

    Both have shape (count,), count ≤ 2^20: equally many, so equal bits. Exact: integers of at most 20 bits in one
    unit for both, squares summed in 64 bits. A tie is raw.
    """
    largest = max(float(np.abs(kept).max(initial=0.0)) for kept in (raw, transformed))
    unit = math.ldexp(1.0, 20 - max(math.frexp(largest)[1], -100))
    energies = []
    for kept in (raw, transformed):
        integers = np.rint(kept.astype(np.float64) * unit).astype(np.int64)
        energies.append(int((integers * integers).sum()))
    return energies[1] > energies[0]
