"""An object on its way to one peer from two that have it, while lines break and programs die; from one number."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from sim_net import Node, PeerNode, RelayNode, World
from sim_net_lines import Line, Nat

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind
from farflung.peers.transfer import objects
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import open_object, seal

JOB_KEY = bytes(32)
LONGEST = 400.0  # seconds for any end: two silences


class Fetching:
    """`run` tells it. `outcome`: "whole" or an error's code. `served`: how often each chunk was asked for."""

    def __init__(self, seed: int, folder: Path) -> None:
        chance = self.random = random.Random(seed)
        self.world = World(seed)
        self.plain = chance.randbytes(int(limits.CHUNK_BYTES * chance.choice((0.3, 1.5, 3.2))))
        self.manifest, chunks = seal(JOB_KEY, self.plain)
        self.relay = RelayNode(self.world, self.world.host("relay", Line(delay=0.01)))
        nats = (Nat.NONE, Nat.CONE, Nat.SYMMETRIC)
        self.sources = [self._source(f"source{n}", chance.choice(nats), folder, chunks) for n in range(2)]
        self.peer = PeerNode(self.world, self.world.host("peer", self._line(), Nat.CONE), self._refuse)
        self.peer.relays = (self.relay,)
        self.disk = DiskObjectStore(folder / "peer")
        self.served: list[int] = []
        self.troubled: set[Node] = set()
        self.lies = chance.random() < 0.2
        self.outcome, self.took = "", 0.0

    def _line(self) -> Line:
        chance = self.random
        rates = {"up": chance.choice((0.5e6, 2.5e6)), "down": 12.5e6}
        return Line(delay=chance.uniform(0.005, 0.1), loss=chance.choice((0.0, 0.01)), **rates)

    def _source(self, name: str, nat: Nat, folder: Path, chunks: list[bytes]) -> PeerNode:
        disk = DiskObjectStore(folder / name)
        disk.begin(self.manifest)
        for index, chunk in enumerate(chunks):
            disk.write_chunk(self.manifest.id, index, chunk)
        disk.finish(self.manifest.id)
        shelf = objects.ObjectServer(disk, limits.OBJECT_BYTES)

        async def serve(connection: Connection, method: str, body: bytes) -> bytes:
            self.served.append(len(self.served))
            data = shelf.serve(connection.peer, method, body)
            is_lie = self.lies and name == "source0"
            return bytes([data[0] ^ 1]) + data[1:] if is_lie else data

        host = self.world.host(name, self._line(), nat)
        return PeerNode(self.world, host, serve, relays=() if nat is Nat.NONE else (self.relay,))

    async def _refuse(self, connection: Connection, method: str, body: bytes) -> bytes:
        raise AssertionError("nobody asks the one who fetches")

    def run(self) -> None:
        """Raises AssertionError when something does not hold."""
        self.world.run(self._main)
        if self.outcome == "whole":
            chunks = [self.disk.chunk(self.manifest.id, index) for index in range(len(self.manifest.chunks))]
            assert open_object(JOB_KEY, self.manifest, chunks) == self.plain
        else:
            assert self.outcome == "FF-APP-034"
            assert not self.disk.has(self.manifest.id)
            assert not self.must_be_whole(), "a good source was there all the time"
        assert self.took < LONGEST

    def must_be_whole(self) -> bool:
        """Whether an honest source could be reached all the time."""
        good = [
            node
            for number, node in enumerate(self.sources)
            if not (self.lies and number == 0) and self.troubled.isdisjoint((node, *node.relays))
        ]
        return bool(good)

    async def _main(self) -> None:
        for node in (self.relay, *self.sources, self.peer):
            await node.begin()
        await asyncio.gather(*(node.attached() for node in (*self.sources, self.peer)))
        trouble = [asyncio.create_task(self._trouble()) for _ in range(self.random.randrange(4))]
        started = self.world.now
        try:
            await self.peer.inside(self._fetch)
            self.outcome = "whole"
        except NetworkError as error:
            self.outcome = error.code
        self.took = self.world.now - started
        await asyncio.gather(*trouble)

    async def _fetch(self) -> None:
        nodes = {node.id: node for node in self.sources}
        dial = lambda peer: self.peer.dial(nodes[peer])  # noqa: E731
        await objects.fetch(self.disk, self.manifest, tuple(nodes), dial, MessageKind.SYNC)

    async def _trouble(self) -> None:
        chance = self.random
        who = chance.choice((*self.sources, self.relay))
        self.troubled.add(who)
        seconds = chance.choice((0.5, 4.0, 30.0))
        how = chance.choice(("cut", "die", "vanish"))
        await asyncio.sleep(chance.uniform(0.0, 5.0))
        if how == "cut" or not who.is_alive:
            who.host.is_cut = True
            await asyncio.sleep(seconds)
            who.host.is_cut = False
            return
        who.host.is_on = how == "die"
        await who.kill(silently=how == "vanish")
        await asyncio.sleep(seconds)
        who.host.is_on = True
        await who.begin()


def fetch(seed: int, folder: Path) -> Fetching:
    """One story of a fetch; a failure says how to see it again."""
    story = Fetching(seed, folder)
    try:
        story.run()
    except BaseException as error:
        error.add_note(f"again: .venv/bin/python tests/sim/sim_net_fetch.py {seed}")
        raise
    return story


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        told = fetch(int(sys.argv[1]), Path(scratch))
    for line in sorted(told.world.net.trace):
        print(f"{line[0]:.6f} {line[1]}")
    print(told.outcome, f"after {told.took:.1f} s")
