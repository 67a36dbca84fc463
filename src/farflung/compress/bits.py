"""Packs planes of single bits and Golomb-Rice codes of gaps into bytes. Exactly one encoding is valid.

Bit i of a plane is bit i % 8 (least significant first) of byte i // 8; the padding of its last byte is zero.

Rice's code (Golomb 1966; Rice & Plaunt 1971) writes a gap g with parameter r as g >> r in unary and the r low bits
as they are. Here the two parts lie in separate planes, so both directions are a few NumPy calls:
unary plane = for each gap, g >> r zeros and a one; remainder plane = for each gap, r bits, lowest first.
The parameter is not sent: it follows from how many elements are chosen among how many (`rice_parameter`).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from farflung.core.errors import ProtocolError

Bools = NDArray[np.bool_]
Int64 = NDArray[np.int64]


def plane_bytes(bits: int) -> int:
    """Bytes of a plane of `bits` bits."""
    return (bits + 7) // 8


def pack_plane(bits: Bools) -> bytes:
    """A plane, from booleans of shape (count,)."""
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_plane(data: memoryview, count: int) -> Bools:
    """Booleans of shape (count,) from exactly plane_bytes(count) bytes.

    Raises ProtocolError FF-COMP-012 when a padding bit is set.
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count:].any():
        raise ProtocolError("FF-COMP-012", "payload is not canonical", cause="a padding bit is set")
    return bits[:count].view(np.bool_)


def rice_parameter(count: int, rows: int, size: int) -> int:
    """The parameter r for `count` elements chosen from `size`, in `rows` separate runs.

    With mean gap m = (size - count) / (count + rows) (each run has one more gap than elements) r + 1 is better than
    r as long as (m / (m + 1))^(2^r) > (√5 - 1) / 2, that is 2^r < 0.481 (m + 1/2) nearly (Kiely 2004). Integers only.
    """
    slots = count + rows
    parameter = 0
    while 2000 * slots << parameter < 481 * (2 * (size - count) + slots):
        parameter += 1
    return parameter


@functools.lru_cache(maxsize=4096)  # plans ask for the same few of many layouts, links and crews
def rice_mean(count: int, size: int, parameter: int) -> float:
    """Expected unary bits of one gap when `count` of `size` are chosen uniformly: 1 + Σ_j P(gap ≥ j 2^r)."""
    if count >= size:
        return 1.0
    whole, bits = _log_choose(size, count), 1.0
    for skipped in range(1 << parameter, size - count + 1, 1 << parameter):
        term = math.exp(_log_choose(size - skipped, count) - whole)
        bits += term
        if term < 1e-9:  # the terms fall at least geometrically
            break
    return bits


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def pack_rice(gaps: Int64, parameters: Int64) -> tuple[bytes, bytes]:
    """The unary plane and the remainder plane of gaps ≥ 0, each with its parameter, shape (count,)."""
    ends = np.cumsum((gaps >> parameters) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.bool_)
    unary[ends] = True
    place = np.arange(int(parameters.max()))
    low = ((gaps[:, None] >> place) & 1).astype(np.bool_)
    return pack_plane(unary), pack_plane(low[place < parameters[:, None]])


def rice_bits(gaps: Int64, parameters: Int64) -> tuple[int, int]:
    """Bits of both planes."""
    return int((gaps >> parameters).sum()) + gaps.size, int(parameters.sum())


def unpack_rice(unary: memoryview, remainders: memoryview, parameters: Int64) -> Int64:
    """Gaps from the two planes, one for each parameter; the caller has bounded the unary plane's length.

    Raises ProtocolError FF-COMP-013 unless the unary plane holds exactly `count` ones, the last of them in its last
    byte, and FF-COMP-012 for padding in the remainder plane.
    """
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(unary, np.uint8), bitorder="little"))
    if ends.size != parameters.size or plane_bytes(int(ends[-1]) + 1) != len(unary):
        cause = f"{ends.size} gaps in {len(unary)} bytes, {parameters.size} expected"
        raise ProtocolError("FF-COMP-013", "broken run of gaps", cause=cause)
    gaps = (np.diff(ends, prepend=-1) - 1).astype(np.int64)
    place = np.arange(int(parameters.max()))
    low = np.zeros((parameters.size, place.size), np.int64)
    low[place < parameters[:, None]] = unpack_plane(remainders, int(parameters.sum()))
    return (gaps << parameters) + low @ (1 << place)
