"""Several paths to one peer over real sockets on loopback: two relays, one dies; a simultaneous open; who may offer."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from net_relays import A, B, C, echo, run, until

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.net import paths
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io import redial
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.hole_punch import OFFER, HolePunchOffer, targets
from farflung.net.io.path_manager import ECHO, PathManager
from farflung.net.io.relay import RelayServer
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import RemoteError
from farflung.net.paths import PathMeasuredEvent, PathType, PathWantedEvent

R1, R2 = local_key(5, "relay"), local_key(5, "other relay")


class Party:
    """An endpoint that is attached to relays, and its path manager."""

    def __init__(self, key: SigningKey, **options: bool) -> None:
        self.endpoint = Endpoint(key, echo, ByteCounter())
        self.path_manager = PathManager(self.endpoint, **options)
        self.places: tuple[EndpointAddress, ...] = ()

    async def attach(self, *relays: tuple[SigningKey, RelayServer]) -> None:
        self.places = tuple(EndpointAddress(*server.address, key.public) for key, server in relays)
        for place in self.places:
            self.endpoint.attach(place.relay, place.host, place.port)
        await self.endpoint.attached()
        await until(lambda: all(each.is_there for each in self.endpoint._attachments.values()))


@asynccontextmanager
async def two_relays(*keys: SigningKey, **options: bool) -> AsyncIterator[tuple[list[RelayServer], list[Party]]]:
    servers = [RelayServer(R1), RelayServer(R2)]
    parties = [Party(key, **options) for key in keys]
    try:
        for server in servers:
            await server.start()
        for party in parties:
            await party.attach(*zip((R1, R2), servers, strict=True))
        yield servers, parties
    finally:
        for party in parties:
            await party.path_manager.close()
            await party.endpoint.close()
        for server in servers:
            await server.close()


def relay_of(connection: Connection) -> bytes:
    assert connection.way is PathType.RELAY
    return connection.place.relay


def test_one_relay_that_knows_the_key_is_enough_and_the_others_are_tried_on() -> None:
    async def test() -> None:
        server, late = RelayServer(R1), RelayServer(R2)
        await server.start()
        host, port = await late.start()
        await late.close()
        endpoint = Endpoint(A, echo, ByteCounter())
        try:
            endpoint.attach(R2.public, host, port)
            with pytest.raises(NetworkError, match="FF-NET-077"):
                await endpoint.attached(0.1)
            endpoint.attach(R1.public, *server.address)
            await endpoint.attached()
            late = RelayServer(R2, listen=ListenConfig(port=port))
            await late.start()
            await until(lambda: endpoint._attachments[R2.public].is_there)
        finally:
            await endpoint.close()
            await server.close()
            await late.close()

    run(test)


def test_a_dial_that_gets_no_answer_is_begun_anew_and_the_late_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(redial, "ANEW_SECONDS", 0.01)
        listener, dialer = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
        begun, is_late, late = list[int](), asyncio.Event(), list[Connection]()

        async def dial(number: int) -> Connection:
            begun.append(number)
            if number == 1:
                await is_late.wait()
            connection = await dialer.dial(A.public, *listener.address, fresh=number)
            if number == 1:
                late.append(connection)
            return connection

        try:
            await listener.start()
            found = await redial.first_of(dial, (1, 101))
            is_late.set()
            await until(lambda: bool(late) and not late[0].is_open)
            assert begun == [1, 101]
            assert await found.call("say", b"one") == b"one"
        finally:
            await dialer.close()
            await listener.close()

    run(test)


def test_a_connection_to_a_place_that_is_near_goes_by_way_of_the_lan() -> None:
    async def test() -> None:
        listeners = [Endpoint(key, echo, ByteCounter()) for key in (B, C)]
        dialer = Endpoint(A, echo, ByteCounter())
        for listener in listeners:
            await listener.start()
        near, far = (EndpointAddress(*listener.address) for listener in listeners)
        path_manager = PathManager(dialer, is_near=lambda peer, place: (peer, place) == (B.public, near))
        try:
            for peer, place, way in ((B.public, near, PathType.LAN), (C.public, far, PathType.DIRECT)):
                path_manager.learn(peer, [place])
                assert (await path_manager.connection(peer)).way is way
                assert path_manager.way(peer) is way
        finally:
            await path_manager.close()
            for endpoint in (dialer, *listeners):
                await endpoint.close()

    run(test)


def test_control_starts_on_the_first_relay_and_goes_on_over_the_second_when_that_dies() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (servers, (a, b)):
            a.path_manager.learn(B.public, b.places)
            first = await a.path_manager.connection(B.public)
            assert relay_of(first) == R1.public
            assert await first.call("say", b"one") == b"one"
            assert await a.path_manager.connection(B.public) is first
            await servers[0].close()
            await first.closed()
            second = await a.path_manager.connection(B.public)
            assert relay_of(second) == R2.public
            assert await second.call("say", b"two") == b"two"
            assert a.path_manager.way(B.public) is PathType.RELAY

    run(test)


def test_bulk_gets_both_relays_and_keeps_the_one_that_lives() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (servers, (a, b)):
            a.path_manager.learn(B.public, b.places)
            await a.path_manager.connection(B.public)
            await until(lambda: len(a.path_manager.ways(B.public)) == 2)
            ways = a.path_manager.ways(B.public)
            assert {relay_of(way) for way in ways} == {R1.public, R2.public}
            for way in ways:
                measured = PathMeasuredEvent(way.place, goodput=1e7 if relay_of(way) == R2.public else 1e6)
                a.path_manager._feed(B.public, a.path_manager._peers[B.public], measured)
            assert relay_of(a.path_manager.ways(B.public)[0]) == R2.public
            await servers[1].close()
            await until(lambda: len(a.path_manager.ways(B.public)) == 1)
            assert relay_of(a.path_manager.ways(B.public)[0]) == R1.public

    run(test)


def test_who_is_dialled_answers_over_what_stands_and_needs_no_address() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            a.path_manager.learn(B.public, b.places)
            b.path_manager.learn(A.public, ())
            there = await a.path_manager.connection(B.public)
            await until(lambda: b.path_manager.way(A.public) is PathType.RELAY)
            back = await b.path_manager.connection(A.public)
            assert await back.call("say", b"back") == b"back"
            assert await there.call("say", b"there") == b"there"

    run(test)


def test_a_peer_without_a_place_cannot_be_reached_and_a_dead_place_says_why() -> None:
    async def test() -> None:
        async with two_relays(A) as (_, (a,)):
            with pytest.raises(NetworkError, match="FF-NET-117"):
                await a.path_manager.connection(B.public)
            a.path_manager.learn(B.public, a.places)  # B is attached nowhere
            with pytest.raises(NetworkError, match="FF-NET-071"):
                await a.path_manager.connection(B.public)

    run(test)


def test_a_doubted_path_is_left_for_the_other_one_and_ends() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            a.path_manager.learn(B.public, b.places)
            first = await a.path_manager.connection(B.public)
            waiting = asyncio.create_task(first.call("say", b"x", timeout=None))
            await waiting
            first.doubt()
            second = await a.path_manager.connection(B.public)
            assert second is not first
            await first.closed()
            assert await second.call("say", b"y") == b"y"

    run(test)


@pytest.mark.parametrize(("is_busy", "wanted"), [(True, 2), (False, 0)], ids=["owes an answer", "owes nothing"])
def test_a_silent_path_that_owes_an_answer_is_replaced_though_the_first_try_fails(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool, wanted: int
) -> None:
    """A peer that moves is not at its relay again when it is first dialled; nobody else may want it for minutes."""

    async def test() -> None:
        async with two_relays(A, B, may_meet_here=True) as (_, (a, b)):
            a.path_manager.learn(B.public, b.places)
            first = await a.path_manager.connection(B.public)
            there = a.path_manager._peers[B.public]
            line, fed = there.lines[first.place], list[object]()
            monkeypatch.setattr(type(first), "is_busy", property(lambda _: is_busy))
            monkeypatch.setattr(a.path_manager, "_feed", lambda _peer, _paths, event: fed.append(event))
            for has_waited in (True, False, True):  # it is wanted again after seconds, not at each look
                line.silent, line.tried = first.heard, float("-inf") if has_waited else line.tried
                a.path_manager._look(B.public, there, line)
            assert sum(isinstance(event, PathWantedEvent) for event in fed) == wanted

    run(test)


def test_the_silence_of_a_connection_that_was_replaced_says_nothing_of_its_path() -> None:
    """A computer that slept hears the time-outs of all that it asked before, on connections that are others by now."""

    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            a.path_manager.learn(B.public, b.places)
            first = await a.path_manager.connection(B.public)
            there = a.path_manager._peers[B.public]
            line, there.lines[first.place] = there.lines[first.place], copy.copy(there.lines[first.place])

            class Silent:
                place, heard = first.place, first.heard

                async def call(self, *_: object, **__: object) -> bytes:
                    raise NetworkError("FF-NET-047", "no answer in time")

            line.connection = Silent()  # type: ignore[assignment]
            await a.path_manager._trip(B.public, there, line)
            assert there.state.control == first.place

    run(test)


def test_a_path_on_which_a_connection_stands_is_open_whichever_of_several_came_last() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            a.path_manager.learn(B.public, b.places)
            first = await a.path_manager.connection(B.public)
            there, place = a.path_manager._peers[B.public], first.place
            lane = await a.endpoint.dial(B.public, place.host, place.port, relay=place.relay, fresh=7)
            there.state, _ = paths.handle(there.state, paths.PathSilentEvent(place), 0.0)
            assert there.state.control is None
            a.path_manager._join(B.public, there, lane)
            async with asyncio.timeout(5):
                assert await a.path_manager.connection(B.public) is first

    run(test)


def test_who_is_of_no_interest_any_more_is_not_connected_unless_something_is_under_way() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            for one, other in ((a, B), (b, A)):
                one.path_manager.learn(other.public, (a, b)[other is B].places)
            over = await a.path_manager.connection(B.public)
            assert await over.call("say", b"on") == b"on"
            waiting = asyncio.create_task(over.call("say", bytes(1000)))
            await asyncio.sleep(0)
            b.path_manager.forget([A.public])  # it was dialled by the other end
            a.path_manager.forget([B.public])
            assert await waiting == bytes(1000)
            a.path_manager.forget([B.public])
            assert not a.path_manager._peers
            await until(lambda: not a.endpoint.connections(B.public) and not b.endpoint.connections(A.public))

    run(test)


def test_two_peers_on_one_network_meet_without_the_relay() -> None:
    async def test() -> None:
        async with two_relays(A, B, may_meet_here=True) as (servers, (a, b)):
            a.path_manager.learn(B.public, b.places)
            b.path_manager.learn(A.public, a.places)
            await a.path_manager.connection(B.public)
            await until(lambda: any(way.way is PathType.LAN for way in a.path_manager.ways(B.public)))
            await until(lambda: any(way.way is PathType.LAN for way in b.path_manager.ways(A.public)))
            (met,) = [way for way in a.path_manager.ways(B.public) if way.way is PathType.LAN]
            before = servers[0].forwarded + servers[1].forwarded
            assert await met.call("say", bytes(100_000)) == bytes(100_000)
            assert servers[0].forwarded + servers[1].forwarded < before + 100_000
            for server in servers:
                await server.close()
            assert await (await a.path_manager.connection(B.public)).call("say", b"on") == b"on"

    run(test)


def test_on_one_machine_nobody_leaves_the_relay() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            a.path_manager.learn(B.public, b.places)
            b.path_manager.learn(A.public, a.places)
            await a.path_manager.connection(B.public)
            for _ in range(50):
                await asyncio.sleep(0.01)
                assert {way.way for way in a.path_manager.ways(B.public)} == {PathType.RELAY}

    run(test)


def test_offers_are_followed_of_known_peers_only_and_not_twice_at_once() -> None:
    async def test() -> None:
        async with two_relays(A, B, C, may_meet_here=True) as (_, (a, b, c)):
            b.path_manager.learn(A.public, ())
            offer = encode(HolePunchOffer((("127.0.0.1", 1),), ("127.0.0.1", 1), 0))
            c.path_manager.learn(B.public, b.places)
            stranger = await c.path_manager.connection(B.public)
            with pytest.raises(RemoteError, match="FF-NET-115"):
                await stranger.call(OFFER, offer)
            friend = await a.endpoint.dial(B.public, b.places[0].host, b.places[0].port, relay=R1.public)
            await friend.call(OFFER, offer)
            with pytest.raises(RemoteError, match="FF-NET-115"):
                await friend.call(OFFER, offer)

    run(test)


def test_an_echo_is_bounded() -> None:
    async def test() -> None:
        async with two_relays(A, B) as (_, (a, b)):
            b.path_manager.learn(A.public, ())
            a.path_manager.learn(B.public, b.places)
            connection = await a.path_manager.connection(B.public)
            assert await connection.call(ECHO, bytes(limits.FRAME_BYTES)) == b""
            with pytest.raises(RemoteError, match="FF-NET-116"):
                await connection.call(ECHO, bytes(limits.FRAME_BYTES + 1))

    run(test)


HOME, SEEN = ("192.168.1.2", 4500), ("203.0.113.7", 4500)


def test_only_sane_addresses_of_an_offer_are_tried(subtests: pytest.Subtests) -> None:
    for own, seen, tried in [
        ((("192.168.1.3", 5000),), ("198.51.100.9", 5000), [("198.51.100.9", 5000)]),
        ((("192.168.1.3", 5000),), (SEEN[0], 5000), [("192.168.1.3", 5000)]),
        ((("8.8.8.8", 5000), ("192.168.1.3", 5000)), (SEEN[0], 5000), [("192.168.1.3", 5000)]),
        (tuple((f"192.168.1.{n}", 5000) for n in range(3, 90)), (SEEN[0], 1), limits.CANDIDATES),
        ((HOME,), (SEEN[0], 5000), []),
        ((), ("127.0.0.1", 5000), []),
        ((("127.0.0.1", 5000), ("::1", 5000)), (SEEN[0], 5000), []),
        ((), ("224.0.0.1", 5000), []),
        ((), ("255.255.255.255", 5000), []),
        ((), ("0.0.0.0", 5000), []),
        ((), ("198.51.100.9", 22), []),
        ((), ("198.51.100.9", 70_000), []),
        ((), ("example.org", 5000), []),
        ((), ("::ffff:127.0.0.1", 5000), []),
    ]:
        with subtests.test(own=own, seen=seen, tried=tried):
            found, is_home = targets(HolePunchOffer(own, seen, 0), HOME, SEEN)
            assert is_home == (seen[0] == SEEN[0])
            assert (len(found) if isinstance(tried, int) else found) == tried
