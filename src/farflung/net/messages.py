"""Defines the headers of requests, replies and errors, and how long each body may be.

First frames (big endian):

    REQUEST, TELL   kind (1 byte) | total (4) | length of method (1) | method (ASCII) | body ...
    REPLY, ERROR    total (4) | body ...            an ERROR's body is `ErrorBody` in core.codec, in one frame
"""

from __future__ import annotations

import enum
import re
import struct
from typing import Final

from farflung.core import limits
from farflung.core.codec import Head, Wire, decode_head
from farflung.core.codec import encode as to_wire
from farflung.core.errors import FarflungError, NetworkError, ProtocolError
from farflung.core.release import UPGRADE, VERSION

_ASK: Final = struct.Struct(">BIB")
_ANSWER: Final = struct.Struct(">I")
_METHOD: Final = re.compile(rb"[a-z][a-z0-9_.]*")
_CODE: Final = re.compile(r"FF-[A-Z]{1,16}-[0-9]{3}")
_VERSION_LENGTH: Final = 32  # characters that are shown of a version
_TEXT_BYTES: Final = 1200  # of each text in an error: three of them and a code stay under limits.ERROR_BYTES


class MessageKind(enum.IntEnum):
    """What bytes are for. CONTROL overtakes the others, which are bulk."""

    CONTROL = 0
    SYNC = 1
    AUDIT = 2
    JOIN = 3

    @property
    def is_bulk(self) -> bool:
        """Whether messages of this kind wait for control."""
        return self is not MessageKind.CONTROL

    @property
    def limit(self) -> int:
        """Bytes of one message's body at most."""
        return limits.BULK_BYTES if self.is_bulk else limits.CONTROL_BYTES


class ErrorBody(Wire, frozen=True):
    """A FarflungError on the wire, and which farflung says it."""

    code: str
    message: str
    cause: str
    hint: str
    version: str


class ErrorBodyHead(Head, frozen=True):
    """The part of an error that every farflung reads, whatever a later one adds."""

    code: str
    message: str
    cause: str
    hint: str
    version: str


class RemoteError(NetworkError):
    """The peer's handler refused or failed: its code, message, cause and hint."""


def _refuse(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-024", "malformed message", cause=cause, hint="the peer runs other software or is hostile"
    )


def ask_head(method: str, kind: MessageKind, total: int) -> bytes:
    """The head of a REQUEST or TELL. Raises NetworkError FF-NET-030 for what no peer would accept."""
    name = method.encode("ascii", "replace")
    if not _METHOD.fullmatch(name) or len(name) > limits.METHOD_BYTES:
        raise NetworkError("FF-NET-030", f"not a method name: {method[:80]!r}")
    check_length(kind, total)
    return _ASK.pack(kind, total, len(name)) + name


def check_length(kind: MessageKind, total: int) -> None:
    """Raises NetworkError FF-NET-030 for a body of our own that is over the limit of its kind."""
    if total > kind.limit:
        raise NetworkError(
            "FF-NET-030",
            f"a message of {total} bytes does not fit",
            cause=f"the limit of {kind.name} is {kind.limit} bytes",
            hint="send it in parts",
        )


def read_ask(body: bytes) -> tuple[MessageKind, int, str, bytes]:
    """Kind, total, method and the first piece of the body. Raises ProtocolError FF-NET-024."""
    if len(body) < _ASK.size:
        raise _refuse("the head of a request is cut off")
    number, total, size = _ASK.unpack_from(body)
    name = body[_ASK.size : _ASK.size + size]
    if number > max(MessageKind):
        raise _refuse(f"kind {number} is unknown")
    if len(name) != size or size > limits.METHOD_BYTES or not _METHOD.fullmatch(name):
        raise _refuse("the method is no method name")
    return MessageKind(number), total, name.decode("ascii"), body[_ASK.size + size :]


def answer_head(total: int) -> bytes:
    """The head of a REPLY or ERROR."""
    return _ANSWER.pack(total)


def read_answer(body: bytes) -> tuple[int, bytes]:
    """Total and the first piece of the body. Raises ProtocolError FF-NET-024."""
    if len(body) < _ANSWER.size:
        raise _refuse("the head of a reply is cut off")
    return _ANSWER.unpack_from(body)[0], body[_ANSWER.size :]


def _printable(text: str) -> str:
    """What a terminal may be shown of a stranger's text: one line, no escape sequences."""
    return "".join(c if c.isprintable() else "?" for c in text)


def write_error(error: FarflungError) -> bytes:
    """The body of an ERROR, at most limits.ERROR_BYTES long."""
    return to_wire(ErrorBody(error.code, _cut(error.message), _cut(error.cause), _cut(error.hint), VERSION))


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:_TEXT_BYTES].decode(errors="ignore")


def read_error(body: bytes) -> RemoteError:
    """The peer's error, harmless to print. Raises ProtocolError FF-NET-024 or FF-CORE-02x.

    Where the peer runs another farflung, the cause names both versions: what either cannot read often has that cause.
    """
    told = decode_head(body, ErrorBodyHead, limits.ERROR_BYTES)
    if not _CODE.fullmatch(told.code):
        raise _refuse("the code of an error is no error code")
    cause, hint = _printable(told.cause), _printable(told.hint)
    if told.version != VERSION:
        versions = f"it runs farflung {_printable(told.version)[:_VERSION_LENGTH]}, and this is farflung {VERSION}"
        cause = f"{cause}; {versions}" if cause else versions
        hint = hint or f"run the same version on both; to have the newest here: {UPGRADE}"
    return RemoteError(told.code, _printable(told.message), cause=cause, hint=hint)
