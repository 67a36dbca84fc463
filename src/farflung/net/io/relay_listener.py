"""Listens on a relay's one port: reads four bytes of each new connection and dispatches the socket by them.

At most limits.HALF_OPEN strangers are being greeted at a time; a new one displaces the oldest, so that a flood cannot
lock others out. Whoever is not understood within the handshake's time is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from farflung.core import limits
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net.io.tcp_listener import ListenConfig, TcpListener

MAGIC_BYTES: Final = 4
FAMILY_BYTES: Final = 2  # a greeter under two bytes is for all that begin so and have no greeter of their own

# Gets the socket and what was read; says whether it keeps the socket.
Greeter = Callable[[socket.socket, bytes], Awaitable[bool]]


class RelayListener:
    """Listens, and asks the `greeters` by what a stranger says first. A socket that no greeter keeps is closed."""

    def __init__(self, listen: ListenConfig, greeters: Mapping[bytes, Greeter], handshake_seconds: float) -> None:
        self._listener = TcpListener(listen, self._enter)
        self._greeters, self._handshake_seconds = greeters, handshake_seconds
        self._strangers = OwnedTasks()  # being greeted

    async def start(self) -> tuple[str, int]:
        """Listens; returns host and port. Raises FF-NET-040 port taken, 041 no such address, 042 not loopback."""
        return self._listener.open()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is the real one once started."""
        return self._listener.address

    async def close(self) -> None:
        """Stops listening, and closes the strangers that are being greeted."""
        self._listener.close()
        await asyncio.sleep(0)  # a task that is cancelled before its first step does not close its socket
        await self._strangers.close()

    def _enter(self, stranger: socket.socket) -> None:
        while len(self._strangers) >= limits.HALF_OPEN:
            self._strangers.drop_oldest()
        self._strangers.begin(self._greet(stranger))

    async def _greet(self, stranger: socket.socket) -> None:
        is_kept = False  # until a greeter has said so: one that fails has taken nothing
        try:
            async with asyncio.timeout(self._handshake_seconds):
                magic = await exactly(stranger, MAGIC_BYTES)
                greeter = self._greeters.get(magic) or self._greeters.get(magic[:FAMILY_BYTES])
                if greeter is not None:
                    is_kept = await greeter(stranger, magic)
        except (TimeoutError, OSError, EOFError):
            pass
        finally:
            if not is_kept:
                stranger.close()


async def exactly(source: socket.socket, size: int) -> bytes:
    """The next `size` bytes. Raises EOFError when less comes."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size:
        piece = await loop.sock_recv(source, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
