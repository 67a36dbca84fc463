"""A payer, a relay and two parties that need it, with a real ledger: who carried is paid, and the rest comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ledger_parties import party_receipts

from farflung.app.cli.receipt import facts, words
from farflung.core import limits
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, RunError
from farflung.core.ids import PeerId
from farflung.core.money import format_credits
from farflung.core.relay_passes import GIB, cost, sign_pass
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.receipt_file import check_receipt_file, read_receipt_file, write_receipt_file
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import ChannelRow
from farflung.ledger.transactions import PassReceipts
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_metering_gate import PassClaim
from farflung.net.relay_meter import PassMeter
from farflung.peers.ledger_client import relay_channel
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer, metering_gate
from farflung.peers.relay.ledger_link import RelayLedgerLink
from farflung.peers.validator.requests import LedgerRequestHandler

VALIDATOR, PAYER, ALICE, BOB, RELAY = (local_key(13, name) for name in ("validator", "payer", "alice", "bob", "relay"))
RICH = 1 << 30
GENESIS = Genesis("tolls", 0, tuple((key.public, RICH) for key in (PAYER, RELAY)), (VALIDATOR.public,))
PRICE = GIB // 2  # half a pico-credit a byte
BULK = bytes(1 << 18)


async def echo(_: Connection, __: str, body: bytes) -> bytes:
    return body


class World:
    def __init__(self, folder: Path) -> None:
        self.store = LedgerStore.open(folder / "chain.db", GENESIS)
        self.chain = self.store.load(VALIDATOR)
        served = LedgerRequestHandler(self.chain, self.store, is_local=True)
        self.validator = Endpoint(VALIDATOR, served.handle, ByteCounter())
        self.ledger_of_relay = LedgerClient(lambda: self.reach(self.relay.endpoint), RELAY, GENESIS)
        self.gate = metering_gate(self.ledger_of_relay, RELAY.public, PRICE)
        self.relay = RelayServer(RELAY, gate=self.gate)
        self.payer, self.alice, self.bob = (Endpoint(key, echo, ByteCounter()) for key in (PAYER, ALICE, BOB))

    async def reach(self, endpoint: Endpoint) -> Connection:
        return await endpoint.dial(VALIDATOR.public, *self.validator.address)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[World]:
        await self.validator.start()
        await self.relay.start()
        self.bob.attach(RELAY.public, *self.relay.address)
        await self.bob.attached()
        try:
            yield self
        finally:
            for each in (self.payer, self.alice, self.bob):
                await each.close()
            await self.relay.close()
            await self.validator.close()
            self.store.close()

    def pays(self) -> RelayChannelPayer:
        ledger = LedgerClient(lambda: self.reach(self.payer), PAYER, GENESIS)
        return RelayChannelPayer(PAYER, self.payer, ledger, RELAY.public, self.relay.address)

    async def send(self, times: int) -> None:
        connection = await self.alice.dial(BOB.public, *self.relay.address, relay=RELAY.public)
        for _ in range(times):
            assert await connection.call("x", BULK) == BULK

    async def balance(self, key: SigningKey) -> int:
        return (await self.ledger_of_relay.account(key.public)).balance

    @property
    def channel(self) -> ChannelRow:
        (row,) = self.chain.state.rows(ChannelRow)
        return row


def run(folder: Path, test) -> None:  # type: ignore[no-untyped-def]
    async def bounded() -> None:
        async with asyncio.timeout(60), World(folder).open() as world:
            await test(world)
            assert total_money(world.chain.state) == world.chain.state.law.minted

    asyncio.run(bounded())


def test_a_relay_earns_what_it_carried_and_the_payer_gets_the_rest(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        payer = world.pays()
        await payer.open(10_000_000, PRICE, 86_400_000)
        world.alice.payer.put(await payer.admit((ALICE.public, BOB.public), 1 << 30))
        await world.send(3)
        await payer.settle()
        row = world.channel
        assert 6 * len(BULK) <= row.carried <= world.relay.forwarded
        assert world.relay.forwarded - row.carried < 1024  # goodbyes
        assert row.paid == cost(row.carried, PRICE) == await world.balance(RELAY) - RICH
        assert await world.balance(PAYER) == RICH - row.paid
        assert not row.is_open
        for party, verb in ((RELAY, "earned"), (PAYER, "paid")):
            proofs = party_receipts(world.chain, party.public)
            file = read_receipt_file(write_receipt_file(GENESIS, party.public, proofs))
            rows = check_receipt_file(file, GENESIS.chain)
            assert any(f"{verb} {format_credits(row.paid)}" in line for line in words(file, rows, is_known=True))
            (told,) = facts(file, rows, GENESIS.chain, None)["channels"]
            assert (told["carried"], told["paid"], told["held"]) == (row.carried, row.paid, 0)

    run(tmp_path, test)


@pytest.mark.whole
@pytest.mark.parametrize("is_made_good", [True, False])
def test_what_was_lost_on_the_way_ends_no_run_whose_payer_makes_it_good_and_every_other(
    tmp_path: Path, is_made_good: bool
) -> None:
    """Four windows are lost in time, and sixteen times as much arrives; no more than one is ever at risk."""
    window, lost = 1 << 20, 3 << 18

    async def test(world: World) -> None:
        world.gate._payers._window, world.gate._held_seconds = window, 1.0
        payer = world.pays()
        await payer.open(100_000_000, PRICE, 86_400_000)
        world.alice.payer.put(await payer.admit((ALICE.public, BOB.public), 1 << 30))
        for round in range(6):
            try:
                await world.send(26)
            except NetworkError:
                assert round > 0
                assert not is_made_good
                break
            (books,) = world.gate._books.values()
            books.moved(ALICE.public, BOB.public, lost)
            assert books.account.owed <= window + limits.RECEIPT_STEP
            if is_made_good:
                said = await payer.used()
                assert said.unsigned >= lost
                assert await payer.make_good(said) == 0
                assert await payer.make_good(await payer.used()) == 0
        else:
            assert is_made_good
        await payer.settle()
        signed = world.relay.forwarded
        made_good = payer.signed.toll.lost if payer.signed is not None else 0
        assert (made_good >= 6 * lost) == is_made_good
        assert world.channel.carried <= signed + made_good
        assert world.channel.carried >= signed + made_good - limits.RECEIPT_STEP

    run(tmp_path, test)


def test_a_pass_signed_anew_names_more_parties(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        payer = world.pays()
        await payer.open(10_000_000, PRICE, 86_400_000)
        first = await payer.admit((ALICE.public, BOB.public), 1 << 24)
        world.alice.payer.put(first)
        await world.send(2)
        anew = await payer.renew(holders=(PAYER.public,))
        assert anew is not None
        assert (anew.toll.serial, anew.toll.quota) == (first.toll.serial, first.toll.quota)
        to_bob = await world.payer.dial(BOB.public, *world.relay.address, relay=RELAY.public)
        assert await to_bob.call("x", b"me too") == b"me too"
        await payer.settle()
        assert world.channel.carried > 4 * len(BULK)

    run(tmp_path, test)


def test_a_payer_that_is_started_anew_goes_on(tmp_path: Path) -> None:
    """It takes a later serial in the same channel, and needs no memory of its own for it."""

    async def test(world: World) -> None:
        payer = world.pays()
        await payer.open(10_000_000, PRICE, 86_400_000)
        one = await payer.admit((ALICE.public, BOB.public), 1 << 24)
        again = world.pays()
        await again.open(10_000_000, PRICE, 86_400_000)
        assert world.channel.held == 10_000_000
        again._clock = lambda: one.toll.begins + 5
        two = await again.admit((ALICE.public, BOB.public), 1 << 24)
        assert two.toll.serial > one.toll.serial
        for each in (one, two):
            world.alice.payer.put(each)
        await world.send(1)
        await again.settle()
        assert world.channel.paid > 0
        with pytest.raises(RunError):  # it is closed
            await world.ledger_of_relay.submit(relay_channel.ChannelClose(PAYER.public))

    run(tmp_path, test)


def test_a_channel_that_was_claimed_from_and_not_closed_is_closed_at_the_next_try(tmp_path: Path) -> None:
    """The ledger was away between the two; the payer does not wait for its rest until the channel's grace is over."""

    async def test(world: World) -> None:
        payer = world.pays()
        await payer.open(10_000_000, PRICE, 86_400_000)
        world.alice.payer.put(await payer.admit((ALICE.public, BOB.public), 1 << 30))
        await world.send(1)
        honest, lost = world.ledger_of_relay.submit, []

        async def submit(operation: Any) -> Any:
            if isinstance(operation, relay_channel.ChannelClose) and not lost:
                lost.append(operation)
                raise NetworkError("FF-NET-047", "the ledger is away")
            return await honest(operation)

        world.ledger_of_relay.submit = submit  # type: ignore[method-assign]
        with pytest.raises(NetworkError, match="FF-NET-047"):
            await payer.settle()
        row = world.channel
        assert row.is_open
        assert row.paid > 0
        await payer.settle()
        assert not world.channel.is_open
        assert world.channel.paid == row.paid
        assert await world.balance(PAYER) == RICH - row.paid

    run(tmp_path, test)


def test_one_payers_trouble_keeps_no_relay_from_its_claims_on_others(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        desk = RelayLedgerLink(RELAY, [(VALIDATOR.public, *world.validator.address)])
        gate, tried = await desk.gate(PRICE), []

        async def settle(payer: PeerId) -> None:
            tried.append(payer)
            raise NetworkError("FF-NET-047", "the ledger is away")

        for key in (ALICE, BOB):  # without a channel
            terms = (1, 1, (ALICE.public, BOB.public), 1, 0, 0, 1)
            toll = relay_channel.RelayPass(GENESIS.chain, key.public, RELAY.public, *terms)
            books = gate._books[key.public, 1, 1] = PassMeter(sign_pass(key, toll))
            books.moved(ALICE.public, BOB.public, 1)
        gate.settle = settle  # type: ignore[method-assign]
        await desk.collect()
        assert tried == sorted((ALICE.public, BOB.public))
        await desk.close()

    run(tmp_path, test)


def test_claims_of_many_passes_are_cut_into_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    toll = relay_channel.RelayPass(
        GENESIS.chain, PAYER.public, RELAY.public, 1, 1, (ALICE.public, BOB.public), 1, 0, 0, 1
    )
    passages = [PassReceipts(sign_pass(PAYER, toll), ()) for _ in range(300)]
    assert [len(part) for part in relay_channel._parts(passages)] == [128, 128, 44]
    monkeypatch.setattr(relay_channel, "_CLAIM_BYTES", 1000)
    assert sum(len(part) for part in relay_channel._parts(passages)) == 300
    assert list(relay_channel._parts([])) == []
    assert PassClaim(passages[0].signed, ()).receipts == ()
