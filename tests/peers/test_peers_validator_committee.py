"""Real validators on loopback: they agree, answer their clients, and one that dies comes back from its disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from farflung.app.explorer import lookup
from farflung.app.explorer.proofs import ProofChecker
from farflung.app.explorer.screens import screen
from farflung.app.explorer.sources import HttpLedgerSource
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_SEAT, NS_SPEC, SigningKey, digest, local_key
from farflung.core.errors import NetworkError, RunError
from farflung.core.ids import PeerId
from farflung.core.money import format_credits
from farflung.ledger.block import Genesis
from farflung.ledger.motions import AdmitValidator, Motion
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import ChannelOpen, Transfer
from farflung.ledger.validators import ValidatorJoin, join_parts
from farflung.market.provider_offer import Capabilities
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.protocol import directory
from farflung.peers.protocol.directory import DirectoryListing, advertise
from farflung.peers.relay.ledger_link import RelayLedgerLink
from farflung.peers.validator.http_readers import HttpReadersConfig
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

SEATS = tuple(local_key(41, "seat", index) for index in range(4))
ALICE, BOB = local_key(41, "alice"), local_key(41, "bob")
MONEY = 1_000_000
CAPS = digest(NS_SPEC, b"caps")


def genesis(seats: int) -> Genesis:
    keys = SEATS[:seats]
    accounts = tuple((key.public, MONEY) for key in (*SEATS, ALICE, BOB))
    law = LedgerParams(fee_min=10, delta_ms=100, idle_ms=50, epoch_blocks=4)
    return Genesis("loopback", int(time.time() * 1000), accounts, tuple(key.public for key in keys), law)


class World:
    """Some validators, each in a folder of its own, and Alice."""

    def __init__(self, folder: Path, seats: int) -> None:
        self.folder, self.genesis = folder, genesis(seats)
        self.services: list[ValidatorService | None] = [None] * seats
        self.judges = 0
        self.places: dict[PeerId, tuple[str, int]] = {}
        self.alice = Endpoint(ALICE, _deaf, ByteCounter())

    async def start(self, index: int) -> None:
        folder = self.folder / str(index)
        folder.mkdir(exist_ok=True)
        key = SEATS[index]
        port = self.places.get(key.public, ("", 0))[1]
        setting = ValidatorConfig(key, self.genesis, folder, port=port, judges=self.judges)
        service = ValidatorService(setting, ByteCounter(), lambda: None)
        self.services[index] = service
        self.places[key.public] = await service.open(self.places)
        for other in self.services:
            if other is not None:
                other.places |= self.places

    async def stop(self, index: int) -> None:
        service = self.services[index]
        assert service is not None
        self.services[index] = None
        await service.close()

    def service(self, index: int) -> ValidatorService:
        found = self.services[index]
        assert found is not None
        return found

    def client(self, patience: float = 20.0, *, key: SigningKey = ALICE, all_seats: bool = False) -> LedgerClient:
        def reach(peer: PeerId) -> Callable[[], Awaitable[Connection]]:
            return lambda: self.alice.dial(peer, *self.places[peer])

        asked = self.places if all_seats else self.genesis.validators
        return LedgerClient([reach(each) for each in asked], key, self.genesis, patience, 2.0)

    async def all_at(self, height: int) -> None:
        while any(e is not None and e.chain.head.height < height for e in self.services):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def joined(self, seats: int) -> None:
        while any(e is not None and len(e.chain.state.committee.members) < seats for e in self.services):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def no_fork(self) -> None:
        chains = [[b.header.id for b in each.chain.blocks] for each in self.services if each is not None]
        longest = max(chains, key=len)
        assert all(chain == longest[: len(chain)] for chain in chains)


async def _deaf(_connection: Connection, _method: str, _body: bytes) -> bytes:
    return b""


@contextlib.asynccontextmanager
async def world(folder: Path, seats: int = 4) -> AsyncIterator[World]:
    made = World(folder, seats)
    try:
        for index in range(seats):
            await made.start(index)
        yield made
    finally:
        await made.alice.close()
        for index, each in enumerate(made.services):
            if each is not None:
                await made.stop(index)


def run(folder: Path, body: Callable[[World], Awaitable[None]], seats: int = 4) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60), world(folder, seats) as made:
            await body(made)
            made.no_fork()

    asyncio.run(scenario())


def test_a_process_that_judges_is_started_when_it_is_needed_and_replaced_when_it_is_killed(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        await made.stop(3)
        made.judges = 1
        await made.start(3)
        seat = made.service(3).committee
        assert seat is not None
        assert seat.judges.pids == []
        client = made.client()
        await client.submit(Transfer(BOB.public, 1))
        while len(seat.node.verification_queue) or not seat.judges.pids:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (first,) = seat.judges.pids
        os.kill(first, signal.SIGSTOP)  # it has the question when it dies
        paid = asyncio.create_task(client.submit(Transfer(BOB.public, 2)))
        while not len(seat.node.verification_queue):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        await paid
        while len(seat.node.verification_queue):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (second,) = seat.judges.pids
        assert second != first
        await made.all_at((await client.head()).header.height)
        assert (await client.account(BOB.public)).balance == MONEY + 3

    run(tmp_path, body)


def test_four_validators_agree_and_answer(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        client = made.client()
        for amount in (1, 2, 3):
            await client.submit(Transfer(BOB.public, amount))
        assert (await client.account(BOB.public)).balance == MONEY + 6
        await made.all_at((await client.head()).header.height)

    run(tmp_path, body)


@pytest.mark.slow
def test_one_of_four_may_die_and_comes_back_from_its_disk(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        client = made.client()
        await client.submit(Transfer(BOB.public, 1))
        await made.stop(0)
        for amount in (2, 3):
            await client.submit(Transfer(BOB.public, amount))
        await made.start(0)
        await made.all_at((await client.head()).header.height)
        await client.submit(Transfer(BOB.public, 4))
        assert (await client.account(BOB.public)).balance == MONEY + 10
        assert (await client.account(ALICE.public)).nonce == 4

    run(tmp_path, body)


@pytest.mark.whole
def test_two_of_four_stand_still_until_a_third_is_back(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        await made.stop(0)
        await made.stop(1)
        with pytest.raises(NetworkError):
            await made.client(patience=1.0).submit(Transfer(BOB.public, 1))
        await made.start(1)
        await made.client().submit(Transfer(BOB.public, 2))

    run(tmp_path, body)


def test_all_stop_and_go_on_where_they_were(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        await made.client().submit(Transfer(BOB.public, 1))
        for index in range(4):
            await made.stop(index)
        for index in range(4):
            await made.start(index)
        client = made.client()
        await client.submit(Transfer(BOB.public, 2))
        assert (await client.account(BOB.public)).balance == MONEY + 3

    run(tmp_path, body)


def test_a_validator_that_is_alone_certifies_on_the_spot(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        await made.client().submit(Transfer(BOB.public, 1))
        assert made.service(0).committee is None
        assert made.service(0).chain.head.height == 1

    run(tmp_path, body, seats=1)


def test_a_committee_grows_from_one_to_four_and_then_does_without_the_first(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        for index in (1, 2, 3):
            made.services.append(None)
            await made.start(index)
            key = SEATS[index]
            host, port = made.places[key.public]
            signature = key.sign(NS_SEAT, *join_parts(made.genesis.chain, key.public))
            await made.client(key=key).submit(ValidatorJoin(key.public, 100, f"{host}:{port}", signature))
        deadline = made.genesis.time + 10**7
        motions = [Motion(AdmitValidator(key.public), deadline) for key in SEATS[1:]]
        await made.client(key=SEATS[0]).submit(*motions)
        await made.joined(4)
        await made.stop(0)
        height = made.service(1).chain.head.height
        await made.client(all_seats=True).submit(Transfer(BOB.public, 1))
        await made.start(0)
        await made.all_at(height + 1)

    run(tmp_path, body, seats=1)


def test_a_refused_operation_is_refused_by_the_committee_too(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        with pytest.raises(RunError, match="FF-APP-070"):
            await made.client().submit(Transfer(BOB.public, 2 * MONEY))

    run(tmp_path, body)


def test_what_a_node_publishes_at_one_validator_is_listed_by_all(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        await made.client().register(CAPS, 3, 500, made.genesis.time + 10**9)
        said = advertise(ALICE, issue(ALICE.public, (EndpointAddress("127.0.0.1", 1),), time.time()), FACTS)
        first = await made.alice.dial(SEATS[0].public, *made.places[SEATS[0].public])
        await first.call(directory.PUBLISH, encode(said))
        for key in SEATS[1:]:
            other = await made.alice.dial(key.public, *made.places[key.public])
            assert await _listed_there(other) == (encode(said),)

    run(tmp_path, body)


FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")


async def _listed_there(connection: Connection) -> tuple[bytes, ...]:
    for _ in range(500):
        listing = decode(await connection.call(directory.LIST, b""), DirectoryListing, limits.CONTROL_BYTES)
        if listing.advertisements:
            break
        await asyncio.sleep(0.02)
    return listing.advertisements


def test_readers_of_a_committee_are_served_proofs_and_metrics(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        service = made.service(0)
        url = f"http://127.0.0.1:{await service.readers.open(HttpReadersConfig())}"
        client = made.client()
        for amount in (1, 2):
            await client.submit(Transfer(BOB.public, amount))
        height = (await client.head()).header.height
        await made.all_at(height)
        checker = await asyncio.to_thread(ProofChecker, HttpLedgerSource(url), made.genesis.chain)
        rows = await asyncio.to_thread(screen, checker, lookup.LookupTarget("accounts", BOB.public.hex()), 100)
        assert any(f"{format_credits(MONEY + 3)} credits" in row.text for row in rows)
        rows = await asyncio.to_thread(screen, checker, lookup.LookupTarget("block", str(height)), 100)
        assert any("of 4 seats of epoch 0" in row.text for row in rows)
        page = (await asyncio.to_thread(HttpLedgerSource(url)._ask, "/metrics"))[2].decode()
        seen = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        assert int(seen["farflung_ledger_height"]) >= height
        assert seen["farflung_ledger_transactions_total"] == "2"
        assert int(seen["farflung_ledger_view"]) >= 1
        assert int(seen["farflung_ledger_finality_seconds_count"]) >= height
        assert page.count("peer_lag_blocks{") == 3

    run(tmp_path, body)


def test_a_relay_checks_its_channels_though_the_first_validator_is_gone(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        client = made.client()
        await client.submit(ChannelOpen(BOB.public, 1_000, 5, (await client.head()).header.time + 60_000))
        await made.stop(0)
        first, *others = [(peer, host, port) for peer, (host, port) in made.places.items()]
        link = RelayLedgerLink(BOB, [first, *others])
        try:
            await link.gate(5)
            assert link._ledger is not None
            channel = await link._ledger.channel(ALICE.public, BOB.public)
            assert channel is not None
            assert (channel.price, channel.held) == (5, 1_000)
        finally:
            await link.close()

    run(tmp_path, body)
