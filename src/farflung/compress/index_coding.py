"""Codes which coefficients are sent, in fewer bits than their number alone needs.

Rows and columns of a matrix differ.

Supports of real changes are not uniform: a few rows and a few columns of a matrix hold most of what is large. A *piece*
(some consecutive slabs of one tensor) is read as rows of `width` elements, cut where chunks end: *segments*. Sent are,
as symbols of one rANS stream (compress.ans): how many each segment chooses, and where in it. No table is sent: both
models learn from what was sent before. They are integers throughout, and the same on every machine.

Counts. The share of a count among the segments of full length (or among the shorter ones) so far; a chunk's last
segment needs none.
Places. Column j has weight w_j = 1 + 2 (times chosen so far). In a segment with c choices left and next free place p,
let W(j) be the weight from j to the end. The first of c draws at weighted random lies at j or later with
probability (W(j) / W(p))^c, nearly, so

    F(j) = (j - p) + (2^18 - n) (1 - (W(j) / W(p))^c)        n: places that leave room for the c - 1 others

is where the share of place j starts, of 2^18. Ascending order then costs nothing (a uniform support takes log2 C(n, k)
bits but for 1 %), and where columns differ, frequent ones are cheap. Learning happens after each *group* of chunks, so
that all segments of a group can be coded side by side: counts first, then everybody's first place, everybody's second,
and so on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from farflung.compress import ans
from farflung.compress.ans import Int64, Uint16, Uint32, Uint64
from farflung.compress.bits import Bools
from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError

BITS: Final = 18
SHARE: Final = 1024  # coefficients for each lane of a stream of supports

EVEN: Final = 1 << 37  # a width beyond every tensor: no rows, and no column comes twice

_SEGMENT: Final = 4096  # elements of a segment at most: each place keeps a share of at least 1 of 2^18
_GROUP: Final = 4096  # elements of the first group of chunks at least; groups grow up to eight times that
_GROWTH: Final = (1, 1, 2, 4, 8)
_HIT: Final = 2
_HEAVIEST: Final = 4095
_SEEN: Final = 32  # weight of one segment that was seen, against the guess that all begin with
_GUESS: Final = 16  # bits
_RATIO: Final = 14  # bits of W(j) / W(p)
_LOG: Final = 24  # bits of a logarithm after its point
_POWER: Final = 30  # bits of a power


class ChunkRange(NamedTuple):
    """Some consecutive chunks of a tensor: `size` elements from `origin` on, of which each chunk sends `topk`.

    `width`: elements of a row of the tensor's matrix. At most 2^22 elements (or one slab), width < 2^36.
    """

    origin: int
    size: int
    chunk: int
    topk: int
    width: int


class _ChunkGroup(NamedTuple):
    """Segments of some chunks: all numbers are elements from the group's start on."""

    starts: Int64
    ends: Int64
    chunk: Int64  # of each segment
    is_last: Int64  # 1 for the last segment of its chunk
    is_short: Int64  # 1 for those that are shorter than a row's usual part
    columns: Int64  # of each element
    heights: Int64  # running sum of the columns' weights, one more than elements


@compiled("support_shares")
def shares(indices: Int64, origin: int, size: int, chunk: int, topk: int, width: int) -> tuple[Uint32, Uint32]:
    """The symbols of a piece's ascending indices: starts and widths of their shares of 2^18, in order."""
    chunk_range = ChunkRange(origin, size, chunk, topk, width)
    seen, weights = _guess(chunk_range), np.ones(min(width, size), np.int64)
    starts: list[Int64] = []
    freqs: list[Int64] = []
    for first, last in groups(chunk_range):
        group = _group(chunk_range, weights, first, last)
        chosen = indices[np.searchsorted(indices, first) : np.searchsorted(indices, last)] - first
        segment = np.searchsorted(group.starts, chosen, "right") - 1
        counts = np.bincount(segment, minlength=group.starts.size)
        tables = np.stack([_table(row) for row in seen])
        coded = group.is_last == 0
        kinds, numbers = group.is_short[coded], counts[coded]
        starts.append(tables[kinds, numbers])
        freqs.append(tables[kinds, numbers + 1] - starts[-1])
        before = np.cumsum(counts) - counts
        turn = np.arange(chosen.size) - before[segment]
        order = np.argsort(turn, kind="stable")
        free = np.where(turn > 0, np.concatenate([[0], chosen[:-1] + 1]), group.starts[segment])
        left = counts[segment] - turn
        places = _SegmentCursors(free, group.ends[segment], left, group.heights).some(order)
        at = chosen[order]
        is_free = places.last > places.free
        low, high = places.some(is_free).share(at[is_free])
        starts.append(low)
        freqs.append(high - low)
        _learn(seen, weights, group, counts, chosen)
    return np.concatenate(starts).astype(np.uint32), np.concatenate(freqs).astype(np.uint32)


@compiled("support_places", lambda states, words, *_: 8 * ans.SLOWER // states.size * words.size)
def places(
    states: Uint64, words: Uint16, cursor: Int64, origin: int, size: int, chunk: int, topk: int, width: int
) -> tuple[Int64, int]:
    """The inverse of `shares`, from a stream (ans.Decoder): a piece's ascending indices, and how it went.

    0: well; 1: words run out; 2: counts that no chunk has.
    """
    chunk_range = ChunkRange(origin, size, chunk, topk, width)
    seen, weights = _guess(chunk_range), np.ones(min(width, size), np.int64)
    out: list[Int64] = []
    for first, last in groups(chunk_range):
        group = _group(chunk_range, weights, first, last)
        counts = _read_counts(states, words, cursor, seen, group)
        if counts is None:
            return np.empty(0, np.int64), 1
        if not _complete(counts, group, chunk_range, last - first):
            return np.empty(0, np.int64), 2
        chosen = _read_places(states, words, cursor, group, counts)
        if chosen is None:
            return np.empty(0, np.int64), 1
        _learn(seen, weights, group, counts, chosen)
        out.append(chosen + first)
    return np.concatenate(out), 0


def lanes_of(count: int) -> int:
    """Lanes of a stream of the supports of `count` coefficients."""
    return ans.lanes_of(count, SHARE)


def broken(status: int) -> ProtocolError:
    """What `places` says with a status that is not 0."""
    if status == 1:
        return ans.broken("it ends too early")
    return ProtocolError("FF-COMP-014", "index outside its chunk", cause="a segment chooses more than it has")


def cost(freqs: Uint32) -> int:
    """Bits of symbols of these shares of 2^18, in units of 2^-24: whole numbers, the same on every machine."""
    mantissas, exponents = np.frexp(freqs.astype(np.float64))
    logs = tables()[0][(mantissas * (1 << _RATIO)).astype(np.int64)]
    return int(((BITS - exponents.astype(np.int64)) << _LOG).sum() + logs.sum())


def groups(chunk_range: ChunkRange) -> Iterator[tuple[int, int]]:
    """First and last element (exclusive) of each group of a piece: 4096 elements, then up to eight times that."""
    start, number = 0, 0
    while start < chunk_range.size:
        chunks = max(1, _GROUP // chunk_range.chunk) * _GROWTH[min(number, len(_GROWTH) - 1)]
        stop = min(chunk_range.size, start + chunks * chunk_range.chunk)
        yield start, stop
        start, number = stop, number + 1


def _group(chunk_range: ChunkRange, weights: Int64, first: int, last: int) -> _ChunkGroup:
    """Segments of the elements [first, last) and the weights of their columns."""
    size, chunk, width = last - first, chunk_range.chunk, chunk_range.width
    row = -(chunk_range.origin + first) % width
    cuts = [np.arange(0, size, chunk), np.arange(row, size, width)]
    usual = min(width, chunk)
    if usual > _SEGMENT:
        usual = _SEGMENT
        cuts += [np.arange(start, min(start + chunk, size), _SEGMENT) for start in range(0, size, chunk)]
    starts = np.unique(np.concatenate(cuts))
    ends = np.append(starts[1:], size)
    number = starts // chunk
    is_last = np.append(number[1:] != number[:-1], True).astype(np.int64)
    columns = (chunk_range.origin + first + np.arange(size)) % width
    if width > chunk_range.size:
        columns = np.arange(first, last)
    heights = np.zeros(size + 1, np.int64)
    np.cumsum(weights[columns], out=heights[1:])
    return _ChunkGroup(starts, ends, number, is_last, (ends - starts != usual).astype(np.int64), columns, heights)


class _SegmentCursors(NamedTuple):
    """For some segments: the next free place, the end, the choices left; and the group's running weights."""

    free: Int64
    end: Int64
    left: Int64
    heights: Int64

    def some(self, which: Int64 | Bools) -> _SegmentCursors:
        """Those of some segments."""
        return _SegmentCursors(self.free[which], self.end[which], self.left[which], self.heights)

    @property
    def last(self) -> Int64:
        """The last place that leaves room for the other choices."""
        return self.end - self.left

    def below(self, at: Int64) -> Int64:
        """F of the module's head, for places from the free one to the last."""
        logs, powers = tables()
        top = self.heights[self.end]
        ratio = ((top - self.heights[at]) << _RATIO) // (top - self.heights[self.free])
        power = self.left * logs[ratio]
        rest = powers[(power >> (_LOG - _RATIO)) & ((1 << _RATIO) - 1)] >> np.minimum(power >> _LOG, 63)
        places = self.last - self.free + 1
        result: Int64 = at - self.free + ((((1 << BITS) - places) * ((1 << _POWER) - rest)) >> _POWER)
        return result

    def share(self, at: Int64) -> tuple[Int64, Int64]:
        """Where the share of a place starts and ends."""
        free, end, left = (np.concatenate([x, x]) for x in (self.free, self.end, self.left))
        both = _SegmentCursors(free, end, left, self.heights)
        is_last = at == self.last
        starts = both.below(np.concatenate([at, np.where(is_last, at, at + 1)]))
        return starts[: at.size], np.where(is_last, 1 << BITS, starts[at.size :])


@functools.cache
def tables() -> tuple[Int64, Int64]:
    """-log2(i / 2^14) in units of 2^-24 for i = 0..2^14 (0: so much that every power is 0), and 2^30 2^(-i / 2^14).

    Both by whole numbers alone: a logarithm's digits by squaring (32 bits), a power from square roots.
    """
    values = np.arange(1, (1 << _RATIO) + 1, dtype=np.uint64)
    lengths = np.array([int(value).bit_length() for value in values], np.uint64)
    z = values << (np.uint64(32) - lengths)
    logs = (lengths - np.uint64(1)) << np.uint64(_LOG)
    for bit in range(_LOG - 1, -1, -1):
        z = (z * z) >> np.uint64(31)
        over = z >> np.uint64(32)
        z >>= over
        logs |= over << np.uint64(bit)
    down = np.concatenate([[64 << _LOG], (_RATIO << _LOG) - logs.astype(np.int64)])
    powers = np.full(1 << _RATIO, 1 << 32, np.uint64)
    root = 1 << 127  # 1/2, in units of 2^-128
    for bit in range(_RATIO - 1, -1, -1):
        root = math.isqrt(root << 128)
        has = (np.arange(1 << _RATIO) >> bit) & 1 > 0
        powers[has] = (powers[has] * np.uint64(root >> 96)) >> np.uint64(32)
    return down, (powers >> np.uint64(2)).astype(np.int64)


def _guess(chunk_range: ChunkRange) -> Int64:
    """What counts weigh before any was seen: a geometric law of the right mean; shape (2, counts)."""
    usual = min(chunk_range.width, chunk_range.chunk, _SEGMENT)
    weight, mean = 1 << _GUESS, chunk_range.topk * usual
    row = []
    for _ in range(min(chunk_range.topk, usual) + 1):
        row.append(1 + (weight >> (_GUESS - 6)))
        weight = weight * mean // (mean + chunk_range.chunk)
    return np.array([row, row], np.int64)


def _table(seen: Int64) -> Int64:
    """Where the share of each count starts, and 2^18."""
    sums = np.concatenate([[0], np.cumsum(seen)])
    starts: Int64 = np.arange(sums.size) + ((1 << BITS) - seen.size) * sums // sums[-1]
    return starts


def _learn(seen: Int64, weights: Int64, group: _ChunkGroup, counts: Int64, chosen: Int64) -> None:
    np.add.at(seen, (group.is_short, counts), _SEEN)
    columns, times = np.unique(group.columns[chosen], return_counts=True)
    weights[columns] = np.minimum(weights[columns] + _HIT * times, _HEAVIEST)


def _read_counts(states: Uint64, words: Uint16, cursor: Int64, seen: Int64, group: _ChunkGroup) -> Int64 | None:
    """Counts of all segments that are not the last of their chunk, 0 for those; None when words run out."""
    rows = [_table(row) for row in seen]
    counts = np.zeros(group.starts.size, np.int64)
    coded = np.flatnonzero(group.is_last == 0)
    for first in range(0, coded.size, states.size):
        which = coded[first : first + states.size]
        lanes, slots = ans.slots(states, cursor, BITS, which.size)
        is_short = group.is_short[which] > 0
        found = np.where(is_short, *(np.searchsorted(row, slots, "right") - 1 for row in (rows[1], rows[0])))
        start = np.where(is_short, rows[1][found], rows[0][found])
        share = np.where(is_short, rows[1][found + 1], rows[0][found + 1]) - start
        if not ans.advance(states, words, cursor, BITS, (lanes, slots, start, share)):
            return None
        counts[which] = found
    return counts


def _complete(counts: Int64, group: _ChunkGroup, chunk_range: ChunkRange, size: int) -> bool:
    """Gives each chunk's last segment what the others leave; False when a segment has no room for its count."""
    ends = np.flatnonzero(group.is_last)
    wanted = np.minimum(
        chunk_range.topk, np.minimum(chunk_range.chunk, size - np.arange(ends.size) * chunk_range.chunk)
    )
    counts[ends] = wanted - np.add.reduceat(counts, np.append(0, ends[:-1] + 1))
    return bool(((counts >= 0) & (counts <= group.ends - group.starts)).all())


def _read_places(states: Uint64, words: Uint16, cursor: Int64, group: _ChunkGroup, counts: Int64) -> Int64 | None:
    """Ascending places of all segments; None when words run out."""
    out = np.empty(int(counts.sum()), np.int64)
    target = np.cumsum(counts) - counts
    free = group.starts.copy()
    for turn in range(int(counts.max())):
        active = np.flatnonzero(counts > turn)
        found = group.ends[active] - (counts[active] - turn)  # what it is where there is no choice
        choices = np.flatnonzero(found > free[active])
        for first in range(0, choices.size, states.size):
            some = choices[first : first + states.size]
            which = active[some]
            cursors = _SegmentCursors(free[which], group.ends[which], counts[which] - turn, group.heights)
            lanes, slots = ans.slots(states, cursor, BITS, some.size)
            found[some], start, share = _find(cursors, slots)
            if not ans.advance(states, words, cursor, BITS, (lanes, slots, start, share)):
                return None
        out[target[active] + turn] = found
        free[active] = found + 1
    return out


def _find(cursors: _SegmentCursors, slots: Int64) -> tuple[Int64, Int64, Int64]:
    """The place whose share holds each slot, and that share's start and width: a guess, then bisection."""
    low = cursors.free
    base = cursors.heights[low]
    total = cursors.heights[cursors.end] - base
    guess = base + total * (1.0 - (1.0 - slots / (1 << BITS)) ** (1.0 / cursors.left))
    probe = np.minimum(np.searchsorted(cursors.heights, guess, "right") - 1, cursors.last)
    start, end = cursors.share(np.maximum(probe, low))
    found = np.maximum(probe, low)
    missed = np.flatnonzero((slots < start) | (slots >= end))
    if missed.size:
        found[missed], start[missed], end[missed] = _bisect(
            cursors.some(missed), slots[missed], found[missed], slots[missed] >= end[missed]
        )
    return found, start, end - start


def _bisect(cursors: _SegmentCursors, slots: Int64, near: Int64, is_above: Bools) -> tuple[Int64, Int64, Int64]:
    """The same for places above or below some that are near; and where their shares end."""
    low, high = np.where(is_above, near + 1, cursors.free), np.where(is_above, cursors.last + 1, near)
    step = 1
    while (high - low > 1).any():
        probe = np.where(is_above, low + step, high - step) if step < 4 else (low + high) // 2
        probe = np.maximum(np.minimum(probe, high - 1), low)
        goes = cursors.below(probe) <= slots
        low, high = np.where(goes, probe, low), np.where(goes, high, np.maximum(probe, low + 1))
        step *= 2
    return low, *cursors.share(low)
