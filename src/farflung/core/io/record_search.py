"""Searches bytes for a whole record of a log (length, CRC-32, body), at any place, in time that grows as their number.

A record can begin at each byte and claim any length, so hashing each body would take the square of the bytes. The
checksum of a part follows from those of two beginnings instead: crc(b) of `a + b` is crc(a + b) XOR shift(crc(a)),
where shift appends as many zero bytes as b has; it is linear, and a power of two of zero bytes is four tables.
"""

from __future__ import annotations

import itertools
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

_HEAD: Final = 8
_POLYNOMIAL: Final = 0xEDB88320  # of zlib's CRC-32, lowest bit first
_FEW: Final = 1 << 20  # bytes of bodies that are hashed one by one


def holds_record(data: bytes) -> bool:
    """Whether a whole record of at least one byte begins behind the first byte of `data`."""
    raw = np.frombuffer(data, np.uint8)
    last = len(data) - _HEAD  # a record's head fits before it
    if last <= 1:
        return False
    places = np.arange(1, last)
    sizes, checks = _word(raw, 0, last), _word(raw, 4, last)
    fits = (sizes > 0) & (sizes <= last - places)
    places, sizes, checks = places[fits], sizes[fits], checks[fits]
    if sizes.sum() <= _FEW:
        view = memoryview(data)
        found = zip((places + _HEAD).tolist(), sizes.tolist(), checks.tolist(), strict=True)
        return any(zlib.crc32(view[start : start + size]) == check for start, size, check in found)
    begun = _beginnings(data)
    starts = places + _HEAD
    return bool(np.any((begun[starts + sizes] ^ _shifted(begun[starts], sizes)) == checks))


def _word(raw: NDArray[np.uint8], offset: int, last: int) -> NDArray[np.int64]:
    """The four bytes at `offset` behind each place from 1 to `last`, lowest first."""
    parts = (raw[1 + offset + i : last + offset + i].astype(np.int64) << (8 * i) for i in range(4))
    return np.asarray(sum(parts), np.int64)


def _beginnings(data: bytes) -> NDArray[np.uint32]:
    """The checksum of the first n bytes, at n."""
    singles = (data[i : i + 1] for i in range(len(data)))
    sums = itertools.accumulate(singles, lambda crc, byte: zlib.crc32(byte, crc), initial=0)
    return np.fromiter(sums, np.uint32, len(data) + 1)


def _shifted(sums: NDArray[np.uint32], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Each checksum with so many zero bytes behind it."""
    table = _one_zero_byte()
    for bit in range(int(sizes.max(initial=0)).bit_length()):
        chosen = (sizes >> bit) & 1 == 1
        sums = np.where(chosen, _applied(table, sums), sums)
        table = np.stack([_applied(table, row) for row in table])
    return sums


def _one_zero_byte() -> NDArray[np.uint32]:
    """What a zero byte makes of a checksum: by each of its four bytes, which are added."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1 == 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    values = np.arange(256, dtype=np.uint32)
    return np.stack([table, *(values << np.uint32(8 * byte) for byte in range(3))])


def _applied(table: NDArray[np.uint32], sums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    first, second, third, fourth = (table[i][sums >> np.uint32(8 * i) & np.uint32(255)] for i in range(4))
    return np.asarray(first ^ second ^ third ^ fourth, np.uint32)
