"""Joins TLS, frames, streams and counters to an asyncio transport: one connection between two keys.

Reading never pauses: every buffer behind it is bounded by rules that the peer must keep (see `streams`). Writing
hands over a portion at a time, and only while the kernel takes it (`writer`), so that control can overtake bulk
until the last moment.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from farflung.core import limits
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import PeerId
from farflung.net.certificates import Identity
from farflung.net.counters import ConnectionMeter
from farflung.net.frames import FrameReader
from farflung.net.io.connection_writer import ConnectionWriter
from farflung.net.io.listen_errors import again, left, stuck, unanswered
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.socket_options import SocketTuning
from farflung.net.messages import MessageKind
from farflung.net.paths import MEETING, PathType
from farflung.net.relay_receipts import ReceiptTally
from farflung.net.streams import Event, StreamErrorReply, StreamMultiplexer, StreamReply, StreamRequest, StreamWelcome
from farflung.net.tls import TlsSession

_LINGER_SECONDS: Final = 2.0  # for the last bytes of a connection that we close
_LOOKS: Final = 3  # without anything: it is over
_PROBE_SECONDS: Final = 2.0  # for a sign of life after this computer slept


class ConnectionHost(Protocol):
    """What a connection asks of its endpoint."""

    buffer: bytearray  # for reading; used within one callback only
    pacer: LinePacer | None  # of all that this process sends to other machines; None: as fast as it goes

    def has_place(self, peer: PeerId, kind: MessageKind) -> bool:
        """Whether another request of this key may start."""

    def work(self, connection: Connection, asked: StreamRequest) -> None:
        """Starts the handler of a request; it ends in `answer` or `refuse`."""

    def proved(self, connection: Connection) -> None:
        """The peer's key is proved; raises NetworkError to refuse it."""

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""


class IdleTimer:
    """Notices that nothing comes: calls `ask` when nothing came since the last look, and after `seconds` `over`.

    It counts looks and not seconds: a process that was stopped for an hour has not listened, so it cannot blame the
    peer.
    """

    def __init__(self, seconds: float, ask: Callable[[], None], over: Callable[[], None]) -> None:
        self._seconds, self._ask, self._over = seconds, ask, over
        self._quiet = 0  # looks since something came
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Looks from now on, until `end`."""
        if self._quiet >= _LOOKS:
            self._over()
            return
        self._timer = asyncio.get_running_loop().call_later(self._seconds / _LOOKS, self.begin)
        self._quiet += 1
        if self._quiet > 1:
            self._ask()

    def broken(self) -> None:
        """Something came."""
        self._quiet = 0

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Backpressure:
    """Wakes who waits to send when there is room for its kind, and not whenever something leaves."""

    def __init__(self, streams: StreamMultiplexer) -> None:
        self._streams = streams
        kinds = (MessageKind.CONTROL, MessageKind.SYNC)  # for control, for bulk
        self._kinds = tuple((kind, asyncio.Event()) for kind in kinds)
        self._is_over = False

    async def wait(self, kind: MessageKind) -> None:
        """Returns when another message of this kind may be queued, or none ever."""
        while not self._streams.has_room(kind) and not self._is_over:
            _, room = self._kinds[kind.is_bulk]
            room.clear()
            await room.wait()

    def look(self) -> None:
        """Something has left."""
        for kind, room in self._kinds:
            if self._streams.has_room(kind):
                room.set()

    def end(self) -> None:
        """Nobody waits any longer."""
        self._is_over = True
        for _, room in self._kinds:
            room.set()


class Connection(asyncio.BufferedProtocol):
    """A proved peer, to call and to be called by. Made by an Endpoint; `peer` is known once it is open."""

    def __init__(self, owner: ConnectionHost, session: TlsSession, meter: ConnectionMeter) -> None:
        self._owner, self._session, self._meter = owner, session, meter
        self._is_dialer = session.is_dialer
        self._streams = StreamMultiplexer(is_dialer=self._is_dialer)
        self._reader, self._loop = FrameReader(), asyncio.get_running_loop()
        self._writer: ConnectionWriter | None = None
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._waiting: tuple[deque[StreamRequest], deque[StreamRequest]] = (
            deque(),
            deque(),
        )  # control, bulk: not started
        self._backpressure, self._gone = Backpressure(self._streams), asyncio.Event()
        self._proved: asyncio.Future[None] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._reason: NetworkError | None = None
        dumb = stuck(f"nothing came for {limits.IDLE_SECONDS:.0f} s")
        self._idle = IdleTimer(limits.IDLE_SECONDS, self._still, lambda: self.drop(dumb))
        self.heard, self._doubted = self._loop.time(), -1.0  # something moved; that, when doubted
        self.place, self.way = MEETING, PathType.DIRECT  # over what it runs, as its endpoint says
        self.ways: Callable[[], tuple[Connection, ...]] = lambda: (self,)  # they share bulk (path_manager)
        self.widened: asyncio.Future[None] = self._loop.create_future()  # done when `ways` have become more
        self.round_trip: float | None = None  # seconds, the least of the last, where `path_manager` measures it

    # For users

    @property
    def peer(self) -> PeerId:
        """The proved account of the other end."""
        return self.identity.account

    @property
    def identity(self) -> Identity:
        """The node key that the other end proved, and the account for which it speaks."""
        if self._session.identity is None:
            raise NetworkError("FF-NET-005", "the connection is not open yet")
        return self._session.identity

    @property
    def is_open(self) -> bool:
        """Whether calls may be made. The dialer's may be under way before it is welcome."""
        return self._reason is None and self._session.is_ready

    @property
    def is_welcome(self) -> bool:
        """Whether the peer has taken us in, or we it; also true of a connection that is gone."""
        return self._streams.is_welcome or self._reason is not None

    @property
    def is_worn(self) -> bool:
        """Whether so much went through that the next dial makes a new connection (limits.CONNECTION_BYTES)."""
        return self._meter.total >= limits.CONNECTION_BYTES

    @property
    def tally(self) -> ReceiptTally | None:
        """Where it counts, if somebody pays for its way."""
        return self._meter.tally

    @property
    def _refuser(self) -> PeerId | None:
        """Who has not taken us in, though it proved its key."""
        return None if self._streams.is_welcome else self._session.peer

    @property
    def is_doubted(self) -> bool:
        """Whether somebody waited in vain, and nothing came since. The next dial makes a new connection."""
        return self.heard == self._doubted

    @property
    def is_busy(self) -> bool:
        """Whether calls of this end wait for an answer."""
        return bool(self._calls)

    @property
    def moved(self) -> int:
        """Bytes sent and received so far."""
        return self._meter.total

    def widen(self) -> None:
        """Wakes who waits for more `ways`; who comes then waits anew."""
        before, self.widened = self.widened, self._loop.create_future()
        if not before.cancelled():  # by one who awaited it under a time-out
            before.set_result(None)

    def doubt(self) -> None:
        """Says that an answer is overdue. Whatever moves on this connection takes it back."""
        self._doubted = self.heard

    @property
    def tuned(self) -> SocketTuning | None:
        """What the kernel gave this connection; None before TCP stands."""
        return None if self._writer is None else self._writer.tuned

    @property
    def tcp(self) -> socket.socket | None:
        """What TCP runs over; None before it stands."""
        return None if self._writer is None else self._writer.socket

    @property
    def remote(self) -> tuple[str, int]:
        """Host and port that the other end's bytes come from. Raises NetworkError FF-NET-005 before TCP stands."""
        if self._writer is None or not self._writer.remote:
            raise NetworkError("FF-NET-005", "the connection is not open yet")
        return self._writer.remote[0], self._writer.remote[1]

    async def call(
        self,
        method: str,
        body: bytes,
        *,
        kind: MessageKind = MessageKind.CONTROL,
        timeout: float | None = 30.0,  # noqa: ASYNC109 - it is turned into an error with a code
    ) -> bytes:
        """Asks the peer and waits for its reply.

        Raises RemoteError (code and texts of the peer's error), NetworkError FF-NET-030 (does not fit),
        FF-NET-046 or what else ended the connection, FF-NET-047 (no answer in time), 150 (the month is used up).
        """
        began = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for_room(kind)
                return await self._answer_to(self._streams.request(method, body, kind))
        except TimeoutError:
            if self.heard <= began:  # not even something else came: who is only slow answers the ping
                self.doubt()
                self._ping()
            raise unanswered(self.peer, method, timeout) from None

    async def tell(self, method: str, body: bytes, *, kind: MessageKind = MessageKind.CONTROL) -> None:
        """Sends without waiting for an answer; returns when it is queued. Raises FF-NET-030, 046, 150."""
        await self._wait_for_room(kind)
        self._streams.tell(method, body, kind)
        self._send()

    async def closed(self) -> None:
        """Returns when the connection is gone."""
        await self._gone.wait()

    def close(self) -> None:
        """Says good-bye, fails the calls under way; what is queued and unsent is dropped."""
        if self._reason is not None:
            return
        self._end(NetworkError("FF-NET-046", "the connection was closed"))
        if self._writer is not None:
            self._session.finish()
            self._writer.write(MessageKind.CONTROL, self._session.outgoing())
            self._writer.close()
            self._loop.call_later(_LINGER_SECONDS, self._writer.abort)

    def retire(self) -> None:
        """Closes it if this end dialled it and nothing is under way: nobody needs it any more."""
        if self._is_dialer and self._streams.is_idle:
            self.close()

    # For the endpoint and its desk

    async def proved(self) -> None:
        """Returns when the peer has proved its key. Raises what ended the connection before."""
        await self._proved

    def expect_welcome(self, seconds: float) -> None:
        """Ends it unless the peer has taken us in by then."""
        error = NetworkError("FF-NET-044", "the handshake was not finished", cause="no welcome")
        self._loop.call_later(seconds, lambda: None if self.is_welcome else self.drop(error))

    async def opened(self) -> None:
        """Returns when the peer has taken us in. Raises what ended the connection before."""
        await self._opened

    def probe(self) -> None:
        """Asks for a sign of life, and ends the connection when nothing comes in _PROBE_SECONDS."""
        heard, dumb = self.heard, stuck(f"nothing came for {_PROBE_SECONDS:.0f} s after this computer slept")
        self._ping()
        self._loop.call_later(_PROBE_SECONDS, lambda: self.drop(dumb) if self.heard == heard else None)

    def drop(self, error: NetworkError) -> None:
        """Ends the connection at once, without a word to the peer."""
        self._end(error)
        if self._writer is not None:
            self._writer.abort()

    def answer(self, asked: StreamRequest, body: bytes) -> None:
        """Replies to a request. Raises NetworkError FF-NET-030 for a body over the limit."""
        if self._reason is None:
            self._streams.reply(asked, body)
            self._send()

    def refuse(self, asked: StreamRequest, error: FarflungError) -> None:
        """Replies with an error."""
        if self._reason is None:
            self._streams.fail(asked, error)
            self._send()

    def check(self, kind: MessageKind) -> None:
        """Raises NetworkError FF-NET-150 when the owner allows no more of this kind this month."""
        if self._writer is not None:
            self._writer.check(kind)

    def serve(self) -> None:
        """Starts waiting requests, while this key has places and the answers before them have room."""
        for queue in self._waiting if self._reason is None else ():
            while queue and self._may_serve(queue[0].kind):
                self._owner.work(self, queue.popleft())

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the TCP connection stands."""
        assert isinstance(transport, asyncio.Transport)
        self._writer = ConnectionWriter(transport, self._meter, self._owner.pacer, self._pump, self._ping)
        if self._reason is not None:
            transport.abort()
            return
        self._idle.begin()
        self._write(MessageKind.CONTROL, self._session.outgoing())

    def get_buffer(self, sizehint: int) -> bytearray:
        """asyncio: where to read."""
        return self._owner.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: `nbytes` are there."""
        if self._writer is not None:
            self._writer.took(nbytes)
        self._idle.broken()
        self.heard = self._loop.time()
        if self._reason is not None:
            return
        try:
            self._take(memoryview(self._owner.buffer)[:nbytes])
        except NetworkError as error:
            self.drop(error)

    def eof_received(self) -> bool:
        """asyncio: the peer sends no more; close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the TCP connection is gone."""
        self._end(left(self._refuser, str(exc) if exc else "the peer closed it"))
        if self._writer is not None:
            self._writer.gone()
        self._gone.set()
        self._owner.lost(self)

    def pause_writing(self) -> None:
        """asyncio: the kernel takes no more."""
        if self._writer is not None:
            self._writer.filled()

    def resume_writing(self) -> None:
        """asyncio: the kernel has taken everything."""
        if self._writer is not None:
            self.heard = self._loop.time()
            self._writer.emptied()
            self._pump()

    # Inside

    def _take(self, data: memoryview) -> None:
        was_ready = self._session.is_ready
        records = self._session.receive(data)
        self._write(MessageKind.CONTROL, self._session.outgoing())
        if self._reason is not None:
            return
        if self._session.is_ready and not was_ready:
            self._meter.settle()
            self._owner.proved(self)
            self._proved.set_result(None)
            if not self._is_dialer:
                self._streams.welcome()
                self._opened.set_result(None)
        for frame in self._reader.feed(*records):
            kind, event = self._streams.take(frame)
            self._meter.frame(kind, frame.size)
            if event is not None:
                self._happened(event)
        self._pump()
        if self._session.is_closed:
            self.close() if self._streams.is_welcome else self.drop(left(self._refuser, "it said good-bye"))

    def _happened(self, event: Event) -> None:
        if isinstance(event, StreamRequest):
            self._waiting[event.kind.is_bulk].append(event)
            self.serve()
        elif isinstance(event, StreamWelcome):
            if not self._opened.done():  # the dial may have been given up
                self._opened.set_result(None)
        elif (call := self._calls.pop(event.ticket, None)) is not None and not call.done():
            if isinstance(event, StreamErrorReply):
                call.set_exception(event.error)
            elif isinstance(event, StreamReply):
                call.set_result(event.body)

    async def _wait_for_room(self, kind: MessageKind) -> None:
        await self._backpressure.wait(kind)
        self._check_open()
        self.check(kind)

    def _check_open(self) -> None:
        if self._reason is not None:
            raise again(self._reason)
        if not self.is_open:
            raise NetworkError("FF-NET-005", "the connection is not open yet")

    async def _answer_to(self, ticket: int) -> bytes:
        call: asyncio.Future[bytes] = self._loop.create_future()
        self._calls[ticket] = call
        try:
            self._send()
            return await call
        finally:
            if self._calls.pop(ticket, None) is not None and self._reason is None:
                self._streams.abandon(ticket)
            call.cancel()

    def _pump(self) -> None:
        """Sends frames while the kernel takes them; then whoever waits for room may look."""
        writer, session, streams = self._writer, self._session, self._streams
        if writer is not None and session.is_ready:
            while self._reason is None and (most := writer.piece):
                sent = streams.next_frames(most)
                if sent is None:
                    break
                session.send(*sent[1])
                writer.write(sent[0], session.outgoing())
        self._backpressure.look()
        self.serve()

    def _send(self) -> None:
        """Sends what was queued, and says a word behind it if nothing else follows."""
        self._pump()
        if self._writer is not None:
            self._writer.followed()

    def _ping(self) -> None:
        self._streams.ping()
        self._pump()

    def _may_serve(self, kind: MessageKind) -> bool:
        return self._streams.has_room(kind) and self._owner.has_place(self.peer, kind)

    def _write(self, kind: MessageKind, data: bytes) -> None:
        if self._writer is not None and data:
            self._writer.write(kind, data)
            if self._writer.is_overfull:
                self.drop(stuck("it makes us answer and does not read"))

    def _end(self, reason: NetworkError) -> None:
        """The one way to the end: everybody who waits learns the reason."""
        if self._reason is not None:
            return
        self._reason = reason
        self._idle.end()
        for queue in self._waiting:
            queue.clear()
        calls, self._calls = self._calls, {}
        waiting: tuple[asyncio.Future[Any], ...] = (*calls.values(), self._proved, self._opened)
        for waited in waiting:
            if not waited.done():
                waited.set_exception(again(reason))
                waited.exception()  # nobody has to wait for it
        self._backpressure.end()
        if self._writer is None:  # nothing else would say so; a TCP connection that comes yet is aborted
            self._gone.set()
            self._owner.lost(self)

    def _still(self) -> None:
        """Nothing came for a while: the dialer pings, and who has carried enough ends."""
        if self.is_open and self.is_worn and self._streams.is_idle:
            self.close()
        elif self.is_open and self._is_dialer:
            self._ping()
