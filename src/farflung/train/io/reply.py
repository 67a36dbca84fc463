"""Asks a process behind a stream socket for one reply, and trusts nothing of it (train.io.worker has the format).

The process may run a stranger's program. What it says of a reply's length is held against the bound before anything is
read, memory is taken as bytes come, and values are counted before they become objects. The work takes as long as it
takes; a reply that has begun to come has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.core.io.spool_file import SpoolFile
from farflung.train.blobs import Blob
from farflung.train.io.worker import HEAD_BYTES, PIECE, LentBlobs
from farflung.train.reply_bounds import ReplyBound
from farflung.train.worker_messages import WorkerFailure

TOO_LONG: Final = "FF-TRAIN-091"


async def send(connection: socket.socket, data: bytes) -> None:
    """Sends one message. Raises ConnectionError."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, len(data).to_bytes(HEAD_BYTES, "little"))
    await loop.sock_sendall(connection, data)


async def lend(connection: socket.socket, blobs: Sequence[Blob], folder: Path | None) -> None:
    """Sends the blobs of a request: their lengths, with a file that holds them, and those that are files. Raises
    ConnectionError, RunError FF-CORE-050, FF-TRAIN-113.
    """
    loop, lent = asyncio.get_running_loop(), await asyncio.to_thread(LentBlobs, blobs, folder)
    try:
        while True:
            try:
                sent = socket.send_fds(connection, [lent.lengths], lent.descriptors)
                break
            except BlockingIOError:
                await _writable(connection)
    finally:
        lent.close()
    await loop.sock_sendall(connection, lent.lengths[sent:])


async def _writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(connection, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(connection)


async def receive_blobs(
    connection: socket.socket, count: int, bound: ReplyBound, folder: Path | None
) -> list[memoryview]:
    """The blobs of a reply that was received, in a file of this process.

    Raises EOFError, TimeoutError, ConnectionError, ProtocolError FF-TRAIN-091 (more than any reply to this can have),
    RunError FF-CORE-050 (no room for them).
    """
    if not count:
        return []
    spool, left = await asyncio.to_thread(SpoolFile, folder), bound.blobs
    try:
        for _ in range(count):
            head = bytearray()
            await _fill(connection, head.extend, HEAD_BYTES)
            size = int.from_bytes(head, "little")
            if size > left:
                raise _too_long(size, bound, left)
            left -= size
            spool.begin()
            await _fill(connection, spool.write, size)
        return spool.views()
    finally:
        spool.close()


async def receive(connection: socket.socket, bound: ReplyBound) -> Any:
    """The reply, or the WorkerFailure in its place.

    Raises EOFError (it ended), TimeoutError (it fell silent within its reply), ConnectionError, ProtocolError:
    FF-TRAIN-091 longer than any reply to this can be, FF-CORE-021 to -024 it cannot be read.
    """
    head = bytearray(await asyncio.get_running_loop().sock_recv(connection, HEAD_BYTES))
    if not head:
        raise EOFError("it ended")
    await _fill(connection, head.extend, HEAD_BYTES - len(head))
    size = int.from_bytes(head, "little")
    if size > bound.size:
        raise _too_long(size, bound, bound.size)
    raw = bytearray()
    await _fill(connection, raw.extend, size)
    return decode(raw, bound.kind | WorkerFailure, bound.size, bound.values)


async def _fill(connection: socket.socket, take: Callable[[bytes], None], size: int) -> None:
    """Reads `size` bytes, piece by piece, and takes no memory for those that have not come."""
    loop, seconds, left = asyncio.get_running_loop(), limits.REPLY_SECONDS + size / limits.REPLY_RATE, size
    try:
        async with asyncio.timeout(seconds):
            while left:
                more = await loop.sock_recv(connection, min(PIECE, left))
                if not more:
                    raise EOFError("it ended")
                take(more)
                left -= len(more)
    except TimeoutError:
        raise TimeoutError(f"of its reply {size - left} of {size} bytes came in {seconds:.0f} s") from None


def _too_long(size: int, bound: ReplyBound, most: int) -> ProtocolError:
    return ProtocolError(
        TOO_LONG,
        f"a reply of {size} bytes from a worker",
        cause=f"a {bound.kind.__name__} of this job has {most} bytes at most",
        hint="the model's source speaks in its worker's place, or another program does: read it",
    )
