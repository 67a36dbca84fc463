"""A relay that is paid, in virtual time: whatever breaks, what is billed was carried, and at most a window is not."""

import asyncio
import random

import pytest
from sim_net import PeerNode, RelayNode, World
from sim_net_lines import Line, Nat

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError
from farflung.core.ids import Hash, PeerId
from farflung.core.relay_passes import GIB, RelayPass, billed, sign_pass
from farflung.net.io.connection import Connection
from farflung.net.io.relay_accounts import ChannelBalance
from farflung.net.io.relay_metering_gate import ChannelLedger, CreditLimits, PassClaim, RelayMeteringGate
from farflung.net.messages import MessageKind

CHAIN, PAYER, QUOTA = Hash(bytes([9]) * 32), local_key(5, "payer"), 1 << 40
CREDIT = 1_000_000
WINDOW = 2 * CREDIT
LASTS = 40.0  # seconds


async def brief(connection: Connection, method: str, body: bytes) -> bytes:
    return body[:10]


class PaidRelay(RelayNode):
    """A relay whose ledger believes in one payer. `claims`: what it brings there."""

    def gate(self) -> RelayMeteringGate:
        self.claims: list[PassClaim] = []
        ledger = ChannelLedger(CHAIN, self._funds, self._settle)
        self.metering = RelayMeteringGate(ledger, GIB, credit=CreditLimits(WINDOW + limits.RECEIPT_STEP))
        return self.metering

    async def _funds(self, payer: PeerId) -> ChannelBalance | None:
        return ChannelBalance(1, GIB, QUOTA) if payer == PAYER.public else None

    async def _settle(self, payer: PeerId, claims: tuple[PassClaim, ...]) -> None:
        self.claims += claims


class Journey:
    """A carries to B through the relay. `breaks`: what happens to one of them meanwhile; `lives`: what each counted."""

    def __init__(self, seed: int, breaks: str) -> None:
        self.random, self.breaks = random.Random(seed), breaks
        self.world = World(seed)
        self.relay = PaidRelay(self.world, self.world.host("relay", Line(delay=0.01)))
        host = self.world.host("a", Line(up=1e6, delay=0.02, loss=0.01), Nat.SYMMETRIC)
        self.a = PeerNode(self.world, host, brief)
        host = self.world.host("b", Line(up=1e6, delay=0.03), Nat.CONE)
        self.b = PeerNode(self.world, host, brief, relays=(self.relay,))
        self.a.relays = (self.relay,)
        self.lives: dict[PeerId, list[tuple[int, int]]] = {self.a.id: [], self.b.id: []}
        self.seen = 0  # carried when the last trouble was over

    async def begin(self, node: PeerNode) -> None:
        """A new life, with the pass."""
        await node.begin()
        holders = tuple(sorted((self.a.id, self.b.id)))
        now = 1_800_000_000
        toll = RelayPass(CHAIN, PAYER.public, self.relay.id, 1, 1, holders, QUOTA, 0, now - 10, now + 600)

        async def put() -> None:
            node.endpoint.payer.put(sign_pass(PAYER, toll))

        await node.inside(put)

    async def carry(self) -> None:
        """As much as goes through in the time."""
        while self.world.now < LASTS:
            try:
                await self.a.inside(self._once)
            except (NetworkError, OSError):
                await asyncio.sleep(0.5)

    async def _once(self) -> None:
        connection = await self.a.dial(self.b)
        body = bytes(self.random.choice((1000, 100_000, 800_000)))
        await connection.call("a", body, kind=MessageKind.SYNC, timeout=8.0)

    def buried(self, node: PeerNode) -> None:
        """What this life of a party has counted."""
        tallies = [line.tally for line in node.endpoint.payer._lines.values()]
        self.lives[node.id] += [(tally._sent, tally._received) for tally in tallies]

    async def deaths(self) -> None:
        """One of them dies again and again, mostly before it has signed."""
        who = self.random.choice((self.a, self.b))
        for _ in range(6):
            await asyncio.sleep(self.random.uniform(3.0, 5.0))
            self.buried(who)
            await who.kill()
            await asyncio.sleep(0.2)
            await self.begin(who)
        self.seen = self.relay.server.forwarded

    async def trouble(self) -> None:
        if self.breaks == "one program, often":
            await self.deaths()
            return
        for _ in range(2):
            await asyncio.sleep(self.random.uniform(5.0, 20.0))
            who = self.random.choice((self.a, self.b))
            if self.breaks == "lines":
                who.host.is_cut = True
                await asyncio.sleep(self.random.choice((0.5, 3.0, 12.0)))
                who.host.is_cut = False
            elif self.breaks == "programs":
                self.buried(who)
                await who.kill()
                await asyncio.sleep(1.0)
                await self.begin(who)

    async def main(self) -> None:
        await self.relay.begin()
        for node in (self.a, self.b):
            await self.begin(node)
        await asyncio.gather(self.a.attached(), self.b.attached())
        await asyncio.gather(self.carry(), self.trouble())
        await asyncio.sleep(60.0)
        for node in (self.a, self.b):
            self.buried(node)
        self.forwarded = self.relay.server.forwarded
        await self.relay.inside(lambda: self.relay.metering.settle(PAYER.public))

    def run(self) -> None:
        self.world.run(self.main)
        assert self.forwarded > WINDOW, "it carried too little to tell"
        (claim,) = self.relay.claims
        last = {each.receipt.party: (each.receipt.sent, each.receipt.received) for each in claim.receipts}
        paid = billed(QUOTA, last)
        assert paid <= self.forwarded
        assert paid <= self.bound()
        assert self.forwarded - paid <= WINDOW + limits.CIRCUIT_BUFFER_BYTES
        assert self.forwarded - self.seen > WINDOW, "nobody was carried for after the last death"
        if self.breaks == "nothing":
            assert paid == self.forwarded

    def bound(self) -> int:
        """The smaller of both ends, each with a credit for each life but its first."""
        a, b = (
            [sum(count[way] for count in self.lives[node.id]) + self.most_taken_over(node) for way in (0, 1)]
            for node in (self.a, self.b)
        )
        return min(a[0], b[1]) + min(b[0], a[1])

    def most_taken_over(self, node: PeerNode) -> int:
        return CREDIT * (len(self.lives[node.id]) - 1)


@pytest.mark.whole
@pytest.mark.parametrize("breaks", ["nothing", "lines", "programs", "one program, often"])
def test_what_is_billed_was_carried_and_at_most_a_window_of_each_is_not(
    breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECEIPT_CREDIT", CREDIT)
    monkeypatch.setattr(limits, "RECEIPT_BYTES", CREDIT // 4)
    for seed in range(1 if breaks == "nothing" else 2):
        try:
            Journey(seed, breaks).run()
        except BaseException as error:
            error.add_note(f"again: seed {seed}, {breaks}")
            raise


class SetUp(Journey):
    """A dials B and hears an answer, over lines without loss. `trips`: how long that takes, in round trips."""

    def __init__(self, relay: type[RelayNode]) -> None:
        self.world, self.lives = World(0), {}
        self.relay = relay(self.world, self.world.host("relay", Line(delay=0.0)))
        self.a = PeerNode(self.world, self.world.host("a", Line(delay=0.05), Nat.SYMMETRIC), brief)
        host = self.world.host("b", Line(delay=0.05), Nat.CONE)
        self.b = PeerNode(self.world, host, brief, relays=(self.relay,))

    async def main(self) -> None:
        for node in (self.relay, self.b):
            await node.begin()
        await self.begin(self.a)
        await self.b.attached()
        await asyncio.sleep(5.0)
        began = self.world.now
        connection = await self.a.dial(self.b)
        await self.a.inside(lambda: connection.call("a", b"1"))
        self.trips = (self.world.now - began) / 0.2


def test_set_up_through_a_paid_relay_takes_as_many_round_trips_as_through_another() -> None:
    free, paid = SetUp(RelayNode), SetUp(PaidRelay)
    for each in (free, paid):
        each.world.run(each.main)
    assert paid.trips == pytest.approx(free.trips, abs=0.02)
    assert paid.trips < 2.7
