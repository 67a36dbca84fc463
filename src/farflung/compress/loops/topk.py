"""Selects the largest coefficients of each chunk, by guess and bisection; twins in compress/chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.numba_compile import loop

_MAGNITUDE = np.uint32(0x7FFFFFFF)  # all bits of a float32 but its sign: non-negative floats order like these
# Of these bits: a guess lies a thirty-second to a sixteenth below what it is made of.
_MARGIN = np.uint32(1 << 19)
_RUN = 8  # elements of which it is known at once whether there is a candidate among them


@loop
def _at_least(keys, least):
    """How many keys are not below `least`."""
    many = np.int32(0)
    for i in range(keys.size):
        many += np.int32(keys[i] >= least)
    return np.int64(many)


@loop
def _threshold(keys, wanted):
    """What at least `wanted` ≤ keys.size keys reach: the largest such number, or one that exactly so many reach."""
    least = np.uint32(0)
    for bit in range(30, -1, -1):
        trial = least | (np.uint32(1) << np.uint32(bit))
        many = _at_least(keys, trial)
        if many >= wanted:
            least = trial
            if many == wanted:
                break
    return least


@loop
def _below(bits, wanted, tops):
    """What at least `wanted` |v| reach: the same of the largest of each of many parts."""
    width = bits.size // _RUN
    if width < wanted:
        return np.uint32(0)
    own = tops[:width]
    own[:] = 0
    for start in range(0, _RUN * width, width):
        part = bits[start : start + width]
        for i in range(width):
            own[i] = max(own[i], part[i] & _MAGNITUDE)
    return _threshold(own, wanted)


@loop
def _candidates(bits, floor, flags, runs, places, keys):
    """Where the |v| are that reach `floor`, ascending, and these as keys; how many. Without a branch to foresee."""
    for i in range(bits.size):
        flags[i] = (bits[i] & _MAGNITUDE) >= floor
    whole = bits.size // _RUN
    words = flags[: whole * _RUN].view(np.uint64)
    found = 0
    for run in range(whole):
        runs[found] = run
        found += np.int64(words[run] != np.uint64(0))
    many = 0
    for which in range(found):
        start = runs[which] * _RUN
        for i in range(start, start + _RUN):
            places[many], keys[many] = i, bits[i] & _MAGNITUDE
            many += np.int64(flags[i])
    for i in range(whole * _RUN, bits.size):
        places[many], keys[many] = i, bits[i] & _MAGNITUDE
        many += np.int64(flags[i])
    return many


@loop
def largest(values, chunk, topk):
    """Twin of chunks.largest.

    Candidates are what reaches a guess, a little below the last chunk's threshold; where these are too few or very
    many, what reaches a bound made of the chunk itself. The threshold is found among them, a bit at a time.
    """
    size = values.size
    rows = (size + chunk - 1) // chunk
    most = min(chunk, size)
    out = np.empty((rows - 1) * topk + min(topk, size - (rows - 1) * chunk) + 1, np.int64)
    flags, runs = np.empty(most, np.uint8), np.empty(most // _RUN + 1, np.int32)
    places, keys = np.empty(most + 1, np.int32), np.empty(most + 1, np.uint32)
    guess, at, many = np.uint32(0), 0, 0
    for row in range(rows):
        start = row * chunk
        bits = values[start : min(start + chunk, size)].view(np.uint32)
        wanted = min(topk, bits.size)
        many = _candidates(bits, guess, flags, runs, places, keys) if row else 0
        if not wanted <= many <= 4 * wanted + 128:
            many = _candidates(bits, _below(bits, wanted, keys), flags, runs, places, keys)
        own = keys[:many]
        least = _threshold(own, wanted)
        left = wanted - _at_least(own, least + np.uint32(1))
        guess = max(least, _MARGIN) - _MARGIN
        for i in range(many):  # of equal ones the first
            is_chosen = (own[i] > least) | ((own[i] == least) & (left > 0))
            left -= np.int64(own[i] == least)
            out[at] = start + places[i]
            at += np.int64(is_chosen)
    return out[: out.size - 1].copy()


LOOPS: dict[str, Callable[..., Any]] = {"largest": largest}
