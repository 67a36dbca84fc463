"""Merges tensors whose changes fixed point cannot hold as they are: each is multiplied by a power of two first.

A merge (compress.merge) holds |x| < 64 in units of 2^-24. A tensor is merged as it is where no part of it reaches 64
and the lower median of the parts' largest values is 2^-14 or more. Any other one is multiplied by 2^e, and its mean
divided by it; a power of two changes no digit, so what counts is where its values then lie:

    mean                2^e brings the largest value of all parts between 16 and 32
    clip, centered      2^e brings the lower median of the parts' norms between 16 and 32

So nobody who shouts pushes the others' values below a unit. A part that would still reach 64 is first divided by
the power of two that brings its largest value between 32 and 64: its norm stays above the median, to which the clip
shrinks it anyway, and no element saturates. Peaks, norms and their median follow from the decoded parts alone: all
peers find the same e.

An element is thus rounded to 2^-24, or to 2^-28 of its tensor's median norm (2^-30 of its largest change for `mean`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from farflung.compress.codecs import is_trained, mark_nothing_sent
from farflung.compress.merge import ClippedLength, Rule, WeightedUpdate, check_parts, mean_of_tensor
from farflung.compress.norm_clip import BLOCK, sum_of_squares
from farflung.core.canon.float_operations import FRACTION_BITS, to_fixed
from farflung.core.ids import PeerId
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout

LARGEST: Final = 64.0
LEAST: Final = 2.0**-14  # of the largest value of a tensor that is merged as it is
_HELD: Final = 5  # 2^5 is above what a tensor is brought to


class RangedMean(NamedTuple):
    """The mean, shape (layout.size,), and whom the clip took a part of its contribution: what was taken away over what
    was sent, as L2 norms, above 0 and below 1.
    """

    values: Float32
    clipped: Mapping[PeerId, float]


def ranged_mean(
    layout: TensorLayout,
    parts: Sequence[WeightedUpdate],
    rule: Rule,
    out: Float32 | None = None,
    *,
    is_fine: bool = False,
) -> RangedMean:
    """The mean of the parts, of values of any size that float32 has, tensor by tensor; written to `out`.

    `is_fine`: every tensor is brought to its range, also one that could be merged as it is. Raises what `merge` raises.
    """
    check_parts(layout, parts)
    found = np.empty(layout.size, np.float32) if out is None else out
    lost = list[tuple[Mapping[PeerId, ClippedLength], list[int]]]()
    for _, place in layout.slices():
        common, *each = _exponents([part.values[place] for part in parts], rule, is_fine)
        scaled = [part._replace(values=_brought(part.values[place], at)) for part, at in zip(parts, each, strict=True)]
        lost.append((mean_of_tensor(scaled, rule, found[place]), each))
        if common:
            found[place] = times(found[place], -common)
        for values in (found, *(part.values for part in parts)):
            leave(values[place])
    return RangedMean(found, _shares(lost))


def _shares(lost: Sequence[tuple[Mapping[PeerId, ClippedLength], Sequence[int]]]) -> dict[PeerId, float]:
    """What the clip took of each part, of merges whose parts had these exponents."""
    sent, taken = dict[PeerId, float](), dict[PeerId, float]()
    for clipped, exponents in lost:
        for (peer, length), exponent in zip(clipped.items(), exponents, strict=True):
            sent[peer] = sent.get(peer, 0.0) + math.ldexp(length.sent, -2 * exponent)
            taken[peer] = taken.get(peer, 0.0) + math.ldexp(length.taken, -2 * exponent)
    return {peer: math.sqrt(much / sent[peer]) for peer, much in taken.items() if much}


def times(values: Float32, exponent: int) -> Float32:
    """values * 2^exponent, rounded to float32 where that has no such number; the array itself for 0."""
    if not exponent:
        return values
    with np.errstate(over="ignore", under="ignore"):
        scaled: Float32 = np.ldexp(values, exponent)
    return scaled


def _brought(values: Float32, exponent: int) -> Float32:
    """`times` of a part's tensor: it stays a trained one where nothing is left of it."""
    scaled = times(values, exponent)
    if scaled is not values and is_trained(values):
        mark_nothing_sent(scaled)
    return scaled


def peak(values: Float32) -> float:
    """The largest |value|; 0 of none, and of values that are not finite, which a merge refuses by name."""
    largest = max(float(values.max()), -float(values.min())) if values.size else 0.0
    leave(values)
    return largest if math.isfinite(largest) else 0.0


def is_held(peaks: Sequence[float]) -> bool:
    """Whether fixed point holds values whose largest, part by part, are `peaks`."""
    voting = sorted(each for each in peaks if each)
    return not voting or (voting[-1] < LARGEST and lower_median(voting) >= LEAST)


def lower_median(ascending: Sequence[float]) -> float:
    """Of an even number the lower one of the two in the middle."""
    return ascending[(len(ascending) - 1) // 2]


def bringing(largest: float) -> int:
    """e so that 2^e brings `largest` between 16 and 32."""
    return _HELD - math.frexp(largest)[1]


def _exponents(rows: Sequence[Float32], rule: Rule, is_fine: bool) -> list[int]:
    """Of one tensor e, then the exponent of each part's values."""
    peaks = [peak(row) for row in rows]
    if not any(peaks) or (not is_fine and is_held(peaks)):
        return [0] * (len(rows) + 1)
    if rule == "mean":
        return [bringing(max(peaks))] * (len(rows) + 1)
    own = [bringing(each) if each else 0 for each in peaks]
    squares = [(_square(row, at), at) for row, at, each in zip(rows, own, peaks, strict=True) if each]
    finest = max(at for _, at in squares)
    square = sorted(each << 2 * (finest - at) for each, at in squares)[(len(squares) - 1) // 2]
    bits = square.bit_length() - 2 * (FRACTION_BITS + finest)  # the median norm is below 2^(bits / 2)
    common = _HELD - -(-bits // 2)
    return [common, *(min(common, at + 1) if each else common for at, each in zip(own, peaks, strict=True))]


def _square(values: Float32, exponent: int) -> int:
    """Σ x² of values * 2^exponent in fixed point."""
    blocks = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    return sum(sum_of_squares(to_fixed(times(block, exponent))) for block in blocks)
