"""Relays that cheat the requester of a run: it loses no more than was carried, its run ends, and no money is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.core import limits, relay_passes
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, RunError
from farflung.core.events import AnyEvent, RelayPaymentEvent, WarningEvent
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayPass, RelayReceipt, SignedRelayPass, sign_pass, sign_receipt
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.transactions import ChannelClaim, ChannelClose, ChannelOpen, PassReceipts
from farflung.local.jobs import resolve
from farflung.local.network.stage import JOB_MS, LocalStage
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay_metering_gate import RENEW, SETTLE, USED
from farflung.net.relay_receipts import RelayUsageReply
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import places_of
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer
from farflung.peers.requester.conclusion import JobConclusion
from farflung.peers.validator.requests import LedgerRequestHandler

SPEC = resolve.resolve("[network]\nhidden = 1", "tiny", {})[0].spec
STAGE = LocalStage(SPEC, relays=1, relay_price=relay_passes.GIB)  # a pico-credit a byte
NETWORK = STAGE.network
FUNDS, CARRIED = 1_000_000, 1000
(RELAY,) = STAGE.keys.relays
PAYER, NODE = STAGE.keys.requester, STAGE.keys.providers[0]

Answer = Callable[["World"], Awaitable[None]]


class Told:
    """An emitter."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        self.events.append(event)


class World:
    """A ledger, a requester that has opened its channel, and a relay that answers `relay.settle` as the test wants."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        self.store = LedgerStore.open(folder / "chain.db", STAGE.genesis)
        self.chain = self.store.load(STAGE.keys.validators[0])
        served = LedgerRequestHandler(self.chain, self.store, is_local=True)
        self.validator = Endpoint(STAGE.keys.validators[0], served.handle, ByteCounter())
        self.payer, self.relay = (
            Endpoint(PAYER, self._refuse, ByteCounter()),
            Endpoint(RELAY, self._serve, ByteCounter()),
        )
        self.answer, self.told = answer, Told()
        self.used = RelayUsageReply(0)  # what the relay says
        self.renewed: SignedRelayPass | None = None  # the pass that it has

    async def _refuse(self, *_: Any) -> bytes:
        raise PolicyError("FF-APP-145", "nothing is served here")

    async def _serve(self, _: Connection, method: str, body: bytes) -> bytes:
        if method == USED:
            return encode(self.used)
        if method == RENEW:
            self.renewed = decode(body, SignedRelayPass, limits.TICKET_BYTES)
            return b""
        assert method == SETTLE
        await self.answer(self)
        return b""

    def client(self, key: SigningKey, endpoint: Endpoint) -> LedgerClient:
        return LedgerClient(lambda: self._reach(endpoint), key, STAGE.genesis)

    async def _reach(self, endpoint: Endpoint) -> Connection:
        return await endpoint.dial(STAGE.keys.validators[0].public, *self.validator.address)

    def passage(self, *said: tuple[SigningKey, int, int], quota: int = FUNDS) -> PassReceipts:
        named = tuple(sorted((PAYER.public, NODE.public)))
        toll = RelayPass(STAGE.genesis.chain, PAYER.public, RELAY.public, 1, 1, named, quota, 0, 0, 900)
        name = (toll.chain, toll.payer, toll.relay, toll.opening, toll.serial)
        receipts = [sign_receipt(key, RelayReceipt(*name, key.public, sent, got)) for key, sent, got in said]
        return PassReceipts(sign_pass(PAYER, toll), tuple(receipts))

    async def claim(self, *passages: PassReceipts) -> None:
        await self.client(RELAY, self.relay).submit(ChannelClaim(PAYER.public, passages))

    async def close_channel(self) -> None:
        await self.client(RELAY, self.relay).submit(ChannelClose(PAYER.public))

    async def end_of_run(self) -> RelayPaymentEvent:
        """What a run does last; all money must be there afterwards."""
        ledger = self.client(PAYER, self.payer)
        STAGE.open_relays({"relay": self.relay.address[1]})
        job: Any = SimpleNamespace(key=PAYER, journal=self.told)
        parties = {name: key for name, key in STAGE.keys.parties.items() if key != PAYER.public}
        places = places_of(NETWORK.record.relays)
        end = JobConclusion(job, STAGE.genesis, ledger, places, parties)
        await end.pay_relays(self.payer)
        minted = sum(amount for _, amount in STAGE.genesis.accounts)
        assert await end._total_money() == minted
        (paid,) = [event for event in self.told.events if isinstance(event, RelayPaymentEvent)]
        return paid


def run(folder: Path, answer: Answer, test: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            world = World(folder, answer)
            for each in (world.validator, world.payer, world.relay):
                await each.start()
            opens = ChannelOpen(RELAY.public, FUNDS, NETWORK.relay_price, JOB_MS)
            await world.client(PAYER, world.payer).submit(opens)
            try:
                await test(world)
            finally:
                for each in (world.payer, world.relay, world.validator):
                    await each.close()
                world.store.close()

    asyncio.run(bounded())


def test_a_relay_that_claims_what_only_one_end_signed_gets_nothing(tmp_path: Path) -> None:
    async def answer(world: World) -> None:
        await world.claim(world.passage((PAYER, FUNDS, 0)))
        await world.close_channel()

    async def test(world: World) -> None:
        paid = await world.end_of_run()
        assert (paid.bytes, paid.paid, paid.held) == (0, 0, 0)

    run(tmp_path, answer, test)


def test_a_relay_gets_what_both_ends_signed_and_not_what_it_signs_itself(tmp_path: Path) -> None:
    async def answer(world: World) -> None:
        with pytest.raises(RunError, match="FF-APP-070"):
            await world.claim(world.passage((PAYER, FUNDS, 0), (RELAY, 0, FUNDS)))
        await world.claim(world.passage((PAYER, CARRIED, 0), (NODE, 0, FUNDS)))
        with pytest.raises(RunError, match="FF-APP-070"):  # the same once more
            await world.claim(world.passage((PAYER, CARRIED, 0), (NODE, 0, FUNDS)))
        await world.close_channel()

    async def test(world: World) -> None:
        paid = await world.end_of_run()
        assert (paid.bytes, paid.paid, paid.held) == (CARRIED, CARRIED, 0)

    run(tmp_path, answer, test)


def test_two_ends_and_a_relay_that_conspire_get_no_more_than_was_put_aside(tmp_path: Path) -> None:
    async def answer(world: World) -> None:
        both = world.passage((NODE, 1 << 40, 0), (PAYER, 0, 1 << 40), quota=1 << 40)
        await world.claim(both)

    async def test(world: World) -> None:
        paid = await world.end_of_run()
        assert (paid.paid, paid.held) == (FUNDS, 0)

    run(tmp_path, answer, test)


def test_a_relay_that_claims_and_keeps_the_rest_holds_it_until_the_channel_ends(tmp_path: Path) -> None:
    async def answer(world: World) -> None:
        await world.claim(world.passage((PAYER, CARRIED, 0), (NODE, 0, CARRIED)))

    async def test(world: World) -> None:
        paid = await world.end_of_run()
        assert (paid.paid, paid.held) == (CARRIED, FUNDS - CARRIED)

    run(tmp_path, answer, test)


def test_a_run_ends_though_its_relay_wants_no_money(tmp_path: Path) -> None:
    async def answer(_: World) -> None:
        raise PolicyError("FF-NET-142", "the relay does not take this pass")

    async def test(world: World) -> None:
        paid = await world.end_of_run()
        assert (paid.paid, paid.held) == (0, FUNDS)
        assert [event.code for event in world.told.events if isinstance(event, WarningEvent)] == ["FF-APP-242"]

    run(tmp_path, answer, test)


async def paying(world: World, *said: tuple[SigningKey, PeerId, int, int]) -> RelayChannelPayer:
    """A payer of a relay that shows it these receipts."""
    ledger = world.client(PAYER, world.payer)
    payer = RelayChannelPayer(PAYER, world.payer, ledger, RELAY.public, world.relay.address)
    await payer.open(FUNDS, NETWORK.relay_price, JOB_MS)
    toll = (await payer.admit((PAYER.public, NODE.public), payer.quota)).toll
    name = (toll.chain, toll.payer, toll.relay, toll.opening, toll.serial)
    receipts = [sign_receipt(key, RelayReceipt(*name, party, up, down)) for key, party, up, down in said]
    world.used = RelayUsageReply(0, 0, 0, tuple(receipts))
    return payer


@pytest.mark.parametrize(
    ("receipts", "most"),
    [
        ([], 0),
        ([(PAYER, PAYER, CARRIED, 0)], 0),  # of one end alone
        ([(PAYER, PAYER, CARRIED, 0), (RELAY, NODE, 0, CARRIED)], 0),  # in the node's name
        ([(PAYER, PAYER, CARRIED, 0), (NODE, NODE, 0, CARRIED)], CARRIED // limits.MADE_GOOD),
        ([(PAYER, PAYER, CARRIED, 0), (NODE, NODE, 0, 1 << 40)], CARRIED // limits.MADE_GOOD),
    ],
)
def test_a_relay_that_invents_losses_gets_a_sixteenth_of_what_both_ends_signed_and_no_more(
    tmp_path: Path, receipts: list[tuple[SigningKey, SigningKey, int, int]], most: int
) -> None:
    async def answer(_: World) -> None: ...

    async def test(world: World) -> None:
        said = [(key, party.public, up, down) for key, party, up, down in receipts]
        payer = await paying(world, *said)
        for _ in range(4):
            lost = payer.signed.toll.lost if payer.signed is not None else 0
            world.used = RelayUsageReply(0, 1 << 40, lost, world.used.receipts)
            assert await payer.make_good(await payer.used()) > 0
        assert payer.signed is not None
        assert payer.signed.toll.lost == most

    run(tmp_path, answer, test)


def test_a_relay_that_says_it_never_heard_what_was_made_good_is_shown_it_again_and_no_more(tmp_path: Path) -> None:
    async def answer(_: World) -> None: ...

    async def test(world: World) -> None:
        both = [(key, key.public, *sizes) for key, sizes in ((PAYER, (FUNDS, 0)), (NODE, (0, FUNDS)))]
        payer = await paying(world, *both)
        for _ in range(4):
            world.used = RelayUsageReply(0, 500, 0, world.used.receipts)
            assert await payer.make_good(await payer.used()) == 0
            assert world.renewed == payer.signed
            assert world.renewed is not None
            assert world.renewed.toll.lost == 500

    run(tmp_path, answer, test)
