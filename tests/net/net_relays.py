"""Peers behind a relay, and a wire between them that can be listened to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from farflung.core.crypto import SigningKey, local_key
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer

A, B, C, R = (local_key(5, name) for name in ("a", "b", "c", "relay"))


async def echo(connection: Connection, method: str, body: bytes) -> bytes:
    return body


@asynccontextmanager
async def relay(key: SigningKey = R, **options) -> AsyncIterator[RelayServer]:  # type: ignore[no-untyped-def]
    server = RelayServer(key, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def hidden(key: SigningKey, place: tuple[str, int] | None, handler=echo, *, spare=True, **options):  # type: ignore[no-untyped-def]
    """An endpoint that listens nowhere; attached to the relay at `place`, if there is one."""
    endpoint = Endpoint(key, handler, ByteCounter(), **options)
    try:
        if place is not None:
            endpoint.attach(R.public, *place, spare=spare)
            await endpoint.attached()
        yield endpoint
    finally:
        await endpoint.close()


@asynccontextmanager
async def pair(handler_b=echo, handler_a=echo, **options):  # type: ignore[no-untyped-def]
    """The relay, two hidden endpoints, and the connection that A has dialled to B."""
    async with relay(**options) as server:
        async with hidden(A, server.address, handler_a) as a, hidden(B, server.address, handler_b) as b:
            yield server, a, b, await a.dial(B.public, *server.address, relay=R.public)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    """Lets the loop turn; the test's own time limit ends it."""
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


class Tap:
    """A wire to `place` that keeps a copy of all that crosses it, and may change it."""

    def __init__(self, place: tuple[str, int], change: Callable[[bytes], bytes] = lambda data: data) -> None:
        self._place, self._change = place, change
        self.heard: list[bytearray] = []  # one for each direction of each connection
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(*self._place)
        await asyncio.gather(self._copy(reader, back), self._copy(onward, writer))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        copy = bytearray()
        self.heard.append(copy)
        try:
            while data := await source.read(65536):
                copy += data
                sink.write(self._change(data))
                await sink.drain()
        except ConnectionError:
            pass
        sink.close()


@asynccontextmanager
async def tapped(place: tuple[str, int], change: Callable[[bytes], bytes] = lambda data: data) -> AsyncIterator[Tap]:
    tap = Tap(place, change)
    try:
        yield tap
    finally:
        tap.close()
