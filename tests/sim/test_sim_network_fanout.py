"""A group's round in virtual time: what our own code adds to the time that the slowest line needs."""

import asyncio

import pytest
import sim_net_lines
from sim_net import PORT, Node, RelayNode, World
from sim_net_lines import Host, Line

from farflung.core.ids import Hash, PeerId
from farflung.net.certificates import credential_of
from farflung.net.io.multicast_member import GroupListener, GroupMember, GroupRendezvous, NoEndpoint
from farflung.net.multicast_groups import sign_roster

HOMES, PAYLOAD = 8, 1_000_000
UP, DOWN, DELAY = 2.5e6, 12.5e6, 0.02  # bytes a second, seconds
MOST = 1.2  # times what the slowest line needs for its payloads, the way there not counted


class GroupRelay(RelayNode):
    def check_bytes(self) -> None:
        """It gives what it took more than once, and each byte is counted."""
        assert self.counter.total_sent + self.server.forwarded == self.process.sent


class Home(Node, GroupListener):
    """A member that counts whole payloads of others."""

    def __init__(self, world: World, host: Host) -> None:
        super().__init__(world, host)
        self.heard, self.all = 0, asyncio.Event()

    def message(self, sender: PeerId, data: bytes) -> None:
        self.heard += len(data) == PAYLOAD
        if self.heard == HOMES - 1:
            self.all.set()

    async def _begin(self) -> None:
        self.fan = GroupMember(NoEndpoint(credential_of(self.key), self.counter), self)

    async def _end(self) -> None:
        await self.fan.close()

    def check_bytes(self) -> None:
        assert self.counter.total_sent == self.process.sent


def test_a_round_of_eight_homes_takes_little_more_than_the_slowest_line_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    # a window that fills a home's download, and fine steps; the simulated line has no slow start
    monkeypatch.setattr(sim_net_lines, "WINDOW", 4 << 20)
    monkeypatch.setattr(sim_net_lines, "SEGMENT_SECONDS", 0.002)
    world = World(1)
    relay = GroupRelay(world, world.host("relay", Line(up=1e12, down=1e12, delay=0.0)))
    homes = [
        Home(world, world.host(f"home {n}", Line(up=UP, down=DOWN, delay=DELAY, queue=0.003))) for n in range(HOMES)
    ]

    async def test() -> float:
        for node in (relay, *homes):
            await node.begin()
        roster = sign_roster(relay.key, Hash(bytes(32)), 1, tuple(home.id for home in homes))
        meeting = GroupRendezvous(relay.id, relay.host.ip, PORT, roster, bytes(32))
        for home in homes:
            await home.inside(lambda home=home: home.fan.enter(meeting))
        await asyncio.sleep(1.0)
        began = world.now
        sending = [
            asyncio.ensure_future(home.inside(lambda home=home: home.fan.send(bytes(PAYLOAD)))) for home in homes
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*sending, *(home.all.wait() for home in homes))
        return world.now - began

    bound = max(PAYLOAD / UP, (HOMES - 1) * PAYLOAD / DOWN)
    assert bound <= world.run(test) <= MOST * bound
