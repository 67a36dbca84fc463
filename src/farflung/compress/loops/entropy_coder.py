"""Codes rANS streams and adaptive symbols of values. Their twins are in compress/ans and compress/symbol_stream.

The twins work on all lanes at once, a loop on one symbol after the other: the same words in the same order. `taken` is
what both decoders share with loops/supports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from farflung.compress.loops.numba_compile import loop, part

_WORD = np.uint64(16)
_WORD_MASK = (1 << 16) - 1
_LOW = np.uint64(1 << 24)
_STATE_AND_WORD = 40  # bits
_PLANE_BITS = 14
_PLANE_SHIFT = np.uint64(_PLANE_BITS)
_BLOCK, _FIRST, _SEEN = 4096, 256, 16
_WIDTH = np.uint32(16)  # where the width of a share stands beside its begin
_SPARE = 258  # ans.SPARE


@loop
def _put(states, begins, widths, bits, scratch, words, at):
    """Puts a symbol on each of the first lanes; the first place written of `words`, which fill from their end.

    Two passes: what all lanes do alike, without a branch, and then the words that go out, of which `scratch` holds
    two a lane and whether they do. x < 2^40 and a width < 2^18, so x / width in binary64 is off by less than the
    2^-18 that would carry it over a whole number.
    """
    shift, room = np.int64(bits), np.int64(_STATE_AND_WORD - bits)
    for lane in range(begins.size):
        x, width = states[lane], np.int64(widths[lane])
        limit = width << room
        goes = np.int64(x >= limit)
        scratch[0, lane], scratch[1, lane] = goes, x & _WORD_MASK
        x >>= goes << 4
        goes = np.int64(x >= limit)
        scratch[2, lane], scratch[3, lane] = goes, x & _WORD_MASK
        x >>= goes << 4
        whole = np.int64(np.float64(x) / np.float64(width))
        states[lane] = (whole << shift) + (x - whole * width) + np.int64(begins[lane])
    for lane in range(begins.size - 1, -1, -1):
        words[at - 1] = np.uint16(scratch[1, lane])
        at -= scratch[0, lane]
        words[at - 1] = np.uint16(scratch[3, lane])
        at -= scratch[2, lane]
    return at


@loop
def encoded(starts, freqs, bits, lanes):
    """Twin of ans.encoded: from the last lanes to the first."""
    count = starts.size
    states, scratch = np.full(lanes, _LOW, np.int64), np.empty((4, lanes), np.int64)
    words = np.empty(2 * count + 2, np.uint16)
    at = words.size
    for first in range((count - 1) // lanes * lanes, -1, -lanes):
        stop = min(first + lanes, count)
        at = _put(states, starts[first:stop], freqs[first:stop], bits, scratch, words, at)
    return states.astype(np.uint64), words[at:].copy()


@part
def taken(x, words, at, bits, start, freq):
    """A state without its symbol, and the next word's place. There are more words than a stream has."""
    shift = np.uint64(bits)
    x = np.uint64(freq) * (x >> shift) + (x & ((np.uint64(1) << shift) - np.uint64(1))) - np.uint64(start)
    while x < _LOW:
        x = (x << _WORD) | np.uint64(words[at])
        at += 1
    return x, at


@loop
def _table(seen, starts, widths):
    """Twin of plane._table: where each symbol's share of 2^14 starts, and how wide it is.

    Weights add up to less than 2^24: a quotient in binary64 is off by less than would carry it over a whole number.
    """
    total, sums, before, room = 0, 0, 0, (1 << _PLANE_BITS) - seen.size
    for i in range(seen.size):
        total += seen[i]
    for i in range(seen.size):
        sums += seen[i]
        after = i + 1 + np.int64(np.float64(room * sums) / np.float64(total))
        starts[i], widths[i] = before, after - before
        before = after


@loop
def _learn(seen, some, times):
    """Twin of plane._learn. Neighbours are counted in four rows of `times`: equal ones need not wait for each other."""
    times[:] = 0
    whole = some.size // 4 * 4
    for i in range(0, whole, 4):
        times[0, some[i]] += 1
        times[1, some[i + 1]] += 1
        times[2, some[i + 2]] += 1
        times[3, some[i + 3]] += 1
    for i in range(whole, some.size):
        times[0, some[i]] += 1
    for i in range(seen.size):
        many = np.int64(times[0, i] + times[1, i] + times[2, i] + times[3, i])
        seen[i] += _SEEN * many - (seen[i] >> 3)


@loop
def plane_shares(coded, alphabet):
    """Twin of plane.shares."""
    starts, freqs = np.empty(coded.size, np.uint32), np.empty(coded.size, np.uint32)
    seen, times = np.ones(alphabet, np.int64), np.empty((4, alphabet), np.int32)
    begins, widths = np.empty(alphabet, np.uint32), np.empty(alphabet, np.uint32)
    first, last = 0, _FIRST
    while first < coded.size:
        some = coded[first : min(last, coded.size)]
        _table(seen, begins, widths)
        own_starts, own_freqs = starts[first : first + some.size], freqs[first : first + some.size]
        for i in range(some.size):
            own_starts[i] = begins[some[i]]
            own_freqs[i] = widths[some[i]]
        _learn(seen, some, times)
        first, last = last, last + min(last, _BLOCK)
    return starts, freqs


@loop
def plane_stream(coded, alphabet, lanes):
    """Twin of plane.stream: forward for the shares of each block, then backward over the symbols."""
    count = coded.size
    seen, times = np.ones(alphabet, np.int64), np.empty((4, alphabet), np.int32)
    begins = np.empty((count // _BLOCK + 6, alphabet), np.uint32)
    widths, borders = np.empty_like(begins), np.empty(begins.shape[0] + 1, np.int64)
    block, first, last = 0, 0, _FIRST
    while first < count:
        borders[block] = first
        _table(seen, begins[block], widths[block])
        _learn(seen, coded[first : min(last, count)], times)
        block, first, last = block + 1, last, last + min(last, _BLOCK)
    states, scratch = np.full(lanes, _LOW, np.int64), np.empty((4, lanes), np.int64)
    own_begins, own_widths = np.empty(lanes, np.uint32), np.empty(lanes, np.uint32)
    words = np.empty(2 * count + 2, np.uint16)
    at = words.size
    for first in range((count - 1) // lanes * lanes, -1, -lanes):
        while first < borders[block - 1]:
            block -= 1
        some, begin, width = coded[first : min(first + lanes, count)], begins[block - 1], widths[block - 1]
        for lane in range(some.size):
            own_begins[lane], own_widths[lane] = begin[some[lane]], width[some[lane]]
        at = _put(states, own_begins[: some.size], own_widths[: some.size], _PLANE_BITS, scratch, words, at)
    return states.astype(np.uint64), words[at:].copy()


@loop
def plane_symbols(states, words, cursor, count, alphabet):
    """Twin of plane.symbols."""
    out = np.empty(count, np.uint8)
    seen, times = np.ones(alphabet, np.int64), np.empty((4, alphabet), np.int32)
    begins, widths = np.empty(alphabet, np.uint32), np.empty(alphabet, np.uint32)
    shares, lookup = np.empty(alphabet, np.uint32), np.empty(1 << _PLANE_BITS, np.uint8)
    limit, at = words.size - _SPARE, cursor[0]
    first, last = 0, _FIRST
    while first < count:
        stop = min(last, count)
        _table(seen, begins, widths)
        for symbol in range(alphabet):
            shares[symbol] = (widths[symbol] << _WIDTH) | begins[symbol]
            lookup[begins[symbol] : begins[symbol] + widths[symbol]] = symbol
        for begin in range(first, stop, states.size):
            at = _get(states, out[begin : min(begin + states.size, stop)], lookup, shares, words, at)
            if at > limit:
                return out, False
        _learn(seen, out[first:stop], times)
        first, last = last, last + min(last, _BLOCK)
    cursor[0] = at
    cursor[1] += count
    return out, True


@loop
def _get(states, own, lookup, shares, words, at):
    """Takes a symbol off each of the first lanes; the next word's place, at most one further for each lane.

    Two passes: what all lanes do alike, and then the words that come in, without a branch to foresee. One word is
    enough: x is at least 2^(24 - 14).
    """
    mask, low = np.uint64((1 << _PLANE_BITS) - 1), np.uint64((1 << np.int64(_WIDTH)) - 1)
    for lane in range(own.size):
        x = states[lane]
        symbol = lookup[x & mask]
        own[lane] = symbol
        share = np.uint64(shares[symbol])
        states[lane] = (share >> np.uint64(_WIDTH)) * (x >> _PLANE_SHIFT) + (x & mask) - (share & low)
    for lane in range(own.size):
        x, word = states[lane], np.uint64(words[at])
        is_low = x < _LOW
        states[lane] = (x << _WORD) | word if is_low else x
        at += np.int64(is_low)
    return at


@loop
def packed(symbols, bits):
    """Twin of plane.packed."""
    each = 8 // bits
    out = np.zeros((symbols.size + each - 1) // each, np.uint8)
    whole = symbols.size // each
    own = symbols[: whole * each]
    if bits == 4:
        for i in range(whole):
            out[i] = own[2 * i] | (own[2 * i + 1] << np.uint8(4))
    elif bits == 2:
        for i in range(whole):
            low = own[4 * i] | (own[4 * i + 1] << np.uint8(2))
            out[i] = low | (own[4 * i + 2] << np.uint8(4)) | (own[4 * i + 3] << np.uint8(6))
    else:
        for i in range(whole):
            for j in range(8):
                out[i] |= own[8 * i + j] << np.uint8(j)
    for i in range(whole * each, symbols.size):
        out[whole] |= symbols[i] << np.uint8((i - whole * each) * bits)
    return out


@loop
def unpacked(data, count, bits):
    """Twin of plane.unpacked: a table of what each byte holds."""
    each = 8 // bits
    table = np.empty((256, each), np.uint8)
    for byte in range(256):
        for j in range(each):
            table[byte, j] = (byte >> (j * bits)) & ((1 << bits) - 1)
    out = np.empty(data.size * each, np.uint8)
    if bits == 4:
        pairs, twos = out.view(np.uint16), table.reshape(-1).view(np.uint16)
        for i in range(data.size):
            pairs[i] = twos[data[i]]
    elif bits == 2:
        fours, quads = out.view(np.uint32), table.reshape(-1).view(np.uint32)
        for i in range(data.size):
            fours[i] = quads[data[i]]
    else:
        eights, octets = out.view(np.uint64), table.reshape(-1).view(np.uint64)
        for i in range(data.size):
            eights[i] = octets[data[i]]
    return out[:count]


@loop
def united(upper, lower, count):
    """Twin of plane.united."""
    out = np.empty(2 * upper.size, np.uint8)
    for i in range(upper.size):
        out[2 * i] = (upper[i] << np.uint8(4)) | (lower[i] & np.uint8(15))
        out[2 * i + 1] = (upper[i] & np.uint8(240)) | (lower[i] >> np.uint8(4))
    return out[:count]


LOOPS: dict[str, Callable[..., Any]] = {
    "ans_encode": encoded, "plane_shares": plane_shares, "plane_stream": plane_stream,
    "plane_symbols": plane_symbols, "packed": packed, "unpacked": unpacked,
    "united": united,
}  # fmt: skip
