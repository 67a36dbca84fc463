"""Codes two-bit values by those before them; twins in compress/context_model, which explains the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.entropy_coder import taken
from farflung.compress.loops.numba_compile import loop, part

_BITS, _BLOCK, _FIRST, _SEEN, _GUESS = 14, 4096, 256, 16, 4
_SIZE, _LAST = 4, 8
_SPARE = 258  # ans.SPARE


@loop
def _tables(seen, table):
    """Twin of context._table."""
    for context in range(_LAST + 1):
        total, sums = 0, 0
        for i in range(_SIZE):
            total += seen[context, i]
        table[context, 0] = 0
        for i in range(_SIZE):
            sums += seen[context, i]
            table[context, i + 1] = i + 1 + ((1 << _BITS) - _SIZE) * sums // total


@loop
def _learn(seen, times):
    """Twin of context._learn, of what was counted in a block."""
    for context in range(_LAST + 1):
        for i in range(_SIZE):
            seen[context, i] += _SEEN * times[context, i] - (seen[context, i] >> 3)
            times[context, i] = 0


@part
def _after(history, symbol):
    """The last eight symbols of a lane, a bit each: 1 where one is large."""
    return ((history << 1) | np.int64(symbol == 0 or symbol == 3)) & ((1 << _LAST) - 1)


@loop
def _ones():
    """How many bits of each number below 2^8 are set."""
    ones = np.zeros(1 << _LAST, np.int64)
    for i in range(1, ones.size):
        ones[i] = ones[i >> 1] + (i & 1)
    return ones


@loop
def shares(coded, lanes):
    """Twin of context.shares."""
    count = coded.size
    starts, freqs = np.empty(count, np.uint32), np.empty(count, np.uint32)
    seen, times = np.full((_LAST + 1, _SIZE), _GUESS, np.int64), np.zeros((_LAST + 1, _SIZE), np.int64)
    table, ones = np.empty((_LAST + 1, _SIZE + 1), np.int64), _ones()
    history, each, more = np.zeros(lanes, np.int64), count // lanes, count % lanes
    first, last = 0, _FIRST
    while first < count:
        _tables(seen, table)
        for t in range(first, min(last, count)):
            lane = t % lanes
            symbol, context = coded[lane * each + min(lane, more) + t // lanes], ones[history[lane]]
            starts[t], freqs[t] = table[context, symbol], table[context, symbol + 1] - table[context, symbol]
            times[context, symbol] += 1
            history[lane] = _after(history[lane], symbol)
        _learn(seen, times)
        first, last = last, last + min(last, _BLOCK)
    return starts, freqs


@loop
def symbols(states, words, cursor, count):
    """Twin of context.symbols."""
    out = np.empty(count, np.uint8)
    seen, times = np.full((_LAST + 1, _SIZE), _GUESS, np.int64), np.zeros((_LAST + 1, _SIZE), np.int64)
    table, ones = np.empty((_LAST + 1, _SIZE + 1), np.int64), _ones()
    lanes = states.size
    history, each, more = np.zeros(lanes, np.int64), count // lanes, count % lanes
    mask, limit, at = np.uint64((1 << _BITS) - 1), words.size - _SPARE, cursor[0]
    first, last = 0, _FIRST
    while first < count:
        _tables(seen, table)
        for t in range(first, min(last, count)):
            lane = t % lanes
            own, slot = table[ones[history[lane]]], np.int64(states[lane] & mask)
            symbol = np.int64(slot >= own[1]) + np.int64(slot >= own[2]) + np.int64(slot >= own[3])
            share = own[symbol + 1] - own[symbol]
            states[lane], at = taken(states[lane], words, at, _BITS, own[symbol], share)
            if at > limit:
                return out, False
            out[lane * each + min(lane, more) + t // lanes] = symbol
            times[ones[history[lane]], symbol] += 1
            history[lane] = _after(history[lane], symbol)
        _learn(seen, times)
        first, last = last, last + min(last, _BLOCK)
    cursor[0] = at
    cursor[1] += count
    return out, True


LOOPS: dict[str, Callable[..., Any]] = {"context_shares": shares, "context_symbols": symbols}
