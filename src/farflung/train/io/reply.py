"""Asks a process behind a stream socket for one reply, and trusts nothing of it (train.io.worker has the format).

The process may run a stranger's program. What it says of a reply's length is held against the bound before anything is
read, memory is taken as bytes come, and values are counted before they become objects. The work takes as long as it
takes; a reply that has begun to come has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.train.io.worker import HEAD_BYTES, PIECE
from farflung.train.reply_bounds import ReplyBound
from farflung.train.worker_messages import WorkerFailure

TOO_LONG: Final = "FF-TRAIN-091"


async def send(connection: socket.socket, data: bytes) -> None:
    """Sends one message. Raises ConnectionError."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, len(data).to_bytes(HEAD_BYTES, "little"))
    await loop.sock_sendall(connection, data)


async def receive(connection: socket.socket, bound: ReplyBound) -> Any:
    """The reply, or the WorkerFailure in its place.

    Raises EOFError (it ended), TimeoutError (it fell silent within its reply), ConnectionError, ProtocolError:
    FF-TRAIN-091 longer than any reply to this can be, FF-CORE-021 to -024 it cannot be read.
    """
    head = bytearray(await asyncio.get_running_loop().sock_recv(connection, HEAD_BYTES))
    if not head:
        raise EOFError("it ended")
    await _fill(connection, head, HEAD_BYTES)
    size = int.from_bytes(head, "little")
    if size > bound.size:
        raise ProtocolError(
            TOO_LONG,
            f"a reply of {size} bytes from a worker",
            cause=f"a {bound.kind.__name__} of this job has {bound.size} bytes at most",
            hint="the model's source speaks in its worker's place, or another program does: read it",
        )
    raw = bytearray()
    await _fill(connection, raw, size)
    return decode(raw, bound.kind | WorkerFailure, bound.size, bound.values)


async def _fill(connection: socket.socket, data: bytearray, size: int) -> None:
    """Reads until there are `size` bytes, and takes no memory for those that have not come."""
    loop, seconds = asyncio.get_running_loop(), limits.REPLY_SECONDS + size / limits.REPLY_RATE
    try:
        async with asyncio.timeout(seconds):
            while len(data) < size:
                more = await loop.sock_recv(connection, min(PIECE, size - len(data)))
                if not more:
                    raise EOFError("it ended")
                data += more
    except TimeoutError:
        raise TimeoutError(f"of its reply {len(data)} of {size} bytes came in {seconds:.0f} s") from None
