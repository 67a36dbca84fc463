"""Draws the random numbers of a simulated network: counted, not consumed, and in whole numbers.

A seed gives the same network on every machine, compiled or not, and one node's draws never depend on another's.

    words     Philox2x32-10 (Salmon, Moraes, Dror, Shaw 2011, section 4.3): key and counter in, 64 random bits out
    waited    -ln(u) x mean by a table of logarithms, correctly rounded and joined by straight lines: at most 5e-7 too
              long; u has 32 bits, so no wait is longer than 22.9 means
    normal    the sum of twelve uniform numbers (Irwin-Hall): mean 0, variance 1, nothing beyond six
    spread    median x e^(sigma z), log-normal

Nothing on the way reaches 2^63: to numba whole numbers are int64, and it lets LLVM suppose that no product of them
overflows, so one that does is not wrapped but anything.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORD: Final = 0xFFFF_FFFF
ODDS: Final = 1 << 32  # a chance is so many of them
SIGMA: Final = 1 << 16  # one standard deviation, and one of what `normal` gives
NEVER: Final = 1 << 62  # ms

_HIGH: Final = 0xD256  # the multiplier, 0xD256D193, in two halves
_LOW: Final = 0xD193
_WEYL: Final = 0x9E37_79B9
_ROUNDS: Final = 10
_PIECES: Final = 9  # bits that choose a piece of a table
_REST: Final = 32 - _PIECES
_MEAN: Final = 12 * ((1 << 16) - 1) // 2  # of twelve numbers of 16 bits


def _tables() -> tuple[int, int, NDArray[np.int64], NDArray[np.int64]]:
    """ln 2, 1 / ln 2 and ln(1 + i / 512) in units of 2^-32, 2^(i / 512) in 2^-16: by correctly rounded decimals."""
    pieces, one = 1 << _PIECES, Decimal(1 << 32)
    with localcontext() as exact:
        exact.prec = 40
        two = Decimal(2).ln()
        logs = [round((1 + Decimal(i) / pieces).ln() * one) for i in range(pieces + 1)]
        powers = [round((two * i / pieces).exp() * SIGMA) for i in range(pieces + 1)]
        return round(two * one), round(one / two), np.array(logs, np.int64), np.array(powers, np.int64)


_LN2, _PER_LN2, _LOGS, _POWERS = _tables()


def words(key: int, node: int, place: int) -> tuple[int, int]:
    """Two words of 32 random bits, from three of them."""
    left, right = node, place
    for _ in range(_ROUNDS):
        low = _LOW * left
        middle = _HIGH * left + (low >> 16)  # of the product of 64 bits all but its lowest 16
        left, right = (middle >> 16) ^ key ^ right, (middle & 0xFFFF) << 16 | low & 0xFFFF
        key = key + _WEYL & WORD
    return left, right


def waited(word: int, mean: int) -> int:
    """An exponential wait from one word; `mean` at most 2^40."""
    odd, top = 2 * word + 1, 0  # u = odd / 2^33
    for step in (32, 16, 8, 4, 2, 1):
        if odd >> top + step:
            top += step
    rest = (odd << 32 - top) & WORD
    piece, rest = rest >> _REST, rest & (1 << _REST) - 1
    low = int(_LOGS[piece])
    means = (33 - top) * _LN2 - low - ((int(_LOGS[piece + 1]) - low) * rest >> _REST)
    return ((means >> 16) * mean >> 16) + ((means & SIGMA - 1) * mean >> 32)


def normal(key: int, node: int, place: int) -> int:
    """A standard normal number in units of 1 / SIGMA, from three places."""
    total = -_MEAN
    for more in range(3):
        left, right = words(key, node, place + more)
        total += (left >> 16) + (left & SIGMA - 1) + (right >> 16) + (right & SIGMA - 1)
    return total


def spread(median: int, sigma: int, z: int) -> int:
    """The log-normal number that lies `z` standard deviations from `median` (below 2^40); sigma at most 2 x SIGMA."""
    halvings = (sigma * z >> 16) * _PER_LN2 >> 32  # x / ln 2 in units of 1 / SIGMA
    whole, part = halvings >> 16, halvings & SIGMA - 1
    piece, rest = part >> 16 - _PIECES, part & (1 << 16 - _PIECES) - 1
    low = int(_POWERS[piece])
    factor = low + ((int(_POWERS[piece + 1]) - low) * rest >> 16 - _PIECES)
    scaled = median * factor >> 16
    return scaled << whole if whole >= 0 else scaled >> -whole
