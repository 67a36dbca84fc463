"""Computes exp, log, erf and tanh of float32 arrays with the same bits on every machine.

The platforms' own libraries differ in the last bits.

All are computed in binary64 by + - * /, comparisons and exact powers of two, element by element in the written order
(Horner's scheme, a multiplication and an addition per term, never fused), and rounded to float32 once, at the end.
Before that rounding they are within 2^-45 of the true value, relatively (erf beyond 1: 2^-42), so the float32 is the
nearest one but for arguments whose true value lies that close to the middle between two. The series are Taylor's;
docs/protocol/canon.md writes them out with their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from farflung.core.tensor_layout import Float32

Float64 = NDArray[np.float64]

LOG2_E: Final = float.fromhex("0x1.71547652b82fep+0")
LN2_HIGH: Final = float.fromhex("0x1.62e42fefa2000p-1")  # 40 bits: a product with any exponent is exact
LN2_LOW: Final = float.fromhex("0x1.9ef35793c7673p-41")  # the rest of ln 2
TWO_OVER_ROOT_PI: Final = float.fromhex("0x1.20dd750429b6dp+0")
ROOT_2: Final = float.fromhex("0x1.6a09e667f3bcdp+0")
TO_WHOLE: Final = 1.5 * 2.0**52  # added and taken away again, it rounds half to even to a whole number

# Coefficients from the constant term up; each is the quotient rounded once.
EXP: Final = tuple(1.0 / math.factorial(n + 1) for n in range(13))  # (e^r - 1) / r
LOG: Final = tuple(1.0 / (2 * n + 1) for n in range(11))  # artanh(s) / s, of s²
ERF_NEAR: Final = tuple(  # erf(a) √π / 2a, of a², for a < 1
    (-1.0) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(16)
)
# erf about c = 1.25, 1.75 .. 3.75, for 1 ≤ a < 4, 14 each: erf(c), then 2/√π e^(-c²) (-1)^n H_n(c) / (n + 1)! with H_n
# Hermite's polynomials.
_ERF_FAR = """
    0x1.d8865d98abe01p-1 0x1.e4652fadcb6b2p-3 -0x1.2ebf3dcc9f22fp-2 0x1.571d01c5c56bep-3
    -0x1.93a9a7bb7ed94p-8 -0x1.8281ce0b34fa4p-5 0x1.5d0003af70568p-6 0x1.db43c97264485p-9
    -0x1.75672cebadac5p-8 0x1.cc22555d6cd4ep-11 0x1.a0074f860d925p-11 -0x1.53b177f074426p-12
    -0x1.ba66102895704p-15 0x1.d4520093cdd9ep-15
    0x1.f92d077f8d56dp-1 0x1.b055303221015p-5 -0x1.7a4a8a2bdce13p-4 0x1.7148c3d57c312p-4
    -0x1.8a0da54306154p-5 0x1.b22257dd01249p-8 0x1.25b378c92a6c0p-7 -0x1.8d10fb6b8006fp-8
    0x1.7ec1d1d8d3387p-11 0x1.d4cf0ad2e6ca3p-11 -0x1.d041eea2258aep-12 -0x1.6d70cffe71229p-18
    0x1.2007a6d7935c6p-14 -0x1.294d49e1a631dp-16
    0x1.ff404760319b4p-1 0x1.d4143a9dfe965p-8 -0x1.074b60f8df349p-6 0x1.63ef61e824425p-6
    -0x1.38a98327890e6p-6 0x1.5d3b17bbe0f22p-7 -0x1.7cae0d45b1a6ap-9 -0x1.5f8313b6fdd59p-11
    0x1.0602e33b9ef4ap-10 -0x1.8352cd05696b8p-12 -0x1.80c1330a27b22p-17 0x1.11321ce0dc8f3p-14
    -0x1.7ca5429a38511p-16 -0x1.65937983af9a4p-20
    0x1.fff2cfb0453d9p-1 0x1.3360ccd23db3ap-11 -0x1.a6a519a114d70p-10 0x1.69cf466ccdf62p-9
    -0x1.ab0c273ac263ep-9 0x1.6935960664d74p-9 -0x1.b2755bfd73556p-10 0x1.52b6263f0c0e7p-11
    -0x1.7557726380065p-14 -0x1.2abb3cb37d67fp-14 0x1.cd592454e7d28p-15 -0x1.09d09f8254931p-16
    -0x1.1f87c15445595p-20 0x1.68b7ad440ba03p-19
    0x1.ffff6f9f67e55p-1 0x1.e9b5e8d00ce77p-16 -0x1.8de3cd290a7c0p-14 0x1.9aa489e3cad21p-13
    -0x1.2c7d5ef053eb0p-12 0x1.490a4d230eab9p-12 -0x1.145464ea2872bp-12 0x1.647f721c135ebp-13
    -0x1.567479c97cce7p-14 0x1.b2c3201a66dd9p-16 -0x1.38933c0f0c9fap-19 -0x1.8070948011d1bp-19
    0x1.ff3236f426a50p-20 -0x1.26552b63b3912p-21
    0x1.fffffc2f171e3p-1 0x1.d9371e2ff7c35p-21 -0x1.bba3ac4cf8472p-19 0x1.0b6a7b0f1b586p-17
    -0x1.d06f586093ea7p-17 0x1.3436bc9fc46f6p-16 -0x1.4357b5546e9f3p-16 0x1.110de49c0acd0p-16
    -0x1.7566beee1bb2fp-17 0x1.99f5c54c5ea75p-18 -0x1.5d6903bb02d10p-19 0x1.a0431133a7b2dp-21
    -0x1.833324e429526p-24 -0x1.ec7d23a1cdfffp-25
"""
_BLOCK: Final = 1 << 13  # numbers at a time: what is computed of them stays in the cache
ERF_FAR: Final[Float64] = np.array([float.fromhex(each) for each in _ERF_FAR.split()]).reshape(6, 14)


def _once(compute: Callable[[Float64], Float64], x: Float32) -> Float32:
    """`compute` in binary64 of all that is a number, rounded once; of NaN, NaN. Any shape."""
    flat, out = x.reshape(-1), np.empty(x.size, np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, x.size, _BLOCK):
            some = flat[start : start + _BLOCK]
            is_nan = some != some
            wide = np.where(is_nan, np.float32(0.0), some).astype(np.float64)
            out[start : start + _BLOCK] = np.where(is_nan, math.nan, compute(wide))
    return out.reshape(x.shape)


def _polynomial(coefficients: tuple[float, ...], x: Float64) -> Float64:
    """Horner's scheme from the last coefficient down."""
    made: Float64 = np.full_like(x, coefficients[-1])
    for each in coefficients[-2::-1]:
        made *= x
        made += each
    return made


def _reduced(y: Float64) -> tuple[Float64, Float64]:
    """|y| < 700 → 2^k and e^r - 1, where y = k ln 2 + r with |r| ≤ 0.35."""
    k = (y * LOG2_E + TO_WHOLE) - TO_WHOLE
    r = (y - k * LN2_HIGH) - k * LN2_LOW
    power = np.asarray((k.astype(np.int64) + 1023) << 52).view(np.float64)
    return power, r * _polynomial(EXP, r)


def _exp(x: Float64) -> Float64:
    x = np.where(x > 90.0, 90.0, np.where(x < -110.0, -110.0, x))  # beyond, float32 has infinity and zero alone
    power, grown = _reduced(x)
    return (1.0 + grown) * power


def _log(x: Float64) -> Float64:
    is_plain = (x > 0.0) & (x < math.inf)
    bits = np.where(is_plain, x, 1.0).view(np.int64)
    exponent = (bits >> 52) - 1023
    m = np.asarray((bits & ((1 << 52) - 1)) | (1023 << 52)).view(np.float64)
    is_high = m > ROOT_2
    m, e = np.where(is_high, m * 0.5, m), np.where(is_high, exponent + 1, exponent).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    made = e * LN2_HIGH + (2.0 * s * _polynomial(LOG, s * s) + e * LN2_LOW)
    rest = np.where(x == 0.0, -math.inf, np.where(x < 0.0, math.nan, math.inf))
    return np.where(is_plain, made, rest)


def _erf(x: Float64) -> Float64:
    a = np.abs(x)
    a = np.where(a > 4.0, 4.0, a)
    near = TWO_OVER_ROOT_PI * a * _polynomial(ERF_NEAR, a * a)
    row = np.where(a < 1.0, 0.0, np.where(a < 4.0, (a - 1.0) * 2.0, 5.0)).astype(np.int64)
    h = a - (row.astype(np.float64) * 0.5 + 1.25)
    far: Any = ERF_FAR[row, 13]
    for n in range(12, -1, -1):
        far = far * h + ERF_FAR[row, n]
    made = np.where(a < 1.0, near, np.where(a < 4.0, far, 1.0))
    return _signed(made, x)


def _tanh(x: Float64) -> Float64:
    a = np.abs(x)
    power, grown = _reduced(2.0 * np.where(a > 20.0, 20.0, a))
    t = grown * power + (power - 1.0)  # e^2a - 1
    return _signed(t / (t + 2.0), x)


def _signed(made: Float64, x: Float64) -> Float64:
    """An odd function's value for |x| → that for x; a zero is x itself."""
    return np.where(x > 0.0, made, np.where(x < 0.0, -made, x))


def exp(x: Float32) -> Float32:
    """e^x, any shape."""
    return _once(_exp, x)


def log(x: Float32) -> Float32:
    """ln x, any shape: -infinity of both zeros, NaN below them."""
    return _once(_log, x)


def erf(x: Float32) -> Float32:
    """The error function, 2/√π ∫₀ˣ e^(-t²) dt, any shape."""
    return _once(_erf, x)


def tanh(x: Float32) -> Float32:
    """(e^2x - 1) / (e^2x + 1), any shape."""
    return _once(_tanh, x)
