"""A stranger, or a proved peer that turns hostile, against one listener: it loses its own connection, no more."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from attack_wire import until_closed

from farflung.core import limits
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.net import messages
from farflung.net.counters import ByteCounter
from farflung.net.frames import Frame, FrameType, encode
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.messages import MessageKind
from farflung.net.tls import MAGIC, TlsSession, hello

HONEST, SERVER, HOSTILE = (local_key(3, name) for name in ("honest", "server", "hostile"))
OWN = FileTlsCredentials(HOSTILE)

Attack = Callable[[str, int], Awaitable[None]]


async def echo(connection: Connection, method: str, body: bytes) -> bytes:
    if method == "hang":
        await asyncio.Future()
    return body


@asynccontextmanager
async def listener(**options: object) -> AsyncIterator[Endpoint]:
    server = Endpoint(SERVER, echo, ByteCounter(), **options)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Lets the loop turn; the test's own time limit ends it."""
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0)


async def is_served(server: Endpoint, key: SigningKey = HONEST) -> None:
    """An honest peer gets its answer."""
    client = Endpoint(key, echo, ByteCounter())
    try:
        connection = await client.dial(SERVER.public, *server.address)
        assert await connection.call("a", b"1") == b"1"
    finally:
        await client.close()


def survives(attack: Attack, **options: object) -> None:
    """The attack ends with its connection closed (it must return at end of file); then the listener serves."""

    async def test() -> None:
        async with asyncio.timeout(30), listener(**options) as server:
            await attack(*server.address)
            await is_served(server)
            assert len(server._half_open) == 0
            assert HOSTILE.public not in server._accepted

    asyncio.run(test())


def throwing(data: bytes, *, closes: bool = False) -> Attack:
    """Sends bytes; waits to be closed, or closes."""

    async def attack(host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(data)
        if closes:
            writer.close()
        else:
            assert await until_closed(reader) == b""
            writer.close()

    return attack


class Peer:
    """A proved peer that writes whatever frames it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.session = TlsSession.client(OWN, SERVER.public)
        self.plain = b""

    @classmethod
    async def meet(cls, host: str, port: int) -> "Peer":
        peer = cls(*await asyncio.open_connection(host, port))
        while b"\x01" not in peer.plain:  # WELCOME
            await peer.step()
        return peer

    async def step(self) -> bytes:
        self.writer.write(self.session.outgoing())
        data = await self.reader.read(65536)
        self.plain += b"".join(self.session.receive(data))
        return data

    def send(self, data: bytes) -> None:
        self.session.send(data)
        self.writer.write(self.session.outgoing())

    async def until_closed(self) -> None:
        await until_closed(self.reader)
        self.writer.close()


def framing(*frames: Frame | bytes) -> Attack:
    """Proves a key, then sends these frames."""

    async def attack(host: str, port: int) -> None:
        peer = await Peer.meet(host, port)
        for frame in frames:
            peer.send(frame if isinstance(frame, bytes) else encode(frame))
        await peer.until_closed()

    return attack


def ask(stream: int, method: bytes = b"a", *, total: int = 0, is_last: bool = True) -> Frame:
    return Frame(FrameType.REQUEST, stream, struct.pack(">BIB", 0, total, len(method)) + method, is_last)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 100,
        b"SSH-2.0-x\r\n",
        MAGIC + b"\xff\xff" + bytes(70_000),
        MAGIC + (limits.HELLO_BYTES + 1).to_bytes(2, "big") + bytes(2000),
        hello(b"x" * 200),
        hello(OWN.certificate) + b"plain text instead of TLS",
    ],
    ids=["http", "noise", "ssh", "giant hello", "oversized hello", "no certificate", "no TLS"],
)
def test_garbage_is_cut_off(data: bytes) -> None:
    survives(throwing(data))


def test_a_handshake_that_never_ends_is_cut_off_at_16_kib() -> None:
    """By its size: the time for a handshake is none here."""
    record = b"\x16\x03\x01\x40\x00" + bytes(limits.HANDSHAKE_BYTES - 100)  # it says that it has 16 KiB
    survives(throwing(hello(OWN.certificate) + record), handshake_seconds=1000.0)


def test_a_hello_cut_anywhere_leaves_nothing_behind() -> None:
    whole = hello(OWN.certificate) + TlsSession.client(OWN, SERVER.public).outgoing()

    async def attack(host: str, port: int) -> None:
        for size in range(0, len(whole), 41):
            await throwing(whole[:size], closes=True)(host, port)

    async def test() -> None:
        async with asyncio.timeout(30), listener() as server:
            await attack(*server.address)
            await is_served(server)
            await until(lambda: not server._half_open)  # gone as soon as each end of file is read

    asyncio.run(test())


@pytest.mark.parametrize("said", [b"", MAGIC, hello(OWN.certificate)], ids=["nothing", "magic", "hello"])
def test_a_slow_stranger_is_dropped(said: bytes) -> None:
    async def test() -> None:
        async with asyncio.timeout(30), listener(handshake_seconds=0.05) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(said)
            assert await until_closed(reader) == b""
            writer.close()
            assert not server._half_open
            server._handshake_seconds = limits.HANDSHAKE_SECONDS
            await is_served(server)

    asyncio.run(test())


def test_a_flood_of_half_open_connections_drops_the_oldest_and_locks_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HALF_OPEN", 8)

    async def test() -> None:
        async with asyncio.timeout(30), listener() as server:
            strangers = [await asyncio.open_connection(*server.address) for _ in range(20)]
            await is_served(server)
            assert len(server._half_open) <= 8
            for reader, _ in strangers[:12]:
                assert await until_closed(reader) == b""
            for _, writer in strangers:
                writer.close()

    asyncio.run(test())


def test_somebody_elses_certificate_without_its_key_is_refused() -> None:
    class Impostor:
        certificate = FileTlsCredentials(HONEST).certificate

        def load(self, context: ssl.SSLContext) -> None:
            OWN.load(context)

    async def attack(host: str, port: int) -> None:
        peer = Peer(*await asyncio.open_connection(host, port))
        peer.session = TlsSession.client(Impostor(), SERVER.public)
        while await peer.step():
            assert peer.plain == b""
        peer.writer.close()

    survives(attack)


def test_an_older_tls_is_refused() -> None:
    async def attack(host: str, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        OWN.load(context)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(hello(OWN.certificate))
        outgoing = ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
        writer.write(outgoing.read())
        assert await until_closed(reader) == b""
        writer.close()

    survives(attack)


def test_a_flipped_byte_in_the_channel_ends_it() -> None:
    async def attack(host: str, port: int) -> None:
        peer = await Peer.meet(host, port)
        peer.session.send(encode(ask(1)))
        data = peer.session.outgoing()
        peer.writer.write(data[:-1] + bytes([data[-1] ^ 1]))
        await peer.until_closed()

    survives(attack)


def test_a_replayed_record_ends_the_channel() -> None:
    async def attack(host: str, port: int) -> None:
        peer = await Peer.meet(host, port)
        peer.session.send(encode(ask(1)))
        peer.writer.write(peer.session.outgoing() * 2)
        await peer.until_closed()

    survives(attack)


def test_a_proved_peer_that_breaks_a_rule_loses_its_connection(subtests: pytest.Subtests) -> None:
    for frames in [
        [struct.pack(">BBII", 8, 0, 1, 0xFFFFFFFF)],
        [struct.pack(">BBII", 200, 0, 1, 5)],
        [ask(1, total=0xFFFFFFFF, is_last=False)],
        [ask(1), ask(1)],
        [ask(7)],
        [Frame(FrameType.DATA, 9, b"x")],
        [Frame(FrameType.REPLY, 2, messages.answer_head(0))] * 1000,
        [Frame(FrameType.PONG, 0)],
        [Frame(FrameType.WELCOME, 0)],
        [ask(1 + 2 * i, b"hang") for i in range(limits.STREAMS_OPEN + 1)],
        [ask(1, total=100, is_last=False), ask(3, total=100, is_last=False)],
    ]:
        with subtests.test(frames=frames):
            survives(framing(*frames))


def test_a_ping_flood_by_a_peer_that_does_not_read_holds_no_memory() -> None:
    async def test() -> None:
        async with asyncio.timeout(30), listener() as server:
            peer = await Peer.meet(*server.address)
            for _ in range(200):
                peer.send(encode(Frame(FrameType.PING, 0)) * 500)
                await asyncio.sleep(0)
            await is_served(server)
            (mine,) = server._accepted[HOSTILE.public]
            assert len(mine._streams._outbox._signals) <= 1
            assert mine._writer is not None
            assert mine._writer._transport.get_write_buffer_size() <= 2 * limits.FRAME_BYTES
            peer.writer.close()

    asyncio.run(test())


def test_a_key_that_reconnects_and_asks_gets_no_more_handlers_than_one_connection_may() -> None:
    async def test() -> None:
        async with asyncio.timeout(30), listener() as server:
            for _ in range(3):
                peer = await Peer.meet(*server.address)
                for i in range(limits.STREAMS_OPEN):
                    peer.send(encode(ask(1 + 2 * i, b"hang")))
                await peer.writer.drain()
                await until(lambda: not server._handlers.has_place(HOSTILE.public, MessageKind.CONTROL))
                peer.writer.close()
            assert len(server._handlers._tasks) == limits.STREAMS_OPEN
            await is_served(server)

    asyncio.run(test())


def test_one_key_cannot_take_all_places_and_its_newest_connection_counts() -> None:
    async def test() -> None:
        async with asyncio.timeout(30), listener() as server:
            peers = [await Peer.meet(*server.address) for _ in range(limits.CONNECTIONS_PER_PEER + 2)]
            for old in peers[:2]:
                await old.until_closed()
            assert len(server._accepted[HOSTILE.public]) == limits.CONNECTIONS_PER_PEER
            peers[-1].send(encode(ask(1)))
            assert await peers[-1].step() != b""
            await is_served(server)
            for peer in peers:
                peer.writer.close()

    asyncio.run(test())


def test_a_full_listener_turns_the_next_away_and_serves_when_a_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 1)

    async def test() -> None:
        async with asyncio.timeout(30), listener() as server:
            peer = await Peer.meet(*server.address)
            with pytest.raises(NetworkError, match="FF-NET-045"):
                await is_served(server)
            peer.writer.close()
            await until(lambda: not server._accepted)
            await is_served(server)

    asyncio.run(test())


def test_nobody_outside_the_admitted_keys_is_heard() -> None:
    async def attack(host: str, port: int) -> None:
        peer = Peer(*await asyncio.open_connection(host, port))
        while await peer.step():
            pass
        assert peer.plain == b""
        peer.writer.close()

    survives(attack, admission=Admission(lambda peer: peer == HONEST.public))
