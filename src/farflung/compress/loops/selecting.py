"""The largest coefficients of each chunk by radix select, and their gaps; twins in compress/chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.compiling import loop

_MAGNITUDE = np.uint32(0x7FFFFFFF)  # all bits of a float32 but its sign: non-negative floats order like these


@loop
def _bucket(histogram, left):
    """The highest bucket down to which at least `left` are counted, and how many of them it has to give."""
    top = histogram.size
    while True:  # 32 buckets at a time: most are empty
        many = 0
        for i in range(top - 32, top):
            many += histogram[i]
        if many >= left:
            break
        left -= many
        top -= 32
    top -= 1
    while histogram[top] < left:
        left -= histogram[top]
        top -= 1
    return top, left


@loop
def _threshold(bits, candidates, prefix, left, histogram):
    """The smallest |v| chosen (as bits), given its first 11 bits, and how many equal to it are chosen."""
    for shift in (np.uint32(15), np.uint32(10), np.uint32(5), np.uint32(0)):
        histogram[:] = 0
        for i in candidates:
            key = (bits[i] & _MAGNITUDE) >> shift
            if key >> np.uint32(5) == prefix:
                histogram[key & np.uint32(31)] += 1
        digit, left = _bucket(histogram, left)
        prefix = (prefix << np.uint32(5)) | np.uint32(digit)
    return prefix, left


@loop
def largest(values, chunk, topk):
    """Twin of chunks.largest.

    Radix select over the 31 bits of |v|, 11 and then four times 5: a histogram of the first 11 finds the bucket in
    which the last chosen one lies; who is in it or above is a candidate; the other bits decide among candidates.
    """
    size = values.size
    rows = (size + chunk - 1) // chunk
    out = np.empty((rows - 1) * topk + min(topk, size - (rows - 1) * chunk), np.int64)
    candidates = np.empty(chunk, np.int32)
    first, others = np.empty(2048, np.int32), np.empty(32, np.int32)
    at = 0
    for row in range(rows):
        start = row * chunk
        bits = values[start : min(start + chunk, size)].view(np.uint32)
        first[:] = 0
        for i in range(bits.size):
            first[(bits[i] & _MAGNITUDE) >> np.uint32(20)] += 1
        bucket, left = _bucket(first, min(topk, bits.size))
        floor = np.uint32(bucket) << np.uint32(20)
        many = 0
        for i in range(bits.size):
            candidates[many] = i
            many += np.int64((bits[i] & _MAGNITUDE) >= floor)
        if left < first[bucket]:
            floor, left = _threshold(bits, candidates[:many], np.uint32(bucket), left, others)
        for i in candidates[:many]:
            key = bits[i] & _MAGNITUDE
            if key > floor:
                out[at] = start + i
                at += 1
            elif key == floor and left > 0:
                out[at] = start + i
                at += 1
                left -= 1
    return out


LOOPS: dict[str, Callable[..., Any]] = {"largest": largest}
