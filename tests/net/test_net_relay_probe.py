"""What a relay measures for others: true answers, within bounds that nobody can be hurt through."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net_relays import A, B, R, relay, run

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.net import relay_probe
from farflung.net.io import rate_limiter, socket_options
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.probe_dialer import ProbeDialer
from farflung.net.io.relay_probe_server import connects
from farflung.net.messages import MessageKind, RemoteError
from farflung.net.relay_probe import ProbeRateLimiter, ReachResult

KEYS = [local_key(6, str(number)).public for number in range(6)]


async def called(caller: ProbeDialer, place: tuple[str, int], source: str = "127.0.0.1") -> Connection:
    sock = socket.create_connection(place, source_address=(source, 0))
    sock.setblocking(False)
    return await caller.call(sock, R.public)


def test_a_relay_tells_its_time_and_from_where_it_is_asked() -> None:
    async def test() -> None:
        async with relay(admission=Admission(clock=lambda: 1234.5678)) as server:
            caller = ProbeDialer(A)
            connection = await called(caller, server.address)
            assert decode(await connection.call(relay_probe.TIME, b""), int, 16) == 1234567
            assert connection.tcp is not None
            here = connection.tcp.getsockname()
            assert decode(await connection.call(relay_probe.WHERE, b""), tuple[str, int], 300) == here
            await caller.close()

    run(test)


def test_a_relay_takes_and_gives_bytes_until_the_limiter_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEASURE_KEY_BYTES", 100_000)
    monkeypatch.setattr(relay_probe, "WINDOW_SECONDS", 1e9)

    async def test() -> None:
        async with relay() as server:
            caller, other = ProbeDialer(A), ProbeDialer(B)
            connection = await called(caller, server.address)
            assert (
                decode(await connection.call(relay_probe.SINK, bytes(40_000), kind=MessageKind.JOIN), int, 16) == 40_000
            )
            assert await connection.call(relay_probe.SOURCE, encode(50_000), kind=MessageKind.JOIN) == bytes(50_000)
            for method, body in ((relay_probe.SINK, bytes(20_000)), (relay_probe.SOURCE, encode(20_000))):
                with pytest.raises(RemoteError) as told:
                    await connection.call(method, body, kind=MessageKind.JOIN)
                assert told.value.code == "FF-NET-078"
            later = await called(caller, server.address)  # another connection of the key changes nothing
            with pytest.raises(RemoteError):
                await later.call(relay_probe.SINK, bytes(20_000))
            assert await (await called(other, server.address)).call(relay_probe.SOURCE, encode(9)) == bytes(9)
            await caller.close()
            await other.close()

    run(test)


@pytest.mark.parametrize("body", [b"", encode(0), encode(-1), encode(limits.MEASURE_BYTES + 1), encode("9")])
def test_a_relay_gives_no_more_at_a_time_than_it_said(body: bytes) -> None:
    async def test() -> None:
        async with relay() as server:
            caller = ProbeDialer(A)
            connection = await called(caller, server.address)
            with pytest.raises(RemoteError):
                await connection.call(relay_probe.SOURCE, body)
            with pytest.raises(RemoteError):
                await connection.call(relay_probe.SINK, bytes(limits.MEASURE_BYTES + 1))
            await caller.close()

    run(test)


def test_a_relay_connects_only_to_who_asks_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_probe, "WINDOW_SECONDS", 1e9)

    async def test() -> None:
        heard = []
        listener = await asyncio.start_server(lambda _, writer: heard.append(writer), "127.0.0.2", 0)
        port = listener.sockets[0].getsockname()[1]
        async with relay() as server:
            there, elsewhere = ProbeDialer(A), ProbeDialer(B)
            asked = await called(there, server.address, "127.0.0.2")
            assert decode(await asked.call(relay_probe.REACH, encode(port)), int, 16) == ReachResult.YES
            with pytest.raises(RemoteError) as told:
                await asked.call(relay_probe.REACH, encode(port))
            assert told.value.code == "FF-NET-078"
            asked = await called(elsewhere, server.address, "127.0.0.3")  # where nobody listens
            assert decode(await asked.call(relay_probe.REACH, encode(port)), int, 16) == ReachResult.REFUSED
            await there.close()
            await elsewhere.close()
        assert len(heard) == 1
        heard[0].close()
        listener.close()

    run(test)


def test_a_port_that_drops_everything_is_silent() -> None:
    async def test() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = []
            for _ in range(4):  # its queue is full then, and the kernel drops who comes
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
                fillers.append(filler)
            assert await connects("127.0.0.1", port, 0.3) is ReachResult.SILENT
            for filler in fillers:
                filler.close()

    run(test)


@pytest.mark.parametrize("question", [relay_probe.QUESTION, b"FFN9", b"FFZ0"])
def test_whoever_speaks_another_version_hears_which_one_and_whose_relay_it_is(question: bytes) -> None:
    async def test() -> None:
        async with relay() as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(question)
            assert await reader.read() == b"FFN1" + R.public
            writer.close()

    run(test)


def test_who_is_no_relative_hears_nothing() -> None:
    async def test() -> None:
        async with relay() as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"GET ")
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_caller_whose_dial_is_refused_says_why() -> None:
    async def test() -> None:
        async with relay(admission=Admission(lambda peer: peer != A.public)) as server:
            caller = ProbeDialer(A)
            with pytest.raises(NetworkError) as told:
                await called(caller, server.address)
            assert told.value.code == "FF-NET-045"
            await caller.close()

    run(test)


takes = st.tuples(
    st.sampled_from(KEYS), st.integers(0, limits.MEASURE_KEY_BYTES + 1), st.floats(0, 200, allow_nan=False)
)


@given(st.lists(takes, max_size=60))
def test_nobody_gets_more_than_the_limiter_of_a_minute(asked: list[tuple[bytes, int, float]]) -> None:
    limiter = ProbeRateLimiter()
    given_: dict[tuple[bytes, int], int] = {}
    for key, size, now in sorted(asked, key=lambda one: one[2]):
        if limiter.take(key, size, now):  # type: ignore[arg-type]
            place = (key, int(now // 60))
            given_[place] = given_.get(place, 0) + size
    assert all(total <= limits.MEASURE_KEY_BYTES for total in given_.values())


def test_the_limiter_of_all_is_bounded_and_comes_back_with_the_next_minute() -> None:
    limiter = ProbeRateLimiter()
    most = limits.MEASURE_ALL_BYTES // limits.MEASURE_KEY_BYTES
    names = [local_key(7, str(number)).public for number in range(most + 1)]
    assert [limiter.take(key, limits.MEASURE_KEY_BYTES, 1.0) for key in names] == [True] * most + [False]
    assert limiter.take(names[-1], limits.MEASURE_KEY_BYTES, 61.0)


def test_one_address_is_tried_a_few_times_a_minute_whatever_keys_ask() -> None:
    limiter = ProbeRateLimiter()
    tried = [limiter.reach(key, "192.0.2.1", 1.0) for key in KEYS]
    assert tried == [True] * limits.MEASURE_REACHES + [False] * (len(KEYS) - limits.MEASURE_REACHES)
    assert not limiter.reach(KEYS[0], "192.0.2.2", 2.0)
    assert limiter.reach(KEYS[0], "192.0.2.2", 61.0)


@pytest.mark.skipif(not socket_options.CAN_PACE, reason="this system cannot pace")
def test_a_relays_own_answers_have_one_pacer_and_that_is_its_uplink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limiter, "is_near", lambda _sock: False)

    async def test() -> None:
        async with relay() as server:
            caller = ProbeDialer(A)
            connection = await called(caller, server.address)
            assert await connection.call(relay_probe.SOURCE, encode(50_000), kind=MessageKind.JOIN) == bytes(50_000)
            theirs = server.endpoint.connection(A.public)
            assert theirs is not None
            assert theirs.tcp is not None
            pace = theirs.tcp.getsockopt(socket.SOL_SOCKET, socket_options._MAX_PACING_RATE)
            assert pace == -1  # none: this relay was told no uplink
            await caller.close()

    run(test)
