"""Dials over sockets that the caller provides, for measurements that need one particular, new socket."""

from __future__ import annotations

import asyncio
import socket

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter, ConnectionMeter
from farflung.net.io.connection import Connection
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.request_handlers import internal_error
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.messages import MessageKind
from farflung.net.streams import StreamRequest
from farflung.net.tls import TlsSession

_READ_BYTES = 256 * limits.KIB


class ProbeDialer:
    """One key that dials and serves nobody. Implements `connection.ConnectionHost`."""

    def __init__(self, key: SigningKey) -> None:
        self.buffer = bytearray(_READ_BYTES)
        self.counter = ByteCounter()
        self.pacer: LinePacer | None = None  # what is measured is the line, not our pace
        self._credentials = FileTlsCredentials(key)
        self._connections: set[Connection] = set()

    async def call(self, sock: socket.socket, peer: PeerId) -> Connection:
        """A connection to `peer` over a TCP connection that stands; the socket is the connection's from now on.

        Raises NetworkError: what `Endpoint.dial` raises of handshakes, FF-NET-046 when the other end closes before it
        has taken us in. It waits for as long as the caller does.
        """
        session = TlsSession.client(self._credentials, peer)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: self._made(session), sock=sock)
        except OSError as error:
            sock.close()
            raise NetworkError("FF-NET-046", "the connection was lost", cause=str(error)[:200]) from error
        try:
            await connection.opened()
        except BaseException:
            connection.drop(NetworkError("FF-NET-046", "the dial was given up"))
            raise
        return connection

    def _made(self, session: TlsSession) -> Connection:
        connection = Connection(self, session, ConnectionMeter(self.counter))
        self._connections.add(connection)
        return connection

    def drop(self, connection: Connection) -> None:
        """Ends one connection at once, with all that still waits to be sent over it."""
        connection.drop(NetworkError("FF-NET-049", "this caller is closed"))

    async def close(self) -> None:
        """Drops all connections."""
        for connection in list(self._connections):
            self.drop(connection)
        await asyncio.gather(*(each.closed() for each in list(self._connections)))
        self._credentials.close()

    # Called by connections (connection.ConnectionHost)

    def has_place(self, peer: PeerId, kind: MessageKind) -> bool:
        """Always: every request is refused at once."""
        return True

    def work(self, connection: Connection, asked: StreamRequest) -> None:
        """Nothing is served here."""
        connection.refuse(asked, internal_error())

    def proved(self, connection: Connection) -> None:
        """Whoever was dialled is taken."""

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.discard(connection)
