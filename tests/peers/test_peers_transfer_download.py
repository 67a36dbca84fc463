"""Objects on their way while paths die, stall and come back."""

from __future__ import annotations

import asyncio
import os
from collections import Counter as Tally
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.messages import MessageKind
from farflung.peers.transfer import download, objects
from farflung.store import fetch_plan as plans
from farflung.store.fetch_plan import FIRST_WINDOW
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal

JOB_KEY = bytes(32)
HOME, AWAY, OTHER, R1, R2 = (local_key(9, name) for name in ("home", "away", "other", "r1", "r2"))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


class World:
    """A peer that holds objects or takes them, attached to two relays, and one that dials it."""

    def __init__(self, folder: Path) -> None:
        self.mine, self.theirs = DiskObjectStore(folder / "mine"), DiskObjectStore(folder / "theirs")
        self.shelf = objects.ObjectServer(self.theirs, 1 << 30)
        self.home = Endpoint(HOME, self.refuse, ByteCounter())
        self.away = Endpoint(AWAY, self.serve, ByteCounter())
        self.relays = [RelayServer(R1), RelayServer(R2)]
        self.asked: Tally[tuple[str, int]] = Tally()  # by method and chunk
        self.after: dict[int, Callable[[], Awaitable[None]]] = {}  # what happens once so many chunks were served

    async def __aenter__(self) -> World:
        for relay in self.relays:
            place = await relay.start()
            self.away.attach(relay._own.account, *place)
        await self.away.attached()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (self.home, self.away, *self.relays):
            await each.close()

    async def refuse(self, connection: Connection, method: str, body: bytes) -> bytes:
        raise AssertionError(method)

    async def serve(self, connection: Connection, method: str, body: bytes) -> bytes:
        answer = self.shelf.serve(connection.peer, method, body)
        if method in (objects.CHUNK, objects.PUT):
            self.asked[method, body[-1] if method == objects.CHUNK else body[36]] += 1
            if (then := self.after.pop(self.asked.total(), None)) is not None:
                await then()
        return answer

    async def dial(self, peer: PeerId) -> Connection:
        """By the first relay that is there."""
        assert peer == AWAY.public
        last: NetworkError | None = None
        for relay in self.relays:
            try:
                return await self.home.dial(peer, *relay.address, relay=relay._own.account)
            except NetworkError as error:
                last = error
        assert last is not None
        raise last


def stored(disk: DiskObjectStore, object_id: Any, count: int) -> list[bytes]:
    return [disk.chunk(object_id, i) for i in range(count)]


def test_a_fetch_goes_on_over_the_second_relay_when_the_first_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(12 << 20))
            world.theirs.put(manifest, chunks)
            arrived: Tally[int] = Tally()
            write = world.mine.write_chunk

            def write_chunk(object_id: Any, index: int, data: Any) -> None:
                arrived[index] += 1
                write(object_id, index, data)

            world.mine.write_chunk = write_chunk  # type: ignore[method-assign]
            world.after[5] = world.relays[0].close
            await objects.fetch(world.mine, manifest, (AWAY.public,), world.dial, MessageKind.JOIN)
            assert stored(world.mine, manifest.id, len(chunks)) == chunks
            assert arrived == dict.fromkeys(range(len(chunks)), 1)
            assert world.relays[1].forwarded > 4 << 20

    run(scenario)


def test_a_push_goes_on_over_the_second_relay_and_sends_nothing_again_that_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(12 << 20))
            world.mine.put(manifest, chunks)
            world.after[5] = world.relays[0].close
            await objects.push(world.mine, manifest, AWAY.public, world.dial, MessageKind.SYNC)
            assert stored(world.theirs, manifest.id, len(chunks)) == chunks
            assert world.asked.total() == len(chunks)

    run(scenario)


def test_a_push_that_was_cut_off_by_the_death_of_the_process_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(6 << 20))
            world.mine.put(manifest, chunks)
            world.theirs.begin(manifest)
            for index in (0, 2, 5):
                world.theirs.write_chunk(manifest.id, index, chunks[index])
            world.theirs = DiskObjectStore(tmp_path / "theirs")
            world.shelf = objects.ObjectServer(world.theirs, 1 << 30)
            await objects.push(world.mine, manifest, AWAY.public, world.dial, MessageKind.SYNC)
            assert stored(world.theirs, manifest.id, len(chunks)) == chunks
            assert world.asked.total() == 3

    run(scenario)


def test_a_path_that_stalls_is_left_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay keeps the connections and forwards no byte any more."""
    monkeypatch.setattr(plans, "STALL_SECONDS", 0.5)

    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(8 << 20))
            world.theirs.put(manifest, chunks)

            async def stall() -> None:
                first = world.relays.pop(0)
                for circuit in first._circuits.circuits:
                    for way in circuit._ways:
                        way.stop()
                stalled.append(first)

            stalled: list[RelayServer] = []
            world.after[3] = stall
            await objects.fetch(world.mine, manifest, (AWAY.public,), world.dial, MessageKind.JOIN)
            assert stored(world.mine, manifest.id, len(chunks)) == chunks
            await stalled[0].close()

    run(scenario)


def test_chunks_are_asked_for_over_all_ways_and_each_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(24 << 20))
            world.theirs.put(manifest, chunks)
            by_way: Tally[Connection] = Tally()
            serve = world.shelf.serve

            async def answer(connection: Connection, method: str, body: bytes) -> bytes:
                by_way[connection] += 1
                return serve(connection.peer, method, body)

            world.away._handler = answer
            first = await world.dial(AWAY.public)
            second_home = Endpoint(HOME, world.refuse, ByteCounter())
            address, key = world.relays[1].address, world.relays[1]._own.account
            second = await second_home.dial(AWAY.public, *address, relay=key)
            first.ways = lambda: (first, second)
            await objects.fetch(world.mine, manifest, (AWAY.public,), world.dial, MessageKind.JOIN)
            assert stored(world.mine, manifest.id, len(chunks)) == chunks
            assert sorted(by_way.values())[0] >= 3
            assert by_way.total() <= len(chunks) + 2  # the end may ask twice
            await second_home.close()

    run(scenario)


def test_bulk_leaves_the_connection_of_control_when_others_stand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(24 << 20))
            world.theirs.put(manifest, chunks)
            by_way: list[Connection] = []
            serve = world.shelf.serve

            async def answer(connection: Connection, method: str, body: bytes) -> bytes:
                by_way.append(connection)
                if len(by_way) == 1:
                    first.ways = lambda: (second,)
                return serve(connection.peer, method, body)

            world.away._handler = answer
            first = await world.dial(AWAY.public)
            second_home = Endpoint(HOME, world.refuse, ByteCounter())
            address, key = world.relays[1].address, world.relays[1]._own.account
            second = await second_home.dial(AWAY.public, *address, relay=key)
            await objects.fetch(world.mine, manifest, (AWAY.public,), world.dial, MessageKind.JOIN)
            assert stored(world.mine, manifest.id, len(chunks)) == chunks
            assert 1 <= by_way.count(by_way[0]) <= 2 * FIRST_WINDOW
            assert len(by_way) == len(chunks)
            await second_home.close()

    run(scenario)


def test_a_connection_that_comes_up_is_used_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_LOOK_SECONDS", 3600.0)

    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(6 << 20))
            world.theirs.put(manifest, chunks)
            other = asyncio.Event()
            by_way: list[Connection] = []

            async def answer(connection: Connection, method: str, body: bytes) -> bytes:
                by_way.append(connection)
                if connection is by_way[0]:
                    first.ways = lambda: (second,)
                    first.widen()
                    await other.wait()  # the first answers nothing until the second is asked
                other.set()
                return world.shelf.serve(connection.peer, method, body)

            world.away._handler = answer
            first = await world.dial(AWAY.public)
            second_home = Endpoint(HOME, world.refuse, ByteCounter())
            address, key = world.relays[1].address, world.relays[1]._own.account
            second = await second_home.dial(AWAY.public, *address, relay=key)
            await objects.fetch(world.mine, manifest, (AWAY.public,), world.dial, MessageKind.JOIN)
            assert stored(world.mine, manifest.id, len(chunks)) == chunks
            await second_home.close()

    run(scenario)


def test_connections_for_bulk_are_opened_while_the_other_end_says_what_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, chunks = seal(JOB_KEY, os.urandom(1000))
            world.mine.put(manifest, chunks)
            order: list[str] = []

            async def dial(peer: PeerId) -> Connection:
                connection = await world.dial(peer)
                connection.ways = lambda: (order.append("ways"), (connection,))[1]  # type: ignore[func-returns-value]
                return connection

            async def answer(connection: Connection, method: str, body: bytes) -> bytes:
                order.append(method)
                return world.shelf.serve(connection.peer, method, body)

            world.away._handler = answer
            await objects.push(world.mine, manifest, AWAY.public, dial, MessageKind.SYNC)
            assert order.index("ways") < order.index(objects.BEGIN)

    run(scenario)


def test_who_is_out_of_reach_for_too_long_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            manifest, _ = seal(JOB_KEY, os.urandom(100))
            for relay in world.relays:
                await relay.close()
            with pytest.raises(NetworkError, match="FF-APP-034") as caught:
                await objects.fetch(world.mine, manifest, (AWAY.public,), world.dial, MessageKind.JOIN, patience=0.3)
            assert "FF-NET-070" in caught.value.cause
            disk = DiskObjectStore(tmp_path / "other")
            sent, chunks = seal(JOB_KEY, b"x")
            disk.put(sent, chunks)
            with pytest.raises(NetworkError, match="FF-APP-230"):
                await objects.push(disk, sent, AWAY.public, world.dial, MessageKind.SYNC, patience=0.3)

    run(scenario)
