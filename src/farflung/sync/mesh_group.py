"""Implements a group as a full mesh of farflung's own TLS 1.3 connections between public keys.

All members get the same set of payloads.

    payloads    every member pushes its own, in pieces, to every other one
    verdict     the first member (lowest key) says which payloads count: all, or at the deadline those that came, if
                they are a quorum; the others wait for it, so that nobody merges another set
    fetch       who misses a payload of the set asks the first member for it, and checks its hash

If the first member is lost nothing is decided and the exchange fails for all: parameters never drift apart.
Members trust each other's word (it is your own cluster), not the network: the traffic is encrypted and only keys of
the book are let in. Everything of the network runs in one thread of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.codec import decode, describe, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError, ProtocolError
from farflung.core.ids import PeerId, short
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.io.retry import retry
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind
from farflung.peers.process import bandwidth_limits
from farflung.sync.address_book import Peer, load_key, members
from farflung.sync.exchange_channel import CHANNEL_BITS, different_calls
from farflung.sync.exchange_table import ExchangeTable
from farflung.sync.group import GroupExchange, too_few
from farflung.sync.payload_assembly import (
    PIECE,
    ExchangeDecision,
    PayloadAssembly,
    PayloadPiece,
    PieceRequest,
    ReceivedPayload,
    refuse_piece,
)

T = TypeVar("T")

_LANES: Final = 4  # pieces under way to one peer: the line stays busy over one round trip
_RETRY_SECONDS: Final = 0.25
# Without a piece of a payload that counts: then it is fetched from the first member.
_STALL_SECONDS: Final = 5.0
# So long a member waits elsewhere before it is taken for one that will not come.
_CROSSED_SECONDS: Final = 3.0
# How much longer others wait for the verdict than the first member for payloads.
_MARGIN_SECONDS: Final = 10.0


def connect(
    peers: Sequence[Peer | tuple[str, str, int]],
    key: SigningKey | str,
    *,
    listen: tuple[str, int] | None = None,
    allow_remote: bool = False,
    deadline: float = 600.0,
    join_seconds: float = 120.0,
) -> Mesh:
    """Joins the peers of an address book; returns when all of them are there.

    `key`: the file that `new_key` made (or a key). `listen`: host and port to bind where they differ from one's own
    entry in the book (behind a router). `allow_remote`: may be reached from other machines; without it only loopback
    is bound. `deadline`: seconds that an exchange waits for payloads; then a quorum is enough.

    Raises UsageError FF-SYNC-012, FF-SYNC-013; PolicyError FF-NET-042 (not loopback); NetworkError FF-NET-040,
    041 (cannot listen), FF-SYNC-011 (a peer did not come within `join_seconds`).
    """
    own = key if isinstance(key, SigningKey) else load_key(key)
    book = members(peers, own.public)
    mesh = Mesh(own, book, listen or book[own.public], allow_remote, deadline)
    try:
        mesh.join(join_seconds)
    except BaseException:
        mesh.close()
        raise
    return mesh


class Mesh:
    """A full mesh of connections. Make one with `connect`; close it, or use it in a `with`."""

    def __init__(
        self,
        key: SigningKey,
        book: dict[PeerId, tuple[str, int]],
        listen: tuple[str, int],
        allow_remote: bool,
        deadline: float,
    ) -> None:
        self.ids = tuple(book)
        self.rank = self.ids.index(key.public)
        self._book, self._deadline = book, deadline
        self._meetings = itertools.count()
        self._missed: set[int] = set()  # who was not there at a deadline, and said nothing since
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._counter = ByteCounter()
        self._last = (0, 0)
        self._tasks = OwnedTasks()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        describe()
        self._thread = threading.Thread(target=self._loop.run_forever, name="farflung-sync", daemon=True)
        self._thread.start()

        async def start() -> Endpoint:
            self._table, self._arrived = ExchangeTable(), asyncio.Event()
            self._bye = [asyncio.Event() for _ in book]  # who needs nothing more
            endpoint = Endpoint(
                key,
                self._handle,
                self._counter,
                listen=ListenConfig(*listen, allow_remote),
                admission=Admission(lambda peer: peer in book),
                pacer=bandwidth_limits.line_pacer(),
            )
            await endpoint.start()
            return endpoint

        try:
            self._endpoint = self._do(start())
        except BaseException:
            self._end_thread()
            raise

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dedicated(self) -> Mesh:
        """Itself: it shares nothing with the caller's thread."""
        return self

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes sent and received at the socket since the start, TLS and framing included."""
        return self._counter.total_sent, self._counter.total_received

    def meeting(self) -> int:
        """See `SyncGroup.meeting`."""
        return next(self._meetings)

    def forget(self, channel: int) -> None:
        """See `SyncGroup.forget`."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is forgotten
            self._loop.call_soon_threadsafe(self._table.forget, channel)

    def join(self, seconds: float) -> None:
        """Returns when a connection to every member stands. Raises NetworkError FF-SYNC-011."""
        self._do(self._join(time.monotonic() + seconds))

    def exchange(self, name: int, payload: bytes, bound: int, quorum: int) -> GroupExchange:
        """See `SyncGroup.exchange`; bytes are counted at the socket, from the end of the last exchange on."""
        verdict, payloads = self._do(self._exchange(name, payload, bound))
        if len(verdict.accepted) < quorum:
            raise too_few(len(verdict.accepted), quorum, dict(verdict.missing))
        now, before = self.nbytes, self._last
        self._last = now
        return GroupExchange(payloads, dict(verdict.missing), now[0] - before[0], now[1] - before[1])

    def close(self) -> None:
        """Says good-bye, waits some seconds for the others to say it, and closes all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(FarflungError):
            self._wait(self._leave())
        for call in tuple(self._calls):  # of other threads
            call.cancel()
        self._end_thread()

    # Inside: one thread, one loop

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise _closed()
        return self._wait(work)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._calls.add(call)
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            raise _closed() from None
        finally:
            self._calls.discard(call)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _leave(self) -> None:
        """Others may still need what is held here, so whoever stands is waited for."""
        connected = {
            rank: connection for rank, peer in enumerate(self.ids) if (connection := self._endpoint.connection(peer))
        }
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MARGIN_SECONDS):
                if self._tasks:
                    await asyncio.wait(self._tasks)
                self._table.fail(_said_goodbye(self.rank, self.ids[self.rank]))
                for connection in connected.values():
                    with contextlib.suppress(FarflungError):
                        await connection.tell("sync.bye", b"")
                for rank, connection in connected.items():
                    await self._gone(rank, connection)
        await self._tasks.close()
        await self._endpoint.close()

    async def _gone(self, rank: int, connection: Connection) -> None:
        """Returns when a member has said good-bye, or its connection is lost."""
        said = self._tasks.begin(self._bye[rank].wait())
        lost = self._tasks.begin(connection.closed())
        await asyncio.wait((said, lost), return_when=asyncio.FIRST_COMPLETED)
        said.cancel()
        lost.cancel()

    async def _join(self, until: float) -> None:
        others = [rank for rank in range(len(self.ids)) if rank != self.rank]
        await asyncio.gather(*(self._until(until, rank, self._greet) for rank in others))

    async def _greet(self, connection: Connection) -> None:
        await connection.call("sync.here", b"", timeout=_MARGIN_SECONDS)

    async def _until(self, until: float, rank: int, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does `work` over a connection to `rank`, anew when the network fails, until the clock says `until`."""
        host, port = self._book[self.ids[rank]]

        async def reach() -> T:
            return await work(await self._endpoint.dial(self.ids[rank], host, port))

        def may_pass(error: FarflungError) -> bool:
            is_ours = error.code.startswith("FF-SYNC") or self._is_closed
            return isinstance(error, NetworkError) and not is_ours and not self._bye[rank].is_set()

        left = until - time.monotonic()
        try:
            return await retry(reach, Backoff.every(_RETRY_SECONDS), may_pass, patience=lambda: left)
        except NetworkError as error:
            if self._bye[rank].is_set():
                raise _said_goodbye(rank, self.ids[rank]) from error
            raise _lost(rank, self.ids[rank], error) from error

    async def _exchange(self, tag: int, payload: bytes, bound: int) -> tuple[ExchangeDecision, dict[int, bytes]]:
        until = time.monotonic() + self._deadline
        assembly = self._table.begin(tag, bound)
        own = assembly.put(self.rank, payload, tag)
        self._arrived.set()
        for rank in range(len(self.ids)):
            if rank != self.rank and not self._bye[rank].is_set():
                self._tasks.begin(self._push(rank, tag, own, until))
        if self.rank == 0:
            verdict = await self._decide(assembly, tag, until)
        else:
            ask = encode(tag)
            answer = await self._until(until + _MARGIN_SECONDS, 0, lambda c: c.call("sync.verdict", ask, timeout=None))
            verdict = decode(answer, ExchangeDecision, limits.CONTROL_BYTES)
        if verdict.tag != tag:
            raise refuse_piece("a verdict about another exchange")
        wanted = [self._whole(assembly, tag, rank, expected, until) for rank, expected in verdict.accepted]
        found = await asyncio.gather(*wanted)
        return verdict, {rank: held.data for (rank, _), held in zip(verdict.accepted, found, strict=True)}

    async def _decide(self, assembly: PayloadAssembly, tag: int, until: float) -> ExchangeDecision:
        """The first member's part: waits for all who can come, or for the deadline."""
        everybody = range(len(self.ids))
        since: dict[int, float] = {}
        while True:
            absent = {rank: self._absence(rank, tag, since) for rank in everybody if not assembly.get(tag, rank)}
            left = until - time.monotonic()
            if all(absent.values()) or left <= 0:
                break
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), min(left, _CROSSED_SECONDS / 3))
        self._missed |= {rank for rank, why in absent.items() if not why}
        there = [(rank, held.hash) for rank in everybody if (held := assembly.get(tag, rank))]
        late = f"nothing within {self._deadline:g} s"
        verdict = ExchangeDecision(tag, tuple(there), tuple((rank, why or late) for rank, why in absent.items()))
        self._table.decide(verdict)
        return verdict

    def _absence(self, rank: int, tag: int, since: dict[int, float]) -> str:
        """Why a member need not be waited for; "" where it may still come.

        It said good-bye; or it missed an exchange and its connection is gone; or it has waited for a while at another
        exchange that this peer is not at, while one of the two is a meeting of objects: each would wait for the other.
        """
        if self._bye[rank].is_set():
            return "it said good-bye"
        if rank in self._missed and self._endpoint.connection(self.ids[rank]) is None:
            return "it missed an exchange, and its connection is gone"
        elsewhere = [at for at in self._table.waits_at(rank) if 0 in (at >> CHANNEL_BITS, tag >> CHANNEL_BITS)]
        if not elsewhere:
            since.pop(rank, None)
            return ""
        if time.monotonic() - since.setdefault(rank, time.monotonic()) < _CROSSED_SECONDS:
            return ""
        ours, its = ("begins", "goes on with") if not tag >> CHANNEL_BITS else ("goes on with", "begins")
        why = f"it {its} an object where rank {self.rank} {ours} one"
        self._table.fail(different_calls(f"rank {rank}: {why}"), elsewhere)
        return why

    async def _push(self, rank: int, tag: int, own: ReceivedPayload, until: float) -> None:
        """Sends one's own payload to one peer. Whether it came is for the first member to say: errors end here."""

        async def send(connection: Connection) -> None:
            lanes = asyncio.Semaphore(_LANES)

            async def one(at: int) -> None:
                async with lanes:
                    piece = encode(PayloadPiece(tag, len(own.data), at, own.data[at : at + PIECE]))
                    await connection.call("sync.piece", piece, kind=MessageKind.SYNC, timeout=self._deadline)

            async with asyncio.TaskGroup() as group:
                for at in range(0, len(own.data), PIECE):
                    group.create_task(one(at))

        async def sent(connection: Connection) -> None:
            try:
                await send(connection)
            except* FarflungError as several:
                raise several.exceptions[0] from None

        with contextlib.suppress(FarflungError):
            await self._until(until, rank, sent)

    async def _whole(
        self, assembly: PayloadAssembly, tag: int, rank: int, expected: bytes, until: float
    ) -> ReceivedPayload:
        """A payload that counts: the one that came, or fetched from the first member."""
        held = await self._coming(assembly, tag, rank)
        if held is None or held.hash != expected:
            await self._until(until + _MARGIN_SECONDS, 0, lambda c: self._fetch(c, assembly, tag, rank))
            held = assembly.get(tag, rank)
        if held is None or held.hash != expected:
            raise refuse_piece(f"the payload of rank {rank} is not the one that counts")
        return held

    async def _coming(self, assembly: PayloadAssembly, tag: int, rank: int) -> ReceivedPayload | None:
        """A payload that counts is on its way from its maker: waits for it while pieces of it come."""
        since, left = time.monotonic(), assembly.left(tag, rank)
        while (held := assembly.get(tag, rank)) is None:
            await self._assembly_changed()
            if (now := assembly.left(tag, rank)) != left:
                since, left = time.monotonic(), now
            if time.monotonic() - since > _STALL_SECONDS:
                break
        return held

    async def _assembly_changed(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), _RETRY_SECONDS)
        self._arrived.clear()

    async def _fetch(self, connection: Connection, assembly: PayloadAssembly, tag: int, rank: int) -> None:
        at, total, parts = 0, 1, list[bytes]()
        while at < total:
            asked = encode(PieceRequest(tag, rank, at))
            answer = await connection.call("sync.fetch", asked, kind=MessageKind.SYNC, timeout=self._deadline)
            piece = decode(answer, PayloadPiece, limits.BULK_BYTES)
            total = piece.total
            if piece.at != at or not piece.data or at + len(piece.data) > assembly.bound:
                raise refuse_piece("the answer is not what was asked for")
            parts.append(piece.data)
            at += len(piece.data)
        assembly.put(rank, b"".join(parts), tag)

    # What others ask

    async def _handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        rank = self.ids.index(connection.peer)
        self._missed.discard(rank)
        if method == "sync.here":
            return b""
        if method == "sync.bye":
            self._bye[rank].set()
            self._arrived.set()
            return b""
        if method == "sync.piece":
            piece = decode(body, PayloadPiece, limits.BULK_BYTES)
            if await self._table.of(piece.tag).take(rank, piece):
                self._arrived.set()
            return b""
        if method == "sync.verdict" and self.rank == 0:
            tag = decode(body, int, limits.KIB)
            if self._is_closed and not self._table.is_begun(tag):
                raise _said_goodbye(self.rank, self.ids[self.rank])
            return encode(await self._table.answer(rank, tag))
        if method == "sync.fetch" and self.rank == 0:
            return self._serve(decode(body, PieceRequest, limits.KIB))
        raise ProtocolError(
            "FF-SYNC-015", f"a member does not serve {method!r}", hint="run the same version everywhere"
        )

    def _serve(self, wanted: PieceRequest) -> bytes:
        held = self._table.of(wanted.tag).assembly.get(wanted.tag, wanted.rank)
        if held is None or not 0 <= wanted.at < len(held.data):
            raise refuse_piece(f"rank {wanted.rank} of exchange {wanted.tag} is not held")
        return encode(PayloadPiece(wanted.tag, len(held.data), wanted.at, held.data[wanted.at : wanted.at + PIECE]))


def _lost(rank: int, peer: PeerId, error: NetworkError) -> NetworkError:
    if error.code.startswith("FF-SYNC"):
        return error
    return NetworkError(
        "FF-SYNC-011",
        f"rank {rank} ({short(peer)}) cannot be reached",
        cause=f"{error.code}: {error.message}"[:300],
        hint="check that it runs and that its address in the book is current",
    )


def _said_goodbye(rank: int, peer: PeerId) -> NetworkError:
    return NetworkError(
        "FF-SYNC-011",
        f"rank {rank} ({short(peer)}) cannot be reached",
        cause="it said good-bye: its program has closed the group",
        hint="let all peers make as many rounds",
    )


def _closed() -> NetworkError:
    return NetworkError(
        "FF-SYNC-011",
        "this group is closed",
        cause="close() was called, or its with-block was left",
        hint="call farflung.sync.connect(...) again, at every peer",
    )
