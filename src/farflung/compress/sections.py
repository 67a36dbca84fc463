"""The body of a payload, section by section: levels, supports and values of some slabs, each in its cheapest coding.

    1 byte      flags: bit 0, supports are coded (else gaps in Rice's code); bit 1, values are coded (else as they are);
                bit 2, in the second way: many at a time (`dense`, compress.plane), or by context (compress.context)
    transform   one bit a slab, where the codec chooses
    levels      of every slab
    supports    of every slab, where not all coefficients are sent
    values      of every slab

A coding is taken only where it is shorter than the plain one, to the byte. So much a decoder checks; that the plain one
was the shorter one is checked by whoever repeats the encoding. Of the two ways `dense` takes the second for 2^19 values
or more, `topk` the shorter one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from farflung.compress import ans, context, plane, support, transform, values
from farflung.compress.bits import (
    Bools,
    Int64,
    pack_plane,
    pack_rice,
    plane_bytes,
    rice_bits,
    unpack_plane,
    unpack_rice,
)
from farflung.compress.chunks import Slab, from_gaps, to_gaps
from farflung.compress.payload import Cursor, Form
from farflung.compress.plane import Symbols
from farflung.compress.support import Piece
from farflung.core.errors import ProtocolError

SUPPORTS: Final = 1  # flags
VALUES: Final = 2
SECOND: Final = 4

_LENGTH: Final = struct.Struct("<I")


class Sent(NamedTuple):
    """What a slab sends: its symbols, and the indices (ascending, in the slab) that they belong to; None: all."""

    slab: Slab
    is_transformed: bool
    levels: bytes | memoryview
    symbols: Symbols
    indices: Int64 | None


def write(sent: Sequence[Sent], form: Form) -> list[bytes]:
    """The parts of one section."""
    parts: list[bytes] = []
    if form.transform == "auto":
        parts.append(pack_plane(np.array([one.is_transformed for one in sent])))
    parts += [bytes(one.levels) for one in sent]
    flags = 0
    if form.kind == "topk":
        plain_bytes, gaps, parameters = _gaps(sent)
        coded = _write_supports(sent)
        if len(coded) < plain_bytes:
            flags |= SUPPORTS
            parts.append(coded)
        else:
            unary, low = pack_rice(gaps, parameters)
            parts += [_LENGTH.pack(len(unary)), unary, low]
    symbols = sent[0].symbols if len(sent) == 1 else np.concatenate([one.symbols for one in sent])
    way, planes = _write_many(symbols, form) if _is_many(symbols.size, form) else _write_values(symbols, form)
    return [bytes([flags | way]), *parts, *planes]


def read(body: Cursor, slabs: Sequence[Slab], form: Form) -> list[Sent]:
    """One section of `slabs`; every length is checked before it is used.

    Raises ProtocolError FF-COMP-011 to 019 and 034.
    """
    flags = body.take(1)[0]
    if flags not in _ways(sum(slab.count for slab in slabs), form):
        raise ProtocolError("FF-COMP-019", "unknown coding", cause=f"flags {flags}")
    is_transformed = _read_transforms(body, slabs, form)
    counts = [slab.count for slab in slabs]
    levels = [body.take(values.levels_bytes(count, form.value_bits)) for count in counts]
    indices: Sequence[Int64 | None] = [None] * len(slabs)
    if form.kind == "topk":
        reader = _read_supports if flags & SUPPORTS else _read_gaps
        indices = reader(body, slabs, is_transformed)
    symbols = _read_values(body, sum(counts), form, flags)
    sent: list[Sent] = []
    start = 0
    for at, slab in enumerate(slabs):
        own = symbols[start : start + slab.count]
        values.check_canonical(levels[at], own, form.value_bits)
        sent.append(Sent(slab, bool(is_transformed[at]), levels[at], own, indices[at]))
        start += slab.count
    return sent


def bound(slabs: Sequence[Slab], form: Form) -> int:
    """The exact upper limit of a section in bytes: flags, levels, and both plain codings."""
    count = sum(slab.count for slab in slabs)
    nbytes = 1 + sum(values.levels_bytes(slab.count, form.value_bits) for slab in slabs)
    if form.transform == "auto":
        nbytes += plane_bytes(len(slabs))
    if form.kind == "topk":
        unary, low = sum(slab.unary_bound for slab in slabs), sum(slab.count * slab.rice for slab in slabs)
        nbytes += _LENGTH.size + plane_bytes(unary) + plane_bytes(low)
    raw = plane.raw_bytes(count, plane.symbol_bits(form.value_bits))
    return nbytes + raw + count * plane.rest_bytes(form.value_bits)


def pieces(slabs: Sequence[Slab], is_transformed: Sequence[bool] | Bools) -> list[list[Slab]]:
    """Slabs that are read as one piece: neighbours of one tensor and one transform."""
    runs: list[list[Slab]] = []
    for at, slab in enumerate(slabs):
        if at and slab.tensor == slabs[at - 1].tensor and is_transformed[at] == is_transformed[at - 1]:
            runs[-1].append(slab)
        else:
            runs.append([slab])
    return runs


def _piece(run: Sequence[Slab], is_transformed: bool, is_even: bool) -> Piece:
    """Slabs as a piece: rows of the matrix or of the transformed block, or (even) no rows at all."""
    first, size = run[0], sum(slab.size for slab in run)
    width = transform.SIDES[first.chunk] if is_transformed else first.width
    return Piece(first.origin, size, first.chunk, first.topk, support.EVEN if is_even else width)


def _write_supports(sent: Sequence[Sent]) -> bytes:
    """One bit a piece (1: even), then the stream of all supports."""
    kinds = [one.is_transformed for one in sent]
    runs = pieces([one.slab for one in sent], kinds)
    is_even, starts, freqs, at = [], [], [], 0
    for run in runs:
        members = sent[at : at + len(run)]
        joined = [one.indices + one.slab.start - run[0].start for one in members if one.indices is not None]
        indices = np.concatenate(joined)
        both = [support.shares(indices, *_piece(run, kinds[at], even)) for even in (False, True)]
        cheaper = support.cost(both[1][1]) < support.cost(both[0][1])
        is_even.append(cheaper)
        starts.append(both[cheaper][0])
        freqs.append(both[cheaper][1])
        at += len(run)
    lanes = support.lanes_of(sum(one.slab.count for one in sent))
    stream = ans.encode(np.concatenate(starts), np.concatenate(freqs), support.BITS, lanes)
    return pack_plane(np.array(is_even)) + _write_stream(stream, lanes)


def _read_supports(body: Cursor, slabs: Sequence[Slab], is_transformed: Bools) -> list[Int64]:
    runs = pieces(slabs, is_transformed)
    is_even = unpack_plane(body.take(plane_bytes(len(runs))), len(runs))
    data, lanes = _read_stream(body, support.lanes_of(sum(slab.count for slab in slabs)))
    stream = ans.Decoder.of(data, support.BITS, lanes)
    indices: list[Int64] = []
    for run, even in zip(runs, is_even, strict=True):
        piece = _piece(run, bool(is_transformed[len(indices)]), bool(even))
        found, status = support.places(stream.states, stream.words, stream.cursor, *piece)
        if status:
            raise support.broken(status)
        for slab in run:
            own, found = found[: slab.count], found[slab.count :]
            indices.append(own - (slab.start - run[0].start))
    stream.close()
    plain = _plain_bytes(
        *_with_parameters([to_gaps(i, s) for i, s in zip(indices, slabs, strict=True)], slabs)
    )
    _check_shorter(plane_bytes(len(runs)) + _LENGTH.size + len(data), plain)
    return indices


def _gaps(sent: Sequence[Sent]) -> tuple[int, Int64, Int64]:
    """Bytes of supports in Rice's code; all gaps, and the parameter of each."""
    slabs = [one.slab for one in sent]
    gaps = [to_gaps(one.indices, one.slab) for one in sent if one.indices is not None]
    joined, parameters = _with_parameters(gaps, slabs)
    return _plain_bytes(joined, parameters), joined, parameters


def _with_parameters(gaps: Sequence[Int64], slabs: Sequence[Slab]) -> tuple[Int64, Int64]:
    return np.concatenate(gaps), _parameters(slabs)


def _parameters(slabs: Sequence[Slab]) -> Int64:
    each: Int64 = np.array([slab.rice for slab in slabs], np.int64)
    return np.repeat(each, [slab.count for slab in slabs])


def _plain_bytes(gaps: Int64, parameters: Int64) -> int:
    unary, low = rice_bits(gaps, parameters)
    return _LENGTH.size + plane_bytes(unary) + plane_bytes(low)


def _read_gaps(body: Cursor, slabs: Sequence[Slab], is_transformed: Bools) -> list[Int64]:
    (length,) = _LENGTH.unpack(body.take(_LENGTH.size))
    parameters = _parameters(slabs)
    most = plane_bytes(sum(slab.unary_bound for slab in slabs))
    if not plane_bytes(parameters.size) <= length <= most:
        raise ProtocolError("FF-COMP-013", "broken run of gaps", cause=f"a unary plane of {length} bytes")
    unary, low = body.take(length), body.take(plane_bytes(int(parameters.sum())))
    gaps = unpack_rice(unary, low, parameters)
    counts = np.cumsum([slab.count for slab in slabs])
    return [from_gaps(own, slab) for own, slab in zip(np.split(gaps, counts[:-1]), slabs, strict=True)]


def _read_transforms(body: Cursor, slabs: Sequence[Slab], form: Form) -> Bools:
    if form.transform != "auto":
        return np.full(len(slabs), form.transform == "dct")
    chosen = unpack_plane(body.take(plane_bytes(len(slabs))), len(slabs))
    if any(one and slab.size < slab.chunk for one, slab in zip(chosen, slabs, strict=True)):
        cause = "a slab without a full chunk is transformed"
        raise ProtocolError("FF-COMP-019", "payload is not canonical", cause=cause)
    return chosen


def _is_many(count: int, form: Form) -> bool:
    """Whether the coded form takes values some at a time."""
    return form.kind == "dense" and form.value_bits <= 8 and count >= plane.MANY


def _ways(count: int, form: Form) -> list[int]:
    """The flags that a section of `count` values may have."""
    if form.kind == "dense":
        return [0, VALUES | SECOND if _is_many(count, form) else VALUES]
    ways = [0, VALUES] + [VALUES | SECOND] * (form.value_bits == context.BITS)
    return ways + [way | SUPPORTS for way in ways]


def _write_values(symbols: Symbols, form: Form) -> tuple[int, list[bytes]]:
    """Flags and parts of the values in their shortest form."""
    coded, rest = plane.split(symbols, form.value_bits)
    width, lanes = plane.symbol_bits(form.value_bits), plane.lanes_of(coded.size)
    way, shortest = VALUES, _write_stream(plane.encode(coded, _alphabet(form)), lanes)
    if form.kind == "topk" and form.value_bits == context.BITS:
        other = _write_stream(context.encode(coded), lanes)
        if len(other) < len(shortest):
            way, shortest = VALUES | SECOND, other
    if len(shortest) < plane.raw_bytes(coded.size, width):
        return way, [shortest, rest]
    return 0, [plane.pack_raw(coded, width).tobytes(), rest]


def _write_many(symbols: Symbols, form: Form) -> tuple[int, list[bytes]]:
    """The same, of many values."""
    coded, rest = plane.halve(symbols.astype(np.uint8, copy=False), form.value_bits)
    stream = _write_stream(plane.encode(coded, plane.BYTE), plane.lanes_of(coded.size))
    if len(stream) < coded.size:
        return VALUES | SECOND, [stream, rest]
    return 0, [symbols.tobytes() if form.value_bits == 8 else coded.tobytes()]


def _read_values(body: Cursor, count: int, form: Form, flags: int) -> Symbols:
    bits = plane.symbol_bits(form.value_bits)
    if flags & VALUES and _is_many(count, form):
        size, rest = plane.halves(count, bits)
        data = _read_shorter(body, size, size)
        return plane.whole(plane.decode(data, size, plane.BYTE), body.take(rest), count, bits)
    raw = plane.raw_bytes(count, bits)
    if not flags & VALUES:
        symbols = plane.unpack_raw(np.frombuffer(body.take(raw), np.uint8), count, bits)
    elif flags & SECOND:
        symbols = context.decode(_read_shorter(body, count, raw), count)
    else:
        symbols = plane.decode(_read_shorter(body, count, raw), count, _alphabet(form))
    return plane.join(symbols, body.take(count * plane.rest_bytes(form.value_bits)), form.value_bits)


def _read_shorter(body: Cursor, count: int, plain: int) -> memoryview:
    """The stream of `count` symbols, which must be shorter than `plain` bytes."""
    data, _ = _read_stream(body, plane.lanes_of(count))
    _check_shorter(_LENGTH.size + len(data), plain)
    return data


def _alphabet(form: Form) -> int:
    return min(values.alphabet(form.value_bits), 256)


def _write_stream(stream: bytes, lanes: int) -> bytes:
    """A stream behind the number of its words."""
    return _LENGTH.pack((len(stream) - ans.STATE_BYTES * lanes) // 2) + stream


def _read_stream(body: Cursor, lanes: int) -> tuple[memoryview, int]:
    (words,) = _LENGTH.unpack(body.take(_LENGTH.size))
    return body.take(ans.STATE_BYTES * lanes + 2 * words), lanes


def _check_shorter(coded: int, plain: int) -> None:
    if coded >= plain:
        cause = f"{coded} bytes, where {plain} say the same plainly"
        raise ProtocolError("FF-COMP-019", "payload is not canonical", cause=cause)
