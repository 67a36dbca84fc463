"""Listens and dials for one key; bounds who may connect, how many, and how long they may take to prove a key.

    accepted socket --> half open --(handshake within its time, admitted, a place free)--> open --> gone
                           | over limits.HALF_OPEN the oldest half-open one is dropped, so a flood of silent
                           | strangers delays others by one handshake instead of locking them out

An endpoint that never starts listens nowhere. Attached to a relay it can still be reached: the relay tells it that
somebody calls, it opens a connection to the relay for that purpose, and from there on it is the acceptor as ever.

Everything runs in one asyncio loop; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.ids import PeerId, short
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net.certificates import Credential, credential_of
from farflung.net.counters import ByteCounter, ConnectionMeter
from farflung.net.endpoint_records import DIRECT, EndpointAddress
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.listen_errors import too_slow, turned_away, unreachable
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.relay_callback import RelayCallback
from farflung.net.io.relay_dialer import dial_by_relay, new_ticket
from farflung.net.io.relay_payer import SIGN, RelayPayer
from farflung.net.io.relay_registration import CALLBACK, RelayRegistration, first_there
from farflung.net.io.request_handlers import Handler, OnError, RequestHandlers
from farflung.net.io.spare_connections import keep_spare
from farflung.net.io.tcp_listener import ANY_LOOPBACK_PORT, ListenConfig, TcpListener
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.io.wake_watch import WakeWatch
from farflung.net.messages import MessageKind
from farflung.net.paths import MEETING, PathType
from farflung.net.relay_receipts import ReceiptTally
from farflung.net.relay_tickets import CallbackRequest, TicketPurpose
from farflung.net.streams import StreamRequest
from farflung.net.tls import TlsSession

_READ_BYTES = 256 * limits.KIB

_Place = tuple[PeerId, str, int, PeerId | None, int]  # a peer, host and port, the relay there, `fresh`


class Endpoint:
    """One account on the network. Start it to be reachable; dial with or without starting."""

    def __init__(
        self,
        own: SigningKey | Credential,
        handler: Handler,
        counter: ByteCounter,
        *,
        listen: ListenConfig = ANY_LOOPBACK_PORT,
        admission: Admission | None = None,
        handshake_seconds: float = limits.HANDSHAKE_SECONDS,
        pacer: LinePacer | None = None,
    ) -> None:
        """`own`: the account's key, or a certified node key. `admission` (None: everybody) says who may stay.

        `pacer`: of the line that this endpoint shares with others of the process (None: its own).
        """
        self.credential, self.counter = credential_of(own), counter
        self.admission = admission or Admission()
        self.pacer: LinePacer | None = pacer or LinePacer()
        self.buffer = bytearray(_READ_BYTES)
        self._handler = handler
        self.on_error: OnError = _report  # hears of handlers that broke
        self._handlers = RequestHandlers(self._handle, lambda error: self.on_error(error), self._freed)
        self._listener, self._entering = TcpListener(listen, self._enter), OwnedTasks()
        self._handshake_seconds = handshake_seconds
        self._credentials = FileTlsCredentials(self.credential)
        self._half_open: dict[Connection, asyncio.TimerHandle] = {}
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._accepted: dict[PeerId, list[Connection]] = {}
        self._open: dict[PeerId, list[Connection]] = {}
        self._dials: dict[_Place, asyncio.Task[Connection]] = {}
        self._attachments: dict[PeerId, RelayRegistration] = {}
        self.payer = RelayPayer(self.credential, self._reach_relay, self.admission.clock)
        self._callback = RelayCallback(self, self._arriving, self.admission.admit, handshake_seconds)
        self._is_closed, self._wake = False, WakeWatch(self.probe)
        self.services: dict[str, Handler] = {}  # methods that the network itself serves to any proved key
        self.on_accepted: Callable[[Connection], None] | None = None  # hears of what others dialled

    async def start(self) -> tuple[str, int]:
        """Listens; returns host and port. Raises FF-NET-040 port taken, 041 no such address, 042 not loopback."""
        return self._listener.open()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is the real one once started."""
        return self._listener.address

    async def dial(
        self, peer: PeerId, host: str, port: int, *, relay: PeerId | None = None, fresh: int = 0
    ) -> Connection:
        """An open connection to `peer`: one that stands, or a new one to this address; concurrent dials share it.

        `fresh`: if not 0, a new one that only dials of the same number share. With `relay`, host and port are that
        relay's, and `peer` is attached to it. Raises NetworkError: FF-NET-043 nobody there, 044 too slow, 045 closed
        before it was open (not admitted, full), 049 this endpoint is closed, 070 .. 073 what `dial_by_relay` says
        of relays; ProtocolError FF-NET-001 .. 004 when it is not `peer` who answers, 074.
        A new one is proved to be the peer's; if that does not take us in, the first call raises FF-NET-045.
        """
        if not fresh and (standing := self.connection(peer)) is not None:
            return standing
        place = (peer, host, port, None if relay == peer else relay, fresh)
        task = self._dials.get(place)
        if task is None:
            task = self._dials[place] = asyncio.create_task(self._dial(place))
            task.add_done_callback(lambda done: self._dialled(place, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`, not by our caller
                self._check_not_closed()
            raise

    def connection(self, peer: PeerId) -> Connection | None:
        """A connection to `peer` that stands, whoever dialled it."""
        return next(iter(self.connections(peer)), None)

    def connections(self, peer: PeerId) -> tuple[Connection, ...]:
        """All of them, the oldest first."""
        return tuple(c for c in self._open.get(peer, ()) if c.is_open and not (c.is_worn or c.is_doubted))

    @property
    def standing(self) -> tuple[Connection, ...]:
        """All open connections, to whomever."""
        return tuple(c for several in self._open.values() for c in several if c.is_open)

    def attach(self, relay: PeerId, host: str, port: int, *, spare: bool = True) -> None:
        """Keeps this key reachable through the relay at host and port, until `close`, whatever becomes of the relay.

        With a `spare` connection there whoever dials this key is joined at once (`spare_connections`).
        """
        self._check_not_closed()
        if relay not in self._attachments:
            place, own = (host, port), lambda: self.credential
            made = functools.partial(self._arriving, b"", EndpointAddress(host, port, relay), PathType.RELAY)
            beside = functools.partial(keep_spare, own, self.counter, relay, place, made, self.payer)
            dial = lambda fresh: self.dial(relay, host, port, fresh=fresh)  # noqa: E731
            self._attachments[relay] = RelayRegistration(relay, place, dial, beside if spare else None)

    async def detach(self, relay: PeerId) -> None:
        """Is known at this relay no more. Circuits that stand live on."""
        attachment = self._attachments.pop(relay, None)
        if attachment is not None:
            await attachment.close()
            for connection in self.connections(relay):
                connection.close()

    def is_attached(self, relay: PeerId) -> bool:
        """Whether the relay knows this key now."""
        attachment = self._attachments.get(relay)
        return attachment is not None and attachment.is_there

    async def attached(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109 - it is turned into an error
        """Returns when a relay of `attach` knows this key. Raises NetworkError FF-NET-077 after `timeout` seconds."""
        await first_there(self._attachments.values(), timeout)

    async def adopt(self, accepted: socket.socket, first: bytes) -> None:
        """Takes a connection that another listener accepted, and of which it has read the `first` bytes."""
        self.counter.received[MessageKind.CONTROL] += len(first)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self._arriving(first), accepted)

    def renew(self, own: Credential) -> None:
        """From now on this node key is proved to whoever is met; what is open lives on.

        Raises ProtocolError FF-NET-106 for another account.
        """
        if own.account != self.credential.account:
            raise ProtocolError(
                "FF-NET-106",
                "an endpoint keeps its account",
                cause=f"the new key speaks for {short(own.account)}",
                hint="make a new endpoint",
            )
        old, self.credential, self._credentials = self._credentials, own, FileTlsCredentials(own)
        old.close()
        self.payer.renew(own)

    def probe(self) -> None:
        """Asks every connection to another machine for a sign of life: one that gives none has ended in seconds.

        Of its own machine the kernel says at once who is gone.
        """
        for connection in self._connections:
            if connection.tuned is not None and not connection.tuned.is_local:
                connection.probe()

    def recheck(self) -> int:
        """Ends the connections whose node key does not count any more; returns how many."""
        ended = 0
        for connection in [each for several in self._open.values() for each in several]:
            try:
                self.admission.check(connection.identity)
            except ProtocolError as error:
                what = f"the node key of {short(connection.peer)} was withdrawn"
                connection.drop(NetworkError("FF-NET-105", what, cause=error.cause, hint=error.hint))
                ended += 1
        return ended

    def fresh(self, peer: PeerId | None, way: PathType) -> Connection:
        """What takes a connected socket over (`hole_punch.over`). `peer`: who is dialled, None: the other end dials."""
        self._check_not_closed()
        if peer is None:
            return self._arriving(way=way)
        return self._connection(TlsSession.client(self._credentials, peer, self.admission.check), way=way)

    async def close(self) -> None:
        """Stops listening, closes all connections, cancels all handlers."""
        self._is_closed = True
        self._wake.end()
        self._listener.close()
        await self.payer.close()
        await asyncio.gather(*(each.close() for each in self._attachments.values()))
        for task in self._dials.values():
            task.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        await asyncio.sleep(0)  # who has just entered is a connection from its task's first step on
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*(each.closed() for each in list(self._connections)))
        await self._entering.close()
        await self._handlers.close()
        for late in list(self._connections):  # a relay joined it while we closed
            late.drop(NetworkError("FF-NET-049", "this endpoint is closed"))
        self._credentials.close()

    # Dialling

    async def _dial(self, place: _Place) -> Connection:
        peer, host, port, *_ = place
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._handshake_seconds):
                connection = await self._reach(place)
                await connection.proved()
        except TimeoutError:
            error = too_slow(host, port, self._handshake_seconds)
            _drop(connection, error)
            raise error from None
        except NetworkError as lost:
            raise turned_away(peer, lost) if lost.code == "FF-NET-046" else lost from None
        except BaseException:
            _drop(connection, NetworkError("FF-NET-046", "the dial was given up"))
            raise
        connection.expect_welcome(self._handshake_seconds)
        return connection

    async def _reach(self, place: _Place) -> Connection:
        peer, host, port, relay, _ = place
        self._check_not_closed()
        loop = asyncio.get_running_loop()
        session = TlsSession.client(self._credentials, peer, self.admission.check)
        way = PathType.DIRECT if relay is None else PathType.RELAY
        made = functools.partial(self._connection, session, EndpointAddress(host, port, relay or DIRECT), way)
        if relay is not None:
            toll = self.payer.find(relay, peer)
            made = functools.partial(made, self.payer.shown(toll, relay, (host, port)))
            ticket = new_ticket(self.credential, TicketPurpose.DIAL, relay, peer, toll=toll)
            own, early = self.credential, session.outgoing()
            return await dial_by_relay(own, self.counter, ticket, (host, port), made, early)
        try:
            _, connection = await loop.create_connection(made, host, port)
        except (OSError, ValueError, OverflowError) as error:  # the latter: no host name, no port
            raise unreachable(peer, host, port, error) from error
        return connection

    async def _reach_relay(self, relay: PeerId, place: tuple[str, int]) -> Connection:
        """How its payer reaches a relay."""
        return await self.dial(relay, *place)

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise NetworkError("FF-NET-049", "this endpoint is closed")

    def _dialled(self, place: _Place, task: asyncio.Task[Connection]) -> None:
        del self._dials[place]
        if not task.cancelled():
            task.exception()  # every waiter may be gone: then nobody needs to hear of it

    # Accepting

    def _enter(self, stranger: socket.socket) -> None:
        self._entering.begin(self.adopt(stranger, b""))

    def _connection(
        self,
        session: TlsSession,
        place: EndpointAddress = MEETING,
        way: PathType = PathType.DIRECT,
        tally: ReceiptTally | None = None,
    ) -> Connection:
        meter = ConnectionMeter(self.counter, tally)
        self.payer.opened(tally)
        connection = Connection(self, session, meter)
        connection.place, connection.way = place, way
        self._connections[connection] = None
        self._wake.begin()
        return connection

    def _arriving(
        self,
        first: bytes = b"",
        place: EndpointAddress = MEETING,
        way: PathType = PathType.DIRECT,
        tally: ReceiptTally | None = None,
    ) -> Connection:
        """A stranger's socket was accepted, and `first` was read from it."""
        while len(self._half_open) >= limits.HALF_OPEN:
            self._expire(next(iter(self._half_open)), "too many strangers at once")
        session = TlsSession.server(self._credentials, self.admission.check)
        session.receive(first)
        connection = self._connection(session, place, way, tally)
        loop = asyncio.get_running_loop()
        self._half_open[connection] = loop.call_later(
            self._handshake_seconds, self._expire, connection, "its time is over"
        )
        return connection

    def _expire(self, connection: Connection, cause: str) -> None:
        timer = self._half_open.pop(connection, None)
        if timer is not None:
            timer.cancel()
            connection.drop(NetworkError("FF-NET-044", "the handshake was not finished", cause=cause))

    async def _handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """What a relay of ours tells us is for us; everything else is for the handler."""
        if method == SIGN:
            await self.payer.asked(connection, body)
            return b""
        attachment = self._attachments.get(connection.peer) if method == CALLBACK else None
        if attachment is None:
            return await self.services.get(method, self._handler)(connection, method, body)
        await self._callback.come(attachment, decode(body, CallbackRequest, limits.TICKET_BYTES))
        return b""

    # Called by connections (connection.ConnectionHost)

    def proved(self, connection: Connection) -> None:
        """The peer is proved: takes the connection in, or raises NetworkError FF-NET-050."""
        peer = connection.peer
        timer = self._half_open.pop(connection, None)
        if timer is not None:
            timer.cancel()
            self._take_in(connection, peer)
            if self.on_accepted is not None:
                asyncio.get_running_loop().call_soon(self.on_accepted, connection)
        self._open.setdefault(peer, []).append(connection)

    def _take_in(self, connection: Connection, peer: PeerId) -> None:
        if self._is_closed or not self.admission.admits(peer):
            raise NetworkError("FF-NET-050", f"{short(peer)} is not admitted")
        mine = self._accepted.get(peer, [])
        if len(mine) >= limits.CONNECTIONS_PER_PEER:
            mine.pop(0).drop(NetworkError("FF-NET-051", "replaced by newer connections of the same key"))
        if sum(map(len, self._accepted.values())) >= limits.CONNECTIONS:
            raise NetworkError("FF-NET-050", f"no place for {short(peer)}", cause="the listener is full")
        self._accepted.setdefault(peer, []).append(connection)

    def has_place(self, peer: PeerId, kind: MessageKind) -> bool:
        """Whether another request of this key may start."""
        return self._handlers.has_place(peer, kind)

    def work(self, connection: Connection, asked: StreamRequest) -> None:
        """Starts the handler of a request."""
        self._handlers.start(connection, asked)

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""
        self._expire(connection, "it was lost")
        if connection in self._connections:
            del self._connections[connection]
            self.payer.ended(connection.tally)
            if not self._connections:
                self._wake.end()
        for table in (self._accepted, self._open):
            for peer in [peer for peer, each in table.items() if connection in each]:
                table[peer].remove(connection)
                if not table[peer]:
                    del table[peer]

    def _freed(self, peer: PeerId) -> None:
        for connection in list(self._open.get(peer, ())):
            connection.serve()


def _drop(connection: Connection | None, error: NetworkError) -> None:
    if connection is not None:
        connection.drop(error)


def _report(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a handler of farflung.net failed", "exception": error}
    )
