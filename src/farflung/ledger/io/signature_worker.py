"""Runs a process that checks signatures for a validator over one socket.

It is started as `python -m farflung.ledger.io.signature_worker FD`.

A frame is 4 bytes of length, little-endian, and the message. A question is a list of encoded transactions, the answer
a bitmap: bit i % 8 of byte i // 8 says whether transaction i is sound. It ends when the other end of the socket does.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.ledger.stateless_checks import is_sound

_HEAD: Final = 4
Question = tuple[bytes, ...]


def send(link: socket.socket, message: bytes) -> None:
    """Sends one frame; raises OSError."""
    link.sendall(len(message).to_bytes(_HEAD, "little") + message)


def receive(link: socket.socket, limit: int) -> bytes:
    """The next frame's message; raises OSError where the other end is gone, or sends more than `limit` bytes."""
    length = int.from_bytes(_exactly(link, _HEAD), "little")
    if length > limit:
        raise ConnectionError("a frame is too long")
    return _exactly(link, length)


def _exactly(link: socket.socket, length: int) -> bytes:
    held = bytearray()
    while len(held) < length:
        part = link.recv(min(length - len(held), limits.MIB))
        if not part:
            raise ConnectionError("the other end is gone")
        held += part
    return bytes(held)


def bitmap(flags: Sequence[bool]) -> bytes:
    """The flags as bits."""
    return sum(1 << place for place, is_set in enumerate(flags) if is_set).to_bytes((len(flags) + 7) // 8, "little")


def flags(bits: bytes, count: int) -> tuple[bool, ...]:
    """What `bitmap` was made of; raises ConnectionError when it cannot have been made of `count` flags."""
    number = int.from_bytes(bits, "little")
    if len(bits) != (count + 7) // 8 or number >> count:
        raise ConnectionError("the answer does not fit the question")
    return tuple(bool(number >> place & 1) for place in range(count))


def serve(link: socket.socket) -> None:
    """Answers until the other end is gone, or sends what is no question."""
    with contextlib.suppress(OSError, ProtocolError):
        while True:
            question = decode(receive(link, limits.JUDGE_BYTES), Question, limits.JUDGE_BYTES)
            send(link, bitmap([is_sound(data) for data in question]))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the validator, which then closes the socket
    serve(socket.socket(fileno=int(sys.argv[1])))
