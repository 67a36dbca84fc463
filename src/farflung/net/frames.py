"""Decides where one frame ends and the next begins.

    frame = type (1 byte) | flags (1: FIN) | stream (4 bytes) | length (4) | body (length, <= limits.FRAME_BYTES)

Big endian. Only what a single frame can break is checked here; the order of frames is judged by `streams`.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from farflung.core import limits
from farflung.core.errors import ProtocolError

_HEAD: Final = struct.Struct(">BBII")
HEAD_BYTES: Final = _HEAD.size
FRAGMENT_BYTES: Final = (
    limits.FRAME_BYTES - HEAD_BYTES
)  # what senders use: a whole frame fills four TLS records
FIN: Final = 1


class Type(enum.IntEnum):
    """What a frame is. The first three have stream 0 and no body; DATA continues the other four."""

    WELCOME = 1
    PING = 2
    PONG = 3
    REQUEST = 4
    TELL = 5
    REPLY = 6
    ERROR = 7
    DATA = 8


SIGNALS: Final = frozenset({Type.WELCOME, Type.PING, Type.PONG})


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; `body` is at most limits.FRAME_BYTES long."""

    type: Type
    stream: int
    body: bytes = b""
    is_last: bool = True

    @property
    def size(self) -> int:
        """Length of the encoding."""
        return HEAD_BYTES + len(self.body)


def encode(frame: Frame) -> bytes:
    """The bytes of one frame."""
    return _HEAD.pack(frame.type, FIN * frame.is_last, frame.stream, len(frame.body)) + frame.body


def _broken(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-010", "malformed frame", cause=cause, hint="the peer runs other software or is hostile"
    )


def _head(data: bytes | bytearray, at: int) -> tuple[Type, bool, int, int]:
    number, flags, stream, length = _HEAD.unpack_from(data, at)
    if not Type.WELCOME <= number <= Type.DATA:
        raise _broken(f"type {number} is unknown")
    if flags not in (0, FIN):
        raise _broken(f"flags {flags} are unknown")
    if length > limits.FRAME_BYTES:
        raise _broken(f"a body of {length} bytes, the limit is {limits.FRAME_BYTES}")
    kind = Type(number)
    if kind in SIGNALS and (stream or length or not flags):
        raise _broken(f"{kind.name} has no stream, no body and no continuation")
    if kind not in SIGNALS and (not stream or not length):
        raise _broken(f"{kind.name} needs a stream and a body")
    return kind, bool(flags), stream, length


class FrameReader:
    """Cuts a byte stream into frames, however it arrives. Holds less than two frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_broken = False

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames completed by `data`; raises ProtocolError FF-NET-010, and then for ever."""
        if self._is_broken:
            raise _broken("the stream was broken before")
        self._buffer += data
        frames: list[Frame] = []
        try:
            end = self._cut(frames)
        except ProtocolError:
            self._is_broken = True
            self._buffer.clear()
            raise
        del self._buffer[:end]
        return frames

    def _cut(self, frames: list[Frame]) -> int:
        """Appends the whole frames of the buffer; returns where the rest begins."""
        at, size = 0, len(self._buffer)
        while size - at >= HEAD_BYTES:
            kind, is_last, stream, length = _head(self._buffer, at)
            end = at + HEAD_BYTES + length
            if end > size:
                break
            with memoryview(self._buffer) as view:
                frames.append(Frame(kind, stream, bytes(view[at + HEAD_BYTES : end]), is_last))
            at = end
        return at
