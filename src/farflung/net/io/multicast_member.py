"""Connects one member to its group at a relay: sends each message up once, and receives those of the others.

It stays connected until it is closed, and joins again by itself when the connection is lost. Nothing waits for it:
what does not come this way is fetched in another, so a message that cannot be sent is an error for its sender alone.

A relay that says something now and then but takes nothing, or never counts a roster, is left in time (`_holding`):
what is sent has the time that a line of limits.OWED_RATE needs to carry it from every member, and some more. It is
not joined again for a while (`RelayBackoff`), and `enter` says so, that whoever leads the group takes another relay
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError, ProtocolError, VerificationError
from farflung.core.ids import PeerId
from farflung.net import multicast_groups
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.io.multicast_dial import REFUSALS, RelayBackoff, dial, lost, refused, show
from farflung.net.io.paced_socket import PacedSocket
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.relay_payer import GroupTally, RelayPayer
from farflung.net.io.socket_options import expect, tune
from farflung.net.messages import MessageKind
from farflung.net.multicast_frames import (
    HEAD_BYTES,
    FrameOpener,
    FrameSealer,
    GroupFrameHead,
    GroupFrameKind,
    missing_of,
    read_head,
)
from farflung.net.multicast_groups import GroupJoin, GroupJoinStatus, SignedRoster

PING_SECONDS: Final = limits.IDLE_SECONDS / 3
AGAIN_SECONDS: Final = 1.0  # between two joins after a loss
_BUFFER_BYTES: Final = 32 * limits.FAN_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class GroupRendezvous:
    """Where and as whom a group meets: its relay, its roster, and the key of the roster's epoch."""

    relay: PeerId
    host: str
    port: int
    roster: SignedRoster
    key: bytes


class GroupEndpoint(Protocol):
    """What a member speaks from: an Endpoint, or `NoGroup`. Asked anew at each join, since a node key is renewed."""

    credential: Credential
    counter: ByteCounter
    pacer: LinePacer | None  # of all that this process sends to other machines; None: as fast as it goes

    @property
    def payer(self) -> RelayPayer | None:
        """The passes that it may show; None: it can go to relays that ask for none."""


@dataclass(slots=True)
class NoEndpoint:
    """A process that has no endpoint."""

    credential: Credential
    counter: ByteCounter
    pacer: LinePacer | None = None
    payer: RelayPayer | None = None


class GroupListener:
    """What a member of a group hears. All methods are called from the event loop and must not raise."""

    def message(self, sender: PeerId, data: bytes) -> None:
        """A whole message of another member."""

    def gap(self) -> None:
        """Something was lost: the relay says so, or the connection broke."""

    def refused(self, error: FarflungError) -> None:
        """A frame was altered, replayed or forged (FF-NET-133)."""


class GroupMember:
    """A member. `enter` first; `close` last."""

    def __init__(
        self,
        endpoint: GroupEndpoint,
        hearer: GroupListener,
        kind: MessageKind = MessageKind.SYNC,
        *,
        patience: float = limits.IDLE_SECONDS,
        rate: float = limits.OWED_RATE,
    ) -> None:
        """Bytes are counted in the station's counter under `kind`.

        `patience`: seconds that the relay has for anything, `rate`: and one more for so many bytes.
        """
        self._patience, self._rate = patience, rate
        self._endpoint, self._counter, self._hearer, self._kind = endpoint, endpoint.counter, hearer, kind
        self._account = endpoint.credential.account
        self._opener = FrameOpener(self._account)
        self._meeting: GroupRendezvous | None = None
        self._backoff = RelayBackoff()
        self._socket: socket.socket | None = None
        self._valve: PacedSocket | None = None  # of the socket
        self._tally: GroupTally | None = None  # what it costs, at a relay that is paid
        self._sealer: FrameSealer | None = None
        self._sending = asyncio.Lock()
        self._holds: asyncio.Timeout | None = None  # of who is sending
        self._counts: asyncio.Future[int] | None = None  # the epoch that the relay confirms
        self._staying: asyncio.Task[None] | None = None
        self._heard = 0.0

    @property
    def epoch(self) -> int:
        """Of the roster under which this member is connected now; 0: it is not."""
        return self._meeting.roster.roster.epoch if self._meeting and self._socket else 0

    @property
    def heard(self) -> float:
        """When the last frame of another member came, by the monotonic clock: what a relay says itself is no sign."""
        return self._opener.opened

    @property
    def lost(self) -> int:
        """Messages of others that did not come whole, as far as that shows."""
        return self._opener.lost

    async def enter(self, meeting: GroupRendezvous) -> None:
        """Joins, or goes on under a newer roster where it is connected. Raises NetworkError FF-NET-130, 131, 135."""
        known, roster = self._meeting, meeting.roster.roster
        is_here = self._socket is not None and known is not None and known.relay == meeting.relay
        if is_here and known is not None and known.roster.roster == roster:
            return
        if self._account not in roster.members:
            raise refused(meeting.relay, REFUSALS[GroupJoinStatus.OUTSIDE])
        if not is_here and self._backoff.left(meeting.relay, time.monotonic()):
            raise refused(meeting.relay, "it hung, and is left alone for some minutes")
        self._opener.enter(roster, meeting.key, time.monotonic())
        if not is_here:
            await self._stop()
            self._meeting = meeting
            await self._join(meeting)
            self._staying = asyncio.create_task(self._stay())
            return
        self._counts = asyncio.get_running_loop().create_future()
        body = encode(meeting.roster)
        async with self._holding(len(body)):
            await self._write(GroupFrameHead(len(body), GroupFrameKind.ROSTER).encode() + body, MessageKind.CONTROL)
            self._meeting = meeting
            self._draw(meeting)
        if await self._counted(self._counts) != roster.epoch:
            raise refused(meeting.relay, REFUSALS[GroupJoinStatus.OUTDATED])

    async def _counted(self, counts: asyncio.Future[int]) -> int:
        """The epoch that the relay confirms, behind all that waits there for us. Raises NetworkError FF-NET-135."""
        sock, began = self._socket, time.monotonic()
        while not counts.done():
            last = min(max(began, self.heard), began + limits.FAN_GROUP_BYTES / self._rate)
            left = last + self._patience - time.monotonic()
            if left <= 0:
                self._leave(sock)
                raise lost()
            await asyncio.wait([counts], timeout=left)
        return counts.result()

    @contextlib.asynccontextmanager
    async def _holding(self, size: int) -> AsyncIterator[None]:
        """The right to send so many bytes, for as long as that may take. Raises NetworkError FF-NET-135.

        The relay gives them to all others, whose lines carry what everybody sends; who is slowest stops the senders.
        """
        async with self._sending:
            sock = self._socket
            members = len(self._meeting.roster.roster.members) if self._meeting is not None else 1
            try:
                async with asyncio.timeout(self._patience + size * members / self._rate) as self._holds:
                    yield
            except TimeoutError as error:
                self._leave(sock)
                raise lost() from error
            finally:
                self._holds = None

    async def send(self, message: bytes) -> None:
        """Sends up to limits.BULK_BYTES to all others; returns when the kernel has it.

        Raises NetworkError FF-NET-135 when there is no connection, FF-NET-150 when the month's volume is used up.
        """
        async with self._holding(len(message)):
            if self._sealer is None or self._valve is None:
                raise lost()
            self._valve.check(self._kind)
            for frame in self._sealer.seal(message):
                await self._write(frame, self._kind)
                if self._tally is not None:
                    self._tally.sent(len(frame))

    async def close(self) -> None:
        """Leaves the group."""
        await self._stop()
        self._meeting = None

    def leave(self) -> None:
        """As `close`, for who cannot wait: all is gone at the loop's next turn."""
        staying, self._staying, self._meeting = self._staying, None, None
        if staying is None:
            self._drop()
        else:
            staying.add_done_callback(lambda _: self._drop())
            staying.cancel()

    async def _stop(self) -> None:
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.gather(self._staying, return_exceptions=True)
            self._staying = None
        self._drop()

    def _drop(self) -> None:
        self._sealer = None
        if self._holds is not None and not self._holds.expired():
            self._holds.reschedule(0)  # nothing wakes who waits for a socket that is closed
        if self._counts is not None and not self._counts.done():
            self._counts.set_exception(lost())
            self._counts.exception()  # nobody may be waiting
        if self._socket is not None and self._valve is not None:
            self._valve.close()
            self._socket.close()
            self._socket = self._valve = None
        if self._tally is not None:
            self._tally.end()
            self._tally = None

    def _draw(self, meeting: GroupRendezvous) -> None:
        """A stream of its own, so that no counter comes twice whatever was sent before."""
        roster = meeting.roster.roster
        self._sealer = FrameSealer(roster, meeting.key, self._account, secrets.randbits(64))

    async def _join(self, meeting: GroupRendezvous) -> None:
        now, own = int(time.time()), self._endpoint.credential
        nonce = secrets.token_bytes(multicast_groups.NONCE_BYTES)
        ends = now + limits.TICKET_SECONDS // 2
        place = (meeting.host, meeting.port)
        tally = GroupTally(self._endpoint.payer, meeting.roster.roster.owner, meeting.relay, place)
        join = GroupJoin(meeting.relay, meeting.roster.roster.group, own.account, nonce, ends, tally.toll)
        shown = multicast_groups.sign_join(own, join, meeting.roster)
        sock = await dial(meeting.relay, meeting.host, meeting.port)
        tune(sock)
        valve = PacedSocket(sock, self._endpoint.pacer)
        try:
            word = await show(meeting.relay, sock, shown)
        except BaseException:
            valve.close()
            sock.close()
            raise
        valve.sent(len(shown))
        valve.received(len(word))
        self._counter.sent[MessageKind.CONTROL] += len(shown)
        self._counter.received[MessageKind.CONTROL] += len(word)
        status = multicast_groups.read_answer(word)
        if status is not GroupJoinStatus.JOINED:
            valve.close()
            sock.close()
            raise refused(meeting.relay, "it has no groups" if status is None else REFUSALS[status])
        self._socket, self._valve, self._heard = sock, valve, time.monotonic()
        self._tally = tally
        tally.begin()
        self._draw(meeting)

    async def _write(self, data: bytes, kind: MessageKind) -> None:
        """Raises NetworkError FF-NET-135. A frame that was begun is written to its end, or the connection is over."""
        sock, valve = self._socket, self._valve
        if sock is None or valve is None:
            raise lost()
        try:
            await valve.may_send()
            await asyncio.get_running_loop().sock_sendall(sock, data)
        except BaseException as error:
            if sock is self._socket:
                self._shut(sock)
            if isinstance(error, OSError):
                raise lost() from error
            raise
        valve.sent(len(data))
        self._counter.sent[kind] += len(data)

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        """Half a frame was written: the reader sees the end, and joins again."""
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def _leave(self, sock: socket.socket | None) -> None:
        """The relay hangs, unless this connection to it is over anyway."""
        if sock is not None and sock is self._socket and self._meeting is not None:
            self._backoff.hung(self._meeting.relay, time.monotonic())
            self._shut(sock)

    async def _stay(self) -> None:
        """Reads, and joins again after a loss, until it is cancelled."""
        while True:
            sock, valve = self._socket, self._valve
            if sock is not None and valve is not None:
                pinging = asyncio.create_task(self._ping(sock))
                try:
                    await self._listen(sock, valve)
                except (OSError, EOFError):
                    pass
                except ProtocolError as error:
                    self._hearer.refused(error)
                finally:
                    pinging.cancel()
                    self._drop()
                self._hearer.gap()
            relay = self._meeting.relay if self._meeting is not None else PeerId(b"")
            await asyncio.sleep(max(AGAIN_SECONDS, self._backoff.left(relay, time.monotonic())))
            if self._meeting is not None:
                with contextlib.suppress(NetworkError):
                    await self._join(self._meeting)

    async def _ping(self, sock: socket.socket) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            if time.monotonic() - self._heard > limits.IDLE_SECONDS:
                self._leave(sock)
                return
            with contextlib.suppress(NetworkError):
                async with self._holding(HEAD_BYTES):
                    await self._write(GroupFrameHead(0, GroupFrameKind.PING).encode(), MessageKind.CONTROL)

    async def _listen(self, sock: socket.socket, valve: PacedSocket) -> None:
        """Takes frames. Raises OSError, EOFError, ProtocolError FF-NET-132."""
        loop, buffer = asyncio.get_running_loop(), bytearray(_BUFFER_BYTES)
        view, start, end, expected = memoryview(buffer), 0, 0, 1
        while True:
            await valve.may_read()
            size = await loop.sock_recv_into(sock, view[end:])
            if not size:
                raise EOFError
            valve.received(size)
            end += size
            self._heard = time.monotonic()
            while (after := self._whole(view[start:end])) is not None:
                start += after
            if start == end or _BUFFER_BYTES - end < _BUFFER_BYTES // 2:
                view[: end - start] = bytes(view[start:end])
                start, end = 0, end - start
            if (missing := missing_of(view[start:end])) != expected:
                expected = missing
                expect(sock, missing)  # a part of a frame is of no use: packets alone do not wake us

    def _whole(self, view: memoryview) -> int | None:
        """Follows the frame that begins the view; how long it was, None: it is not whole yet."""
        if len(view) < HEAD_BYTES:
            return None
        head = read_head(view)
        size = HEAD_BYTES + head.size
        if len(view) < size:
            return None
        is_data = head.kind is GroupFrameKind.DATA
        self._counter.received[self._kind if is_data else MessageKind.CONTROL] += size
        match head.kind:
            case GroupFrameKind.DATA:
                if self._tally is not None:
                    self._tally.received(size)
                self._open(view[:HEAD_BYTES], view[HEAD_BYTES:size])
            case GroupFrameKind.GAP:
                self._hearer.gap()
            case GroupFrameKind.ROSTER if self._counts is not None and not self._counts.done():
                self._counts.set_result(head.epoch)
        return size

    def _open(self, raw: memoryview, body: memoryview) -> None:
        before = self._opener.lost
        try:
            message = self._opener.take(raw, body, time.monotonic())
        except VerificationError as error:
            self._hearer.refused(error)
            return
        if message is not None:
            self._hearer.message(*message)
        if self._opener.lost != before:
            self._hearer.gap()
