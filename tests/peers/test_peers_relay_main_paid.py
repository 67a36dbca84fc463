"""`farflung relay` with a ledger: a process that is paid, beside a validator that is a process, too."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from farflung.app.cli import relay
from farflung.app.cli.relay import read_or_make_key
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError, ProtocolError, UsageError
from farflung.core.money import format_credits
from farflung.core.relay_passes import GIB, cost
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import ChannelRow
from farflung.ledger.transactions import KeyCertify, KeyRevoke, Transfer
from farflung.net.certificates import FOREVER, Credential, certify
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.peers.ledger_client.client import LedgerClient, genesis_from
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer
from farflung.peers.network.operator_folder import write_seat
from farflung.peers.process.child import ChildProcess
from farflung.peers.relay.ledger_link import RelayLedgerLink

VALIDATOR, PAYER, ALICE, BOB = (local_key(14, name) for name in ("validator", "payer", "alice", "bob"))
RICH, FEE, PRICE = 1 << 30, 100, GIB // 2
NODE = local_key(14, "node")
BULK = bytes(1 << 18)
BULK_COST = cost(2 * len(BULK), PRICE)
END = 86_400_000  # of the channel, ms

Place = tuple[str, int]


async def echo(_: Connection, __: str, body: bytes) -> bytes:
    return body


class World:
    """A validator, and what a test starts beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = read_or_make_key(folder / "relay.key")
        accounts = tuple((key.public, RICH) for key in (PAYER, ALICE, self.key))
        self.genesis = Genesis("tolls", 0, accounts, (VALIDATOR.public,), LedgerParams(fee_min=FEE))
        self.ledger: Place = ("", 0)
        self.payer, self.bob = (Endpoint(key, echo, ByteCounter()) for key in (PAYER, BOB))
        self.alice = Endpoint(Credential(NODE, certify(ALICE, NODE.public, 1)), echo, ByteCounter())
        self.relay: asyncio.subprocess.Process | None = None
        self.place: Place = ("", 0)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[World]:
        config = write_seat(self.folder / "seat", VALIDATOR, self.genesis, {"port": 0, "local": True})
        child = await ChildProcess.start("ledger", "validator", config, self.folder / "log", lambda _, __: None)
        try:
            ready = await child.first
            self.ledger = (ready["host"], ready["port"])
            yield self
        finally:
            for each in (self.payer, self.alice, self.bob):
                await each.close()
            if self.relay is not None and self.relay.returncode is None:
                self.relay.kill()
                await self.relay.wait()
            await child.stop()

    def client(self, key: SigningKey) -> LedgerClient:
        return LedgerClient(self.reach, key, self.genesis)

    async def reach(self) -> Connection:
        return await self.payer.dial(VALIDATOR.public, *self.ledger)

    async def start(self, *words: str, key: str = VALIDATOR.public.hex()) -> dict[str, Any]:
        """The verb in a process, with its first line."""
        ledger = f"{self.ledger[0]}:{self.ledger[1]},{key}"
        flags = ["--port", "0", "--json", "--key", str(self.folder / "relay.key"), "--ledger", ledger, *words]
        self.relay = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "farflung.app.cli.main", "relay", *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.relay.stdout is not None
        line = await self.relay.stdout.readline()
        assert line, (await self.relay.communicate())[1].decode()
        said: dict[str, Any] = msgspec.json.decode(line)
        await self.meet((said["host"], said["port"]))
        return said

    async def meet(self, place: Place) -> None:
        """Bob is found at this relay."""
        self.place = place
        self.bob.attach(self.key.public, *place)
        await self.bob.attached()

    async def end(self) -> list[dict[str, Any]]:
        """Ctrl-C, and what it says then."""
        assert self.relay is not None
        self.relay.send_signal(signal.SIGINT)
        out, errors = await self.relay.communicate()
        assert (self.relay.returncode, errors) == (0, b"")
        return [msgspec.json.decode(line) for line in out.splitlines()]

    async def open_channel(self, end: int = END) -> RelayChannelPayer:
        payer = RelayChannelPayer(PAYER, self.payer, self.client(PAYER), self.key.public, self.place)
        await payer.open(10_000_000, PRICE, end)
        self.alice.payer.put(await payer.admit((ALICE.public, BOB.public), 1 << 30))
        return payer

    async def register(self) -> None:
        """Alice's node key, without which the ledger takes no receipt by it."""
        await self.client(ALICE).submit(KeyCertify(NODE.public, 1, FOREVER, 0))

    async def dial(self) -> Connection:
        return await self.alice.dial(BOB.public, *self.place, relay=self.key.public)

    async def send(self) -> None:
        """Bytes there and back, for which Alice has signed; Bob signs when the relay asks."""
        assert await (await self.dial()).call("x", BULK) == BULK
        await self.alice.payer.sign(self.key.public)

    async def channel(self) -> ChannelRow:
        row = await self.client(PAYER).channel(PAYER.public, self.key.public)
        assert row is not None
        return row

    async def balance(self) -> int:
        return (await self.client(PAYER).account(self.key.public)).balance


def run(folder: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120), World(folder).open() as world:
            await test(world)

    asyncio.run(bounded())


def test_a_relay_with_a_price_carries_for_a_pass_only_and_is_paid_when_the_payer_is_done(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        assert (await world.start("--price", format_credits(PRICE), "--circuit-rate", "400"))["price"] == PRICE
        with pytest.raises(NetworkError):
            await world.dial()
        payer = await world.open_channel()
        await world.register()
        await world.send()
        await payer.settle()
        row = await world.channel()
        assert not row.is_open
        assert row.carried >= 2 * len(BULK)
        assert row.paid == cost(row.carried, PRICE)
        assert await world.balance() == RICH + row.paid - 2 * FEE
        paid, last = await world.end()
        assert paid == {"payer": PAYER.public.hex(), "carried": row.carried, "paid": row.paid}
        assert (last["carried"], last["earned"]) == (row.carried, row.paid)
        assert last["forwarded"] >= row.carried

    run(tmp_path, test)


@pytest.mark.slow
def test_a_relay_that_ends_claims_what_is_signed(tmp_path: Path) -> None:
    """Its books end with it; the payer never said that it is done."""

    async def test(world: World) -> None:
        await world.start("--price", format_credits(PRICE))
        await world.open_channel()
        await world.register()
        await world.send()
        paid, last = await world.end()
        row = await world.channel()
        assert (row.is_open, row.paid) == (False, last["earned"])
        assert row.carried == paid["carried"] >= 2 * len(BULK)

    run(tmp_path, test)


@pytest.mark.whole
def test_a_relay_that_was_killed_claims_when_it_is_back_and_never_twice(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.start("--price", format_credits(PRICE))
        payer = await world.open_channel()
        await world.register()
        await world.send()
        await world.bob.payer.sign(world.key.public)
        (file,) = (tmp_path / "relay.key.till").glob("*.pass")
        while file.stat().st_size < 700:  # noqa: ASYNC110 - a pass and two receipts; a file has no event
            await asyncio.sleep(0.05)
        assert world.relay is not None
        world.relay.kill()
        await world.relay.wait()
        kept = file.read_bytes()
        await world.start("--price", format_credits(PRICE), "--port", str(world.place[1]))
        paid, _ = await world.end()
        row = await world.channel()
        assert row.carried == paid["carried"] >= 2 * len(BULK)
        assert not file.exists()
        file.write_bytes(kept)  # as if it had died between the claim and this
        await world.start("--price", format_credits(PRICE), "--port", str(world.place[1]))
        await payer.open(10_000_000, PRICE, END)
        (last,) = await world.end()
        assert last["earned"] == 0
        assert (await world.channel()).is_open
        assert not file.exists()

    run(tmp_path, test)


def test_a_receipt_by_a_node_key_that_the_ledger_does_not_know_is_not_taken(tmp_path: Path) -> None:
    """It could never be claimed: who signs so is carried no further than a window."""

    async def test(world: World) -> None:
        await world.start("--price", format_credits(PRICE))
        payer = await world.open_channel()
        assert await (await world.dial()).call("x", BULK) == BULK
        with pytest.raises(NetworkError, match="FF-NET-141"):
            await world.alice.payer.sign(world.key.public)
        await payer.settle()
        assert (await world.channel()).paid == 0
        await world.end()

    run(tmp_path, test)


@pytest.mark.slow
def test_a_receipt_by_a_key_that_is_withdrawn_meanwhile_spoils_no_claim(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.start("--price", format_credits(PRICE))
        payer = await world.open_channel()
        await world.register()
        await world.send()
        await world.client(ALICE).submit(KeyRevoke(1))
        await payer.settle()
        assert not (await world.channel()).is_open
        await world.end()

    run(tmp_path, test)


def test_a_relay_claims_from_a_channel_that_is_over(tmp_path: Path) -> None:
    """Its payer went without a word; the grace is the relay's time to claim."""

    async def test(world: World) -> None:
        desk = RelayLedgerLink(world.key, [(VALIDATOR.public, *world.ledger)])
        server = RelayServer(world.key, gate=await desk.gate(PRICE))
        try:
            await world.meet(await server.start())
            await world.register()
            await world.open_channel((await world.client(PAYER).head()).header.time + 3 * LOGICAL_MS)
            await world.send()
            await desk.collect()
            assert (await world.channel()).is_open
            for _ in range(3):  # blocks, and with them time
                await world.client(PAYER).submit(Transfer(BOB.public, 1))
            await desk.collect()
            row = await world.channel()
            assert not row.is_open
            assert row.paid == cost(row.carried, PRICE) >= BULK_COST
            assert await desk.settle() == []
        finally:
            await server.close()
            await desk.close()

    run(tmp_path, test)


@pytest.mark.whole
def test_a_relay_follows_the_ledgers_registry_with_and_without_a_price(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.start()
        connection = await world.dial()
        assert await connection.call("x", b"1") == b"1"
        client = LedgerClient(lambda: world.alice.dial(VALIDATOR.public, *world.ledger), ALICE, world.genesis)
        await client.submit(KeyRevoke(1))
        await connection.closed()
        with pytest.raises(NetworkError):
            await world.dial()
        await world.end()

    run(tmp_path, test)


def test_a_relay_that_cannot_pay_fees_or_meets_a_stranger_as_its_ledger_does_not_start(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        poor = RelayLedgerLink(local_key(14, "poor"), [(VALIDATOR.public, *world.ledger)])
        with pytest.raises(UsageError, match="FF-APP-143"):
            await poor.gate(PRICE)
        await poor.close()

        async def stranger(connection: Connection, method: str, body: bytes) -> bytes:
            return await (await world.reach()).call(method, body)

        other = Endpoint(BOB, stranger, ByteCounter())
        at = await other.start()
        wrong = RelayLedgerLink(world.key, [(BOB.public, *at)])
        with pytest.raises(ProtocolError, match="FF-APP-144"):
            await wrong.gate(PRICE)
        await wrong.close()
        await other.close()
        assert await genesis_from(world.reach, VALIDATOR.public) == world.genesis

    run(tmp_path, test)


@pytest.mark.parametrize(
    "words",
    [
        ("--price", "5"),
        ("--price", "0", "--ledger", "h:1," + "ab" * 32),
        ("--ledger", "h:1"),
        ("--ledger", "x"),
        ("--circuit-rate", "nan"),
    ],
)
def test_flags_that_do_not_fit_together_are_not_understood(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(relay.relay, ["--key", str(tmp_path / "relay.key"), *words])
    assert done.exit_code == 2
    assert os.listdir(tmp_path) == []
