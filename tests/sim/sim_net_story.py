"""A few peers, a relay and a stranger whom nobody admits, for a minute in which lines break and programs die.

Everything follows from one number. What must hold whatever happens is asserted while the story runs and at its end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter as Tally
from dataclasses import dataclass

from sim_net import Node, PeerNode, RelayNode, World
from sim_net_lines import Line, Nat

from farflung.core import limits
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind

LASTS = 60.0  # seconds in which things break
CALLS = 12
PATIENCE = 10.0
# A call into a silence ends after its own patience, and the next dial is a new one; it may meet one more silence.
BACK_SECONDS = 2 * (PATIENCE + limits.HANDSHAKE_SECONDS) + 20.0
DIALS_SECONDS = 2 * limits.HANDSHAKE_SECONDS + 1.0


@dataclass
class Asked:
    """One call and what became of it."""

    number: int
    caller: PeerId
    size: int
    code: str | None = None  # None: it was answered


class Story:
    """`run` tells it. `done`: all calls, in the order of their ends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        peers = 2 + seed % 2
        self.world = World(seed)
        self.heard: Tally[int] = Tally()
        self.done: list[Asked] = []
        self.admitted: set[PeerId] = set()
        self.relay = RelayNode(self.world, self.world.host("relay", Line(delay=0.01, up=125e6, down=125e6)))
        self.peers = [self._peer(number) for number in range(peers)]
        self.stranger = PeerNode(self.world, self.world.host("stranger"), self._serve)
        self.admitted |= {node.id for node in (*self.peers, self.relay)}
        self.back = 0.0  # seconds until all reached each other again

    def _peer(self, number: int) -> PeerNode:
        chance = self.random
        nat = chance.choice(list(Nat)) if number else Nat.SYMMETRIC
        line = Line(
            up=chance.choice((0.3e6, 2.5e6, 12.5e6)),
            down=chance.choice((2.5e6, 12.5e6)),
            delay=chance.uniform(0.001, 0.1),
            loss=chance.choice((0.0, 0.0, 0.005, 0.03)),
        )
        host = self.world.host(f"peer{number}", line, nat, skew=chance.choice((-40.0, 0.0, 0.0, 40.0)))
        relays = (self.relay,) if nat is not Nat.NONE or chance.random() < 0.5 else ()
        return PeerNode(self.world, host, self._serve, relays=relays, admit=self.admitted.__contains__)

    async def _serve(self, connection: Connection, method: str, body: bytes) -> bytes:
        assert connection.peer in self.admitted, "a handler runs for a stranger"
        number = int.from_bytes(body[:4], "big")
        self.heard[number] += 1
        self.world.net.note(f"heard {number}")
        await asyncio.sleep(0.001 * (number % 7))
        return body

    def run(self) -> None:
        """Raises AssertionError when something does not hold."""
        self.world.run(self._main)
        for asked in self.done:
            times = self.heard[asked.number]
            assert times <= 1, f"call {asked.number} was heard {times} times"
            assert times == 1 or asked.code is not None, f"call {asked.number} was answered by nobody"
            assert asked.caller in self.admitted or asked.code is not None

    async def _main(self) -> None:
        nodes = (self.relay, *self.peers, self.stranger)
        for node in nodes:
            await node.begin()
        await asyncio.gather(*(peer.attached() for peer in self.peers))
        work = [self._call(number) for number in range(CALLS)]
        await asyncio.gather(*work, *(self._trouble() for _ in range(self.random.randrange(4))))
        assert len(self.done) == CALLS
        started = self.world.now
        await self._all_reach_each_other()
        self.back = self.world.now - started

    async def _call(self, number: int) -> None:
        chance, world = self.random, self.world
        caller = chance.choice((*self.peers, *self.peers, self.stranger))
        callee = chance.choice([node for node in self.peers if node is not caller])
        size = chance.choice((10, 1000, 100_000))
        kind = chance.choice(list(MessageKind))
        patience = chance.uniform(1.0, 30.0)
        asked = Asked(number, caller.id, size)
        await asyncio.sleep(chance.uniform(0.0, LASTS))
        started = world.now
        try:
            connection = await caller.dial(callee)
            started, most = world.now, patience
            body = number.to_bytes(4, "big") + bytes(size)
            answer = await caller.inside(lambda: connection.call("a", body, kind=kind, timeout=patience))
            assert answer == body
        except NetworkError as error:
            asked.code = error.code
        except OSError:
            assert not caller.is_alive
            asked.code = "dead"
        most = DIALS_SECONDS + patience
        assert world.now - started <= most, f"call {number} took {world.now - started:.1f} s"
        self.done.append(asked)

    async def _trouble(self) -> None:
        chance, world = self.random, self.world
        what = chance.choice((self._cut, self._part, self._move, self._die, self._die))
        seconds = chance.choice((0.5, 5.0, 20.0, 100.0))
        who = chance.choice((*self.peers, self.relay))
        await asyncio.sleep(chance.uniform(0.0, LASTS))
        world.net.note(f"{what.__name__} {who.host.name} {seconds}")
        await what(who, seconds)

    async def _cut(self, who: Node, seconds: float) -> None:
        who.host.is_cut = True
        await asyncio.sleep(seconds)
        who.host.is_cut = False

    async def _part(self, who: Node, seconds: float) -> None:
        others = [node for node in (*self.peers, self.relay) if node is not who]
        pair = frozenset((who.host.name, self.random.choice(others).host.name))
        self.world.net.parted.add(pair)
        await asyncio.sleep(seconds)
        self.world.net.parted.discard(pair)

    async def _move(self, who: Node, seconds: float) -> None:
        if who is not self.relay:
            self.world.move(who.host)

    async def _die(self, who: Node, seconds: float) -> None:
        if not who.is_alive:
            return
        silently = self.random.random() < 0.5
        who.host.is_on = not silently
        await who.kill(silently=silently)
        await asyncio.sleep(seconds)
        who.host.is_on = True
        await who.begin()

    async def _all_reach_each_other(self) -> None:
        async with asyncio.timeout(BACK_SECONDS):
            for caller in self.peers:
                for callee in self.peers:
                    if caller is not callee:
                        await self._reach(caller, callee)

    async def _reach(self, caller: PeerNode, callee: PeerNode) -> None:
        while True:
            try:
                await caller.inside(lambda: self._ask(caller, callee))
                return
            except NetworkError:
                await asyncio.sleep(1.0)

    async def _ask(self, caller: PeerNode, callee: PeerNode) -> None:
        connection = await caller.dial(callee)
        await connection.call("b", b"\xff\xff\xff\xff", timeout=PATIENCE)


def tell(seed: int) -> Story:
    """One story; a failure says how to see it again."""
    story = Story(seed)
    try:
        story.run()
    except BaseException as error:
        error.add_note(f"again: .venv/bin/python tests/sim/sim_net_story.py {seed}")
        raise
    return story


if __name__ == "__main__":
    import sys

    for line in sorted(tell(int(sys.argv[1])).world.net.trace):
        print(f"{line[0]:.6f} {line[1]}")
