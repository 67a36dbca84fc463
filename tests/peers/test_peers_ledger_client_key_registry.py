"""Node keys on a real ledger, followed over real sockets: rotation keeps what is open, revocation cuts it off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from role_configs import node_config

from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.table_rows import KeyRow
from farflung.ledger.transactions import KeyCertify, KeyRevoke
from farflung.net.certificates import FOREVER, Credential, certify
from farflung.net.counters import ByteCounter
from farflung.net.io import relay_dialer
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.node_keyring import Keyring
from farflung.peers.keys.files import read_own, write_own
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower, first_key, registered, rotate
from farflung.peers.process.config import KeyFile
from farflung.peers.validator.requests import LedgerRequestHandler

VALIDATOR, ALICE, BOB, RELAY = (local_key(12, name) for name in ("validator", "alice", "bob", "relay"))
NODES = [local_key(12, "node", i) for i in range(5)]
NOW = 1_800_000_000
GENESIS = Genesis("keys", 0, tuple((key.public, 1000) for key in (ALICE, BOB)), (VALIDATOR.public,))
LOOK_SECONDS = 0.02


async def echo(_: Connection, __: str, body: bytes) -> bytes:
    return body


def own(epoch: int) -> Credential:
    """Alice's node key of an epoch."""
    return Credential(NODES[epoch], certify(ALICE, NODES[epoch].public, epoch))


class World:
    """A validator; a relay and Bob, who follow the registry; Alice's owner, who proves her account's key."""

    def __init__(self, folder: Path) -> None:
        self.now, self.folder = NOW, folder
        self.store = LedgerStore.open(folder / "chain.db", GENESIS)
        self.chain = self.store.load(VALIDATOR)
        served = LedgerRequestHandler(self.chain, self.store, is_local=True)
        self.validator = Endpoint(VALIDATOR, served.handle, ByteCounter(), admission=Admission(clock=self.clock))
        self.relay = RelayServer(RELAY, admission=Admission(clock=self.clock))
        self.bob = Endpoint(BOB, echo, ByteCounter(), admission=Admission(clock=self.clock))
        self.owner = Endpoint(ALICE, echo, ByteCounter(), admission=Admission(clock=self.clock))
        self.opened: list[Endpoint] = [self.owner, self.bob]
        self.tasks: list[asyncio.Task[None]] = []

    def clock(self) -> float:
        return self.now

    @asynccontextmanager
    async def open(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
        monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=self.clock))
        await self.validator.start()
        await self.relay.start()
        await self.bob.start()
        self.bob.attach(RELAY.public, *self.relay.address)
        await self.bob.attached()
        for endpoint, recheck in ((self.bob, self.bob.recheck), (self.relay.endpoint, self.relay.recheck)):
            follower = KeyRegistryFollower(self.reaching(endpoint), endpoint.admission.keyring, recheck)
            self.tasks.append(asyncio.create_task(follower.stay(lambda: LOOK_SECONDS)))
        try:
            yield self
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            for each in self.opened:
                await each.close()
            await self.relay.close()
            await self.validator.close()
            self.store.close()

    def reaching(self, endpoint: Endpoint) -> Callable[[], Awaitable[Connection]]:
        return lambda: endpoint.dial(VALIDATOR.public, *self.validator.address)

    def client(self, endpoint: Endpoint, key: SigningKey = ALICE) -> LedgerClient:
        return LedgerClient(self.reaching(endpoint), key, GENESIS)

    def machine(self, credential: Credential) -> Endpoint:
        """One more computer that is not followed up by anybody."""
        made = Endpoint(credential, echo, ByteCounter(), admission=Admission(clock=self.clock))
        self.opened.append(made)
        return made

    async def direct(self, endpoint: Endpoint) -> Connection:
        return await endpoint.dial(BOB.public, *self.bob.address)

    async def relayed(self, endpoint: Endpoint) -> Connection:
        return await endpoint.dial(BOB.public, *self.relay.address, relay=RELAY.public)

    async def everybody_knows(self, is_so: Callable[[Keyring], bool]) -> None:
        while not all(is_so(each) for each in (self.bob.admission.keyring, self.relay.admission.keyring)):  # noqa: ASYNC110 - no event
            await asyncio.sleep(LOOK_SECONDS)


@pytest.fixture
def within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run(test: Callable[[World], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60), World(tmp_path).open(monkeypatch) as world:
                await test(world)

        asyncio.run(bounded())

    return run


Within = Callable[[Callable[[World], Awaitable[None]]], None]


def is_refused(epoch: int, now: float = NOW) -> Callable[[Keyring], bool]:
    return lambda keyring: not keyring.counts(own(epoch).identity, now)


@pytest.mark.guarantee
def test_a_revocation_cuts_an_open_connection_and_an_open_circuit_and_lets_none_be_opened(within: Within) -> None:
    async def test(world: World) -> None:
        client = world.client(world.owner)
        await client.submit(*first_key(own(1)))
        machine, second = world.machine(own(1)), world.machine(own(1))
        connection, circuit = await world.direct(machine), await world.relayed(second)
        for each in (connection, circuit):
            assert await each.call("echo", b"x") == b"x"
        assert world.relay.recheck() == 0
        world.tasks[0].cancel()  # Bob hears of nothing: that circuit is the relay's to cut
        await client.submit(KeyRevoke(1))
        await circuit.closed()
        with pytest.raises(NetworkError, match=r"FF-NET-072.*does not count"):
            await world.relayed(second)
        assert await connection.call("echo", b"y") == b"y"
        await KeyRegistryFollower(world.reaching(world.bob), world.bob.admission.keyring, world.bob.recheck).look()
        await connection.closed()
        with pytest.raises(NetworkError, match="FF-NET-045"):
            await world.direct(machine)

    within(test)


def test_a_rotation_keeps_what_is_open_until_its_overlap_ends(within: Within) -> None:
    async def test(world: World) -> None:
        await world.client(world.owner).submit(*first_key(own(1)))
        machine = world.machine(own(1))
        old = await world.direct(machine)
        client = world.client(machine)
        fresh = await rotate(machine, client, ALICE, NODES[2], now=NOW, overlap=600)
        assert fresh.identity.epoch == 2
        assert (await client.keys(ALICE.public)).until == NOW + 600
        await world.everybody_knows(is_refused(1, NOW + 600))
        assert world.bob.admission.keyring.counts(own(1).identity, NOW)
        new = await world.relayed(world.machine(fresh))
        for each in (old, new):
            assert await each.call("echo", b"x") == b"x"
        late = world.machine(own(1))
        await (await world.direct(late)).call("echo", b"x")  # the old key still opens
        world.now += 600
        await old.closed()
        assert await new.call("echo", b"x") == b"x"
        with pytest.raises(NetworkError, match="FF-NET-045"):
            await world.direct(late)
        assert (await world.direct(machine)).is_open

    within(test)


def test_a_key_is_rotated_after_its_revocation_and_its_account_is_back(within: Within) -> None:
    async def test(world: World) -> None:
        await world.client(world.owner).submit(*first_key(own(1)), KeyRevoke(1))
        await world.everybody_knows(is_refused(1))
        machine = world.machine(own(1))
        with pytest.raises(NetworkError, match="FF-NET-045"):
            await world.direct(machine)
        await rotate(machine, world.client(machine), ALICE, NODES[2], now=NOW)
        assert await (await world.direct(machine)).call("echo", b"x") == b"x"
        assert await (await world.relayed(machine)).call("echo", b"x") == b"x"

    within(test)


def test_the_accounts_own_key_is_off_the_wire_once_a_node_key_is_registered(within: Within) -> None:
    async def test(world: World) -> None:
        connection = await world.direct(world.owner)
        await world.client(world.owner).submit(*first_key(own(1)))
        await connection.closed()
        with pytest.raises(NetworkError, match="FF-NET-045"):
            await world.direct(world.owner)

    within(test)


def test_a_refused_rotation_says_so(within: Within) -> None:
    async def test(world: World) -> None:
        machine = world.machine(own(1))
        client = world.client(world.owner)
        await client.submit(*first_key(own(1)))
        with pytest.raises(RunError, match=r"FF-APP-070.*FF-LEDG-087"):
            await rotate(machine, client, ALICE, NODES[1], now=NOW)
        with pytest.raises(ProtocolError, match="FF-NET-106"):
            await rotate(machine, client, BOB, NODES[3], now=NOW)

    within(test)


def test_what_is_known_counts_while_the_ledger_is_away_and_overlaps_end_all_the_same(within: Within) -> None:
    async def test(world: World) -> None:
        await world.client(world.owner).submit(*first_key(own(1)), KeyCertify(NODES[2].public, 2, FOREVER, NOW + 60))
        await world.everybody_knows(is_refused(1, NOW + 60))
        await world.validator.close()
        connection = await world.direct(world.machine(own(1)))
        assert await connection.call("echo", b"x") == b"x"
        world.now += 60
        await connection.closed()
        assert await (await world.direct(world.machine(own(2)))).call("echo", b"x") == b"x"

    within(test)


def test_a_follower_asks_on_where_the_answer_ended(within: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.ledger.queries.PAGE", 2)

    async def test(world: World) -> None:
        client = world.client(world.owner, BOB)
        for epoch in range(1, 8):
            await client.submit(KeyRevoke(epoch))
        await world.client(world.owner).submit(KeyRevoke(3))  # in the last page
        known = Keyring()
        await KeyRegistryFollower(world.reaching(world.owner), known, lambda: 0).look()
        rows = [registered(row) for row in world.chain.state.rows(KeyRow)]
        assert known._known == {row.account: row for row in rows}
        assert len(rows) == 2

    within(test)


def test_a_process_is_given_a_node_key_or_proves_its_accounts_own(tmp_path: Path) -> None:
    mine = own(1)
    write_own(tmp_path / "node.key", mine)
    told = node_config(ALICE, tmp_path, node=KeyFile(read_own(tmp_path / "node.key"), tmp_path))
    assert told.credential.identity == mine.identity
    assert node_config(ALICE, tmp_path).credential == Credential(ALICE)
    assert first_key(Credential(ALICE)) == ()
    assert first_key(mine) == (KeyCertify(PeerId(NODES[1].public), 1, FOREVER, 0),)
