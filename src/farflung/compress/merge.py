"""Merges contributions: a weighted sum in 64-bit fixed point, each clipped to the median norm by default.

Exact (docs/concepts/roundlog, law 1): integers commute, so the bits are the same whatever the order of arrival,
library or machine. One unit is 2^-24; values saturate at 2^30 units; N * weight * range stays below 2^62. Changes of
other sizes are brought there first, tensor by tensor (compress.tensor_range).

Clip, for each tensor t by itself (as SparseLoCo's validators do, arXiv 2508.15706):
    s_i  = Σ x²           exact, of peer i's fixed-point values
    m    = lower median of all s_i > 0
    f_i  = floor(2^30 √(m / s_i))   if s_i > m, else no scaling
    y_i  = x_i f_i / 2^30           half to even
so nobody is scaled up, and one peer among N ≥ 3 has no more weight than an honest one's norm gives it (up to half a
unit an element from the rounding). With an honest majority the median is at most the largest honest norm.

Who took part. A peer whose values of a tensor are all zero did not train it: it has no vote in that tensor's median and
centre, and the mean divides by the weight of the others alone. A sparse payload says which tensors were trained, and of
a small one it may have sent nothing: its values are then the zero with a sign (`compress.codecs.NOTHING_SENT`), without
a vote, and weigh in the mean. So it is with the result: where nobody took part it is zero, and where the sum of those
who did is zero, that zero has a sign.

The rules: `clip` is this; `centered` goes on from it around the centre that it found (compress.centered_clip); `mean`
is the plain sum, for peers that trust each other (the library's groups; never a job). No rule stops a third of the
peers that send the same bad direction at an honest size: that is for audits and exclusion
(docs/concepts/robust-merge).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.compress import centered_clip
from farflung.compress.codecs import is_trained, mark_nothing_sent
from farflung.compress.kernels import compiled
from farflung.compress.norm_clip import BLOCK as _BLOCK
from farflung.compress.norm_clip import EXACT as _EXACT
from farflung.compress.norm_clip import FACTOR_BITS, Float64, block_square, factor, scaled
from farflung.core import limits
from farflung.core.canon.float_operations import FRACTION_BITS, SATURATION, Int64, mean_from_fixed
from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId, short
from farflung.core.mapped_pages import leave
from farflung.core.tensor_layout import Float32, TensorLayout

STRETCH: Final = 32 * _BLOCK  # elements whose sum is held at once
_HALF: Final = 36  # bits of the lower part of Σ x²; the upper one of limits.ELEMENTS values takes 60

assert limits.PEERS * limits.WEIGHT * SATURATION < 1 << 62  # law 1

Rule = Literal["mean", "clip", "centered"]


class WeightedUpdate(NamedTuple):
    """One accepted contribution: `values` is what its payload decodes to, shape (layout.size,)."""

    peer: PeerId
    weight: int
    values: Float32


class TensorWeight(NamedTuple):
    """Σ weight of the parts that took part in the tensor at `place`; 0: none."""

    place: slice
    weight: int


class ClippedLength(NamedTuple):
    """Of one part Σ s and Σ (√s - √m)² over the tensors of which it sent more than the median norm √m, in units of
    2^-48: how long it was, and how much of it the clip around zero took away. Told to people; nothing follows from it.
    """

    sent: float
    taken: float


class WeightedSum(NamedTuple):
    """Σ weight * value in units of 2^-24, shape (layout.size,), what to divide it by, tensor by tensor, and what each
    part lost to the clip.
    """

    total: Int64
    weights: tuple[TensorWeight, ...]
    clipped: Mapping[PeerId, ClippedLength]


def merge(layout: TensorLayout, parts: Sequence[WeightedUpdate], rule: Rule = "clip") -> WeightedSum:
    """The weighted sum of `parts`, in any order. A fragment (some of a model's tensors) is a layout of its own.

    Beside the result it needs memory for one block at a time, however many parts there are.
    Raises VerificationError: FF-COMP-040 no part, or more than limits.PEERS; 041 a peer twice; 042 a weight out of
    range; 043 values of another shape; 044 values that are not finite.
    """
    check_parts(layout, parts)
    total = np.empty(layout.size, np.int64)
    weights: list[TensorWeight] = []
    clipped = {part.peer: ClippedLength(0.0, 0.0) for part in parts}
    for _, place in layout.slices():
        tensor = _TensorMerge.of(parts, place, rule)
        weights.append(TensorWeight(place, tensor.weight))
        tensor.add_up(total[place], 0)
        for peer, length in tensor.clipped.items():
            before = clipped[peer]
            clipped[peer] = ClippedLength(before.sent + length.sent, before.taken + length.taken)
    return WeightedSum(total, tuple(weights), clipped)


def mean_of_tensor(parts: Sequence[WeightedUpdate], rule: Rule, out: Float32) -> dict[PeerId, ClippedLength]:
    """`mean` of `merge`, of parts that are one tensor: written to `out`, with the sum of STRETCH elements at a time
    (`centered` looks at all of them). What each part lost to the clip.
    """
    tensor = _TensorMerge.of(parts, slice(0, out.size), rule)
    step = max(1, out.size) if rule == "centered" else STRETCH
    for start in range(0, out.size, step):
        own = out[start : start + step]
        total = np.empty(own.size, np.int64)
        tensor.add_up(total, start)
        own[:] = mean_from_fixed(total, tensor.weight) if tensor.weight else 0.0
        for values in (own, *(part.values[start : start + step] for part in parts)):
            leave(values)
    if tensor.weight:
        mark_nothing_sent(out)
    nothing = {part.peer: ClippedLength(0.0, 0.0) for part in parts}
    return nothing | tensor.clipped


def mean(merged: WeightedSum) -> Float32:
    """The weighted mean of those who took part, float32, shape (layout.size,); zero where nobody did."""
    result = np.zeros(merged.total.size, np.float32)
    for place, weight in merged.weights:
        if weight:
            result[place] = mean_from_fixed(merged.total[place], weight)
            mark_nothing_sent(result[place])
    return result


class _TensorUpdate(NamedTuple):
    """One part's values of one tensor; Σ x², and the largest |x| of each block, of them in fixed point."""

    weight: int
    values: Float32
    square: int
    peaks: Int64

    @classmethod
    def of(cls, part: WeightedUpdate, place: slice) -> _TensorUpdate:
        """The part's share of the tensor at `place`, measured."""
        values = part.values[place]
        high, low, peaks = _measured(values, _BLOCK)
        leave(values)
        return cls(part.weight, values, (int(high) << _HALF) + int(low), peaks)

    def scale(self, ceiling: int) -> int:
        """What the values are multiplied by, in units of 2^-30."""
        return factor(self.square, ceiling) if self.square > ceiling else 1 << FACTOR_BITS

    def clipped(self, ceiling: int) -> ClippedLength:
        """What the clip takes of it."""
        taken = math.sqrt(self.square) - math.sqrt(min(self.square, ceiling))
        return ClippedLength(self.square, taken**2)


class _TensorMerge(NamedTuple):
    """One tensor, measured: who has a share of it, and what none of them may exceed."""

    rule: Rule
    weight: int  # of all who took part
    shares: list[_TensorUpdate]
    ceiling: int
    clipped: dict[PeerId, ClippedLength]

    @classmethod
    def of(cls, parts: Sequence[WeightedUpdate], place: slice, rule: Rule) -> _TensorMerge:
        """The tensor that lies at `place` in the parts."""
        present = [part for part in parts if is_trained(part.values[place])]
        measured = [_TensorUpdate.of(part, place) for part in present]
        shares = [share for share in measured if share.square]
        ceiling = _ceiling(shares, rule)
        clipped = {part.peer: share.clipped(ceiling) for part, share in zip(present, measured, strict=True)}
        return cls(rule, sum(part.weight for part in present), shares, ceiling, clipped)

    def add_up(self, total: Int64, start: int) -> None:
        """Writes the weighted sum of the elements from `start` on to `total`; all of them, where the rule is
        `centered`. `start` is a multiple of a block.
        """
        _merge_elements(total, start, self.shares, self.ceiling)
        if self.rule == "centered" and self.shares:
            centered_clip.centre(total, [s.values for s in self.shares], [s.weight for s in self.shares])


@compiled("measured")
def _measured(values: Float32, width: int) -> tuple[int, int, Int64]:
    """Σ x² as an upper and a lower part, and the largest |x| of each `width` values."""
    square, peaks = 0, []
    for start in range(0, values.size, width):
        block = values[start : start + width]
        chosen = _nonzero(block)
        fixed = _fixed(block if chosen is None else block[chosen])
        peaks.append(_peak(fixed))
        square += block_square(fixed.astype(np.float64), peaks[-1])
    return square >> _HALF, square & ((1 << _HALF) - 1), np.array(peaks, np.int64)


def _ceiling(shares: Sequence[_TensorUpdate], rule: Rule) -> int:
    """The largest Σ x² that is left as it is."""
    if not shares:
        return 0
    return sorted(share.square for share in shares)[-1 if rule == "mean" else (len(shares) - 1) // 2]


def _merge_elements(total: Int64, start: int, shares: Sequence[_TensorUpdate], ceiling: int) -> None:
    """Writes the weighted sum of a tensor's elements from `start` on, clipped or not; zeros where nobody has one."""
    if not shares:
        total[:] = 0
        return
    scales = [share.scale(ceiling) for share in shares]
    for number, at in enumerate(range(start, start + total.size, _BLOCK), start // _BLOCK):
        place = slice(at - start, at - start + _BLOCK)
        room = sum(share.weight * int(share.peaks[number]) for share in shares)
        block: Float64 | Int64 = np.zeros(total[place].size)
        if room > _EXACT:  # below, every partial sum of every order is exact in float64, and faster
            block = block.astype(np.int64)
        for share, scale in zip(shares, scales, strict=True):
            _add(share.values[at : at + block.size], block, share.weight, int(share.peaks[number]), scale)
        total[place] = block


@compiled("add")
def _add(values: Float32, block: Float64 | Int64, weight: int, peak: int, scale: int) -> None:
    """Adds weight x scale / 2^30 to a block. One that is mostly zero costs little more than finding that out."""
    if not peak:
        return
    chosen = _nonzero(values)
    fixed = _fixed(values if chosen is None else values[chosen])
    clipped = _clipped(fixed, peak, scale)
    block[slice(None) if chosen is None else chosen] += np.multiply(
        clipped, weight, dtype=block.dtype, casting="unsafe"
    )


def _nonzero(values: Float32) -> NDArray[np.intp] | None:
    """Where values are not zero, if these are less than an eighth of all."""
    mask = values != 0
    return np.flatnonzero(mask) if 8 * np.count_nonzero(mask) < values.size else None


def _fixed(values: Float32) -> Float32:
    """`to_fixed` without leaving float32: a power of two changes no digit, and 2^30 is far within its range."""
    edge = np.float32(SATURATION / (1 << FRACTION_BITS))
    fixed = np.minimum(values, edge)
    np.maximum(fixed, -edge, out=fixed)
    fixed *= np.float32(1 << FRACTION_BITS)
    return np.rint(fixed, out=fixed)


def _peak(fixed: Float32) -> int:
    return max(int(fixed.max()), -int(fixed.min())) if fixed.size else 0


def _clipped(fixed: Float32, peak: int, scale: int) -> Float32 | Float64 | Int64:
    """x scale / 2^30 half to even, in float64 where it holds the products."""
    if scale == 1 << FACTOR_BITS:
        return fixed
    if peak << FACTOR_BITS > _EXACT:
        return scaled(fixed.astype(np.int64), scale)
    product = fixed.astype(np.float64)
    product *= scale * 2.0**-FACTOR_BITS
    return np.rint(product, out=product)


def check_parts(layout: TensorLayout, parts: Sequence[WeightedUpdate]) -> None:
    """Raises what `merge` raises."""
    if not 0 < len(parts) <= limits.PEERS:
        raise VerificationError("FF-COMP-040", f"cannot merge {len(parts)} contributions")
    if len({bytes(part.peer) for part in parts}) != len(parts):
        raise VerificationError("FF-COMP-041", "a peer contributes twice to one round")
    for part in parts:
        who = f"the contribution of {short(part.peer)}"
        if not 1 <= part.weight <= limits.WEIGHT:
            raise VerificationError("FF-COMP-042", f"{who} has weight {part.weight}")
        if part.values.shape != (layout.size,) or part.values.dtype != np.float32:
            raise VerificationError("FF-COMP-043", f"{who} has shape {part.values.shape}")
        for at in range(0, layout.size, _BLOCK):
            if not np.isfinite(part.values[at : at + _BLOCK]).all():
                raise VerificationError("FF-COMP-044", f"{who} is not finite")
            leave(part.values[at : at + _BLOCK])
