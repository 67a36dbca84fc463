"""A peer that knows many relays: it stays at the best two, and its peers follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from net_relays import echo, run, until

from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError, NetworkError
from farflung.net import relay_probe, relay_selection
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue, sign_record
from farflung.net.io import relay_selection as io_relay_selection
from farflung.net.io.address_updates import RECORD, AddressUpdates
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_selection import RelaySelector

A, B = (local_key(6, name) for name in ("a", "b"))
KEYS = tuple(local_key(6, "relay", n) for n in range(3))


@asynccontextmanager
async def relays() -> AsyncIterator[list[RelayServer]]:
    servers = [RelayServer(key) for key in KEYS]
    for server in servers:
        await server.start()
    try:
        yield servers
    finally:
        for server in servers:
            await server.close()


def places_of(servers: list[RelayServer]) -> tuple[EndpointAddress, ...]:
    return tuple(EndpointAddress(*server.address, key.public) for key, server in zip(KEYS, servers, strict=True))


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that are for real lines, for loopback. What is measured there says nothing: see `promised`."""
    monkeypatch.setattr(io_relay_selection, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(io_relay_selection, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(relay_selection, "REST_SECONDS", 0.1)
    monkeypatch.setattr(relay_selection, "GONE_SECONDS", 0.5)


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> dict[EndpointAddress, float]:
    """What each relay shows when it is measured: bytes a second; 1e6 by default."""
    rates: dict[EndpointAddress, float] = {}

    async def probe(self: RelaySelector, place: EndpointAddress) -> relay_selection.RelayMeasuredEvent:
        return relay_selection.RelayMeasuredEvent(place, 0.01, rates.get(place, 1e6))

    monkeypatch.setattr(RelaySelector, "_probe", probe)
    return rates


@asynccontextmanager
async def selecting(
    places: tuple[EndpointAddress, ...],
) -> AsyncIterator[tuple[Endpoint, RelaySelector, list[tuple[EndpointAddress, ...]]]]:
    told: list[tuple[EndpointAddress, ...]] = []
    endpoint = Endpoint(B, echo, ByteCounter())
    selector = RelaySelector(endpoint, places)
    selector.on_change = told.append
    try:
        await endpoint.attached()
        yield endpoint, selector, told
    finally:
        await selector.close()
        await endpoint.close()


def test_a_relay_is_measured_over_a_connection_of_its_own() -> None:
    async def test() -> None:
        async with relays() as servers:
            places = places_of(servers)
            async with selecting(places) as (endpoint, selector, _):
                seen = await selector._probe(places[2])
                assert seen.place == places[2]
                assert seen.goodput > 0
                assert 0 < seen.trip < 60
                assert 0 <= seen.loss < 1
                await until(lambda: endpoint.connection(KEYS[2].public) is None)
                await until(lambda: not servers[2].endpoint.standing)

    run(test)


def test_a_relay_from_which_nothing_comes_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_relay_selection, "PROBE_SECONDS", 0.2)

    async def test() -> None:
        async with relays() as servers:
            places = places_of(servers)
            stuck = asyncio.Event()

            async def never(connection: Connection, method: str, body: bytes) -> bytes:
                await stuck.wait()
                return b""

            async with selecting(places[:2]) as (_, selector, _told):
                servers[0].endpoint.services[relay_probe.SINK] = never
                with pytest.raises(NetworkError, match="FF-NET-180"):
                    await selector._probe(places[0])
                stuck.set()

    run(test)


def test_the_two_best_of_three_are_found_told_and_the_third_is_left(promised: dict[EndpointAddress, float]) -> None:
    async def test() -> None:
        async with relays() as servers:
            places = places_of(servers)
            promised[places[0]] = 1e5
            async with selecting(places) as (endpoint, selector, told):
                await until(lambda: bool(told))
                assert set(selector.places) == set(told[-1]) == set(places[1:])
                await until(lambda: not servers[0]._attached)
                assert not endpoint.is_attached(KEYS[0].public)
                a = Endpoint(A, echo, ByteCounter())
                for key, place in zip(KEYS[1:], places[1:], strict=True):
                    over = await a.dial(B.public, place.host, place.port, relay=key.public, fresh=place.port)
                    assert await over.call("say", b"x") == b"x"
                with pytest.raises(NetworkError, match="FF-NET-071"):
                    await a.dial(B.public, *servers[0].address, relay=KEYS[0].public, fresh=1)
                await a.close()

    run(test)


def test_peers_follow_when_a_relay_dies(promised: dict[EndpointAddress, float]) -> None:
    async def test() -> None:
        async with relays() as servers:
            places = places_of(servers)
            async with selecting(places) as (endpoint, selector, _):
                roads_b = PathManager(endpoint)
                here = AddressUpdates(endpoint, roads_b)
                tasks = set[asyncio.Task[None]]()
                selector.on_change = lambda now: tasks.add(asyncio.create_task(here.tell(B, now)))
                a = Endpoint(A, echo, ByteCounter())
                path_manager = PathManager(a)
                AddressUpdates(a, path_manager)
                path_manager.learn(B.public, places[:2])
                first = await path_manager.connection(B.public)
                assert first.place == places[0]
                await servers[1].close()  # not the one that is in use
                await until(lambda: set(selector.places) == {places[0], places[2]})
                await until(lambda: bool(tasks) and all(task.done() for task in tasks))
                await servers[0].close()
                await until(lambda: not first.is_open)
                path_manager.learn(B.public, places[:2])  # as an old address says
                second = await path_manager.connection(B.public)
                assert second.place == places[2]
                for each in (path_manager, roads_b, a):
                    await each.close()

    run(test)


def test_nobody_is_told_where_somebody_else_is_nor_what_is_old() -> None:
    async def test() -> None:
        a, b = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
        path_manager, now = PathManager(a), 1_000_000.0
        AddressUpdates(a, path_manager, lambda: now)
        await a.start()
        over = await b.dial(A.public, *a.address)
        place = (EndpointAddress("elsewhere", 1),)
        path_manager.learn(B.public, place)

        async def says(key, at: float, port: int = 2) -> str:  # type: ignore[no-untyped-def]
            said = encode(sign_record(key, issue(key.public, (EndpointAddress("new", port),), at)))
            try:
                await over.call(RECORD, said)
            except FarflungError as error:
                return str(error)
            return ""

        assert "FF-NET-181" in await says(A, now)
        assert "FF-NET-110" in await says(B, now - 3600)
        assert "FF-NET-111" in await says(B, now + 3600)
        assert await says(B, now) == ""
        assert "FF-NET-112" in await says(B, now - 1)
        state = path_manager._peers[B.public].state
        assert EndpointAddress("new", 2) in [path.place for path in state.paths]
        for each in (path_manager, a, b):
            await each.close()

    run(test)


def test_of_a_far_relay_more_is_moved_and_what_came_first_does_not_count() -> None:
    async def asked(trip: float) -> tuple[list[int], int]:
        sizes = list[int]()

        async def ask(size: int) -> bytes:
            sizes.append(size)
            await asyncio.sleep(0)
            return b""

        moved, _ = await io_relay_selection._transfer(ask, trip)
        return sizes, moved

    near, far = asyncio.run(asked(0.0)), asyncio.run(asked(60.0))
    assert sum(near[0]) == near[1] == io_relay_selection.PROBE_BYTES
    assert far[1] == io_relay_selection.MORE_BYTES
    assert sum(far[0]) == io_relay_selection.PROBE_BYTES + io_relay_selection.MORE_BYTES
