"""Hostile clients of a validator: forged, replayed and malformed requests get an answer, and the ledger goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_world import hostile_bodies, hostile_values, refusal, within

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_SPEC, NS_TX, SigningKey, digest, local_key
from farflung.core.errors import RunError
from farflung.core.ids import Hash
from farflung.ledger import queries, transactions
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.params import LedgerParams
from farflung.ledger.state_transition import total_money
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, FailedResult, RejectedResult
from farflung.market.provider_offer import Capabilities
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import MessageKind
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.quorum_read import QUERY
from farflung.peers.protocol import directory
from farflung.peers.protocol.directory import Advertisement, DirectoryListing, advertise
from farflung.peers.validator import requests as role
from farflung.peers.validator.requests import LedgerRequestHandler

replace = msgspec.structs.replace

VALIDATOR, ALICE, NODE, EVE = (local_key(4, name) for name in ("validator", "alice", "node", "eve"))
START, MONEY, FEE = 5_000, 1_000_000, 10
GENESIS = Genesis(
    "attack",
    START,
    tuple((key.public, MONEY) for key in (VALIDATOR, ALICE, NODE, EVE)),
    (VALIDATOR.public,),
    LedgerParams(fee_min=FEE),
)
NOW = 1_700_000_000.5
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")
CAPS = digest(NS_SPEC, b"caps")


async def _deaf(_connection: Connection, _method: str, _body: bytes) -> bytes:
    return b""


class Scene:
    """A validator, and clients with a key each."""

    def __init__(self, folder: Path) -> None:
        self.store = LedgerStore.open(folder / "chain.db", GENESIS)
        self.chain = self.store.load(VALIDATOR)
        self.now = NOW
        validator = LedgerRequestHandler(self.chain, self.store, is_local=True, clock=lambda: self.now)
        self.server = Endpoint(VALIDATOR, validator.handle, ByteCounter())
        self.clients = {key.public: Endpoint(key, _deaf, ByteCounter()) for key in (ALICE, NODE, EVE)}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scene]:
        await self.server.start()
        try:
            yield self
        finally:
            for endpoint in (*self.clients.values(), self.server):
                await endpoint.close()
            self.store.close()

    async def reach(self, key: SigningKey) -> Connection:
        return await self.clients[key.public].dial(VALIDATOR.public, *self.server.address)

    async def refused(self, key: SigningKey, method: str, body: bytes, kind: MessageKind = MessageKind.CONTROL) -> str:
        return await refusal((await self.reach(key)).call(method, body, kind=kind, timeout=60))

    async def ask(self, query: queries.Query) -> Any:
        reply = await (await self.reach(EVE)).call(QUERY, encode(query))
        return queries.read_reply(reply)

    async def submit(self, *txs: transactions.SignedTx) -> tuple[Any, ...]:
        results: tuple[Any, ...] = (await self.ask(queries.SubmitRequest(txs))).results
        return results

    def client(self, key: SigningKey) -> LedgerClient:
        return LedgerClient(lambda: self.reach(key), key, GENESIS)

    def transfer(self, nonce: int = 0, amount: int = 5, **changes: Any) -> transactions.SignedTx:
        """Alice pays Eve, well signed."""
        made = transactions.make_tx(
            GENESIS.chain, ALICE.public, nonce, transactions.Transfer(EVE.public, amount), fee=FEE
        )
        return transactions.sign_tx(ALICE, replace(made, **changes))

    async def serves(self) -> None:
        """An honest client's transaction is applied, money is whole, and the file replays."""
        client = self.client(ALICE)
        before = (await client.account(ALICE.public)).balance
        await client.submit(transactions.Transfer(NODE.public, 1))
        assert (await client.account(ALICE.public)).balance == before - 1 - FEE
        assert total_money(self.chain.state) == 4 * MONEY
        assert self.store.load(VALIDATOR).head == self.chain.head
        answered = await (await self.reach(EVE)).call(directory.LIST, b"")
        assert decode(answered, DirectoryListing, limits.CONTROL_BYTES) is not None


@pytest.fixture
def against(tmp_path: Path) -> Callable[[Any], None]:
    """Runs an attack; afterwards the validator must serve."""

    def run(attack: Any) -> None:
        async def test() -> None:
            async with Scene(tmp_path).open() as scene:
                await attack(scene)
                await scene.serves()

        within(20, test)

    return run


def forged(signed: transactions.SignedTx, signature: bytes) -> transactions.SignedTx:
    return replace(signed, signature=signature)


def test_what_the_sender_did_not_sign_is_rejected_and_makes_no_block(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        good = scene.transfer()
        eves = EVE.sign(NS_TX, encode(good.tx))
        for bad, code in {
            forged(good, b""): "FF-LEDG-001",
            forged(good, bytes(64)): "FF-LEDG-002",
            forged(good, eves): "FF-LEDG-002",
            replace(good, tx=replace(good.tx, ops=(transactions.Transfer(EVE.public, 6),))): "FF-LEDG-002",
            scene.transfer(chain=Hash(bytes(32))): "FF-LEDG-003",
            scene.transfer(nonce=7): "FF-LEDG-004",
            scene.transfer(expires=1): "FF-LEDG-005",
            scene.transfer(fee=FEE - 1): "FF-LEDG-006",
            scene.transfer(fee=MONEY + 1): "FF-LEDG-006",
            scene.transfer(version=2): "FF-LEDG-001",
            scene.transfer(amount=-1): "FF-LEDG-001",
            scene.transfer(ops=()): "FF-LEDG-001",
            scene.transfer(ops=(transactions.NodeLeave(),) * (limits.TX_OPS + 1)): "FF-LEDG-001",
        }.items():
            (result,) = await scene.submit(bad)
            assert isinstance(result, RejectedResult)
            assert result.code == code
        assert scene.chain.head.height == 0

    against(attack)


def test_a_transaction_counts_once_whoever_sends_it_again(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        good = scene.transfer()
        first, second = await scene.submit(good, good)
        assert isinstance(first, AppliedResult)
        assert isinstance(second, RejectedResult)
        (again,) = await scene.submit(good)
        assert isinstance(again, AlreadyAppliedResult)
        assert (await scene.client(EVE).account(EVE.public)).balance == MONEY + 5
        assert scene.chain.head.height == 1

    against(attack)


def test_a_submission_of_nothing_makes_no_block_and_moves_no_clock(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        before = scene.chain.head
        for _ in range(3):
            assert await scene.submit() == ()
        assert scene.chain.head == before

    against(attack)


def test_what_another_owns_cannot_be_spent_left_or_settled(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        job = Hash(bytes(32))
        await scene.client(NODE).register(CAPS, 3, 500, START + 90_000)
        await scene.client(ALICE).submit(transactions.JobCreate(job, 1000, 5, 3, START + 60_000))
        eve = scene.client(EVE)
        for op in (
            transactions.NodeLeave(),
            transactions.JobCancel(job),
            transactions.JobSettle(job),
            transactions.JobFinish(job, CAPS, CAPS),
            transactions.Progress(job, 0, CAPS, CAPS, ((EVE.public, 1000),)),
            transactions.Transfer(EVE.public, MONEY + 1),
        ):
            with pytest.raises(RunError, match="FF-APP-070"):
                await eve.submit(op)
        assert (await scene.client(ALICE).job(job)).escrow == 1000  # type: ignore[union-attr]

    against(attack)


def test_a_flood_of_transactions_keeps_to_the_block(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        made = transactions.make_tx(GENESIS.chain, EVE.public, 0, transactions.Transfer(ALICE.public, 1), fee=FEE)
        flood = tuple(forged(transactions.SignedTx(replace(made, nonce=i), b""), b"") for i in range(300))
        results = await scene.submit(*flood)
        assert {type(result) for result in results} == {RejectedResult}
        mine = tuple(transactions.sign_tx(EVE, replace(made, nonce=i)) for i in range(40))
        assert {type(result) for result in await scene.submit(*mine)} == {AppliedResult}
        poor = transactions.sign_tx(EVE, replace(made, nonce=40, ops=(transactions.Transfer(ALICE.public, MONEY),)))
        (failed,) = await scene.submit(poor)
        assert isinstance(failed, FailedResult)

    against(attack)


def test_huge_and_odd_questions_are_answered_or_refused(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        edge = b"x" * (limits.CONTROL_BYTES - 100)
        top = (1 << 63) - 1
        for query in (
            queries.GetAccount(edge),  # type: ignore[arg-type]
            queries.GetLeases(edge),  # type: ignore[arg-type]
            queries.GetTx(edge),  # type: ignore[arg-type]
            queries.GetReceipt("nodes", edge),
            queries.GetReceipt("x" * 100_000, b""),
            queries.GetNodes(top),
            queries.GetNodes(-top),
            queries.GetBlocks(top),
            queries.GetBlocks(-top),
        ):
            assert await scene.refused(EVE, QUERY, encode(query)) in ("ok", "FF-NET-030")
        assert await scene.refused(EVE, QUERY, bytes(limits.CONTROL_BYTES)) == "FF-CORE-021"
        assert await scene.refused(EVE, QUERY, b"\x93" * limits.CONTROL_BYTES) == "FF-CORE-021"
        assert await scene.refused(EVE, QUERY, b"", MessageKind.SYNC) == "FF-CORE-021"

    against(attack)


@pytest.mark.parametrize("method", ["ledger.commit", "directory.clear", "lease.propose", "store.put", "x"])
def test_an_unknown_method_is_refused(against: Any, method: str) -> None:
    async def attack(scene: Scene) -> None:
        assert await scene.refused(EVE, method, b"") == "FF-APP-030"

    against(attack)


def said(key: SigningKey, port: int = 1, now: float = NOW, **facts: Any) -> Advertisement:
    record = issue(key.public, (EndpointAddress("127.0.0.1", port),), now)
    return advertise(key, record, replace(FACTS, **facts))


def test_nobody_advertises_for_another_key(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.client(NODE).register(CAPS, 3, 500, START + 90_000)
        await scene.client(EVE).register(CAPS, 3, 500, START + 90_000)
        publish = directory.PUBLISH
        assert await scene.refused(NODE, publish, encode(said(NODE))) == "ok"
        mixed = replace(said(EVE), endpoint=said(NODE).endpoint)
        for bad in (
            said(NODE),
            mixed,
            replace(said(EVE), signature=b""),
            replace(said(EVE, 2), endpoint=said(EVE).endpoint),
        ):
            assert await scene.refused(EVE, publish, encode(bad)) == "FF-APP-032"
        listing = decode(await (await scene.reach(EVE)).call(directory.LIST, b""), DirectoryListing, 10**6)
        assert listing == DirectoryListing.of([said(NODE)])

    against(attack)


def test_what_has_expired_is_neither_taken_nor_listed(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.client(NODE).register(CAPS, 3, 500, START + 90_000)
        publish = directory.PUBLISH
        assert await scene.refused(NODE, publish, encode(said(NODE, now=NOW - 700))) == "FF-NET-110"
        assert await scene.refused(NODE, publish, encode(said(NODE, now=NOW + 90))) == "FF-NET-111"
        assert await scene.refused(NODE, publish, encode(said(NODE))) == "ok"
        assert await scene.refused(NODE, publish, encode(said(NODE, now=NOW - 5))) == "FF-NET-112"
        for later, listed in ((600, (said(NODE),)), (700, ())):
            scene.now = NOW + later
            listing = decode(await (await scene.reach(EVE)).call(directory.LIST, b""), DirectoryListing, 10**6)
            assert listing == DirectoryListing.of(listed)
        assert await scene.refused(NODE, publish, encode(said(NODE))) == "FF-NET-110"

    against(attack)


def test_only_nodes_of_the_ledger_take_places_in_the_directory(against: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "DIRECTORY_SIZE", 1)

    async def attack(scene: Scene) -> None:
        assert await scene.refused(EVE, directory.PUBLISH, encode(said(EVE))) == "FF-APP-072"
        for key in (NODE, EVE):
            await scene.client(key).register(CAPS, 3, 500, START + 90_000)
        assert await scene.refused(NODE, directory.PUBLISH, encode(said(NODE))) == "ok"
        assert await scene.refused(EVE, directory.PUBLISH, encode(said(EVE))) == "FF-APP-031"
        assert await scene.refused(NODE, directory.PUBLISH, encode(said(NODE, 9))) == "ok"  # its own place

    against(attack)


def test_a_full_directory_can_still_be_listed(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.client(EVE).register(CAPS, 3, 500, START + 90_000)
        assert await scene.refused(EVE, directory.PUBLISH, encode(said(EVE, system="x" * 1000))) == "FF-CORE-020"
        most = role.ADVERTISEMENT_BYTES - len(encode(said(EVE, system="x" * 256))) + 256
        largest = said(EVE, system="x" * most)
        assert len(encode(largest)) == role.ADVERTISEMENT_BYTES
        assert await scene.refused(EVE, directory.PUBLISH, encode(largest)) == "FF-APP-653"  # text of 64 characters
        assert await scene.refused(EVE, directory.PUBLISH, encode(said(EVE, system="x" * 64))) == "ok"
        assert len(encode(DirectoryListing.of((largest,) * role.DIRECTORY_SIZE))) <= limits.CONTROL_BYTES

    against(attack)


def test_no_body_makes_a_validator_stumble(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.client(EVE).register(CAPS, 3, 500, START + 90_000)
        real: dict[str, list[Any]] = {
            QUERY: [
                queries.GetHead(),
                queries.GetAccount(EVE.public),
                queries.GetNodes(0),
                queries.GetLeases(CAPS),
                queries.GetReceipt("nodes", EVE.public),
                queries.GetBlocks(1),
                queries.GetTx(CAPS),
                queries.SubmitRequest((scene.transfer(),)),
            ],
            directory.PUBLISH: [said(EVE)],
            directory.LIST: [said(EVE)],
            "ledger.unknown": [said(EVE)],
        }
        bodies = [
            (method, body)
            for method, values in real.items()
            for seed, value in enumerate(values)
            for body in (*hostile_bodies(encode(value), seed, 6), *hostile_values(value))
        ]
        signed = scene.transfer(nonce=99)
        deep = [encode(replace(signed, tx=replace(signed.tx, **{f: v}))) for f, v in _odd(signed.tx)]
        bodies += [(QUERY, encode(["submit", [msgspec.Raw(body)]])) for body in deep]
        for start in range(0, len(bodies), 64):
            calls = [scene.refused(EVE, method, body) for method, body in bodies[start : start + 64]]
            await asyncio.gather(*calls)

    against(attack)


def _odd(made: transactions.Tx) -> list[tuple[str, Any]]:
    numbers = (-1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1)
    fields = ("version", "nonce", "expires", "fee")
    odd: list[tuple[str, Any]] = [(field, number) for field in fields for number in numbers]
    return [*odd, ("sender", b""), ("sender", bytes(32)), ("chain", b"x"), ("ops", made.ops * 1000)]
