"""Several paths to one peer in virtual time: a path that dies is left within seconds, and what can meet meets."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from sim_net import PORT, PeerNode, RelayNode, World
from sim_net_lines import Host, Line, Nat

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.parallel_connections import CONNECTIONS
from farflung.net.io.path_manager import PathManager
from farflung.net.messages import MessageKind
from farflung.net.paths import PathType
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import open_object, seal

BACK_SECONDS = 5.0
IN_FLIGHT = 2 * (CONNECTIONS + 1)  # chunks that were under way over the connections of a path when it died


class Traveller(PeerNode):
    """A peer with roads, attached to all relays of its world."""

    def __init__(self, world: World, host: Host, relays: tuple[RelayNode, ...]) -> None:
        super().__init__(world, host, self._answer, relays=relays)
        self.shelf: objects.ObjectServer | None = None
        self.served = 0

    async def _answer(self, connection: Connection, method: str, body: bytes) -> bytes:
        if self.shelf is None or not method.startswith("object."):
            return body
        self.served += 1
        return self.shelf.serve(connection.peer, method, body)

    async def _begin(self) -> None:
        await super()._begin()
        self.path_manager = PathManager(self.endpoint)

    async def _end(self) -> None:
        await self.path_manager.close()
        await super()._end()

    async def knows(self, peer: "Traveller") -> None:
        """Learns where the peer is, best first."""
        places = [EndpointAddress(relay.host.ip, PORT, relay.id) for relay in peer.relays]

        async def learn() -> None:
            self.path_manager.learn(peer.id, places)

        await self.inside(learn)

    async def ask(self, peer: "Traveller") -> PathType | None:
        """One question and its answer; over which way. None: there was none within a second."""

        async def call() -> PathType | None:
            try:
                async with asyncio.timeout(1.0):
                    connection = await self.path_manager.connection(peer.id)
                    await connection.call("a", b"1", timeout=1.0)
                return connection.way
            except (NetworkError, TimeoutError):
                return None

        return await self.inside(call)


def journey(one: Nat, two: Nat, main: Callable[[World, Traveller, Traveller], Awaitable[None]], seed: int = 1) -> None:
    """Two relays and two homes; `main` runs when both peers are attached and know each other."""
    world = World(seed)
    relays = tuple(RelayNode(world, world.host(f"relay{n}", Line(delay=0.01 * n))) for n in (1, 2))
    a = Traveller(world, world.host("a", Line(up=2.5e6, delay=0.02), one), relays)
    b = Traveller(world, world.host("b", Line(up=2.5e6, delay=0.03), two), relays)

    async def whole() -> None:
        for node in world.nodes:
            await node.begin()
        await asyncio.gather(a.attached(), b.attached())
        await a.knows(b)
        await b.knows(a)
        await main(world, a, b)

    world.run(whole)


async def longest_gap(world: World, a: Traveller, b: Traveller, seconds: float) -> float:
    """A asks B every tenth of a second; the longest time without an answer."""
    last, gap, end = world.now, 0.0, world.now + seconds
    while world.now < end:
        if await a.ask(b) is not None:
            gap, last = max(gap, world.now - last), world.now
        await asyncio.sleep(0.1)
    return max(gap, world.now - last)


@pytest.mark.parametrize("silently", [False, True], ids=["killed", "dead"])
def test_a_relay_that_dies_is_replaced_by_the_other_within_seconds(silently: bool) -> None:
    async def main(world: World, a: Traveller, b: Traveller) -> None:
        assert await longest_gap(world, a, b, 10.0) < 1.0
        first = world.nodes[0]
        first.host.is_on = not silently
        await first.kill(silently=silently)
        assert await longest_gap(world, a, b, 30.0) < BACK_SECONDS + (2.0 if silently else 0.0)

    journey(Nat.SYMMETRIC, Nat.SYMMETRIC, main)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "two", "way"),
    [
        (Nat.CONE, Nat.CONE, PathType.OPENED),
        (Nat.SYMMETRIC, Nat.SYMMETRIC, PathType.RELAY),
        (Nat.SYMMETRIC, Nat.CONE, PathType.RELAY),
    ],
)
def test_homes_leave_the_relay_where_their_routers_let_them(one: Nat, two: Nat, way: PathType) -> None:
    async def main(world: World, a: Traveller, b: Traveller) -> None:
        assert await a.ask(b) is PathType.RELAY  # at once
        assert await longest_gap(world, a, b, 60.0) < 2.0
        assert await a.ask(b) is way

    journey(one, two, main)


def test_an_opened_path_that_is_cut_is_left_for_a_relay() -> None:
    async def main(world: World, a: Traveller, b: Traveller) -> None:
        await longest_gap(world, a, b, 60.0)
        assert await a.ask(b) is PathType.OPENED
        world.net.parted.add(frozenset(("a", "b")))
        assert await longest_gap(world, a, b, 30.0) < BACK_SECONDS + 2.0
        assert await a.ask(b) is PathType.RELAY

    journey(Nat.CONE, Nat.CONE, main)


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(5))
def test_a_home_whose_address_changes_is_met_again(seed: int) -> None:
    async def main(world: World, a: Traveller, b: Traveller) -> None:
        await longest_gap(world, a, b, 5.0 + 5 * seed)
        world.move(b.host)
        assert await longest_gap(world, a, b, 60.0) < 2 * BACK_SECONDS
        assert await a.ask(b) is not None

    journey(Nat.CONE, (Nat.CONE, Nat.SYMMETRIC)[seed % 2], main, seed)


@pytest.mark.slow
@pytest.mark.parametrize("silently", [False, True], ids=["killed", "dead"])
def test_a_transfer_goes_on_over_the_second_relay_and_carries_no_chunk_twice(
    silently: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
    plain = random.Random(1).randbytes(16 * limits.MIB)
    manifest, chunks = seal(bytes(32), plain)
    disks = [DiskObjectStore(tmp_path / name) for name in ("from", "to")]
    disks[0].put(manifest, chunks)

    async def main(world: World, a: Traveller, b: Traveller) -> None:
        b.shelf = objects.ObjectServer(disks[0], limits.OBJECT_BYTES)
        assert await longest_gap(world, a, b, 10.0) < 1.0

        async def whole() -> None:
            await objects.fetch(disks[1], manifest, (b.id,), a.path_manager.connection, MessageKind.SYNC)

        started = world.now
        fetching = asyncio.create_task(a.inside(whole))
        await asyncio.sleep(1.0)
        first = world.nodes[0]
        first.host.is_on = not silently
        await first.kill(silently=silently)
        await fetching
        line = len(plain) / b.host.line.up
        assert world.now - started < line + BACK_SECONDS
        assert b.served <= len(chunks) + IN_FLIGHT
        here = [disks[1].chunk(manifest.id, index) for index in range(len(chunks))]
        assert open_object(bytes(32), manifest, here) == plain

    journey(Nat.SYMMETRIC, Nat.SYMMETRIC, main)


def wander(seed: int) -> None:
    """Two homes of any kind while relays die, lines are cut and addresses change; then all is well again."""
    chance = random.Random(seed)

    async def main(world: World, a: Traveller, b: Traveller) -> None:
        for _ in range(3):
            asking = asyncio.create_task(longest_gap(world, a, b, 40.0))
            await asyncio.sleep(chance.uniform(0.0, 10.0))
            what = chance.choice(("relay", "cut", "part", "move"))
            seconds = chance.choice((1.0, 8.0, 20.0))
            relay, home = chance.choice(world.nodes[:2]), chance.choice((a, b))
            if what == "relay":
                relay.host.is_on = chance.random() < 0.5
                await relay.kill(silently=not relay.host.is_on)
                await asyncio.sleep(seconds)
                relay.host.is_on = True
                await relay.begin()
                assert await asking < 2 * BACK_SECONDS  # one of two relays was always there
            elif what == "move":
                world.move(home.host)
                assert await asking < 2 * BACK_SECONDS
            else:
                pair = frozenset((home.host.name, relay.host.name))
                world.net.parted |= {pair} if what == "part" else {frozenset((home.host.name, o)) for o in ALL}
                await asyncio.sleep(seconds)
                world.net.parted.clear()
                assert await asking < seconds + BACK_SECONDS
        assert await longest_gap(world, a, b, 40.0) < BACK_SECONDS

    try:
        journey(chance.choice(list(Nat)), chance.choice(list(Nat)), main, seed)
    except BaseException as error:
        error.add_note(f"again: wander({seed})")
        raise


ALL = ("relay1", "relay2", "a", "b")


@pytest.mark.whole
@pytest.mark.parametrize("seeds", [(0, 1, 2, 85, 95), pytest.param(range(3, 20), marks=pytest.mark.soak)], ids=str)
def test_whatever_breaks_on_the_way_two_homes_find_another_way(seeds: Iterable[int]) -> None:
    for seed in seeds:
        wander(seed)
