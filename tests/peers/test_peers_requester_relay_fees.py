"""A requester's fees: channels with its relays, passes for its nodes, and money that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farflung.core import limits, relay_passes
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, PolicyError, UsageError
from farflung.core.events import PlanEvent, WarningEvent
from farflung.core.relay_passes import GIB, RelayPass, cost, sign_pass
from farflung.core.units import Bytes
from farflung.ledger.block import Genesis, worked_state
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import ChannelRow
from farflung.ledger.transactions import Transfer
from farflung.local.jobs import resolve
from farflung.local.network.forecast import _money
from farflung.local.network.stage import LocalStage
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.relay_receipts import RelayUsageReply
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer, metering_gate
from farflung.peers.node.policy import check_passes
from farflung.peers.requester import relay_fees
from farflung.peers.requester.relay_fees import RelayChannels, RelayFee
from farflung.peers.rundir import folder
from farflung.peers.rundir.genesis import RELAY_FUNDS, genesis_of
from farflung.peers.validator.requests import LedgerRequestHandler
from farflung.plan.run_traffic import RunTraffic


def sent_of(**sizes: int) -> RunTraffic:
    """A plan's bytes, of which some are told."""
    nothing: dict[str, Any] = dict.fromkeys(RunTraffic.__struct_fields__, Bytes(0))
    return RunTraffic(**{**nothing, **sizes})


VALIDATOR, PAYER, NODE = (local_key(23, name) for name in ("validator", "payer", "node"))
RELAYS = [local_key(23, "relay", i) for i in range(2)]
RICH, PRICE, FUNDS = 1 << 40, GIB // 2, 1 << 30
GENESIS = Genesis("fees", 0, tuple((key.public, RICH) for key in (PAYER, *RELAYS)), (VALIDATOR.public,))
END = 86_400_000
SENT = sent_of(sync_most=1 << 20, join=1 << 20, audit=1 << 20, control=1 << 20)


async def echo(_: Connection, __: str, body: bytes) -> bytes:
    return body


async def nothing() -> None:
    """Nobody has to be told."""


class World:
    def __init__(self, place: Path) -> None:
        self.warned: list[WarningEvent] = []
        self.store = LedgerStore.open(place / "chain.db", GENESIS)
        self.chain = self.store.load(VALIDATOR)
        served = LedgerRequestHandler(self.chain, self.store, is_local=True)
        self.validator = Endpoint(VALIDATOR, served.handle, ByteCounter())
        self.payer, self.node = (Endpoint(key, echo, ByteCounter()) for key in (PAYER, NODE))
        self.servers: list[RelayServer] = []
        for number, key in enumerate(RELAYS):
            own = LedgerClient(lambda n=number: self.reach(self.servers[n].endpoint), key, GENESIS)  # type: ignore[misc]
            self.servers.append(RelayServer(key, gate=metering_gate(own, key.public, PRICE)))
        self.ledger = LedgerClient(lambda: self.reach(self.payer), PAYER, GENESIS)

    async def reach(self, endpoint: Endpoint) -> Connection:
        return await endpoint.dial(VALIDATOR.public, *self.validator.address)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[World]:
        await self.validator.start()
        for key, server in zip(RELAYS, self.servers, strict=True):
            self.node.attach(key.public, *await server.start())
        await self.node.attached()
        try:
            yield self
        finally:
            for each in (self.payer, self.node, *self.servers, self.validator):
                await each.close()
            self.store.close()

    @property
    def places(self) -> tuple[EndpointAddress, ...]:
        return tuple(EndpointAddress(*s.address, k.public) for k, s in zip(RELAYS, self.servers, strict=True))

    def gate(self, number: int) -> Any:
        """The money side of one of the relays."""
        return self.servers[number]._circuits._gate

    def fees(self, funds: int = FUNDS, most: int = 0) -> RelayChannels:
        return RelayChannels(PAYER, self.payer, RelayFee(PRICE, funds, self.places, most), self.warned.append)

    async def send(self, place: EndpointAddress, size: int) -> None:
        connection = await self.payer.dial(NODE.public, place.host, place.port, relay=place.relay)
        assert len(await connection.call("x", bytes(size))) == size

    async def settle(self) -> None:
        for place in self.places:
            await RelayChannelPayer(PAYER, self.payer, self.ledger, place.relay, (place.host, place.port)).settle()

    @property
    def channels(self) -> dict[bytes, ChannelRow]:
        return {row.relay: row for row in self.chain.state.rows(ChannelRow)}


def run(place: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), World(place).open() as world:
            await test(world)
            assert total_money(world.chain.state) == world.chain.state.law.minted

    asyncio.run(bounded())


def test_each_relay_is_paid_for_what_it_carried_and_one_that_carried_nothing_gives_all_back(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own = world.fees()
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        assert [signed.toll.relay for signed in own.passes] == [key.public for key in RELAYS]
        await world.send(world.places[0], 1 << 18)
        await own.sign()
        before = world.chain.head.state
        await world.settle()
        await own.close()
        first, second = (world.channels[key.public] for key in RELAYS)
        assert first.paid == cost(first.carried, PRICE) > cost(1 << 19, PRICE)
        assert (second.paid, second.carried) == (0, 0)
        assert not first.is_open
        assert not second.is_open
        balances = [(await world.ledger.account(key.public)).balance for key in (PAYER, *RELAYS)]
        assert balances == [RICH - first.paid, RICH + first.paid, RICH]
        assert worked_state(world.chain.blocks) == before != world.chain.head.state

    run(tmp_path, test)


def test_a_requester_that_is_started_anew_finds_its_channels_open_and_goes_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for _ in range(2):
            own = world.fees()
            await own.fund(world.ledger, END)
            await own.admit([NODE.public], nothing)
            await world.send(world.places[0], 1 << 16)
            await own.sign()
            await own.close()
        await world.settle()
        row = world.channels[RELAYS[0].public]
        assert row.opening == 1
        assert row.carried > 4 << 16

    run(tmp_path, test)


def test_a_node_that_comes_later_is_named_by_the_same_pass(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own, other = world.fees(), local_key(23, "other").public
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        serials = [signed.toll.serial for signed in own.passes]
        await own.admit([other], nothing)
        assert [signed.toll.serial for signed in own.passes] == serials
        assert all({NODE.public, other} <= set(signed.toll.holders) for signed in own.passes)
        await own.close()

    run(tmp_path, test)


def test_more_nodes_than_a_pass_names_are_refused_and_without_a_price_nothing_is_asked(tmp_path: Path) -> None:
    many = [local_key(23, "many", i).public for i in range(limits.PASS_HOLDERS)]

    async def test(world: World) -> None:
        own = world.fees()
        await own.fund(world.ledger, END)
        with pytest.raises(PolicyError, match="FF-APP-240"):
            await own.admit(many, nothing)
        free = RelayChannels(PAYER, world.payer, RelayFee())
        await free.fund(world.ledger, END)
        await free.admit(many, nothing)
        assert free.passes == ()

    run(tmp_path, test)


STEP = 1 << 18  # pico-credits: 512 KiB at PRICE


async def spend(world: World, own: RelayChannels, times: int) -> None:
    """64 KiB through the first relay and back, and a look, so often."""
    for _ in range(times):
        await world.send(world.places[0], 1 << 16)
        await own.look(own._payers[0])


@pytest.mark.whole
def test_a_channel_that_runs_low_gets_more_until_the_users_bound_and_then_the_run_is_told(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own = world.fees(STEP, 4 * STEP)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        first, second = (key.public for key in RELAYS)
        await spend(world, own, 3)  # 384 KiB: more than half of what one step pays for
        assert world.channels[first].held == 2 * STEP
        assert own.passes[0].toll.quota == relay_passes.worth(2 * STEP, PRICE)
        await spend(world, own, 2)  # more than the channel began with: the relay has asked the ledger again
        assert [world.channels[each].held for each in (first, second)] == [3 * STEP, STEP]
        assert world.channels[first].opening == 1
        assert not world.warned
        world.gate(0)._held_seconds = 1.0
        with pytest.raises(NetworkError):
            await spend(world, own, 9)
        await own.look(own._payers[0])
        assert [each.code for each in world.warned] == ["FF-APP-245", "FF-APP-246"]  # each once
        assert [world.channels[each].held for each in (first, second)] == [3 * STEP, STEP]  # no more
        await world.send(world.places[1], 1 << 16)  # the other one goes on
        await own.sign()
        await own.close()
        await world.settle()
        assert 0 < world.channels[first].paid <= 3 * STEP
        assert (await world.ledger.account(PAYER.public)).balance == RICH - sum(
            row.paid for row in world.channels.values()
        )

    run(tmp_path, test)


def test_a_run_looks_after_its_channels_by_itself_and_past_a_relay_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_fees, "REFILL_SECONDS", 0.05)

    async def test(world: World) -> None:
        own = world.fees(STEP, 3 * STEP)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)

        async def away() -> RelayUsageReply:
            raise NetworkError("FF-NET-047", "it is away")

        own._payers[0].used = away  # type: ignore[method-assign]
        for _ in range(3):
            await world.send(world.places[1], 1 << 16)
        while world.channels[RELAYS[1].public].held < 2 * STEP:  # noqa: ASYNC110 - the ledger tells nobody
            await asyncio.sleep(0.05)
        await own.close()

    run(tmp_path, test)


def test_who_is_started_anew_remembers_what_was_put_aside(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own = world.fees(STEP, 3 * STEP)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        await spend(world, own, 3)
        await own.close()
        again = world.fees(STEP, 3 * STEP)
        await again.fund(world.ledger, END)
        await again.admit([NODE.public], nothing)
        assert again.passes[0].toll.quota == relay_passes.worth(2 * STEP, PRICE)
        await spend(world, again, 3)
        assert world.channels[RELAYS[0].public].held == 2 * STEP
        assert [each.code for each in world.warned] == ["FF-APP-245"]
        await again.close()

    run(tmp_path, test)


def test_without_a_bound_of_the_users_nothing_is_added_and_the_run_is_told(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own = world.fees(STEP)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        await spend(world, own, 3)
        assert [each.code for each in world.warned] == ["FF-APP-245"]
        assert world.channels[RELAYS[0].public].held == STEP
        await own.close()

    run(tmp_path, test)


def test_nothing_is_put_into_a_channel_that_the_relay_has_closed(tmp_path: Path) -> None:
    """It would be another opening, in which no pass of this run counts."""

    async def test(world: World) -> None:
        own = world.fees(STEP, 9 * STEP)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        await world.settle()
        await own._payers[0].add(STEP)
        assert not world.channels[RELAYS[0].public].is_open
        await own.close()

    run(tmp_path, test)


def test_a_relay_that_says_all_is_used_gets_the_bound_put_aside_and_not_a_credit(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own = world.fees(STEP, 4 * STEP)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        payer = own._payers[0]

        async def lie() -> RelayUsageReply:
            return RelayUsageReply(1 << 60)

        payer.used = lie  # type: ignore[method-assign]
        for _ in range(9):
            await own.look(payer)
        assert sum(row.held for row in world.channels.values()) == 4 * STEP
        await own.close()
        await world.settle()
        assert (await world.ledger.account(PAYER.public)).balance == RICH

    run(tmp_path, test)


def test_what_nobody_signs_for_is_made_good_in_part_and_the_run_is_told_of_the_rest(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        own = world.fees(FUNDS)
        await own.fund(world.ledger, END)
        await own.admit([NODE.public], nothing)
        for _ in range(8):
            await world.send(world.places[0], 1 << 16)
        await own.sign()
        gate = world.gate(0)
        await world.node.payer.sign(RELAYS[0].public)
        (books,) = gate._books.values()
        lost = limits.RECEIPT_WINDOW // 2
        books.moved(PAYER.public, NODE.public, lost)
        for _ in range(3):
            await own.look(own._payers[0])
        assert [each.code for each in world.warned] == ["FF-APP-248"]
        assert 0 < own.passes[0].toll.lost <= books.billed // limits.MADE_GOOD
        assert books.account.owed >= lost - own.passes[0].toll.lost
        await own.close()

    run(tmp_path, test)


@pytest.mark.parametrize("most", [0, -1, relay_fees.LEAST - 1, RELAY_FUNDS + 1])
def test_a_bound_out_of_range_is_refused(most: int) -> None:
    with pytest.raises(UsageError, match="FF-APP-247"):
        resolve.resolve(None, "tiny", {}, relay_most=most)
    assert resolve.resolve(None, "tiny", {}, relay_most=relay_fees.LEAST)[1].relay_most == relay_fees.LEAST


def pass_for(*holders: SigningKey, payer: SigningKey = PAYER) -> RelayPass:
    named = tuple(sorted(key.public for key in holders))
    return RelayPass(GENESIS.chain, payer.public, RELAYS[0].public, 1, 1, named, 1, 0, 0, 900)


def test_a_node_takes_passes_of_its_requester_for_itself_and_no_others() -> None:
    other = local_key(23, "other")
    good = sign_pass(PAYER, pass_for(PAYER, NODE))
    check_passes((good,) * limits.PLACES, PAYER.public, NODE.public, 60)
    bad = [
        (good,) * (limits.PLACES + 1),
        (good, sign_pass(other, pass_for(PAYER, NODE))),  # not signed by its payer
        (sign_pass(other, pass_for(PAYER, NODE, payer=other)),),  # somebody else's money
        (sign_pass(PAYER, pass_for(PAYER, other)),),
        (sign_pass(PAYER, msgspec.structs.replace(good.toll, holders=(NODE.public,))),),
    ]
    for passes in bad:
        with pytest.raises(PolicyError, match="FF-APP-241"):
            check_passes(passes, PAYER.public, NODE.public, 60)
    for now in (-61, 900, 1_800_000_000):
        with pytest.raises(PolicyError, match="FF-APP-241"):
            check_passes((good,), PAYER.public, NODE.public, now)


def test_the_plan_says_at_most_what_is_put_into_the_channels() -> None:
    spec, event = resolve.resolve(None, "tiny", {})[0].spec, plan_event()
    assert relay_fees.room_of(SENT) == GIB  # a small run
    room = relay_fees.room_of(sent_of(sync_most=1 << 40))
    assert room >= relay_fees.ROOM << 40
    assert room & (room - 1) == 0
    said = relay_fees.planned(event, SENT, 100_000, 2)
    assert (said.relay_price, said.relay_funds) == (100_000, relay_fees.reserve_of(SENT, 100_000, 2).most)
    assert relay_fees.reserve_of(SENT, 100_000, 2) == (100_000, 200_000)
    for most, each in ((500_000, 100_000), (50_000, 25_000)):  # the user's word counts both ways
        assert relay_fees.planned(event, SENT, 100_000, 2, most).relay_funds == most
        assert relay_fees.reserve_of(SENT, 100_000, 2, most) == (each, most)
    with pytest.raises(PolicyError, match="FF-APP-244"):
        relay_fees.planned(event, SENT, 10**17, 2)
    assert relay_fees.planned(event, SENT, 0, 2) == relay_fees.planned(event, SENT, 5, 0) == event
    assert relay_passes.worth(relay_fees.reserve_of(SENT, 100_000, 2).funds, 100_000) >= GIB
    held = dict(genesis_of(spec).accounts)
    stage = LocalStage(spec, relays=2, relay_price=5)
    assert held[stage.keys.requester.public] > RELAY_FUNDS
    assert all(held[key.public] for key in stage.keys.relays)
    assert stage.network.relay_price == 0  # tiny has no relay


def plan_event() -> PlanEvent:
    numbers = dict.fromkeys(
        ("parameters", "rounds", "steps", "peers", "tokens", "sync_bytes", "ring_bytes", "memory_bytes", "price",
         "escrow", "data_bytes"), 1,
    )  # fmt: skip
    return PlanEvent(name="n", run="r", model="m", sync="s", seconds=1.0, **numbers)


def test_the_price_is_no_part_of_the_job_and_small_where_nothing_is_said() -> None:
    found = [resolve.resolve(None, "tiny", {}, relay_price=price) for price in (None, 0, 7)]
    assert [identity.relay_price for _, identity in found] == [relay_fees.PRICE, 0, 7]
    assert len({identity.text for _, identity in found}) == 1
    for price in (-1, limits.RELAY_PRICE + 1):
        with pytest.raises(UsageError, match="FF-APP-243"):
            resolve.resolve(None, "tiny", {}, relay_price=price)
    crowd = {"network.providers": str(limits.PASS_HOLDERS)}
    assert resolve.resolve(None, "tiny", crowd)[1].relay_price == 0
    with pytest.raises(UsageError, match="FF-APP-243"):
        resolve.resolve(None, "tiny", crowd, relay_price=7)


def test_runs_that_pay_relays_otherwise_are_no_repetition_of_each_other() -> None:
    identity = resolve.resolve(None, "tiny", {})[1]
    change = msgspec.structs.replace
    assert _money(identity) != _money(change(identity, relay_price=1))
    assert _money(identity) != _money(change(identity, lab=True))
    free = change(identity, relay_price=0)
    assert _money(free) == _money(change(free, lab=True, relays=1))


def test_a_run_of_before_paid_its_relays_nothing() -> None:
    old = msgspec.json.encode({"format": folder.FORMAT, "created": 1.0, "text": "", "base": "."})
    assert msgspec.json.decode(old, type=folder.RunIdentity).relay_price == 0


def test_a_ledger_that_only_paid_relays_since_has_the_root_of_before(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        assert worked_state([]) == bytes(32)
        await world.ledger.submit(Transfer(NODE.public, 1))
        assert worked_state(world.chain.blocks) == world.chain.head.state

    run(tmp_path, test)
