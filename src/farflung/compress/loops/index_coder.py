"""Codes the indices of sent coefficients. The twins are in compress/index_coding, which explains the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.index_coding import tables
from farflung.compress.loops.entropy_coder import taken
from farflung.compress.loops.numba_compile import loop, part

_LOGS, _POWERS = (table.astype(np.int32) for table in tables())  # both lie within 2^30
_BITS, _SEGMENT, _GROUP, _GROWTH = 18, 4096, 4096, 8
_HIT, _HEAVIEST, _SEEN, _GUESS = 2, 4095, 32, 16
_RATIO, _LOG, _POWER = 14, 24, 30
_WHOLE = 1 << _BITS
_SPARE = 258  # ans.SPARE


@loop
def _guess(seen, topk, usual, chunk):
    """Twin of support._guess, into both rows of `seen`."""
    weight, mean = 1 << _GUESS, topk * usual
    for i in range(seen.shape[1]):
        seen[0, i] = seen[1, i] = 1 + (weight >> (_GUESS - 6))
        weight = weight * mean // (mean + chunk)


@loop
def _tables(seen, table):
    """Twin of support._table, for both rows."""
    size = seen.shape[1]
    for kind in range(2):
        total, sums = 0, 0
        for i in range(size):
            total += seen[kind, i]
        table[kind, 0] = 0
        for i in range(size):
            sums += seen[kind, i]
            table[kind, i + 1] = i + 1 + (_WHOLE - size) * sums // total


@loop
def _segments(place, column, size, chunk, width, bounds, shifts, heights, weights):
    """Cuts a group of `size` elements that begins at `place` of its tensor; the number of segments.

    `column`: of the first one, as `_column` says. Only differences of heights within a segment matter. So they are
    summed up once for a row where rows are shorter than the group, and where no column comes twice they are known:
    heights[p + shifts[i]] belongs to place p of segment i.
    """
    many, at = 0, 0
    to_row = width - place % width
    is_long, is_even, is_row = min(width, chunk) > _SEGMENT, width > weights.size, width <= size
    if is_row:
        for i in range(width):
            heights[i + 1] = heights[i] + weights[i]
    elif not is_even:
        here = column
        for i in range(size):
            heights[i + 1] = heights[i] + weights[here]
            here = 0 if here + 1 == width else here + 1
    while at < size:
        bounds[many] = at
        shifts[many] = -at if is_even else column - at if is_row else 0
        many += 1
        stop = min(at + to_row, (at // chunk + 1) * chunk, size)
        if is_long:
            stop = min(stop, at - at % chunk % _SEGMENT + _SEGMENT)
        to_row -= stop - at
        column += stop - at
        if to_row == 0:
            to_row, column = width, 0
        at = stop
    bounds[many] = size
    return many


@part
def _column(origin, place, size, width):
    """The column of a place of a piece; where no row ends within it, each element is a column."""
    return (origin + place) % width if width <= size else place


@part
def _step(growth, chunk):
    """Elements of a group."""
    return max(1, _GROUP // chunk) * (1 if growth < 2 else 1 << min(growth - 1, 3)) * chunk


@part
def _below(heights, free, last, left, top, at):
    """Twin of support._Places.below for one place; `top`: the running weight at the segment's end.

    Both weights are below 2^24: their quotient in binary64, times 2^14, is rounded down to the right whole number.
    """
    ratio = np.int64(np.float64((top - heights[at]) << _RATIO) / np.float64(top - heights[free]))
    power = left * np.int64(_LOGS[ratio])
    rest = np.int64(_POWERS[(power >> (_LOG - _RATIO)) & ((1 << _RATIO) - 1)]) >> min(power >> _LOG, 63)
    return at - free + (((_WHOLE - (last - free + 1)) * ((1 << _POWER) - rest)) >> _POWER)


@loop
def _learn(seen, weights, bounds, counts, many, usual, chosen, column, width):
    """Twin of support._learn; `chosen` are places of the group, `column` that of its first."""
    for i in range(many):
        seen[np.int64(bounds[i + 1] - bounds[i] != usual), counts[i]] += _SEEN
    if width <= weights.size:
        for i in range(chosen.size):
            which = (column + chosen[i]) % width
            weights[which] = min(weights[which] + _HIT, _HEAVIEST)


@loop
def _active(counts, many):
    """The segments that choose any."""
    found, at = np.empty(many, np.int64), 0
    for i in range(many):
        found[at] = i
        at += np.int64(counts[i] > 0)
    return found[:at]


@loop
def _share_places(chosen, bounds, shifts, heights, counts, free, offset, starts, freqs, at):
    """Shares of a group's places, everybody's first, everybody's second, ...; where the next symbol is written."""
    active, turn = _active(counts, bounds.size - 1), 0
    while active.size:
        kept = 0
        for i in active:
            spot, left = chosen[offset[i] + turn], counts[i] - turn
            last = bounds[i + 1] - left
            if last > free[i]:
                own = heights[bounds[i] + shifts[i] : bounds[i + 1] + shifts[i] + 1]
                begin, end, top = free[i] - bounds[i], last - bounds[i], own[own.size - 1]
                low = _below(own, begin, end, left, top, spot - bounds[i])
                high = _WHOLE
                if spot < last:
                    high = _below(own, begin, end, left, top, spot - bounds[i] + 1)
                starts[at], freqs[at] = low, high - low
                at += 1
            free[i] = spot + 1
            active[kept] = i
            kept += np.int64(left > 1)
        active, turn = active[:kept], turn + 1
    return at


@loop
def shares(indices, origin, size, chunk, topk, width):
    """Twin of support.shares."""
    usual = min(width, chunk, _SEGMENT)
    most = min(size, max(1, _GROUP // chunk) * _GROWTH * chunk)
    bounds, shifts = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    heights = np.arange(most + 2)
    counts, free, offset = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    seen = np.empty((2, min(topk, usual) + 1), np.int64)
    table = np.empty((2, seen.shape[1] + 1), np.int64)
    weights = np.ones(width if width <= size else 0, np.int64)
    _guess(seen, topk, usual, chunk)
    starts = np.empty(indices.size + 2 * (size // usual + size // chunk) + 8, np.uint32)
    freqs = np.empty_like(starts)
    at, read, first, growth = 0, 0, 0, 0
    while first < size:
        stop = min(size, first + _step(growth, chunk))
        column = _column(origin, first, size, width)
        many = _segments(origin + first, column, stop - first, chunk, width, bounds, shifts, heights, weights)
        before = read
        for i in range(many):
            offset[i] = read
            while read < indices.size and indices[read] < first + bounds[i + 1]:
                read += 1
            counts[i] = read - offset[i]
            free[i] = bounds[i]
        _tables(seen, table)
        for i in range(many):
            if bounds[i + 1] % chunk and bounds[i + 1] < stop - first:
                kind = np.int64(bounds[i + 1] - bounds[i] != usual)
                starts[at] = table[kind, counts[i]]
                freqs[at] = table[kind, counts[i] + 1] - table[kind, counts[i]]
                at += 1
        chosen = indices[before:read] - first
        offset[:many] -= before
        at = _share_places(chosen, bounds[: many + 1], shifts, heights, counts, free, offset, starts, freqs, at)
        _learn(seen, weights, bounds, counts, many, usual, chosen, column, width)
        first, growth = stop, growth + 1
    return starts[:at].copy(), freqs[:at].copy()


@part
def _find(heights, free, last, left, slot):
    """The place whose share holds `slot`, and the share's start and end: a guess, then neighbours."""
    top = heights[heights.size - 1]
    log = np.int64(_LOGS[(_WHOLE - slot) >> (_BITS - _RATIO)]) // left
    rest = np.int64(_POWERS[(log >> (_LOG - _RATIO)) & ((1 << _RATIO) - 1)]) >> min(log >> _LOG, 63)
    wanted = top - (((top - heights[free]) * rest) >> _POWER)
    low, high = free, last + 1
    if top - heights[0] == heights.size - 1:  # all weigh 1: the height is the place
        low = min(free + wanted - heights[free], last)
    else:
        while high - low > 1:
            middle = (low + high) >> 1
            if heights[middle] <= wanted:
                low = middle
            else:
                high = middle
    start = _below(heights, free, last, left, top, low)
    while start > slot:
        low -= 1
        high, start = low + 1, _below(heights, free, last, left, top, low)
    end = _WHOLE if low == last else _below(heights, free, last, left, top, low + 1)
    while end <= slot:
        low, start = low + 1, end
        end = _WHOLE if low == last else _below(heights, free, last, left, top, low + 1)
    return low, start, end


@loop
def _read_counts(states, words, cursor, table, bounds, chunk, usual, counts):
    """Twin of support._read_counts: False when words run out."""
    mask, lanes, limit = np.uint64(_WHOLE - 1), states.size - 1, words.size - _SPARE
    at, lane, size = cursor[0], cursor[1], bounds[bounds.size - 1]
    for i in range(bounds.size - 1):
        if bounds[i + 1] % chunk and bounds[i + 1] < size:
            own = table[np.int64(bounds[i + 1] - bounds[i] != usual)]
            slot = np.int64(states[lane & lanes] & mask)
            count, high = 0, own.size - 1
            while high - count > 1:
                middle = (count + high) >> 1
                if own[middle] <= slot:
                    count = middle
                else:
                    high = middle
            width = own[count + 1] - own[count]
            states[lane & lanes], at = taken(states[lane & lanes], words, at, _BITS, own[count], width)
            if at > limit:
                return False
            lane += 1
            counts[i] = count
    cursor[0], cursor[1] = at, lane
    return True


@loop
def _complete(bounds, chunk, topk, counts, free, offset):
    """Twin of support._complete; where each segment begins, and where its places are written. The group's choices."""
    rest, written, size, is_whole = 0, 0, bounds[bounds.size - 1], True
    for i in range(bounds.size - 1):
        if bounds[i] % chunk == 0:
            rest = min(topk, chunk, size - bounds[i])
        if bounds[i + 1] % chunk == 0 or bounds[i + 1] == size:
            counts[i] = rest
        rest -= counts[i]
        is_whole &= 0 <= counts[i] <= bounds[i + 1] - bounds[i]
        free[i], offset[i] = bounds[i], written
        written += counts[i]
    return written if is_whole else -1


@loop
def _read_places(states, words, cursor, bounds, shifts, heights, counts, free, offset, out):
    """Twin of support._read_places: False when words run out."""
    mask, lanes, limit = np.uint64(_WHOLE - 1), states.size - 1, words.size - _SPARE
    at, lane = cursor[0], cursor[1]
    active, turn = _active(counts, bounds.size - 1), 0
    while active.size:
        kept = 0
        for i in active:
            left = counts[i] - turn
            spot = bounds[i + 1] - left
            if spot > free[i]:
                slot = np.int64(states[lane & lanes] & mask)
                own = heights[bounds[i] + shifts[i] : bounds[i + 1] + shifts[i] + 1]
                spot, start, end = _find(own, free[i] - bounds[i], spot - bounds[i], left, slot)
                spot += bounds[i]
                states[lane & lanes], at = taken(states[lane & lanes], words, at, _BITS, start, end - start)
                if at > limit:
                    return False
                lane += 1
            out[offset[i] + turn] = spot
            free[i] = spot + 1
            active[kept] = i
            kept += np.int64(left > 1)
        active, turn = active[:kept], turn + 1
    cursor[0], cursor[1] = at, lane
    return True


@loop
def places(states, words, cursor, origin, size, chunk, topk, width):
    """Twin of support.places."""
    usual = min(width, chunk, _SEGMENT)
    most = min(size, max(1, _GROUP // chunk) * _GROWTH * chunk)
    bounds, shifts = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    heights = np.arange(most + 2)
    counts, free, offset = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    seen = np.empty((2, min(topk, usual) + 1), np.int64)
    table = np.empty((2, seen.shape[1] + 1), np.int64)
    weights = np.ones(width if width <= size else 0, np.int64)
    _guess(seen, topk, usual, chunk)
    out = np.empty(size // chunk * topk + min(topk, size % chunk), np.int64)
    written, first, growth = 0, 0, 0
    while first < size:
        stop = min(size, first + _step(growth, chunk))
        column = _column(origin, first, size, width)
        many = _segments(origin + first, column, stop - first, chunk, width, bounds, shifts, heights, weights)
        own = bounds[: many + 1]
        _tables(seen, table)
        if not _read_counts(states, words, cursor, table, own, chunk, usual, counts):
            return np.empty(0, np.int64), 1
        chosen = _complete(own, chunk, topk, counts, free, offset)
        if chosen < 0:
            return np.empty(0, np.int64), 2
        group = out[written : written + chosen]
        if not _read_places(states, words, cursor, own, shifts, heights, counts, free, offset, group):
            return np.empty(0, np.int64), 1
        _learn(seen, weights, bounds, counts, many, usual, group, column, width)
        group += first
        written, first, growth = written + chosen, stop, growth + 1
    return out, 0


LOOPS: dict[str, Callable[..., Any]] = {"support_shares": shares, "support_places": places}
