"""The one port of a relay: accepts strangers, reads four bytes of each, and gives the socket to whom they name.

At most limits.HALF_OPEN strangers are being greeted at a time; a new one displaces the oldest, so that a flood cannot
lock others out. Whoever is not understood within the handshake's time is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from farflung.core import limits
from farflung.core.io.tasks import Tasks
from farflung.net.io.listening import cannot_listen, check_host

MAGIC_BYTES: Final = 4
FAMILY_BYTES: Final = 2  # a greeter under two bytes is for all that begin so and have no greeter of their own
_BACKLOG: Final = 128
_ACCEPTED_AT_ONCE: Final = 16
_BREATHER_SECONDS: Final = 1.0  # when the system has no descriptor left

# Gets the socket and what was read; says whether it keeps the socket.
Greeter = Callable[[socket.socket, bytes], Awaitable[bool]]


class FrontDoor:
    """Listens, and asks the `greeters` by what a stranger says first. A socket that no greeter keeps is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        greeters: Mapping[bytes, Greeter],
        *,
        allow_remote: bool,
        handshake_seconds: float,
    ) -> None:
        self._host, self._port, self._greeters = host, port, greeters
        self._allow_remote, self._handshake_seconds = allow_remote, handshake_seconds
        self._listener: socket.socket | None = None
        self._strangers = Tasks()  # being greeted

    async def start(self) -> tuple[str, int]:
        """Listens; returns host and port. Raises FF-NET-040 port taken, 041 no such address, 042 not loopback."""
        check_host(self._host, allow_remote=self._allow_remote)
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._listener = socket.create_server((self._host, self._port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise cannot_listen(self._host, self._port, error) from error
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        return self._host, self._port

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is the real one once started."""
        return self._host, self._port

    async def close(self) -> None:
        """Stops listening, and closes the strangers that are being greeted."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        await asyncio.sleep(0)  # a task that is cancelled before its first step does not close its socket
        await self._strangers.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._listener is None:
                return
            try:
                stranger, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._take_breath(self._listener)
                return
            stranger.setblocking(False)
            while len(self._strangers) >= limits.HALF_OPEN:
                self._strangers.drop_oldest()
            self._strangers.begin(self._greet(stranger))

    def _take_breath(self, listener: socket.socket) -> None:
        """No descriptor is left: connections that end will free some."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())

        def again() -> None:
            if self._listener is listener:
                loop.add_reader(listener.fileno(), self._accept)

        loop.call_later(_BREATHER_SECONDS, again)

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
