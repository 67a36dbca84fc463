"""Two live copies of one run: the copy that begins later coordinates, the other one moves nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from attack_lease import FACTS, ME, PROPOSAL, Process, Scene
from attack_world import REQUESTER, TERMS, Party, within
from core_asks import scheduled
from msgspec.structs import replace

from farflung.core.crypto import NS_SPEC, digest, local_key
from farflung.core.errors import FarflungError, NetworkError, RunError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import JobState, KeyRow
from farflung.ledger.transactions import (
    JobCoordinate,
    JobCreate,
    JobDraw,
    LeaseOffer,
    NodeRegister,
    Progress,
    coordinator_of,
    sign_offer,
)
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.node import admission
from farflung.peers.node import agent as role
from farflung.peers.protocol import messages
from farflung.peers.requester.ledger_recorder import take_over, until_superseded
from farflung.peers.validator.requests import LedgerRequestHandler
from farflung.train.run_log import CommitmentsRecord, Record, RoundEndRecord

FIRST, SECOND = (JobCoordinate(TERMS.id, n, Hash(bytes([n]) * 32)) for n in (1, 2))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Runs a test on a provider, with the requester's process `home` and a copy of it."""
    monkeypatch.setattr(role, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(role, "start_worker", lambda *_: Process(ME))
    monkeypatch.setattr(admission, "LAG_SECONDS", 0.0)

    def run(test: Any) -> None:
        async def scenario() -> None:
            async with Scene(tmp_path).open() as scene:
                copy = Party(REQUESTER, tmp_path / "copy")
                await copy.endpoint.start()
                try:
                    await test(scene, copy)
                finally:
                    await copy.endpoint.close()

        within(20, scenario)

    return run


def test_a_node_obeys_the_newest_term_and_no_other(node: Any) -> None:
    async def test(scene: Scene, copy: Party) -> None:
        await scene.begin()
        order = messages.TrainRequest(TERMS.id, 0, 0)
        assert await scene.order(messages.TRAIN, order) == "ok"
        assert await scene.refused(copy, messages.TERM, FIRST) == "ok"  # nobody took anything over
        scene.ledger.term = FIRST
        forged = JobCoordinate(TERMS.id, 1, Hash(bytes([7]) * 32))
        assert await scene.refused(copy, messages.TERM, forged) == "FF-APP-604"
        assert await scene.refused(copy, messages.TERM, FIRST) == "ok"
        assert await scene.refused(copy, messages.PROPOSE, PROPOSAL) == "ok"
        assert await scene.refused(copy, messages.START, scene.start) == "ok"
        end = messages.LeaseEndRequest(TERMS.id)
        for method, message in {
            messages.TRAIN: order,
            messages.DROP: messages.DropRoundRequest(TERMS.id, 0),
            messages.OPEN: messages.SegmentOpenRequest(TERMS.id, 0, 1),
            messages.PROPOSE: PROPOSAL,
            messages.START: scene.start,
            messages.END: end,
        }.items():
            assert await scene.order(method, message) == "FF-APP-604"
        assert scene.provider._slot is not None
        assert await scene.refused(copy, messages.TRAIN, order) == "ok"
        scene.ledger.term = SECOND  # the first process took it back
        assert await scene.order(messages.TERM, SECOND) == "ok"
        assert await scene.refused(copy, messages.TRAIN, order) == "FF-APP-604"
        assert await scene.refused(copy, messages.TERM, FIRST) == "FF-APP-604"
        assert await scene.order(messages.TRAIN, order) == "ok"

    node(test)


def test_a_term_gives_a_stranger_nothing(node: Any) -> None:
    async def test(scene: Scene, _copy: Party) -> None:
        await scene.begin()
        scene.ledger.term = FIRST
        assert await scene.order(messages.TERM, FIRST) == "ok"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scene.ledger, "row", None)  # terms that never come: 16 of them would bar the requester's own
            assert await scene.refused(scene.stranger, messages.TERM, SECOND) == "ok"
        scene.ledger.jobs[(made_up := replace(FIRST, job=ZERO_HASH)).job] = None
        assert await scene.refused(scene.stranger, messages.TERM, made_up) == "FF-APP-571"
        order = messages.TrainRequest(TERMS.id, 0, 0)
        assert await scene.refused(scene.stranger, messages.TRAIN, order) == "FF-APP-041"
        assert await scene.order(messages.TRAIN, order) == "ok"

    node(test)


VALIDATOR, OWNER, WORKER = (local_key(4, name) for name in ("validator", "owner", "worker"))
JOB, LATER = digest(NS_SPEC, b"job"), 10**7
ACCOUNTS = tuple((key.public, 10**6) for key in (VALIDATOR, OWNER, WORKER))


def genesis(time: int) -> Genesis:
    return Genesis("two", time, ACCOUNTS, (VALIDATOR.public,), LedgerParams(fee_min=1))


@asynccontextmanager
async def ledger(folder: Path, begun: Genesis) -> AsyncIterator[Callable[[], LedgerClient]]:
    """A ledger with a running job, of which round 0 is drawn; gives clients of its requester."""
    store = LedgerStore.open(folder / "chain.db", begun)
    handler = LedgerRequestHandler(store.load(VALIDATOR), store, is_local=True)
    server = Endpoint(VALIDATOR, handler.handle, ByteCounter())
    ends = {key.public: Endpoint(key, serve_nothing, ByteCounter()) for key in (OWNER, WORKER)}
    await server.start()

    def client(key: Any = OWNER) -> LedgerClient:
        return LedgerClient(lambda: ends[key.public].dial(VALIDATOR.public, *server.address), key, begun)

    try:
        await client(WORKER).submit(NodeRegister(ZERO_HASH, 5, 1000, LATER))
        offer = LeaseOffer(begun.chain, JOB, WORKER.public, 5, 1000, 100, LATER)
        first = client()
        await first.submit(JobCreate(JOB, 10_000, 5, 3, LATER), scheduled(JOB, (sign_offer(WORKER, offer),)))
        await first.submit(JobDraw(JOB, 0, ZERO_HASH))
        yield client
    finally:
        for endpoint in (*ends.values(), server):
            await endpoint.close()
        store.close()


def log(closed: int, committed: int) -> list[Record]:
    made: list[Record] = [CommitmentsRecord(i, (), ()) for i in range(committed)]
    return made + [RoundEndRecord(i, Hash(bytes(32)), ()) for i in range(closed)]


def test_of_two_copies_of_one_age_the_later_one_coordinates(tmp_path: Path) -> None:
    async def test() -> None:
        progress = Progress(JOB, 0, digest(NS_SPEC, b"root"), ZERO_HASH, ((WORKER.public, 1),))
        async with ledger(tmp_path, genesis(1000)) as client:
            old, copy = client(), client()
            taken = await take_over(copy, log(0, 1), await copy.job(JOB))
            assert taken is not None
            assert taken.term == 1
            for op in (progress, JobDraw(JOB, 1, ZERO_HASH)):
                with pytest.raises(RunError, match="FF-APP-605") as raised:
                    await old.submit(op)
                assert "term 1" in raised.value.cause
            await copy.submit(progress)
            await copy.submit(JobDraw(JOB, 1, ZERO_HASH))
            with pytest.raises(RunError, match="FF-APP-560"):  # its log lacks the round that the copy recorded
                await take_over(old, log(0, 1), await old.job(JOB))
            back = await take_over(old, log(1, 2), await old.job(JOB))  # a copy of the newest folder
            assert back is not None
            assert back.term == 2
            with pytest.raises(RunError, match="FF-APP-605"):
                await copy.submit(JobDraw(JOB, 2, ZERO_HASH))
            quick = partial(asyncio.sleep, 0)
            assert (await until_superseded(client(), JOB, taken, lambda _: quick())).code == "FF-APP-605"
            assert (await until_superseded(client(), JOB, None, lambda _: quick())).code == "FF-APP-605"
            with pytest.raises(TimeoutError):  # the one that holds it goes on
                async with asyncio.timeout(0.3):
                    await until_superseded(client(), JOB, back, lambda _: asyncio.sleep(0.05))
            row = await old.job(JOB)
            assert row is not None
            assert (row.state, row.round, row.drawn) == (JobState.RUNNING, 1, 2)
            assert all(lease.is_open and not lease.slashed for lease in await old.leases(JOB))

    within(20, test)


def test_a_validator_in_trouble_ends_no_run_that_looks_for_its_term() -> None:
    held = KeyRow(name := coordinator_of(JOB), PeerId(SECOND.mark), name, 2)
    answers: list[Any] = [error("FF-TEST-001", "no row") for error in (NetworkError, RunError, VerificationError)]
    answers += [None, replace(held, epoch=1, node=PeerId(FIRST.mark)), held]

    class Troubled:
        async def row(self, *_: object) -> KeyRow | None:
            said = answers.pop(0)
            if isinstance(said, FarflungError):
                raise said
            return cast(KeyRow | None, said)

    looks = until_superseded(cast(LedgerClient, Troubled()), JOB, FIRST, lambda _: asyncio.sleep(0))
    assert asyncio.run(looks).code == "FF-APP-605"
    assert not answers


@pytest.mark.parametrize(("time", "is_known"), [(0, True), (1000, False)])
def test_a_run_that_nobody_can_copy_from_its_ledger_takes_no_term(tmp_path: Path, time: int, is_known: bool) -> None:
    async def test() -> None:
        async with ledger(tmp_path, genesis(time)) as client:
            own = client()
            assert await take_over(own, log(0, 1), await own.job(JOB) if is_known else None) is None
            await own.submit(JobDraw(JOB, 1, ZERO_HASH))

    within(20, test)
