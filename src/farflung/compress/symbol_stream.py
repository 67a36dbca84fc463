"""Codes values as symbols of a small alphabet, in as many bits as their frequencies need.

One rANS stream (compress.ans) for the values of a section, whatever tensors they come from. No table is sent: shares
follow from the symbols so far. Blocks of symbols end at 256, 512, 1024, 2048, 4096 and then after every 4096; within
one, shares stay as they are, so that all lanes can work side by side. With A symbols, each begins with weight 1; then
    weight += 16 (times seen in a block) - ⌊weight / 8⌋        share = 1 + its part of the other 2^14 - A
Values of 16 and 32 bits are split: their exponents (8 bits) are such symbols, sign and fraction are sent as they are.
Many values of few bits are coded some at a time: the bytes of the plain form are the symbols. Of 8 bits the upper half
is; the lower half, of which a frequency hardly depends, is sent as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from farflung.compress import ans
from farflung.compress.ans import Int64, Uint16, Uint32, Uint64
from farflung.compress.bits import plane_bytes
from farflung.compress.kernels import compiled
from farflung.core.errors import ProtocolError

BITS: Final = 14
SHARE: Final = 1024  # values for each lane of a stream
BYTE: Final = 256  # symbols
MANY: Final = 1 << 19  # values from which bytes are the symbols

Symbols = NDArray[np.unsignedinteger[Any]]
Uint8 = NDArray[np.uint8]

_BLOCK: Final = 4096
FIRST: Final = 256  # and a multiple of ans.LANES, so that a block's symbols start at lane 0
_SEEN: Final = 16
_EXPONENT: Final = {16: 7, 32: 23}  # bits of the fraction, below the exponent


def symbol_bits(bits: int) -> int:
    """Bits of one symbol as it is: all of a value's up to 8, else its exponent's."""
    return min(bits, 8)


def split(symbols: Symbols, bits: int) -> tuple[Uint8, bytes]:
    """What is worth coding of each value, shape (count,), and the bytes of the rest."""
    if bits <= 8:
        return symbols.astype(np.uint8), b""
    fraction = _EXPONENT[bits]
    wide = symbols.astype(np.uint32)
    exponents = ((wide >> np.uint32(fraction)) & np.uint32(0xFF)).astype(np.uint8)
    low = wide & np.uint32((1 << fraction) - 1) | (wide >> np.uint32(bits - 1)) << np.uint32(fraction)
    rest = low.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : rest_bytes(bits)]
    return exponents, rest.tobytes()


def join(coded: Uint8, rest: memoryview, bits: int) -> Symbols:
    """The inverse of `split`."""
    if bits <= 8:
        return coded
    fraction, width = _EXPONENT[bits], rest_bytes(bits)
    padded = np.zeros((coded.size, 4), np.uint8)
    padded[:, :width] = np.frombuffer(rest, np.uint8).reshape(coded.size, width)
    low = padded.view("<u4").reshape(-1).astype(np.uint32)
    sign = low >> np.uint32(fraction) << np.uint32(bits - 1)
    wide = sign | coded.astype(np.uint32) << np.uint32(fraction) | low & np.uint32((1 << fraction) - 1)
    joined: Symbols = wide.astype(np.uint16) if bits == 16 else wide
    return joined


def halve(symbols: Uint8, bits: int) -> tuple[Uint8, bytes]:
    """Symbols of up to 8 bits as bytes that are symbols themselves, and the bytes of the rest (see the head)."""
    if bits < 8:
        return packed(symbols, bits), b""
    return packed(symbols >> np.uint8(4), 4), packed(symbols & np.uint8(15), 4).tobytes()


def whole(coded: Uint8, rest: memoryview, count: int, bits: int) -> Uint8:
    """The inverse of `halve`; raises ProtocolError FF-COMP-012 for padding bits."""
    if bits < 8:
        return unpack_raw(coded, count, bits)
    lower = np.frombuffer(rest, np.uint8)
    if count % 2 and (coded[-1] | lower[-1]) >> 4:
        raise _padded()
    return united(coded, lower, count)


def halves(count: int, bits: int) -> tuple[int, int]:
    """How many bytes `halve` makes of so many symbols, and how many bytes of rest."""
    return plane_bytes(count * min(bits, 4)), plane_bytes(count * 4) if bits == 8 else 0


def rest_bytes(bits: int) -> int:
    """Bytes of a value that are never coded."""
    return {16: 1, 32: 3}.get(bits, 0)


def pack_raw(coded: Uint8, bits: int) -> Uint8:
    """Symbols of `bits` ≤ 8 bits each, lowest bit first, as bytes."""
    return coded if bits == 8 else packed(coded, bits)


def unpack_raw(data: Uint8, count: int, bits: int) -> Uint8:
    """The inverse of `pack_raw`; raises ProtocolError FF-COMP-012 for padding bits."""
    if bits == 8:
        return data
    used = count * bits % 8
    if used and data[-1] >> used:
        raise _padded()
    return unpacked(data, count, bits)


def _padded() -> ProtocolError:
    return ProtocolError("FF-COMP-012", "payload is not canonical", cause="a padding bit is set")


@compiled("united")
def united(upper: Uint8, lower: Uint8, count: int) -> Uint8:
    """Symbols of 8 bits from their upper and lower halves, two to a byte, the first one lowest."""
    symbols = np.empty((upper.size, 2), np.uint8)
    symbols[:, 0] = (upper << np.uint8(4)) | (lower & np.uint8(15))
    symbols[:, 1] = (upper & np.uint8(240)) | (lower >> np.uint8(4))
    return symbols.reshape(-1)[:count]


@compiled("packed")
def packed(symbols: Uint8, bits: int) -> Uint8:
    """Symbols of 1, 2 or 4 bits, 8 / bits of them to a byte, the first one lowest; padding is zero."""
    each = 8 // bits
    padded = np.zeros((-(-symbols.size // each), each), np.uint8)
    padded.reshape(-1)[: symbols.size] = symbols
    padded <<= np.arange(0, 8, bits, dtype=np.uint8)
    together: Uint8 = np.bitwise_or.reduce(padded, axis=1, initial=0)
    return together


@compiled("unpacked")
def unpacked(data: Uint8, count: int, bits: int) -> Uint8:
    """The inverse of `packed`, but for the padding, which is not looked at."""
    symbols = (data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return symbols.reshape(-1)[:count]


def raw_bytes(count: int, bits: int) -> int:
    """Length of `pack_raw`."""
    return plane_bytes(count * bits)


def lanes_of(count: int) -> int:
    """Lanes of a stream of `count` values."""
    return ans.lanes_of(count, SHARE)


def encode(coded: Uint8, alphabet: int) -> bytes:
    """The stream of symbols below `alphabet` ≤ 256."""
    return ans.joined(*stream(coded, alphabet, lanes_of(coded.size)))


@compiled("plane_stream")
def stream(coded: Uint8, alphabet: int, lanes: int) -> tuple[Uint64, Uint16]:
    """States and words of the symbols' stream."""
    return ans.encoded(*shares(coded, alphabet), BITS, lanes)


@compiled("plane_shares")
def shares(coded: Uint8, alphabet: int) -> tuple[Uint32, Uint32]:
    """Where each symbol's share of 2^14 starts, and how wide it is, in order."""
    starts, freqs = np.empty(coded.size, np.uint32), np.empty(coded.size, np.uint32)
    seen = np.ones(alphabet, np.int64)
    for first, last in blocks(coded.size):
        table, some = _table(seen), coded[first:last]
        starts[first:last] = table[:-1][some]
        freqs[first:last] = np.diff(table)[some]
        _learn(seen, some)
    return starts, freqs


def decode(data: memoryview, count: int, alphabet: int) -> Uint8:
    """The `count` symbols of a stream, all of it; raises ProtocolError FF-COMP-018."""
    stream = ans.RansDecoder.of(data, BITS, lanes_of(count))
    coded, is_whole = symbols(stream.states, stream.words, stream.cursor, count, alphabet)
    if not is_whole:
        raise ans.broken("it ends too early")
    stream.close()
    return coded


@compiled("plane_symbols", lambda states, words, cursor, count, alphabet: ans.SLOWER // states.size * count)
def symbols(states: Uint64, words: Uint16, cursor: Int64, count: int, alphabet: int) -> tuple[Uint8, bool]:
    """The inverse of `shares`, from a stream (ans.Decoder) that nothing was read of; False when words run out."""
    out = np.empty(count, np.uint8)
    seen, every = np.ones(alphabet, np.int64), np.arange(1 << BITS)
    for first, last in blocks(count):
        table = _table(seen)
        widths = np.diff(table)
        lookup = np.repeat(np.arange(alphabet, dtype=np.uint8), widths)
        lanes = states.size
        whole = last - (last - first) % lanes  # blocks begin at lane 0
        moves = np.repeat(widths, widths), every - np.repeat(table[:-1], widths)
        found = ans.advance_block(states, words, cursor, BITS, (whole - first) // lanes, moves)
        if found is None:
            return out, False
        out[first:whole] = lookup[found.reshape(-1)]
        if whole < last:
            places, slots = ans.slots(states, cursor, BITS, last - whole)
            some = lookup[slots]
            out[whole:last] = some
            if not ans.advance(states, words, cursor, BITS, (places, slots, table[some], widths[some])):
                return out, False
        _learn(seen, out[first:last])
    return out, True


def blocks(count: int) -> Iterator[tuple[int, int]]:
    """First and last symbol (exclusive) of each block."""
    first, last = 0, FIRST
    while first < count:
        yield first, min(last, count)
        first, last = last, last + min(last, _BLOCK)


def _table(seen: Int64) -> Int64:
    sums = np.concatenate([[0], np.cumsum(seen)])
    starts: Int64 = np.arange(sums.size) + ((1 << BITS) - seen.size) * sums // sums[-1]
    return starts


def _learn(seen: Int64, some: Uint8) -> None:
    seen += _SEEN * np.bincount(some, minlength=seen.size) - (seen >> 3)
