"""Whoever is at the other end of the wire lies, floods, drips or does not read; both ends and the relay bear it."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from attack_wire import A, B, C, Liar, R, echo, until, until_closed

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.net import messages, relay_probe, relay_tickets, tls
from farflung.net.counters import ByteCounter
from farflung.net.frames import Frame, FrameType, encode
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_dialer import new_ticket
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.messages import MessageKind
from farflung.net.relay_tickets import TicketPurpose
from farflung.net.tls import TlsSession

GIANT = 0xFFFFFFFF
SHOWN = relay_tickets.sign_ticket(A, new_ticket(A, TicketPurpose.DIAL, R.public, B.public))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())


# An acceptor that proved its key


def reply(data: bytes, *, kind: FrameType = FrameType.REPLY, stream: int = 1, is_last: bool = True) -> Frame:
    return Frame(kind, stream, data, is_last)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([struct.pack(">BBII", FrameType.REPLY, 1, 1, GIANT)], "FF-NET-010"),
        ([struct.pack(">BBII", 99, 1, 1, 1)], "FF-NET-010"),
        ([reply(messages.answer_head(GIANT), is_last=False)], "FF-NET-021"),
        ([reply(messages.answer_head(limits.CONTROL_BYTES + 1), is_last=False)], "FF-NET-021"),
        ([reply(messages.answer_head(GIANT), kind=FrameType.ERROR, is_last=False)], "FF-NET-021"),
        ([reply(messages.answer_head(9) + b"no errors", kind=FrameType.ERROR)], "FF-CORE-02"),
        ([reply(b"\0")], "FF-NET-024"),
        ([reply(messages.answer_head(5) + b"123")], "FF-NET-025"),
        ([reply(messages.answer_head(1) + b"123")], "FF-NET-025"),
        ([reply(messages.answer_head(0), stream=3)], "FF-NET-023"),
        ([Frame(FrameType.WELCOME, 0)], "FF-NET-020"),
        ([Frame(FrameType.REQUEST, 2, struct.pack(">BIB", 0, GIANT, 1) + b"a", False)], "FF-NET-021"),
        ([Frame(FrameType.REQUEST, 2, struct.pack(">BIB", 0, 0, 255) + b"a" * 255)], "FF-NET-024"),
        ([Frame(FrameType.REQUEST, 2, struct.pack(">BIB", 0, 0, 255) + b"a")], "FF-NET-024"),
        ([Frame(FrameType.REQUEST, 1, struct.pack(">BIB", 0, 0, 1) + b"a")], "FF-NET-020"),
        ([Frame(FrameType.DATA, 1, b"x")], "FF-NET-020"),
    ],
)
def test_an_acceptor_that_breaks_a_rule_loses_the_connection_and_the_caller_learns_why(
    said: list[Frame | bytes], code: str
) -> None:
    async def test() -> None:
        liar = Liar(B, said)
        place = await liar.start()
        caller = Endpoint(A, echo, ByteCounter())
        try:
            connection = await caller.dial(B.public, *place)
            with pytest.raises(NetworkError, match=code):
                await connection.call("a", b"1")
            await connection.closed()
            assert caller._connections == {}
        finally:
            await caller.close()
            await liar.close()

    run(test)


def test_a_text_of_the_other_end_moves_no_cursor_and_is_bounded() -> None:
    told = messages.ErrorBody("FF-APP-001", "\x1b[2J" + "x" * 500, "\r\n", "\u202e", "9.\x1b[2J" + "9" * 99)
    body = messages.to_wire(told)

    async def test() -> None:
        liar = Liar(B, [reply(messages.answer_head(len(body)) + body, kind=FrameType.ERROR)])
        place = await liar.start()
        caller = Endpoint(A, echo, ByteCounter())
        try:
            connection = await caller.dial(B.public, *place)
            with pytest.raises(messages.RemoteError) as refused:
                await connection.call("a", b"1")
            assert str(refused.value).isprintable() or "\n" in str(refused.value)
            assert refused.value.message.isprintable()
            assert refused.value.cause.isprintable()
            assert connection.is_open
        finally:
            await caller.close()
            await liar.close()

    run(test)


# Strangers who take their time, and strangers without number


@asynccontextmanager
async def listener(seconds: float) -> AsyncIterator[Endpoint]:
    server = Endpoint(B, echo, ByteCounter(), handshake_seconds=seconds)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def relay(seconds: float) -> AsyncIterator[RelayServer]:
    server = RelayServer(R, limits=RelayLimits(handshake_seconds=seconds))
    await server.start()
    peer = Endpoint(B, echo, ByteCounter())
    try:
        peer.attach(R.public, *server.address)
        await peer.attached()
        yield server
    finally:
        await peer.close()
        await server.close()


async def gets_in(place: tuple[str, int], relay: bytes | None) -> None:
    """An honest peer, who tries again when it was pushed aside or too slow."""
    for _ in range(5):
        client = Endpoint(C, echo, ByteCounter())
        try:
            connection = await client.dial(B.public, *place, relay=relay)  # type: ignore[arg-type]
            assert await connection.call("a", b"1") == b"1"
            return
        except NetworkError:
            await asyncio.sleep(0.1)
        finally:
            await client.close()
    raise AssertionError("an honest peer is locked out")


def beginning(key=A) -> bytes:  # type: ignore[no-untyped-def]
    """Hello and ClientHello."""
    return TlsSession.client(FileTlsCredentials(key), B.public).outgoing()


async def drip(place: tuple[str, int], data: bytes, at_once: int) -> tuple[bytes, bool]:
    """One byte after the other, never idle. What comes back, and whether the other end closed before the last byte."""
    reader, writer = await asyncio.open_connection(*place)
    writer.write(data[:at_once])
    back = asyncio.create_task(until_closed(reader))
    for at in range(at_once, len(data)):
        await asyncio.wait([back], timeout=0.02)
        if back.done() or writer.is_closing():
            break
        writer.write(data[at : at + 1])
    was_cut_off = back.done()
    writer.close()
    return await back, was_cut_off


@pytest.mark.whole
@pytest.mark.parametrize("through_relay", [False, True], ids=["listener", "relay"])
def test_whoever_drips_is_dropped_when_the_whole_time_is_over_at_every_stage(through_relay: bool) -> None:
    """Every byte is in time for the one before; only all of them together are not."""
    hello = tls.hello(FileTlsCredentials(A).certificate)
    begun = beginning()
    stages = [(begun, 0), (begun, len(hello) - 20), (begun, len(begun) - 400), (begun + bytes(900), len(begun))]
    if through_relay:
        stages += [(SHOWN[:-1], 0), (SHOWN[:-1], 60)]

    async def test() -> None:
        async with relay(1.0) if through_relay else listener(1.0) as server:
            place = server.address
            drips = [asyncio.create_task(drip(place, *stage)) for stage in stages * 3]
            await asyncio.sleep(0.3)
            await gets_in(place, R.public if through_relay else None)
            for said, was_cut_off in await asyncio.gather(*drips):
                assert was_cut_off
                assert len(said) < limits.HANDSHAKE_BYTES
            held = server._endpoint if isinstance(server, RelayServer) else server
            await until(lambda: not held._half_open)

    run(test)


@pytest.mark.whole
@pytest.mark.parametrize("said", [b"", b"F", SHOWN[:20], "begun"], ids=["silent", "one byte", "ticket", "begun"])
@pytest.mark.parametrize("through_relay", [False, True], ids=["listener", "relay"])
def test_a_flood_of_hundreds_locks_nobody_out(through_relay: bool, said: bytes | str) -> None:
    data = beginning() if isinstance(said, str) else said

    async def test() -> None:
        async with relay(30.0) if through_relay else listener(30.0) as server:
            writers = []
            for number in range(300):
                _, writer = await asyncio.open_connection(*server.address)
                writer.write(data)
                writers.append(writer)
                if number == 200:
                    honest = asyncio.create_task(gets_in(server.address, R.public if through_relay else None))
            await honest
            endpoint = server._endpoint if isinstance(server, RelayServer) else server
            assert len(endpoint._half_open) <= limits.HALF_OPEN
            if isinstance(server, RelayServer):
                assert len(server._listener._strangers) <= limits.HALF_OPEN
            for writer in writers:
                writer.close()
            await until(lambda: not endpoint._half_open)

    run(test)


# Peers that are let in


def test_an_asker_that_does_not_read_costs_a_bounded_number_of_answers_and_others_are_served() -> None:
    async def test() -> None:
        made = 0

        async def large(connection, method: str, body: bytes) -> bytes:  # type: ignore[no-untyped-def]
            nonlocal made
            made += method == "large"
            return bytes(limits.BULK_BYTES) if method == "large" else body

        server = Endpoint(B, large, ByteCounter())
        client = Endpoint(A, echo, ByteCounter())
        try:
            connection = await client.dial(B.public, *await server.start())
            assert connection._writer is not None
            connection._writer._transport.pause_reading()
            asked = [asyncio.create_task(connection.call("large", b"", kind=MessageKind.SYNC)) for _ in range(100)]
            await until(lambda: made >= 4)
            await gets_in(server.address, None)
            for _ in range(200):
                await asyncio.sleep(0)
            back = server.connection(A.public)
            assert back is not None
            held = sum(lane.cost for lane in back._streams._outbox._lanes)
            assert held <= limits.OUTGOING_BYTES + limits.BULK_HANDLERS * limits.BULK_BYTES
            assert made <= limits.BULK_HANDLERS + limits.OUTGOING_BYTES // limits.BULK_BYTES
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await client.close()
            await server.close()

    run(test)


def test_under_load_a_worn_connection_is_replaced_and_no_call_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        heard: list[bytes] = []

        async def note(connection, method: str, body: bytes) -> bytes:  # type: ignore[no-untyped-def]
            heard.append(body[:4])
            return body

        server = Endpoint(B, note, ByteCounter())
        client = Endpoint(A, echo, ByteCounter())
        try:
            place = await server.start()
            used = set()

            async def call(number: int) -> None:
                connection = await client.dial(B.public, *place)
                used.add(id(connection))
                kept.append(connection)
                body = number.to_bytes(4, "big") + bytes(20_000)
                assert await connection.call("a", body, kind=MessageKind.SYNC) == body

            kept: list[object] = []
            monkeypatch.setattr(limits, "CONNECTION_BYTES", 500_000)
            for first in range(0, 100, 10):
                await asyncio.gather(*(call(number) for number in range(first, first + 10)))
            assert sorted(heard) == [number.to_bytes(4, "big") for number in range(100)]
            assert 3 < len(used) < 20
        finally:
            await client.close()
            await server.close()

    run(test)


@pytest.mark.parametrize("said", [b"FFN0", b"FFN2", b"FFR2", b"FFR0", b"ffn1", b"\x16\x03\x01\x00"])
@pytest.mark.parametrize("through_relay", [False, True], ids=["listener", "relay"])
def test_another_version_is_not_spoken(through_relay: bool, said: bytes) -> None:
    async def test() -> None:
        async with relay(30.0) if through_relay else listener(30.0) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(said + beginning()[4:])
            told = await until_closed(reader)  # a relay says which version it speaks, and closes
            assert told in (b"", relay_probe.answer(R.public) if through_relay else b"")
            writer.close()

    run(test)


def test_frames_of_a_liar_are_what_they_seem() -> None:
    """The tests above would prove nothing if an honest answer of the same maker were refused."""

    async def test() -> None:
        liar = Liar(B, [encode(reply(messages.answer_head(2) + b"ok"))])
        caller = Endpoint(A, echo, ByteCounter())
        try:
            connection = await caller.dial(B.public, *await liar.start())
            assert await connection.call("a", b"1") == b"ok"
        finally:
            await caller.close()
            await liar.close()

    run(test)
