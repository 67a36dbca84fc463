"""The frame `FFC1`: which contribution a string of bytes claims to be, checked before its body is looked at.

One fixed header of 116 bytes, little-endian, before the body of whichever codec made it (`docs/protocol/payload.md`
gives every byte and golden vectors). The header names all that the body's meaning depends on: codec, layout, round,
phase, the public state it starts from and its maker; a payload is therefore good for exactly one place in one run.
The codec's parameters (k, chunk) are not in it: the job's terms fix them for everybody.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.errors import PolicyError, ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES, Hash, PeerId

MAGIC: Final = b"FFC1"
VERSION: Final = 1
FLAGS: Final = 0  # none is defined: anything else is refused

_HEADER: Final = struct.Struct("<4sBBBBI32s32s32sQ")
HEADER_BYTES: Final = _HEADER.size  # 116


class About(NamedTuple):
    """The place of one contribution in its run. `base_root`: root of the public state that it starts from."""

    round: int
    phase: int
    base_root: Hash
    peer: PeerId


class Header(NamedTuple):
    """All fields of the frame except the constants and the body's length."""

    codec_id: int
    layout_id: Hash
    about: About


def pack(header: Header, body: bytes) -> bytes:
    """Header and body as one frame.

    Raises VerificationError FF-COMP-022 (a field does not fit its width), PolicyError FF-COMP-023 (too long).
    """
    codec_id, layout_id, about = header
    ids = (layout_id, about.base_root, about.peer)
    if (
        any(len(value) != ID_BYTES for value in ids)
        or not 0 <= about.round < 1 << 32
        or not 0 <= about.phase < 1 << 8
        or not 0 <= codec_id < 1 << 8
    ):
        raise VerificationError("FF-COMP-022", "the header's fields do not fit", cause=repr(header)[:200])
    check_size(HEADER_BYTES + len(body))
    head = _HEADER.pack(MAGIC, VERSION, codec_id, about.phase, FLAGS, about.round, *ids, len(body))
    return head + body


def check_size(nbytes: int) -> None:
    """Raises PolicyError FF-COMP-023 when a payload of `nbytes` bytes is more than anybody accepts."""
    if nbytes > limits.PAYLOAD_BYTES:
        raise PolicyError(
            "FF-COMP-023",
            f"payload of {nbytes} bytes",
            cause=f"the limit is {limits.PAYLOAD_BYTES} bytes",
            hint="choose a sparser codec: sync.codec = 'topk_2bit'",
        )


def unpack(
    data: bytes | memoryview,
    *,
    layout_id: Hash,
    round: int,
    base_root: Hash,
    peer: PeerId,
    codec_id: int,
    body_limit: int,
    phase: int = 0,
) -> memoryview:
    """The body of a frame that is exactly the one expected: a view, no copy.

    Raises ProtocolError: FF-COMP-001 shorter than a header, 002 longer than header + `body_limit`, 003 not FFC1
    version 1, 004 a flag set, 005 another codec, 006 another layout, 007 another round or phase, 008 another
    public state, 009 another peer, 010 the body is not as long as the header says.
    """
    if len(data) < HEADER_BYTES:
        raise ProtocolError("FF-COMP-001", f"payload of {len(data)} bytes", cause="it ends inside its header")
    if len(data) > HEADER_BYTES + body_limit:
        cause = f"at most {HEADER_BYTES + body_limit} are possible here"
        raise ProtocolError("FF-COMP-002", f"payload of {len(data)} bytes", cause=cause)
    magic, version, codec, stage, flags, number, *ids, length = _HEADER.unpack_from(data)
    expected: tuple[tuple[str, str, object, object], ...] = (
        ("FF-COMP-003", "frame", (magic, version), (MAGIC, VERSION)),
        ("FF-COMP-004", "flags", flags, FLAGS),
        ("FF-COMP-005", "codec", codec, codec_id),
        ("FF-COMP-006", "layout", ids[0], bytes(layout_id)),
        ("FF-COMP-007", "round and phase", (number, stage), (round, phase)),
        ("FF-COMP-008", "public state", ids[1], bytes(base_root)),
        ("FF-COMP-009", "peer", ids[2], bytes(peer)),
        ("FF-COMP-010", "body length", length, len(data) - HEADER_BYTES),
    )
    for code, what, found, wanted in expected:
        if found != wanted:
            raise ProtocolError(
                code, f"payload of another {what}", cause=f"found {_shown(found)}, not {_shown(wanted)}"
            )
    return memoryview(data)[HEADER_BYTES:]


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class Cursor:
    """Reads a body front to back; every piece is measured before it is cut, and nothing may be left over."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def take(self, nbytes: int) -> memoryview:
        """The next `nbytes` bytes, as a view; raises ProtocolError FF-COMP-011 when they are not there."""
        if not 0 <= nbytes <= len(self._body) - self._at:
            cause = f"{nbytes} bytes wanted, {len(self._body) - self._at} left"
            raise ProtocolError("FF-COMP-011", "payload body is too short", cause=cause)
        self._at += nbytes
        return self._body[self._at - nbytes : self._at]

    def close(self) -> None:
        """Raises ProtocolError FF-COMP-011 when bytes are left over."""
        if self._at != len(self._body):
            cause = f"{len(self._body) - self._at} bytes follow the last value"
            raise ProtocolError("FF-COMP-011", "payload body is too long", cause=cause)
