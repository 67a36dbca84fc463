"""Several connections over one path, on loopback: who opens them, what becomes of them, and that control stays put."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from net_relays import A, B, echo, run, until

from farflung.core import limits
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io import parallel_connections
from farflung.net.io import path_manager as roads_module
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.parallel_connections import CONNECTIONS
from farflung.net.io.path_manager import PathManager
from farflung.net.messages import MessageKind
from farflung.net.paths import PathType


@asynccontextmanager
async def two(*, is_far: bool = True) -> AsyncIterator[tuple[Endpoint, PathManager, Endpoint, PathManager]]:
    """A knows where B listens. `is_far`: they are taken for two machines."""
    a, b = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
    of_a, of_b = (PathManager(each, may_meet=False, may_meet_here=is_far) for each in (a, b))
    try:
        of_a.learn(B.public, (EndpointAddress(*await b.start()),))
        of_b.learn(A.public, ())
        yield a, of_a, b, of_b
    finally:
        for path_manager, endpoint in ((of_a, a), (of_b, b)):
            await path_manager.close()
            await endpoint.close()


def test_bulk_gets_more_connections_over_the_path_and_control_keeps_its_own() -> None:
    async def test() -> None:
        async with two() as (a, path_manager, b, of_b):
            first = await path_manager.connection(B.public)
            assert len(a.connections(B.public)) == 1  # control alone needs no more
            assert path_manager.ways(B.public) == (first,)
            await until(lambda: len(path_manager.ways(B.public)) == CONNECTIONS)
            ways = path_manager.ways(B.public)
            assert first not in ways  # what bulk loses holds up nothing of control's
            assert len(set(ways)) == CONNECTIONS == len(a.connections(B.public)) - 1
            for way in first.ways():
                assert way.way is PathType.DIRECT
                assert await way.call("say", bytes(1 << 20), kind=MessageKind.SYNC) == bytes(1 << 20)
            assert await path_manager.connection(B.public) is first
            await until(lambda: len(b.connections(A.public)) == CONNECTIONS + 1)
            await of_b.connection(A.public)
            assert len(of_b.ways(A.public)) == CONNECTIONS  # who was dialled uses them as well, and dials none

    run(test)


def test_who_waits_for_more_connections_hears_of_them_at_both_ends_and_they_know_the_round_trip() -> None:
    async def test() -> None:
        async with two() as (a, path_manager, b, of_b):
            first = await path_manager.connection(B.public)
            await until(lambda: bool(b.connections(A.public)))
            theirs = await of_b.connection(A.public)
            here, there = first.widened, theirs.widened
            path_manager.ways(B.public)
            assert not here.done()
            await here
            await there
            assert len(a.connections(B.public)) > 1 < len(b.connections(A.public))
            assert not first.widened.done()  # for the next one
            first.round_trip = 0.125
            assert {way.round_trip for way in path_manager.ways(B.public)} == {0.125}

    run(test)


def test_a_path_whose_lanes_carry_bulk_is_not_measured_by_a_burst_over_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roads_module, "TICK_SECONDS", 3600.0)  # control has nothing under way

    async def test() -> None:
        go = asyncio.Event()

        async def answer(_: Connection, method: str, body: bytes) -> bytes:
            if method == "hold":
                await go.wait()
            return body

        async with two() as (_, path_manager, b, _):
            b._handler = answer
            first = await path_manager.connection(B.public)
            await until(lambda: len(path_manager.ways(B.public)) == CONNECTIONS)
            held = asyncio.create_task(path_manager.ways(B.public)[0].call("hold", b"", kind=MessageKind.SYNC))
            await asyncio.sleep(0)
            before, peer_paths = first.moved, path_manager._peers[B.public]
            await path_manager._burst(B.public, peer_paths, first.place)
            assert first.moved - before < 1 << 19
            go.set()
            await held
            await path_manager._burst(B.public, peer_paths, first.place)
            assert first.moved - before > 1 << 20

    run(test)


def test_all_of_a_burst_is_under_way_at_once_so_that_it_tells_no_round_trips() -> None:
    async def test() -> None:
        arrived, go = list[int](), asyncio.Event()

        async def hold(_connection: Connection, _method: str, body: bytes) -> bytes:
            arrived.append(len(body))
            if sum(arrived) == limits.MIB:
                go.set()
            await go.wait()
            return b""

        async with two() as (_, path_manager, b, _):
            first = await path_manager.connection(B.public)
            await until(lambda: len(path_manager.ways(B.public)) == CONNECTIONS)
            b.services[roads_module.ECHO] = hold
            async with asyncio.timeout(60):
                await path_manager._burst(B.public, path_manager._peers[B.public], first.place)
            assert go.is_set()

    run(test)


def test_a_lane_takes_over_when_the_first_connection_is_lost() -> None:
    async def test() -> None:
        async with two() as (a, path_manager, _, _):
            first = await path_manager.connection(B.public)
            await until(lambda: len(path_manager.ways(B.public)) == CONNECTIONS)
            others = set(path_manager.ways(B.public)) - {first}
            first.close()
            await first.closed()
            await until(lambda: first not in a.connections(B.public))
            second = await path_manager.connection(B.public)
            assert second in others
            assert await second.call("say", b"on") == b"on"

    run(test)


def test_lanes_that_rest_are_closed_and_control_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with two() as (a, path_manager, _, _):
            first = await path_manager.connection(B.public)
            await until(lambda: len(path_manager.ways(B.public)) == CONNECTIONS)
            monkeypatch.setattr(parallel_connections, "REST_SECONDS", 0.0)
            await until(lambda: a.connections(B.public) == (first,))
            assert await path_manager.connection(B.public) is first

    run(test)


def test_peers_on_one_machine_need_no_lanes() -> None:
    async def test() -> None:
        async with two(is_far=False) as (a, path_manager, _, _):
            first = await path_manager.connection(B.public)
            for _ in range(3):
                assert path_manager.ways(B.public) == (first,)
                assert await first.call("say", b"x") == b"x"
            assert a.connections(B.public) == (first,)

    run(test)


def test_a_path_that_refuses_a_lane_rests() -> None:
    async def test() -> None:
        async with two() as (a, path_manager, b, _):
            first = await path_manager.connection(B.public)
            b._listener.close()
            path_manager.ways(B.public)
            await until(lambda: not path_manager._parallel._dialling)
            assert path_manager._parallel._resting
            assert path_manager.ways(B.public) == (first,)
            assert not path_manager._parallel._dialling  # nobody dials again at once
            assert await first.call("say", b"on") == b"on"
            assert a.connections(B.public) == (first,)

    run(test)


def test_who_gave_up_waiting_for_more_connections_keeps_nobody_else_from_hearing_of_them() -> None:
    async def test() -> None:
        async with two() as (_, path_manager, _, _):
            first = await path_manager.connection(B.public)
            first.widened.cancel()
            first.widen()
            later = first.widened
            first.widen()
            assert later.done()
            assert not later.cancelled()

    run(test)
