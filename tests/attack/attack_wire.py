"""A relay that cannot be trusted: it stands before an honest one and does what it likes with the bytes of circuits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.net import relay_tickets, tls
from farflung.net.counters import ByteCounter
from farflung.net.frames import Frame, FrameType, encode
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.tls import TlsSession

A, B, C, D, R = (local_key(11, name) for name in ("a", "b", "c", "d", "relay"))
HELLO_HEAD = len(tls.MAGIC) + 2
RECORD_HEAD = 5
UP, DOWN = 0, 1  # from who dialled, to who dialled

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Change = Callable[[int, int, bytes], Awaitable[list[bytes]]]


async def honest(direction: int, number: int, unit: bytes) -> list[bytes]:
    """Forwards what comes."""
    return [unit]


async def echo(connection: Connection, method: str, body: bytes) -> bytes:
    return body


async def until(is_so: Callable[[], bool]) -> None:
    """Lets the loop turn; the test's own time limit ends it."""
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.001)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side closes."""
    data = b""
    try:
        while piece := await reader.read(65536):
            data += piece
    except ConnectionError:
        pass
    return data


class Liar:
    """An acceptor that proves its key, welcomes, and answers the first request with whatever frames it likes."""

    def __init__(self, key: SigningKey, said: list[Frame | bytes]) -> None:
        self._own, self._said = FileTlsCredentials(key), said
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._own.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session, is_welcome, has_answered = TlsSession.server(self._own), False, False
        try:
            while data := await reader.read(65536):
                plain = session.receive(data)
                if session.is_ready and not is_welcome:
                    is_welcome = True
                    session.send(encode(Frame(FrameType.WELCOME, 0)))
                if plain and not has_answered:
                    has_answered = True
                    for frame in self._said:
                        session.send(frame if isinstance(frame, bytes) else encode(frame))
                writer.write(session.outgoing())
        except (ConnectionError, NetworkError):
            pass
        writer.close()


class HostileRelay:
    """Forwards to the honest relay. What a dialer's circuit carries goes through `change`, unit by unit.

    A unit is the hello or one TLS record, with its head; units are numbered in each direction from 0. `change` may be
    replaced at any time; it gives what is forwarded instead, and an empty piece ends that direction.
    """

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self.change: Change = honest
        self.answer: Callable[[bytes], bytes] = lambda data: data
        self.heard: list[bytearray] = []  # everything that crosses it, by connection and direction
        self.units: dict[int, list[bytes]] = {UP: [], DOWN: []}  # of all circuits
        # If there is one, the next two circuits are joined crosswise.
        self.crossed: list[Stream] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: list[Stream] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Closes everything that goes through it."""
        for _, writer in self._streams:
            writer.close()
        self._streams.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        onward = await asyncio.open_connection(*self._place)
        self._streams += [(reader, writer), onward]
        try:
            await self._forward((reader, writer), onward)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            onward[1].close()

    async def _forward(self, near: Stream, far: Stream) -> None:
        magic = await near[0].readexactly(len(tls.MAGIC))
        far[1].write(magic)
        if magic != relay_tickets.MAGIC:
            await asyncio.gather(self._copy(near[0], far[1]), self._copy(far[0], near[1]))
            return
        size = await near[0].readexactly(2)
        far[1].write(size + await near[0].readexactly(int.from_bytes(size, "big")))
        near[1].write(self.answer(await far[0].readexactly(relay_tickets.ANSWER_BYTES)))
        if self.crossed is not None:
            far = await self._other(far)
        first = await near[0].read(1)
        ways = ((near[0], far[1]), (far[0], near[1]))
        if first == tls.MAGIC[:1]:  # who shows a hello has dialled
            await asyncio.gather(
                self._change(*ways[0], UP, first), self._change(*ways[1], DOWN, b""), return_exceptions=True
            )
        else:
            far[1].write(first)
            await asyncio.gather(self._copy(*ways[0]), self._copy(*ways[1]))

    async def _other(self, far: Stream) -> Stream:
        crossed = self.crossed
        assert crossed is not None
        crossed.append(far)
        while len(crossed) < 2:  # noqa: ASYNC110 - the test ends it
            await asyncio.sleep(0.001)
        return crossed[crossed.index(far) - 1]

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        copy = bytearray()
        self.heard.append(copy)
        while data := await source.read(65536):
            copy += data
            sink.write(data)
            await sink.drain()
        sink.close()

    async def _change(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: int, first: bytes
    ) -> None:
        copy, number = bytearray(), 0
        self.heard.append(copy)
        try:
            while True:
                unit = await next_unit(source, first, is_hello=direction == UP and number == 0)
                first = b""
                copy += unit
                self.units[direction].append(unit)
                for piece in await self.change(direction, number, unit):
                    if not piece:
                        return
                    sink.write(piece)
                await sink.drain()
                number += 1
        finally:
            sink.close()


async def next_unit(source: asyncio.StreamReader, first: bytes, *, is_hello: bool) -> bytes:
    """The next hello or TLS record, of which `first` was read already."""
    size = HELLO_HEAD if is_hello else RECORD_HEAD
    head = first + await source.readexactly(size - len(first))
    return head + await source.readexactly(int.from_bytes(head[-2:], "big"))


class Scene:
    """The two relays, and B attached through the hostile one. `heard`: what B's handler was given."""

    def __init__(self, server: RelayServer, relay: HostileRelay, place: tuple[str, int]) -> None:
        self.server, self.relay, self.place = server, relay, place
        self.heard: list[bytes] = []
        self.callers: list[Endpoint] = []

    async def serve(self, connection: Connection, method: str, body: bytes) -> bytes:
        self.heard.append(body)
        return body

    def caller(self, key: Any = A, **options: Any) -> Endpoint:
        """An endpoint that is closed at the end."""
        made = Endpoint(key, self.serve, ByteCounter(), **options)
        self.callers.append(made)
        return made

    async def attached(self, key: Any, place: tuple[str, int] | None = None) -> Endpoint:
        """One more hidden peer."""
        made = self.caller(key)
        made.attach(R.public, *(place or self.place))
        await made.attached()
        return made

    async def outcome(self, body: bytes = b"question", peer: Any = B, **options: Any) -> str:
        """What a dial and a call from A end with: "answered" or an error's code. Nothing else may happen."""
        caller = self.caller(**{"handshake_seconds": 0.5} | options)
        before = len(self.heard)
        try:
            connection = await caller.dial(peer.public, *self.place, relay=R.public)
            assert connection.peer == peer.public
            assert await connection.call("a", body, timeout=5) == body
        except NetworkError as error:
            return error.code
        finally:
            await caller.close()
            assert self.heard[before:] in ([], [body]), "the handler heard what nobody said, or heard it twice"
        return "answered"

    async def is_served(self) -> None:
        """Two honest peers still meet, through the relay that does as it should."""
        self.relay.change = honest
        assert await self.outcome(handshake_seconds=10.0) == "answered"


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    server = RelayServer(R)
    relay = HostileRelay(await server.start())
    made = Scene(server, relay, await relay.start())
    try:
        await made.attached(B, server.address)  # the hostile one touches the dialers' legs
        yield made
    finally:
        for caller in made.callers:
            await caller.close()
        await relay.close()
        await server.close()


def play(test: Callable[[Scene], Awaitable[None]]) -> None:
    """The attack, then an honest call; then nothing of the attack is left at the relay or at B."""

    async def bounded() -> None:
        async with asyncio.timeout(100), scene() as made:
            await test(made)
            await made.is_served()
            made.relay.hang_up()
            hidden = made.callers[0]
            while made.server._circuits.circuits or made.server._waiting or hidden._half_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not made.server._owned
            assert {connection.peer for connection in hidden._connections} <= {R.public, C.public, A.public}

    asyncio.run(bounded())
