"""A validator that dies costs its clients time and nothing else: no transaction twice, no node unlisted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_SPEC, SigningKey, digest, local_key
from farflung.core.errors import NetworkError, RunError
from farflung.ledger import queries
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import NodeLeave, Transfer
from farflung.market.provider_offer import Capabilities
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.protocol.directory import LIST, PUBLISH, DirectoryListing, advertise, read_directory
from farflung.peers.validator.requests import DIRECTORY_BYTES, LedgerRequestHandler

VALIDATOR, ALICE, BOB = (local_key(9, name) for name in ("validator", "alice", "bob"))
MONEY, FEE = 1_000_000, 10
GENESIS = Genesis(
    "restart",
    0,
    tuple((key.public, MONEY) for key in (VALIDATOR, ALICE, BOB)),
    (VALIDATOR.public,),
    LedgerParams(fee_min=FEE),
)
CAPS = digest(NS_SPEC, b"caps")
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")


async def deaf(_: Connection, __: str, ___: bytes) -> bytes:
    return b""


class Ledger:
    """A validator that can be ended and started again from its folder on its port.

    `dies_after` counts down the submissions that reach it; the last one is committed, and its answer never sent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.dies_after, self.submissions = folder, 0, -1, 0
        self.client_side = Endpoint(ALICE, deaf, ByteCounter())
        self.store: LedgerStore | None = None
        self.server: Endpoint | None = None
        self.ended: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.store = LedgerStore.open(self.folder / "chain.db", GENESIS)
        directory = self.folder / "directory.bin"
        self.validator = LedgerRequestHandler(
            self.store.load(VALIDATOR), self.store, is_local=True, directory=directory
        )
        self.server = Endpoint(VALIDATOR, self.handle, ByteCounter(), listen=ListenConfig(port=self.port))
        _, self.port = await self.server.start()

    async def end(self) -> None:
        assert self.server is not None
        assert self.store is not None
        await self.server.close()
        self.store.close()

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        answer = await self.validator.handle(connection, method, body)
        if method == "ledger.query" and isinstance(queries.read_query(body), queries.SubmitRequest):
            self.submissions += 1
            self.dies_after -= 1
            if self.dies_after == 0:
                self.ended = asyncio.create_task(self.again())
                await asyncio.Event().wait()  # until the connection is gone
        return answer

    async def again(self) -> None:
        await self.end()
        await self.start()

    async def reach(self) -> Connection:
        return await self.client_side.dial(VALIDATOR.public, "127.0.0.1", self.port)

    def client(self, patience: float = 30.0) -> LedgerClient:
        return LedgerClient(self.reach, ALICE, GENESIS, patience)


def run(folder: Path, body: Callable[[Ledger], Awaitable[None]]) -> None:
    async def scenario() -> None:
        ledger = Ledger(folder)
        await ledger.start()
        try:
            async with asyncio.timeout(60):
                await body(ledger)
        finally:
            await ledger.client_side.close()
            await ledger.end()

    asyncio.run(scenario())


def test_a_transaction_whose_answer_was_lost_happens_once(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        client = ledger.client()
        ledger.dies_after = 1
        await client.submit(Transfer(BOB.public, 7))
        assert ledger.submissions == 2  # the very same one: a new nonce would have paid twice
        assert (await client.account(BOB.public)).balance == MONEY + 7
        alice = await client.account(ALICE.public)
        assert (alice.balance, alice.nonce) == (MONEY - 7 - FEE, 1)
        assert len(await client.blocks()) == 1

    run(tmp_path, body)


def test_a_refusal_is_a_refusal_even_when_it_is_heard_at_the_second_try(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        ledger.dies_after = 1
        with pytest.raises(RunError, match="FF-APP-070"):
            await ledger.client().submit(NodeLeave())  # no node to leave

    run(tmp_path, body)


def test_questions_wait_for_a_validator_that_is_away_but_not_for_ever(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        client = ledger.client()
        await client.head()
        await ledger.end()
        asked = asyncio.create_task(client.account(BOB.public))
        with pytest.raises(NetworkError, match="FF-NET-043"):
            await ledger.client(patience=0.0).head()
        assert not asked.done()
        await ledger.start()
        assert (await asked).balance == MONEY

    run(tmp_path, body)


def test_a_validator_that_was_killed_lists_the_same_nodes(tmp_path: Path) -> None:
    async def body(ledger: Ledger) -> None:
        client = ledger.client()
        await client.register(CAPS, 1, 100, 10**9)
        said = advertise(ALICE, issue(ALICE.public, (EndpointAddress("127.0.0.1", 4711),), time.time()), FACTS)
        await (await ledger.reach()).call(PUBLISH, encode(said))
        before = await (await ledger.reach()).call(LIST, b"")
        await ledger.again()
        after = await (await ledger.reach()).call(LIST, b"")
        assert before == after
        assert decode(after, DirectoryListing, limits.CONTROL_BYTES).advertisements == (encode(said),)

    run(tmp_path, body)


def stored(folder: Path, *keys: SigningKey) -> Path:
    path = folder / "directory.bin"
    record = issue(ALICE.public, (EndpointAddress("127.0.0.1", 4711),), time.time())
    path.write_bytes(encode(DirectoryListing.of(advertise(key, record, FACTS) for key in keys)))
    return path


def test_a_stored_directory_is_believed_only_where_the_node_signed(tmp_path: Path) -> None:
    good = stored(tmp_path, ALICE)
    now = time.time()
    assert len(read_directory(good, DIRECTORY_BYTES, now)) == 1
    assert read_directory(good, DIRECTORY_BYTES, now + 3600) == ()
    assert len(read_directory(stored(tmp_path, ALICE, BOB), DIRECTORY_BYTES, now)) == 1
    assert read_directory(stored(tmp_path, BOB), DIRECTORY_BYTES, now) == ()
    good.write_bytes(b"\xff" + good.read_bytes())
    assert read_directory(good, DIRECTORY_BYTES, now) == ()
    assert read_directory(tmp_path / "none", DIRECTORY_BYTES, now) == ()


def test_a_stored_node_that_is_not_on_the_ledger_is_not_listed(tmp_path: Path) -> None:
    stored(tmp_path, ALICE)

    async def body(ledger: Ledger) -> None:
        listed = await (await ledger.reach()).call(LIST, b"")
        assert decode(listed, DirectoryListing, limits.CONTROL_BYTES).advertisements == ()

    run(tmp_path, body)
