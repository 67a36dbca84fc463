"""Implements the agent's end of the channel to its worker process (see train.io.worker for the format)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError, RunError
from farflung.train import worker_messages
from farflung.train.io.worker import HEAD_BYTES, too_long

GONE: Final = "FF-TRAIN-090"


class WorkerPipe:
    """One worker behind a connected stream socket, which the pipe owns from then on.

    `replies`: what it may answer beside WorkerFailure, in at most `most` bytes.
    """

    def __init__(
        self, connection: socket.socket, replies: Any = worker_messages.Reply, most: int = limits.PIPE_BYTES
    ) -> None:
        connection.setblocking(False)
        self._connection, self._replies, self._most = (connection, replies | worker_messages.WorkerFailure, most)
        self._turn = asyncio.Lock()
        self._usable = True
        self._is_sent = False  # whole: the worker works on a request

    async def request(self, message: Wire) -> Any:
        """Sends a request and waits for its reply; requests queue.

        Raises RunError with the worker's own code when it answers WorkerFailure, RunError FF-TRAIN-090 when it is gone,
        ProtocolError FF-TRAIN-091 (message too long). A cancelled request leaves the pipe closed.
        """
        async with self._turn:
            if not self._usable:
                raise _gone("it was closed")
            self._usable = False
            try:
                await self._send(encode(message))
                self._is_sent = True
                reply = await self._receive()
            except (ConnectionError, EOFError) as error:
                raise _gone(str(error) or type(error).__name__) from None
            finally:
                self._is_sent = False
            self._usable = True
        if isinstance(reply, worker_messages.WorkerFailure):
            raise RunError(reply.code, reply.message, cause=reply.cause, hint=reply.hint)
        return reply

    async def abandon(self) -> None:
        """Lets the worker give up what it trains: its request then raises RunError FF-TRAIN-012."""
        if self._is_sent:
            self._is_sent = False
            with contextlib.suppress(ConnectionError):
                await self._send(encode(worker_messages.AbandonCommand()))

    def close(self) -> None:
        """Closes the socket: the worker then ends by itself."""
        self._usable = False
        self._connection.close()

    async def _send(self, data: bytes) -> None:
        if len(data) > limits.PIPE_BYTES:
            self._usable = True
            raise too_long(len(data))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._connection, len(data).to_bytes(HEAD_BYTES, "little"))
        await loop.sock_sendall(self._connection, data)

    async def _receive(self) -> Any:
        size = int.from_bytes(await self._exactly(HEAD_BYTES), "little")
        if size > self._most:
            raise too_long(size)
        raw = await self._exactly(size)
        try:
            return decode(raw, self._replies, self._most)
        except ProtocolError as error:
            raise _gone(f"its reply cannot be read: {error.cause}") from error

    async def _exactly(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = await loop.sock_recv_into(self._connection, view)
            if count == 0:
                raise EOFError("it ended")
            view = view[count:]
        return bytes(buffer)


def _gone(cause: str) -> RunError:
    return RunError(
        GONE,
        "the worker process is gone",
        cause=cause,
        hint="the agent starts another; if it ends again, look at its memory limit",
    )
