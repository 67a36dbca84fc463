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
FRAGMENT_BYTES: Final = limits.FRAME_BYTES - HEAD_BYTES  # of senders: a whole frame fills four TLS records
FIN: Final = 1
Piece = bytes | bytearray | memoryview
# Half a TLS record: from there on a piece is kept as it came, with its record.
_PIECE_BYTES: Final = 8 * limits.KIB


class FrameType(enum.IntEnum):
    """What a frame is. The first three have stream 0 and no body; DATA continues the other four."""

    WELCOME = 1
    PING = 2
    PONG = 3
    REQUEST = 4
    TELL = 5
    REPLY = 6
    ERROR = 7
    DATA = 8


SIGNALS: Final = frozenset({FrameType.WELCOME, FrameType.PING, FrameType.PONG})


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; `body`, and `rest` behind it where it is in pieces, are at most limits.FRAME_BYTES long."""

    type: FrameType
    stream: int
    body: Piece = b""
    is_last: bool = True
    rest: tuple[Piece, ...] = ()

    @property
    def size(self) -> int:
        """Length of the encoding."""
        return HEAD_BYTES + len(self.body) + sum(map(len, self.rest))


def encode(frame: Frame) -> bytes:
    """The bytes of one frame."""
    before = head(frame.type, frame.is_last, frame.stream, frame.size - HEAD_BYTES)
    return b"".join((before, frame.body, *frame.rest))


def head(type_: FrameType, is_last: bool, stream: int, length: int) -> bytes:
    """What stands before a body of `length` bytes."""
    return _HEAD.pack(type_, FIN * is_last, stream, length)


def _broken(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-010", "malformed frame", cause=cause, hint="the peer runs other software or is hostile"
    )


def _read_head(data: bytes) -> tuple[FrameType, bool, int, int]:
    number, flags, stream, length = _HEAD.unpack(data)
    if not FrameType.WELCOME <= number <= FrameType.DATA:
        raise _broken(f"type {number} is unknown")
    if flags not in (0, FIN):
        raise _broken(f"flags {flags} are unknown")
    if length > limits.FRAME_BYTES:
        raise _broken(f"a body of {length} bytes, the limit is {limits.FRAME_BYTES}")
    kind = FrameType(number)
    if kind in SIGNALS and (stream or length or not flags):
        raise _broken(f"{kind.name} has no stream, no body and no continuation")
    if kind not in SIGNALS and (not stream or not length):
        raise _broken(f"{kind.name} needs a stream and a body")
    return kind, bool(flags), stream, length


class FrameReader:
    """Cuts a byte stream into frames, however it arrives. Holds less than two frames, in twice their memory at most."""

    def __init__(self) -> None:
        self._begun = b""  # of a head that is not whole
        self._open: _PartialFrame | None = None
        self._is_broken = False

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._begun) + (0 if self._open is None else HEAD_BYTES + self._open.size)

    def feed(self, *data: bytes) -> list[Frame]:
        """The frames completed by `data`; raises ProtocolError FF-NET-010, and then for ever."""
        if self._is_broken:
            raise _broken("the stream was broken before")
        frames: list[Frame] = []
        try:
            for each in data:
                if self._open is None or not self._open.keep(each):
                    self._cut(each, frames)
        except ProtocolError:
            self._is_broken = True
            self._begun, self._open = b"", None
            raise
        return frames

    def _cut(self, data: bytes, frames: list[Frame]) -> None:
        """Appends the frames that end in `data`."""
        at, end = 0, len(data)
        while at < end:
            if self._open is None:
                begun = self._begun + data[at : at + HEAD_BYTES - len(self._begun)]
                at += len(begun) - len(self._begun)
                if len(begun) < HEAD_BYTES:
                    self._begun = begun
                    return
                self._begun, self._open = b"", _PartialFrame(*_read_head(begun))
            frame = self._open
            to = min(end, at + frame.missing)
            frame.add(data, at, to)
            at = to
            if not frame.missing:
                frames.append(frame.whole())
                self._open = None


class _PartialFrame:
    """A frame whose body is under way, in the pieces in which it came."""

    __slots__ = ("_is_last", "_parts", "_stream", "_type", "missing", "size")

    def __init__(self, type_: FrameType, is_last: bool, stream: int, length: int) -> None:
        self._type, self._is_last, self._stream = type_, is_last, stream
        self._parts: list[Piece] = []
        self.size, self.missing = 0, length

    def keep(self, data: bytes) -> bool:
        """The common case of `add`: a record that lies within the frame, and does not end it."""
        size = len(data)
        if not _PIECE_BYTES <= size < self.missing:
            return False
        self._parts.append(data)
        self.size += size
        self.missing -= size
        return True

    def add(self, data: bytes, at: int, to: int) -> None:
        """Small pieces are put together: many of them would hold much more memory than they have bytes."""
        size = to - at
        self.size += size
        self.missing -= size
        if size >= _PIECE_BYTES:
            self._parts.append(memoryview(data)[at:to] if size < len(data) else data)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data[at:to]
        elif size:
            self._parts.append(bytearray(data[at:to]))

    def whole(self) -> Frame:
        """It; only what continues a message stays in pieces, which are joined when the message ends."""
        if self._type is FrameType.DATA and len(self._parts) > 1:
            body, *rest = self._parts
            return Frame(self._type, self._stream, body, self._is_last, tuple(rest))
        return Frame(self._type, self._stream, b"".join(self._parts), self._is_last)
