"""Listens on a TCP port and accepts unknown peers as bare sockets, a few at a time.

Not asyncio's own server: what that has accepted when it is closed gets a protocol and then an assertion instead of a
connection (CPython 3.11 to 3.14, `Server._attach`), so that whoever waits for the protocol's end waits for ever.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from farflung.net.io.listen_errors import LOOPBACK, cannot_listen, check_host

_BACKLOG: Final = 128
_ACCEPTED_AT_ONCE: Final = 16
_BREATHER_SECONDS: Final = 1.0  # when the system has no descriptor left


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where to listen; port 0 is any free one. The default is reached from this machine alone."""

    host: str = LOOPBACK
    port: int = 0
    allow_remote: bool = False  # other machines may reach `host`


ANY_LOOPBACK_PORT: Final = ListenConfig()


class TcpListener:
    """Listens at host and port from `open` to `close`; `enter` gets each stranger, a socket that does not block."""

    def __init__(self, listen: ListenConfig, enter: Callable[[socket.socket], None]) -> None:
        self._host, self._port, self._allow_remote = listen.host, listen.port, listen.allow_remote
        self._enter = enter
        self._listener: socket.socket | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is the real one once it was open."""
        return self._host, self._port

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    def open(self) -> tuple[str, int]:
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
        return self.address

    def close(self) -> None:
        """Stops listening. Who has entered is not touched."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

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
            self._enter(stranger)

    def _take_breath(self, listener: socket.socket) -> None:
        """No descriptor is left: connections that end will free some."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())

        def again() -> None:
            if self._listener is listener:
                loop.add_reader(listener.fileno(), self._accept)

        loop.call_later(_BREATHER_SECONDS, again)
