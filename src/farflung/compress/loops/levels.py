"""Converts values to symbols and back; twins in compress/values and compress/quantise, which explain the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.numba_compile import loop

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_LARGEST_BF16 = np.uint32(0x7F80)
_TINY = np.float32(2.0**-126)


@loop
def _largest(bits):
    """The largest |v|, found as an integer: the bits of non-negative floats order like the floats."""
    top = np.uint32(0)
    for i in range(bits.size):
        top = max(top, bits[i] & _MAGNITUDE)
    return top


@loop
def uniform(values, top, block):
    """Twin of values._uniform: bf16 scales and symbols of blocks of `block` values, in float32 throughout."""
    size = values.size
    bits = values.view(np.uint32)
    scales = np.empty((size + block - 1) // block, np.uint16)
    symbols = np.empty(size, np.uint8)
    limit = np.float32(top)
    word, real = np.empty(1, np.uint32), np.empty(1, np.float32)
    for row in range(scales.size):
        start = row * block
        stop = min(start + block, size)
        word[0] = _largest(bits[start:stop])
        largest = word.view(np.float32)[0]
        if largest < limit * _TINY:
            largest = np.float32(0.0)
        real[0] = largest / limit
        exact = real.view(np.uint32)[0]
        half = (exact + np.uint32(0x7FFF) + ((exact >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        if half == _LARGEST_BF16:
            half -= np.uint32(1)
        scales[row] = half
        word[0] = half << np.uint32(16)
        scale = word.view(np.float32)[0]
        if scale == np.float32(0.0):
            scale = np.float32(np.inf)
        these, made = values[start:stop], symbols[start:stop]
        for i in range(these.size):
            code = min(max(np.rint(these[i] / scale), -limit), limit)
            made[i] = np.uint8(np.int32(code + limit))
    return scales, symbols


@loop
def scaled(symbols, scales, top, block, values):
    """Twin of values._scaled: code times scale."""
    word, limit = np.empty(1, np.uint32), np.float32(top)
    for row in range(scales.size):
        start = row * block
        word[0] = np.uint32(scales[row]) << np.uint32(16)
        scale = word.view(np.float32)[0]
        these, made = symbols[start : start + block], values[start : start + block]
        for i in range(these.size):
            made[i] = (np.float32(these[i]) - limit) * scale


@loop
def peaks(symbols, top, block):
    """Twin of values._peaks: the largest |code| of each block, as a float."""
    found = np.empty((symbols.size + block - 1) // block, np.float32)
    for row in range(found.size):
        these = symbols[row * block : (row + 1) * block]
        most, least = np.uint8(0), np.uint8(255)
        for i in range(these.size):
            most, least = max(most, these[i]), min(least, these[i])
        found[row] = np.float32(max(np.int32(most) - top, top - np.int32(least)))
    return found


@loop
def magnitudes(values, limit):
    """Twin of quantise._magnitudes: |v| in units of 2^-u, half to even, and u."""
    word = np.empty(1, np.uint32)
    word[0] = _largest(values.view(np.uint32))
    units = limit - math.frexp(np.float64(word.view(np.float32)[0]))[1]
    factor = math.ldexp(1.0, units)
    whole = np.empty(values.size, np.int32)
    for i in range(values.size):
        whole[i] = np.int32(np.rint(np.float64(abs(values[i])) * factor))
    return whole, units


@loop
def above(whole, threshold):
    """Twin of quantise._above: how many lie above the threshold, and their sum."""
    limit = np.int32(threshold)
    many, much = 0, 0
    for i in range(whole.size):
        is_above = whole[i] > limit
        many += np.int64(is_above)
        much += np.int64(whole[i]) if is_above else 0
    return many, much


@loop
def ranked(values, whole, threshold, is_zero):
    """Twin of quantise._ranked: symbols 0..3 = -high, -low, +low, +high."""
    limit = np.int32(threshold)
    symbols = np.empty(values.size, np.uint8)
    for i in range(values.size):
        high = np.uint8(whole[i] > limit)
        is_negative = values[i] < np.float32(0.0) and not (is_zero and high == 0)
        symbols[i] = np.uint8(1) - high if is_negative else np.uint8(2) + high
    return symbols


@loop
def tallied(symbols, size):
    """Twin of quantise._tallied: a pass for each of the few symbols, several values at a time."""
    counts = np.zeros(size, np.int64)
    for symbol in range(size):
        many = 0
        for i in range(symbols.size):
            many += np.int64(symbols[i] == symbol)
        counts[symbol] = many
    return counts


@loop
def looked_up(symbols, table, values):
    """Twin of quantise._looked_up: the table's entry for each symbol."""
    for i in range(symbols.size):
        values[i] = table[symbols[i]]


LOOPS: dict[str, Callable[..., Any]] = {
    "uniform": uniform, "scaled": scaled, "peaks": peaks, "magnitudes": magnitudes, "above": above,
    "ranked": ranked, "tallied": tallied, "looked_up": looked_up,
}  # fmt: skip
