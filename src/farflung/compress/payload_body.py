"""Codes the body of a payload: sections of levels, indices and values of some slabs, each in its cheapest
coding.

    1 byte      flags: bit 0, supports are coded (else gaps in Rice's code); bit 1, values are coded (else as they are);
                bit 2, in the second way: many at a time (`dense`, compress.symbol_stream), or by context
                (compress.context_model)
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

from farflung.compress import ans, context_model, index_coding, symbol_stream, transform, values
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
from farflung.compress.index_coding import ChunkRange
from farflung.compress.payload import BodyReader, CodecParameters
from farflung.compress.symbol_stream import Symbols
from farflung.core.errors import ProtocolError

SUPPORTS: Final = 1  # flags
VALUES: Final = 2
SECOND: Final = 4

_LENGTH: Final = struct.Struct("<I")


class SlabSymbols(NamedTuple):
    """What a slab sends: its symbols, and the indices (ascending, in the slab) that they belong to; None: all."""

    slab: Slab
    is_transformed: bool
    levels: bytes | memoryview
    symbols: Symbols
    indices: Int64 | None


def write(sent: Sequence[SlabSymbols], form: CodecParameters) -> list[bytes]:
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


def read(body: BodyReader, slabs: Sequence[Slab], form: CodecParameters) -> list[SlabSymbols]:
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
    sent: list[SlabSymbols] = []
    start = 0
    for at, slab in enumerate(slabs):
        own = symbols[start : start + slab.count]
        values.check_canonical(levels[at], own, form.value_bits)
        sent.append(SlabSymbols(slab, bool(is_transformed[at]), levels[at], own, indices[at]))
        start += slab.count
    return sent


def bound(slabs: Sequence[Slab], form: CodecParameters) -> int:
    """The exact upper limit of a section in bytes: flags, levels, and both plain codings."""
    count = sum(slab.count for slab in slabs)
    nbytes = 1 + sum(values.levels_bytes(slab.count, form.value_bits) for slab in slabs)
    if form.transform == "auto":
        nbytes += plane_bytes(len(slabs))
    if form.kind == "topk":
        unary, low = sum(slab.unary_bound for slab in slabs), sum(slab.count * slab.rice for slab in slabs)
        nbytes += _LENGTH.size + plane_bytes(unary) + plane_bytes(low)
    raw = symbol_stream.raw_bytes(count, symbol_stream.symbol_bits(form.value_bits))
    return nbytes + raw + count * symbol_stream.rest_bytes(form.value_bits)


def pieces(slabs: Sequence[Slab], is_transformed: Sequence[bool] | Bools) -> list[list[Slab]]:
    """Slabs that are read as one piece: neighbours of one tensor and one transform."""
    runs: list[list[Slab]] = []
    for at, slab in enumerate(slabs):
        if at and slab.tensor == slabs[at - 1].tensor and is_transformed[at] == is_transformed[at - 1]:
            runs[-1].append(slab)
        else:
            runs.append([slab])
    return runs


def _piece(run: Sequence[Slab], is_transformed: bool, is_even: bool) -> ChunkRange:
    """Slabs as a piece: rows of the matrix or of the transformed block, or (even) no rows at all."""
    first, size = run[0], sum(slab.size for slab in run)
    width = transform.SIDES[first.chunk] if is_transformed else first.width
    return ChunkRange(first.origin, size, first.chunk, first.topk, index_coding.EVEN if is_even else width)


def _write_supports(sent: Sequence[SlabSymbols]) -> bytes:
    """One bit a piece (1: even), then the stream of all supports."""
    kinds = [one.is_transformed for one in sent]
    runs = pieces([one.slab for one in sent], kinds)
    is_even, starts, freqs, at = [], [], [], 0
    for run in runs:
        members = sent[at : at + len(run)]
        joined = [one.indices + one.slab.start - run[0].start for one in members if one.indices is not None]
        indices = np.concatenate(joined)
        both = [index_coding.shares(indices, *_piece(run, kinds[at], even)) for even in (False, True)]
        cheaper = index_coding.cost(both[1][1]) < index_coding.cost(both[0][1])
        is_even.append(cheaper)
        starts.append(both[cheaper][0])
        freqs.append(both[cheaper][1])
        at += len(run)
    lanes = index_coding.lanes_of(sum(one.slab.count for one in sent))
    stream = ans.encode(np.concatenate(starts), np.concatenate(freqs), index_coding.BITS, lanes)
    return pack_plane(np.array(is_even)) + _write_stream(stream, lanes)


def _read_supports(body: BodyReader, slabs: Sequence[Slab], is_transformed: Bools) -> list[Int64]:
    runs = pieces(slabs, is_transformed)
    is_even = unpack_plane(body.take(plane_bytes(len(runs))), len(runs))
    data, lanes = _read_stream(body, index_coding.lanes_of(sum(slab.count for slab in slabs)))
    stream = ans.RansDecoder.of(data, index_coding.BITS, lanes)
    indices: list[Int64] = []
    for run, even in zip(runs, is_even, strict=True):
        piece = _piece(run, bool(is_transformed[len(indices)]), bool(even))
        found, status = index_coding.places(stream.states, stream.words, stream.cursor, *piece)
        if status:
            raise index_coding.broken(status)
        for slab in run:
            own, found = found[: slab.count], found[slab.count :]
            indices.append(own - (slab.start - run[0].start))
    stream.close()
    plain = _plain_bytes(*_with_parameters([to_gaps(i, s) for i, s in zip(indices, slabs, strict=True)], slabs))
    _check_shorter(plane_bytes(len(runs)) + _LENGTH.size + len(data), plain)
    return indices


def _gaps(sent: Sequence[SlabSymbols]) -> tuple[int, Int64, Int64]:
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


def _read_gaps(body: BodyReader, slabs: Sequence[Slab], is_transformed: Bools) -> list[Int64]:
    (length,) = _LENGTH.unpack(body.take(_LENGTH.size))
    parameters = _parameters(slabs)
    most = plane_bytes(sum(slab.unary_bound for slab in slabs))
    if not plane_bytes(parameters.size) <= length <= most:
        raise ProtocolError("FF-COMP-013", "broken run of gaps", cause=f"a unary plane of {length} bytes")
    unary, low = body.take(length), body.take(plane_bytes(int(parameters.sum())))
    gaps = unpack_rice(unary, low, parameters)
    counts = np.cumsum([slab.count for slab in slabs])
    return [from_gaps(own, slab) for own, slab in zip(np.split(gaps, counts[:-1]), slabs, strict=True)]


def _read_transforms(body: BodyReader, slabs: Sequence[Slab], form: CodecParameters) -> Bools:
    if form.transform != "auto":
        return np.full(len(slabs), form.transform == "dct")
    chosen = unpack_plane(body.take(plane_bytes(len(slabs))), len(slabs))
    if any(one and slab.size < slab.chunk for one, slab in zip(chosen, slabs, strict=True)):
        cause = "a slab without a full chunk is transformed"
        raise ProtocolError("FF-COMP-019", "payload is not canonical", cause=cause)
    return chosen


def _is_many(count: int, form: CodecParameters) -> bool:
    """Whether the coded form takes values some at a time."""
    return form.kind == "dense" and form.value_bits <= 8 and count >= symbol_stream.MANY


def _ways(count: int, form: CodecParameters) -> list[int]:
    """The flags that a section of `count` values may have."""
    if form.kind == "dense":
        return [0, VALUES | SECOND if _is_many(count, form) else VALUES]
    ways = [0, VALUES] + [VALUES | SECOND] * (form.value_bits == context_model.BITS)
    return ways + [way | SUPPORTS for way in ways]


def _write_values(symbols: Symbols, form: CodecParameters) -> tuple[int, list[bytes]]:
    """Flags and parts of the values in their shortest form."""
    coded, rest = symbol_stream.split(symbols, form.value_bits)
    width, lanes = symbol_stream.symbol_bits(form.value_bits), symbol_stream.lanes_of(coded.size)
    way, shortest = VALUES, _write_stream(symbol_stream.encode(coded, _alphabet(form)), lanes)
    if form.kind == "topk" and form.value_bits == context_model.BITS:
        other = _write_stream(context_model.encode(coded), lanes)
        if len(other) < len(shortest):
            way, shortest = VALUES | SECOND, other
    if len(shortest) < symbol_stream.raw_bytes(coded.size, width):
        return way, [shortest, rest]
    return 0, [symbol_stream.pack_raw(coded, width).tobytes(), rest]


def _write_many(symbols: Symbols, form: CodecParameters) -> tuple[int, list[bytes]]:
    """The same, of many values."""
    coded, rest = symbol_stream.halve(symbols.astype(np.uint8, copy=False), form.value_bits)
    stream = _write_stream(symbol_stream.encode(coded, symbol_stream.BYTE), symbol_stream.lanes_of(coded.size))
    if len(stream) < coded.size:
        return VALUES | SECOND, [stream, rest]
    return 0, [symbols.tobytes() if form.value_bits == 8 else coded.tobytes()]


def _read_values(body: BodyReader, count: int, form: CodecParameters, flags: int) -> Symbols:
    bits = symbol_stream.symbol_bits(form.value_bits)
    if flags & VALUES and _is_many(count, form):
        size, rest = symbol_stream.halves(count, bits)
        data = _read_shorter(body, size, size)
        return symbol_stream.whole(symbol_stream.decode(data, size, symbol_stream.BYTE), body.take(rest), count, bits)
    raw = symbol_stream.raw_bytes(count, bits)
    if not flags & VALUES:
        symbols = symbol_stream.unpack_raw(np.frombuffer(body.take(raw), np.uint8), count, bits)
    elif flags & SECOND:
        symbols = context_model.decode(_read_shorter(body, count, raw), count)
    else:
        symbols = symbol_stream.decode(_read_shorter(body, count, raw), count, _alphabet(form))
    return symbol_stream.join(symbols, body.take(count * symbol_stream.rest_bytes(form.value_bits)), form.value_bits)


def _read_shorter(body: BodyReader, count: int, plain: int) -> memoryview:
    """The stream of `count` symbols, which must be shorter than `plain` bytes."""
    data, _ = _read_stream(body, symbol_stream.lanes_of(count))
    _check_shorter(_LENGTH.size + len(data), plain)
    return data


def _alphabet(form: CodecParameters) -> int:
    return min(values.alphabet(form.value_bits), 256)


def _write_stream(stream: bytes, lanes: int) -> bytes:
    """A stream behind the number of its words."""
    return _LENGTH.pack((len(stream) - ans.STATE_BYTES * lanes) // 2) + stream


def _read_stream(body: BodyReader, lanes: int) -> tuple[memoryview, int]:
    (words,) = _LENGTH.unpack(body.take(_LENGTH.size))
    return body.take(ans.STATE_BYTES * lanes + 2 * words), lanes


def _check_shorter(coded: int, plain: int) -> None:
    if coded >= plain:
        cause = f"{coded} bytes, where {plain} say the same plainly"
        raise ProtocolError("FF-COMP-019", "payload is not canonical", cause=cause)
