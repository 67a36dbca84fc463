"""Reads and writes a socket without a transport, paced by its process's `LinePacer` as every connection is."""

from __future__ import annotations

import asyncio
import socket

from farflung.net.io.rate_limiter import LinePacer
from farflung.net.messages import MessageKind


class PacedSocket:
    """One connected socket's. `close` when the socket is closed."""

    def __init__(self, sock: socket.socket, pacer: LinePacer | None) -> None:
        self._socket, self._pacer = sock, pacer
        self._reads, self._sends = asyncio.Event(), asyncio.Event()
        self._reads.set()
        self._is_closed = False
        if pacer is not None:
            pacer.open(sock, self, self._sends.set)

    async def may_read(self) -> None:
        """Waits while the owner's cap allows nothing more to come."""
        await self._reads.wait()

    async def may_send(self) -> None:
        """Waits while the owner's cap allows nothing more to be sent."""
        while self._pacer is not None and self._pacer.is_held(self._socket):
            self._sends.clear()
            await self._sends.wait()

    def check(self, kind: MessageKind) -> None:
        """Raises NetworkError FF-NET-150 when the owner allows no more of this kind this month."""
        if self._pacer is not None:
            self._pacer.check(self._socket, kind)

    def sent(self, size: int) -> None:
        """The kernel took `size` bytes."""
        if self._pacer is not None:
            self._pacer.sent(self._socket, size)

    def received(self, size: int) -> None:
        """`size` bytes came."""
        if self._pacer is not None:
            self._pacer.received(self._socket, size)

    def close(self) -> None:
        """Its share of the line is for others; who waits finds the socket closed."""
        self._is_closed = True
        if self._pacer is not None:
            self._pacer.close(self._socket)
        self._reads.set()
        self._sends.set()

    # As rate_limiter.PausableSource

    def pause_reading(self) -> None:
        """Nothing is read from now on."""
        if not self._is_closed:
            self._reads.clear()

    def resume_reading(self) -> None:
        """It is read again."""
        self._reads.set()

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._is_closed
