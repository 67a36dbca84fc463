"""Reads and writes the frame `FFC1`.

It says which contribution the bytes claim to be, and is checked before the body.

One fixed header of 128 bytes, little-endian, before the body of whichever codec made it (`docs/protocol/payload.md`
gives every byte and golden vectors). The header names all that the body's meaning depends on: the codec and its
parameters, layout, round, phase, the public state it starts from and its maker; a payload is therefore good for exactly
one place in one run. A decoder knows all of that beforehand and compares; `describe` tells it to tools.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from farflung.core import limits
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.core.mapped_pages import leave

MAGIC: Final = b"FFC1"
VERSION: Final = 2
PARTIAL: Final = 1  # flag: tensors were left out, and the body begins with a plane that says which (compress.sparse)
KINDS: Final = ("dense", "topk", "low_rank")  # numbers 1, 2, 3
TRANSFORMS: Final = ("raw", "dct", "auto")  # numbers 0, 1, 2

_CHUNK: Final = 1 << 20  # elements of a chunk at most
_HEADER: Final = struct.Struct("<4sBBBBIIHBBI32s32s32sQ")
HEADER_BYTES: Final = _HEADER.size  # 128


class ContributionKey(NamedTuple):
    """The place of one contribution in its run. `base_root`: root of the public state that it starts from."""

    round: int
    phase: int
    base_root: Hash
    peer: PeerId


class CodecParameters(NamedTuple):
    """A codec and its parameters; what a codec does not use is 0 (`transform`: raw)."""

    kind: str
    value_bits: int = 32
    transform: str = "raw"
    chunk: int = 0
    topk: int = 0
    rank: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields as they are in a header."""
        kind, transform = KINDS.index(self.kind) + 1, TRANSFORMS.index(self.transform)
        return (kind, self.value_bits, transform, self.chunk, self.topk, self.rank)


class PayloadHeader(NamedTuple):
    """All fields of the frame except the constants and the body's length."""

    form: CodecParameters
    layout_id: Hash
    about: ContributionKey
    is_partial: bool = False


def pack(header: PayloadHeader, body: bytes) -> bytes:
    """Header and body as one frame.

    Raises VerificationError FF-COMP-022 (a field does not fit its width), PolicyError FF-COMP-023 (too long).
    """
    form, layout_id, about, is_partial = header
    ids = (layout_id, about.base_root, about.peer)
    check_size(HEADER_BYTES + len(body))
    kind, bits, transform, chunk, topk, rank = form.numbers
    fields = (kind, bits, transform, chunk, topk, rank, about.phase, PARTIAL * is_partial, about.round)
    try:
        head = _HEADER.pack(MAGIC, VERSION, *fields, *ids, len(body))
    except struct.error as error:
        raise _misfit(header) from error
    if any(len(value) != ID_BYTES for value in ids):
        raise _misfit(header)
    return head + body


def _misfit(header: PayloadHeader) -> VerificationError:
    return VerificationError("FF-COMP-022", "the header's fields do not fit", cause=repr(header)[:200])


def check_size(nbytes: int) -> None:
    """Raises PolicyError FF-COMP-023 when a payload of `nbytes` bytes is more than anybody accepts."""
    if nbytes > limits.PAYLOAD_BYTES:
        raise PolicyError(
            "FF-COMP-023",
            f"payload of {nbytes} bytes",
            cause=f"the limit is {limits.PAYLOAD_BYTES} bytes",
            hint="choose a sparser codec: sync.codec = 'topk', sync.value_bits = 2",
        )


class PayloadDescription(NamedTuple):
    """What a payload says of itself, unproved. `bytes`: of the body."""

    header: PayloadHeader
    bytes: int


def describe(data: bytes | memoryview) -> PayloadDescription:
    """The header of any payload, for tools: nothing is compared with what it should be, and no body is read.

    Raises ProtocolError: FF-COMP-001 shorter than a header, 003 not FFC1 version 2, 004 a flag set, 010 the body is
    not as long as the header says, 024 parameters that no codec has.
    """
    fields = _read(data)
    for code, what, found, wanted in (
        ("FF-COMP-003", "frame", fields[:2], (MAGIC, VERSION)),
        ("FF-COMP-004", "flags", fields[9] & ~_allowed(KINDS.index("topk") + 1 == fields[2]), 0),
        ("FF-COMP-010", "body length", fields[14], len(data) - HEADER_BYTES),
    ):
        _compare(code, what, found, wanted)
    kind, bits, transform, chunk, topk, rank = fields[2:8]
    if not (1 <= kind <= len(KINDS) and transform < len(TRANSFORMS)):
        raise _no_codec(fields)
    form = CodecParameters(KINDS[kind - 1], bits, TRANSFORMS[transform], chunk, topk, rank)
    if not is_form(form):
        raise _no_codec(fields)
    about = ContributionKey(fields[10], fields[8], Hash(fields[12]), PeerId(fields[13]))
    return PayloadDescription(PayloadHeader(form, Hash(fields[11]), about, bool(fields[9] & PARTIAL)), fields[14])


def is_partial(data: bytes | memoryview) -> bool:
    """Whether the header says that tensors were left out. Raises ProtocolError FF-COMP-001."""
    return bool(_read(data)[9] & PARTIAL)


def _allowed(can_be_partial: bool) -> int:
    """The flags that may be set: those of `topk`, which leaves out what was not trained."""
    return PARTIAL if can_be_partial else 0


def is_form(form: CodecParameters) -> bool:
    """Whether a codec can have these parameters."""
    kind, bits, _, chunk, topk, rank = form
    if bits not in (1, 2, 4, 8, 16, 32):
        return False
    if kind == "low_rank":
        return rank > 0 and chunk == topk == 0
    if kind == "topk":
        return rank == 0 and 1 <= topk <= chunk <= _CHUNK
    return rank == topk == 0 and (chunk > 0) == (form.transform != "raw") and chunk <= _CHUNK


def _no_codec(fields: tuple[Any, ...]) -> ProtocolError:
    return ProtocolError("FF-COMP-024", "payload of no codec", cause=f"its parameters are {fields[2:8]}")


def unpack(
    data: bytes | memoryview,
    *,
    form: CodecParameters,
    layout_id: Hash,
    round: int,
    base_root: Hash,
    peer: PeerId,
    body_limit: int,
    phase: int = 0,
) -> memoryview:
    """The body of a frame that is exactly the one expected: a view, no copy.

    Raises ProtocolError: FF-COMP-001 shorter than a header, 002 longer than header + `body_limit`, 003 not FFC1
    version 2, 004 a flag set, 005 another codec or other parameters, 006 another layout, 007 another round or phase,
    008 another public state, 009 another peer, 010 the body is not as long as the header says.
    """
    fields = _read(data)
    if len(data) > HEADER_BYTES + body_limit:
        cause = f"at most {HEADER_BYTES + body_limit} are possible here"
        raise ProtocolError("FF-COMP-002", f"payload of {len(data)} bytes", cause=cause)
    for code, what, found, wanted in (
        ("FF-COMP-003", "frame", fields[:2], (MAGIC, VERSION)),
        ("FF-COMP-004", "flags", fields[9] & ~_allowed(form.kind == "topk"), 0),
        ("FF-COMP-005", "codec", fields[2:8], form.numbers),
        ("FF-COMP-006", "layout", fields[11], bytes(layout_id)),
        ("FF-COMP-007", "round and phase", (fields[10], fields[8]), (round, phase)),
        ("FF-COMP-008", "public state", fields[12], bytes(base_root)),
        ("FF-COMP-009", "peer", fields[13], bytes(peer)),
        ("FF-COMP-010", "body length", fields[14], len(data) - HEADER_BYTES),
    ):
        _compare(code, what, found, wanted)
    return memoryview(data)[HEADER_BYTES:]


def _read(data: bytes | memoryview) -> tuple[Any, ...]:
    """Magic, version, six numbers of the form, phase, flags, round, layout, root, peer, length."""
    if len(data) < HEADER_BYTES:
        raise ProtocolError("FF-COMP-001", f"payload of {len(data)} bytes", cause="it ends inside its header")
    return _HEADER.unpack_from(data)


def _compare(code: str, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        cause = f"found {_shown(found)}, not {_shown(wanted)}"
        raise ProtocolError(code, f"payload of another {what}", cause=cause)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class BodyReader:
    """Reads a body front to back; every piece is measured before it is cut, and nothing may be left over."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0
        self._read = 0  # up to here its pages have left, if it is mapped

    def take(self, nbytes: int) -> memoryview:
        """The next `nbytes` bytes, as a view; raises ProtocolError FF-COMP-011 when they are not there."""
        if not 0 <= nbytes <= len(self._body) - self._at:
            cause = f"{nbytes} bytes wanted, {len(self._body) - self._at} left"
            raise ProtocolError("FF-COMP-011", "payload body is too short", cause=cause)
        self._at += nbytes
        return self._body[self._at - nbytes : self._at]

    def rest(self) -> None:
        """What was taken so far is used: its pages leave, if the payload is mapped."""
        leave(self._body[self._read : self._at])
        self._read = self._at

    def close(self) -> None:
        """Raises ProtocolError FF-COMP-011 when bytes are left over."""
        if self._at != len(self._body):
            cause = f"{len(self._body) - self._at} bytes follow the last value"
            raise ProtocolError("FF-COMP-011", "payload body is too long", cause=cause)
        self.rest()
