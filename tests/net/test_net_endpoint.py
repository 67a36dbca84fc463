"""Endpoints over real sockets on loopback."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from farflung.core import limits
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import FarflungError, NetworkError, PolicyError, ProtocolError
from farflung.net.counters import ByteCounter
from farflung.net.frames import Frame, FrameType
from farflung.net.io import rate_limiter
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind, RemoteError
from farflung.net.streams import Event, StreamMultiplexer

A, B, C = (local_key(2, name) for name in "abc")


async def echo(connection: Connection, method: str, body: bytes) -> bytes:
    return body


@asynccontextmanager
async def endpoint(key: SigningKey, handler=echo, **options) -> AsyncIterator[Endpoint]:  # type: ignore[no-untyped-def]
    made = Endpoint(key, handler, ByteCounter(), **options)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def pair(handler_b=echo, handler_a=echo, **options):  # type: ignore[no-untyped-def]
    """Two endpoints and the dialled connection from A to B."""
    async with endpoint(A, handler_a) as a, endpoint(B, handler_b, **options) as b:
        yield a, b, await a.dial(B.public, *await b.start())


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


def test_both_ends_call_and_know_each_other() -> None:
    async def test() -> None:
        async with pair() as (_, b, connection):
            assert connection.peer == B.public
            assert await connection.call("a", b"x" * 1_500_000, kind=MessageKind.SYNC) == b"x" * 1_500_000
            back = b.connection(A.public)
            assert back is not None
            assert back.peer == A.public
            assert await back.call("a", b"y") == b"y"

    run(test)


def test_a_handler_calls_back_over_the_same_connection() -> None:
    async def ask_back(connection: Connection, method: str, body: bytes) -> bytes:
        return body + await connection.call("more", b"2")

    async def test() -> None:
        async with pair(ask_back) as (_, _, connection):
            assert await connection.call("a", b"1") == b"12"

    run(test)


def test_control_overtakes_bulk() -> None:
    async def test() -> None:
        order: list[str] = []

        async def note(connection: Connection, method: str, body: bytes) -> bytes:
            order.append(method)
            return b""

        async with pair(note) as (_, _, connection):
            bulk = [connection.call("bulk", bytes(limits.BULK_BYTES), kind=MessageKind.SYNC) for _ in range(12)]
            calls = [asyncio.ensure_future(call) for call in bulk]
            await asyncio.sleep(0)
            await connection.call("now", b"")
            assert order.index("now") < 6
            await asyncio.gather(*calls)
            assert len(order) == 13

    run(test)


def test_a_slow_handler_does_not_hold_up_others() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            await (gate.wait() if method == "slow" else asyncio.sleep(0))
            return b""

        async with pair(handler) as (_, _, connection):
            slow = asyncio.ensure_future(connection.call("slow", b""))
            await connection.call("fast", b"")
            assert not slow.done()
            gate.set()
            await slow

    run(test)


def test_more_calls_than_places_all_get_through() -> None:
    async def test() -> None:
        async with pair() as (_, _, connection):
            bodies = [str(i).encode() for i in range(limits.STREAMS_OPEN * 2)]
            assert await asyncio.gather(*(connection.call("a", body) for body in bodies)) == bodies

    run(test)


def test_bulk_requests_that_hang_leave_control_alone() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        count = 0

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            nonlocal count
            count += method == "hang"
            await (gate.wait() if method == "hang" else asyncio.sleep(0))
            return body

        async with pair(handler) as (_, _, connection):
            calls = [connection.call("hang", b"", kind=MessageKind.SYNC) for _ in range(limits.BULK_HANDLERS + 9)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            assert await connection.call("now", b"1") == b"1"
            assert count == limits.BULK_HANDLERS
            gate.set()
            await asyncio.gather(*tasks)

    run(test)


def test_a_call_given_up_before_it_left_never_leaves() -> None:
    async def test() -> None:
        gate, seen = asyncio.Event(), set()

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            seen.add(method)
            await gate.wait()
            return b""

        async with pair(handler) as (_, _, connection):
            hanging = [asyncio.ensure_future(connection.call("hang", b"")) for _ in range(limits.STREAMS_OPEN)]
            await asyncio.sleep(0)
            with pytest.raises(NetworkError, match="FF-NET-047"):
                await connection.call("late", b"", timeout=0.01)
            gate.set()
            await asyncio.gather(*hanging)
            await connection.call("after", b"")
            assert seen == {"hang", "after"}

    run(test)


def test_a_peer_that_makes_us_answer_and_does_not_read_is_dropped() -> None:
    async def test() -> None:
        async with pair() as (_, b, connection):
            back = b.connection(A.public)
            assert back is not None
            assert connection._writer is not None
            connection._writer._transport.pause_reading()
            for _ in range(200):  # what key updates would make TLS write
                back._write(MessageKind.CONTROL, bytes(limits.FRAME_BYTES))
            assert back._reason is not None
            assert back._reason.code == "FF-NET-048"

    run(test)


def test_an_error_of_a_handler_keeps_its_code_and_any_other_says_nothing() -> None:
    async def handler(connection: Connection, method: str, body: bytes) -> bytes:
        if method == "refuse":
            raise PolicyError("FF-HOST-003", "no", cause="full", hint="wait")
        if method == "big":
            return bytes(limits.CONTROL_BYTES + 1)
        if method == "wrong":
            return None  # type: ignore[return-value]
        raise RuntimeError("/home/me/secret")

    async def test() -> None:
        heard: list[Exception] = []
        async with pair(handler) as (_, b, connection):
            b.on_error = heard.append
            with pytest.raises(RemoteError, match="FF-HOST-003") as refused:
                await connection.call("refuse", b"")
            assert (refused.value.cause, refused.value.hint) == ("full", "wait")
            for method in ("break", "wrong"):
                with pytest.raises(RemoteError, match="FF-NET-099") as broken:
                    await connection.call(method, b"")
                assert "secret" not in str(broken.value.lines())
            with pytest.raises(RemoteError, match="FF-NET-030"):
                await connection.call("big", b"")
            assert [type(each) for each in heard] == [RuntimeError, TypeError]

    run(test)


def test_tell_reaches_the_handler_and_its_failure_stays_there() -> None:
    async def test() -> None:
        told: list[bytes] = []

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            told.append(body)
            raise PolicyError("FF-HOST-003", "no")

        async with pair(handler) as (_, _, connection):
            await connection.tell("note", b"1")
            with pytest.raises(RemoteError):
                await connection.call("note", b"2")
            assert told == [b"1", b"2"]

    run(test)


def test_a_late_answer_is_an_error_with_a_code_and_the_connection_stays() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            if method == "slow":
                await gate.wait()
            return body

        async with pair(handler) as (_, _, connection):
            with pytest.raises(NetworkError, match="FF-NET-047"):
                await connection.call("slow", b"", timeout=0.01)
            gate.set()
            assert await connection.call("a", b"1") == b"1"

    run(test)


def test_another_key_at_the_address_is_refused() -> None:
    async def test() -> None:
        async with endpoint(A) as a, endpoint(B) as b:
            address = await b.start()
            with pytest.raises(ProtocolError, match="FF-NET-004"):
                await a.dial(C.public, *address)
            assert b.connection(A.public) is None
            assert (await a.dial(B.public, *address)).is_open

    run(test)


def test_a_man_in_the_middle_learns_and_changes_nothing() -> None:
    """C stands between A and B with its own certificate on both sides."""

    async def test() -> None:
        async with endpoint(A) as a, endpoint(B) as b, endpoint(C) as c:
            heard: list[bytes] = []

            async def middle(connection: Connection, method: str, body: bytes) -> bytes:
                heard.append(body)
                return await (await c.dial(B.public, *real)).call(method, body)

            real = await b.start()
            async with endpoint(C, middle) as fake:
                with pytest.raises(ProtocolError, match="FF-NET-004"):
                    await a.dial(B.public, *await fake.start())
            assert heard == []

    run(test)


def test_only_admitted_keys_stay() -> None:
    async def test() -> None:
        async with endpoint(A) as a, endpoint(C) as c:
            async with endpoint(B, admission=Admission(lambda peer: peer == A.public)) as b:
                address = await b.start()
                refused = await c.dial(B.public, *address)
                with pytest.raises(NetworkError, match="FF-NET-045"):
                    await refused.call("a", b"1")
                assert (await a.dial(B.public, *address)).is_open

    run(test)


def test_concurrent_dials_share_one_connection_and_so_does_the_way_back() -> None:
    async def test() -> None:
        async with endpoint(A) as a, endpoint(B) as b:
            address = await b.start()
            first, *others = await asyncio.gather(*(a.dial(B.public, *address) for _ in range(8)))
            assert all(each is first for each in others)
            assert await a.dial(B.public, *address) is first
            back = await b.dial(A.public, "127.0.0.1", 1)
            assert await back.call("a", b"1") == b"1"
            first.close()
            await first.closed()
            again = await a.dial(B.public, *address)
            assert again is not first
            assert await again.call("a", b"1") == b"1"

    run(test)


def test_a_worn_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_BYTES", 100_000)

    async def test() -> None:
        async with pair() as (a, b, connection):
            await connection.call("a", bytes(100_000))
            again = await a.dial(B.public, *b.address)
            assert again is not connection
            assert await connection.call("a", b"1") == b"1"

    run(test)


def test_losing_the_connection_fails_every_call_under_way() -> None:
    async def test() -> None:
        arrived = asyncio.Event()

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            arrived.set()
            return await asyncio.Future()

        async with pair(handler) as (_, b, connection):
            calls = [asyncio.ensure_future(connection.call("a", b"")) for _ in range(3)]
            await arrived.wait()
            back = b.connection(A.public)
            assert back is not None
            back.close()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, NetworkError)
                assert result.code == "FF-NET-046"
            await connection.closed()
            for late in (connection.call("a", b""), connection.tell("a", b"")):
                with pytest.raises(NetworkError, match="FF-NET-046"):
                    await late

    run(test)


def test_a_handler_goes_on_when_its_caller_is_gone() -> None:
    async def test() -> None:
        started, gate, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            started.set()
            await gate.wait()
            done.set()
            return b""

        async with pair(handler) as (_, b, connection):
            await connection.tell("a", b"")
            await started.wait()
            connection.close()
            back = b.connection(A.public)
            assert back is not None
            await back.closed()
            gate.set()
            await done.wait()

    run(test)


def test_a_silent_peer_is_given_up() -> None:
    async def test() -> None:
        async with pair() as (_, b, connection):
            back = b.connection(A.public)
            assert back is not None
            for _ in range(5):
                connection._idle.begin()
            with pytest.raises(NetworkError, match="FF-NET-048"):
                await connection.call("a", b"")
            await back.closed()

    run(test)


def test_a_silence_is_broken_by_a_ping_that_the_peer_answers() -> None:
    async def test() -> None:
        async with pair() as (_, _, connection):
            connection._idle._quiet = 2
            connection._idle.begin()
            assert connection._streams._awaits_pong
            while connection._streams._awaits_pong:  # noqa: ASYNC110 - a pong has no event of its own
                await asyncio.sleep(0)
            assert connection._idle._quiet == 0
            assert await connection.call("a", b"1") == b"1"

    run(test)


def test_a_worn_connection_closes_when_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_BYTES", 1)

    async def test() -> None:
        async with pair() as (_, _, connection):
            connection._idle._quiet = 2
            connection._idle.begin()
            await connection.closed()

    run(test)


def test_a_reader_that_stops_bounds_what_we_hold() -> None:
    async def test() -> None:
        async with pair() as (_, b, connection):
            back = b.connection(A.public)
            assert back is not None
            assert back._writer is not None
            back._writer._transport.pause_reading()
            tasks = [
                asyncio.ensure_future(connection.call("a", bytes(limits.MIB), kind=MessageKind.SYNC)) for _ in range(40)
            ]
            for _ in range(200):
                await asyncio.sleep(0)
            held = sum(lane.cost for lane in connection._streams._outbox._lanes)
            assert held < limits.OUTGOING_BYTES + 2 * limits.MIB
            back._writer._transport.resume_reading()
            await asyncio.gather(*tasks)

    run(test)


def test_answers_wait_to_be_made_while_the_asker_does_not_read() -> None:
    async def test() -> None:
        count = 0

        async def handler(connection: Connection, method: str, body: bytes) -> bytes:
            nonlocal count
            count += 1
            return bytes(limits.BULK_BYTES)

        async with pair(handler) as (_, b, connection):
            assert connection._writer is not None
            calls = [connection.call("a", b"", kind=MessageKind.SYNC) for _ in range(60)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            connection._writer._transport.pause_reading()
            back = b.connection(A.public)
            assert back is not None
            while back._streams.has_room(MessageKind.SYNC) or b._handlers._tasks:  # noqa: ASYNC110 - no event of its own
                await asyncio.sleep(0)
            assert any(back._waiting)
            assert count < len(tasks)
            held = sum(lane.cost for lane in back._streams._outbox._lanes)
            assert held <= limits.OUTGOING_BYTES + (limits.BULK_HANDLERS + 1) * limits.BULK_BYTES
            connection._writer._transport.resume_reading()
            for body in await asyncio.gather(*tasks):
                assert len(body) == limits.BULK_BYTES

    run(test)


def test_what_one_end_sends_the_other_receives_to_the_byte_and_by_kind() -> None:
    async def test() -> None:
        async with pair() as (a, b, connection):
            for kind, size in (
                (MessageKind.SYNC, 1_500_000),
                (MessageKind.AUDIT, 16_384),
                (MessageKind.JOIN, 65_536),
                (MessageKind.CONTROL, 9),
            ):
                await connection.call("a", os.urandom(size), kind=kind)
            await connection.tell("a", b"x" * 70_000, kind=MessageKind.AUDIT)
            connection._streams.ping()
            with pytest.raises(NetworkError):
                await a.dial(C.public, *b.address)
            await connection.call("a", b"")
            back = b.connection(A.public)
            assert back is not None
            connection.close()
            await back.closed()
            await connection.closed()
        assert a.counter.sent == b.counter.received
        assert b.counter.sent == a.counter.received
        assert a.counter.sent[MessageKind.SYNC] > 1_500_000
        assert a.counter.total_sent + b.counter.total_sent > 2 * 1_500_000

    run(test)


def test_a_taken_port_says_so() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            async with endpoint(A, listen=ListenConfig(port=port)) as a:
                with pytest.raises(NetworkError, match="FF-NET-040") as taken:
                    await a.start()
                assert taken.value.hint

    run(test)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_only_loopback_is_listened_on_unless_told(host: str) -> None:
    async def test() -> None:
        async with endpoint(A, listen=ListenConfig(host)) as a:
            with pytest.raises(PolicyError, match="FF-NET-042"):
                await a.start()

    run(test)


def test_an_address_that_is_not_ours_or_where_nobody_is_says_so() -> None:
    async def test() -> None:
        async with endpoint(A, listen=ListenConfig("192.0.2.1", allow_remote=True)) as a:
            with pytest.raises(NetworkError, match="FF-NET-041"):
                await a.start()
            with socket.create_server(("127.0.0.1", 0)) as other:
                port = other.getsockname()[1]
            with pytest.raises(NetworkError, match="FF-NET-043"):
                await a.dial(B.public, "127.0.0.1", port)

    run(test)


def test_an_acceptor_that_never_answers_is_given_up() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            async with endpoint(A, handshake_seconds=0.05) as a:
                with pytest.raises(NetworkError, match="FF-NET-044"):
                    await a.dial(B.public, *mute.getsockname())

    run(test)


def test_a_closed_endpoint_dials_no_more_and_ends_dials_under_way() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            async with endpoint(A) as a:
                dial = asyncio.ensure_future(a.dial(B.public, *mute.getsockname()))
                await asyncio.sleep(0)
                await a.close()
                with pytest.raises(NetworkError, match="FF-NET-049"):
                    await dial
                with pytest.raises(NetworkError, match="FF-NET-049"):
                    await a.dial(B.public, *mute.getsockname())

    run(test)


def test_errors_are_of_the_one_tree() -> None:
    assert issubclass(RemoteError, NetworkError)
    assert issubclass(NetworkError, FarflungError)


def test_a_lone_message_to_another_home_is_followed_by_a_word_and_one_among_others_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[FrameType] = []
    take = StreamMultiplexer.take

    def noted(streams: StreamMultiplexer, frame: Frame) -> tuple[MessageKind, Event | None]:
        heard.append(frame.type)
        return take(streams, frame)

    async def late(_: Connection, method: str, body: bytes) -> bytes:
        await asyncio.sleep(0.1)
        return body

    async def asked(count: int, *, is_near: bool = False) -> list[FrameType]:
        monkeypatch.setattr(rate_limiter, "is_near", lambda _sock: is_near)
        async with pair(late) as (_, _, connection):
            await connection.call("say", b"first")
            await asyncio.sleep(0.1)
            heard.clear()
            await asyncio.gather(*(connection.call("say", b"x") for _ in range(count)))
            return list(heard)

    async def test() -> None:
        monkeypatch.setattr(StreamMultiplexer, "take", noted)
        assert await asked(1) == [FrameType.REQUEST, FrameType.PING, FrameType.PONG, FrameType.REPLY]
        assert await asked(1, is_near=True) == [FrameType.REQUEST, FrameType.REPLY]
        assert 1 <= (await asked(50)).count(FrameType.PING) <= 10  # on a busy machine more than the last may look alone

    run(test)
