"""Spare connections at a relay, and what leaves with a ticket."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest
from net_relays import A, B, C, R, echo, hidden, relay, run, until

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.net.certificates import bare
from farflung.net.counters import ByteCounter
from farflung.net.io import spare_connections as spares_
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.relay_dialer import RelayDial
from farflung.net.io.spare_connections import SpareConnections
from farflung.net.streams import StreamMultiplexer


def two() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def test_whoever_dials_a_peer_with_a_spare_is_joined_without_a_summons() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(B, server.address):
            await until(lambda: B.public in server._spares._kept)
            server._call_back = None  # type: ignore[method-assign, assignment] - nobody is to be summoned
            connection = await a.dial(B.public, *server.address, relay=R.public)
            assert await connection.call("a", b"1") == b"1"
            await until(lambda: B.public in server._spares._kept)  # the next one

    run(test)


def test_a_relay_that_lost_the_spare_summons_the_peer() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(B, server.address):
            await until(lambda: B.public in server._spares._kept)
            server._spares.close()
            connection = await a.dial(B.public, *server.address, relay=R.public)
            assert await connection.call("a", b"1") == b"1"

    run(test)


def test_the_next_spare_is_opened_while_the_last_one_is_in_use() -> None:
    async def test() -> None:
        async with relay() as server, hidden(B, server.address), hidden(A, None) as a, hidden(C, None) as c:
            for dialer in (a, c):
                await until(lambda: B.public in server._spares._kept)
                connection = await dialer.dial(B.public, *server.address, relay=R.public)
                assert await connection.call("a", b"1") == b"1"
            assert len(server._circuits.circuits) == 2

    run(test)


def test_a_spare_is_renewed_before_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARE_SECONDS", 0.02)
    monkeypatch.setattr(spares_, "_PAUSE_SECONDS", 0.01)

    async def test() -> None:
        async with relay() as server, hidden(B, server.address):
            await until(lambda: B.public in server._spares._kept)
            first = server._spares._kept[B.public]
            await until(lambda: server._spares._kept.get(B.public, first) is not first)
            assert first[1].fileno() == -1

    run(test)


def test_who_is_not_attached_any_more_has_no_spare() -> None:
    async def test() -> None:
        async with relay() as server:
            async with hidden(B, server.address):
                await until(lambda: B.public in server._spares._kept)
            await until(lambda: not server._attached and not server._spares._kept)

    run(test)


def test_only_a_spare_that_stands_and_is_silent_and_not_over_its_time_is_joined() -> None:
    now = 0.0
    good = True
    kept = SpareConnections(lambda: now, lambda identity: good)
    for spoil in (None, "closed", "said something", "too old", "dropped", "withdrawn"):
        mine, theirs = two()
        kept.keep(B.public, mine, bare(B.public))
        if spoil == "closed":
            theirs.close()
        elif spoil == "said something":
            theirs.send(b"x")
        elif spoil == "too old":
            now += limits.SPARE_SECONDS + limits.CIRCUIT_SECONDS
        elif spoil == "dropped":
            kept.drop(B.public)
        elif spoil == "withdrawn":
            good = False
        taken = kept.take(B.public)
        assert (taken == (mine, bare(B.public))) == (spoil is None)
        assert kept.take(B.public) is None
        assert (mine.fileno() == -1) == (spoil is not None)
        mine.close()
        theirs.close()


def test_the_newest_spare_of_a_key_counts() -> None:
    kept = SpareConnections(lambda: 0.0, lambda identity: True)
    (old, old_end), (new, new_end) = two(), two()
    kept.keep(B.public, old, bare(B.public))
    kept.keep(B.public, new, bare(B.public))
    assert old.fileno() == -1
    assert kept.take(B.public) == (new, bare(B.public))
    for each in (new, old_end, new_end):
        each.close()


def test_a_refusal_arrives_though_a_handshake_stands_behind_the_ticket() -> None:
    """A socket that is closed with bytes unread resets, and the refusal would be lost."""

    async def test() -> None:
        async with relay() as server, hidden(A, None) as a:
            for _ in range(20):
                with pytest.raises(NetworkError, match="FF-NET-071"):
                    await a.dial(B.public, *server.address, relay=R.public)

    run(test)


def test_a_dialers_first_request_does_not_wait_to_be_welcome() -> None:
    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(B, server.address):
            connection = await a.dial(B.public, *server.address, relay=R.public)
            assert not connection.is_welcome
            assert await connection.call("a", b"1") == b"1"
            assert connection.is_welcome

    run(test)


def test_the_first_request_of_who_is_not_admitted_is_not_handled() -> None:
    handled: list[bytes] = []

    async def note(connection: Connection, method: str, body: bytes) -> bytes:
        handled.append(body)
        return await echo(connection, method, body)

    async def test() -> None:
        only_relay = {"admission": Admission(lambda peer: peer == R.public)}
        async with relay() as server, hidden(A, None) as a, hidden(B, server.address, note, **only_relay):
            await until(lambda: B.public in server._spares._kept)
            connection = await a.dial(B.public, *server.address, relay=R.public)
            with pytest.raises(NetworkError, match="FF-NET-045"):
                await connection.call("a", b"1")
            assert not handled

    run(test)


def test_who_never_welcomes_a_dialer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        impatient = {"handshake_seconds": 0.5}
        async with relay() as server, hidden(A, None, **impatient) as a, hidden(B, server.address):
            await until(lambda: B.public in server._spares._kept)
            monkeypatch.setattr(StreamMultiplexer, "welcome", lambda streams: None)
            connection = await a.dial(B.public, *server.address, relay=R.public)
            with pytest.raises(NetworkError, match="FF-NET-044"):
                await connection.opened()
            await connection.closed()

    run(test)


def test_round_trips_from_a_dial_to_the_first_answer_through_a_relay() -> None:
    """Counted as turns of who speaks on the dialer's wire: each is a round trip between the two peers."""

    async def test() -> None:
        async with relay() as server, hidden(A, None) as a, hidden(B, server.address):
            await until(lambda: B.public in server._spares._kept)
            turns: list[str] = []
            loop = asyncio.get_running_loop()

            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                onward, back = await asyncio.open_connection(*server.address)

                async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, who: str) -> None:
                    while data := await source.read(65536):
                        if turns[-1:] != [who]:
                            turns.append(who)
                        loop.call_later(0.05, sink.write, data)
                    loop.call_later(0.1, sink.close)

                await asyncio.gather(copy(reader, back, "dialer"), copy(onward, writer, "other"))

            wire = await asyncio.start_server(forward, "127.0.0.1", 0)
            place = wire.sockets[0].getsockname()
            connection = await a.dial(B.public, *place, relay=R.public)
            await connection.call("a", b"1")
            # ticket and handshake; JOINED and the acceptor's half; Finished and the request; the answer
            assert turns == ["dialer", "other", "dialer", "other"]
            connection.close()
            await connection.closed()
            wire.close()
            await asyncio.sleep(0.2)

    run(test)


def test_a_dial_that_was_given_up_while_tcp_connected_leaves_no_error_behind() -> None:
    """Its socket is closed without an answer, and nobody is left to hear of it."""

    async def test() -> None:
        left: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: left.append(context))
        given_up = RelayDial(b"ticket", b"", ByteCounter(), lambda: pytest.fail("nobody was joined"))
        given_up.connection_lost(None)
        assert given_up.answered.done()
        del given_up
        gc.collect()
        await asyncio.sleep(0)
        assert left == []

    run(test)
