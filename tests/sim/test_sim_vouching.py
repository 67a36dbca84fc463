"""A worker that is not recorded is paid by its voucher; one that is makes no use of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sim_ledger import PRICE, MemoryLedger

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, digest, local_key
from farflung.core.errors import NetworkError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.ledger import queries
from farflung.ledger.earnings_tally import SettleMany, SignedEarningsTally, make_tally, sign_tally
from farflung.ledger.transactions import JobFinish, JobSettle, Progress
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node import vouchers as node_vouchers
from farflung.peers.node.vouchers import VoucherStore
from farflung.peers.process.channel import LogChannel
from farflung.peers.protocol import messages
from farflung.peers.requester.vouchers import VoucherIssuer

replace = msgspec.structs.replace

REQUESTER = local_key(11, "requester")
A, B = NODES = [local_key(11, "provider", index) for index in range(2)]
JOB, OTHER = digest("test/job"), digest("test/other")
ROOT = digest("test/root")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_vouchers, "RECORD_SECONDS", 0.01)


class Near:
    """A connection whose other end is this process."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def call(self, method: str, body: bytes, **_: Any) -> bytes:
        answer: bytes = self._handle(method, body)
        return answer


class Story:
    """A requester, two nodes with their vouchers, and the ledger's law between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = MemoryLedger(REQUESTER, JOB, 3, NODES, [], 100)
        self.nodes = {key.public: self.node(key) for key in NODES}
        self.away: set[PeerId] = set()
        self.vouching = VoucherIssuer(REQUESTER, JOB, self.dial)  # type: ignore[arg-type]

    def node(self, key: SigningKey) -> VoucherStore:
        folder = self.folder / key.public.hex()[:8]
        vouchers = VoucherStore(folder, key.public, self.ledger.chain, LogChannel())
        vouchers.follow(self.client(key))
        return vouchers

    def client(self, key: SigningKey) -> LedgerClient:
        async def reach() -> Any:
            return Near(self.serve)

        return LedgerClient(reach, key, self.ledger._chain.genesis)

    def serve(self, _method: str, body: bytes) -> bytes:
        chain, query = self.ledger._chain, queries.read_query(body)
        if not isinstance(query, queries.SubmitRequest):
            return encode(queries.reply(chain, query))
        block, results = chain.propose(query.txs, chain.head.time + 1)
        chain.adopt(block)
        return encode(queries.SubmitReply(results))

    async def dial(self, node: PeerId) -> Near:
        def keep(method: str, body: bytes) -> bytes:
            assert method == messages.VOUCH
            self.nodes[node].take(REQUESTER.public, decode(body, messages.VoucherUpdate, limits.CONTROL_BYTES))
            return b""

        if node in self.away:
            raise NetworkError("FF-NET-046", "it is away")
        return Near(keep)

    async def hand(self, epoch: int, **earned: int) -> None:
        named = {{"a": A, "b": B}[name].public: units for name, units in earned.items()}
        self.vouching.hand(self.ledger.chain, epoch, named)
        for tasks in (self.vouching._tasks, *(node._tasks for node in self.nodes.values())):
            while len(tasks):
                await asyncio.gather(*tasks)

    def record(self, round: int, **units: int) -> None:
        said = tuple(({"a": A, "b": B}[name].public, count) for name, count in units.items())
        self.ledger.apply(REQUESTER, Progress(JOB, round, ROOT, ROOT, said))

    @property
    def claims(self) -> list[PeerId]:
        signed = [signed.tx for block in self.ledger._chain.blocks for signed in block.txs]
        return [tx.sender for tx in signed if isinstance(tx.ops[0], SettleMany)]

    def paid(self, key: SigningKey) -> int:
        self.ledger.apply(REQUESTER, JobFinish(JOB, ROOT, ROOT), JobSettle(JOB))
        return self.ledger.lease(key.public).paid

    def voucher(
        self, units: int = 7, signer: SigningKey = REQUESTER, chain: Hash | None = None, **change: Any
    ) -> messages.VoucherUpdate:
        tally, vouchers = make_tally(chain or self.ledger.chain, JOB, 0, [(A.public, units), (B.public, 1)])
        said = messages.VoucherUpdate(JOB, SignedEarningsTally(tally, (sign_tally(signer, tally),)), vouchers[0])
        return replace(said, **change)


def test_a_worker_that_is_not_recorded_is_paid_by_its_voucher(tmp_path: Path) -> None:
    async def test() -> None:
        story = Story(tmp_path)
        story.record(0, b=20)
        await story.hand(0, a=10, b=20)
        assert story.claims == [A.public]
        assert story.paid(A) == 10 * PRICE
        assert story.ledger.lease(B.public).paid == 20 * PRICE

    asyncio.run(test())


def test_who_is_recorded_claims_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        story = Story(tmp_path)
        for round in range(3):
            story.record(round, a=10, b=20)
            await story.hand(round, a=10 * (round + 1), b=20 * (round + 1))
        await asyncio.gather(*(node.claim_all() for node in story.nodes.values()))
        assert story.claims == []
        assert story.paid(A) == 30 * PRICE

    asyncio.run(test())


def test_what_is_recorded_a_moment_later_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        story, sleep = Story(tmp_path), asyncio.sleep

        async def recorded(seconds: float) -> None:
            if seconds == node_vouchers.RECORD_SECONDS:
                story.record(0, a=10)
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", recorded)
        await story.hand(0, a=10)
        assert story.claims == []
        assert story.ledger.lease(A.public).units == 10

    asyncio.run(test())


def test_a_node_claims_before_it_leaves_also_in_its_next_life(tmp_path: Path) -> None:
    async def test() -> None:
        story = Story(tmp_path)
        asleep = VoucherStore(tmp_path / A.public.hex()[:8], A.public, story.ledger.chain, LogChannel())
        asleep.take(REQUESTER.public, story.voucher(7))
        (tmp_path / A.public.hex()[:8] / "cut.tmp").write_bytes(b"half")
        story.record(0)
        await story.node(A).claim_all()
        await story.node(A).claim_all()
        assert story.claims == [A.public]
        assert story.paid(A) == 7 * PRICE
        await story.node(A).claim_all()
        assert [path.name for path in (tmp_path / A.public.hex()[:8]).iterdir()] == ["cut.tmp"]

    asyncio.run(test())


def test_a_validator_that_denies_the_job_costs_no_voucher(tmp_path: Path) -> None:
    async def test() -> None:
        story, serve = Story(tmp_path), Story.serve
        asleep = VoucherStore(tmp_path / A.public.hex()[:8], A.public, story.ledger.chain, LogChannel())
        asleep.take(REQUESTER.public, story.voucher(7))
        story.record(0)

        def denies(method: str, body: bytes) -> bytes:
            if isinstance(queries.read_query(body), queries.GetReceipt):
                return encode(queries.ReceiptReply(None))
            return serve(story, method, body)

        story.serve = denies  # type: ignore[method-assign]
        await story.node(A).claim_all()
        assert story.claims == []
        del story.serve  # type: ignore[method-assign]
        await story.node(A).claim_all()
        assert story.claims == [A.public]

    asyncio.run(test())


def test_an_older_voucher_takes_no_newer_ones_place(tmp_path: Path) -> None:
    vouchers = VoucherStore(tmp_path, A.public, Story(tmp_path).ledger.chain, LogChannel())
    story = Story(tmp_path)
    for units, kept in ((7, 7), (9, 9), (8, 9), (0, 9)):
        vouchers.take(REQUESTER.public, story.voucher(units))
        held = vouchers._held(JOB)
        assert held is not None
        assert held.voucher.credit.units == kept
    (tmp_path / JOB.hex()).write_bytes(b"damaged")
    vouchers.take(REQUESTER.public, story.voucher(5))
    assert vouchers._held(JOB) == story.voucher(5)


def test_a_voucher_that_would_pay_nothing_is_refused(tmp_path: Path) -> None:
    story = Story(tmp_path)
    vouchers, good = VoucherStore(tmp_path, A.public, story.ledger.chain, LogChannel()), story.voucher()
    more = replace(good.voucher, credit=replace(good.voucher.credit, units=8))
    bad = [
        story.voucher(signer=B),
        story.voucher(chain=ROOT),
        story.voucher(job=OTHER),
        replace(good, voucher=more),
        replace(good, signed=replace(good.signed, marks=())),
        replace(good, signed=replace(good.signed, marks=good.signed.marks * 2)),
    ]
    for said in bad:
        with pytest.raises(VerificationError, match="FF-LEDG-240"):
            vouchers.take(REQUESTER.public, said)
    with pytest.raises(VerificationError, match="FF-LEDG-240"):
        VoucherStore(tmp_path, B.public, story.ledger.chain, LogChannel()).take(REQUESTER.public, good)
    assert vouchers._held(JOB) is None
    vouchers.take(REQUESTER.public, good)


def test_a_node_that_is_away_keeps_nobody_elses_voucher_back(tmp_path: Path) -> None:
    async def test() -> None:
        story = Story(tmp_path)
        story.away.add(A.public)
        await story.hand(0, a=10, b=20)
        assert story.claims == [B.public]
        story.away.clear()
        await story.hand(1, a=15, b=20)
        assert story.ledger.lease(A.public).earned == 15
        await story.vouching.close()

    asyncio.run(test())


def test_a_node_that_is_back_is_given_its_newest_voucher(tmp_path: Path) -> None:
    async def test() -> None:
        story = Story(tmp_path)
        await story.vouching.give(A.public)  # nothing was recorded yet
        story.away.add(A.public)
        await story.hand(0, a=10, b=20)
        await story.hand(1, a=15, b=20)
        story.away.clear()
        await story.vouching.give(A.public)
        held = story.nodes[A.public]._held(JOB)
        assert held is not None
        assert held.voucher.credit.units == 15
        await story.vouching.close()

    asyncio.run(test())


def test_a_claim_that_the_ledger_refuses_is_told_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        story = Story(tmp_path)
        await story.hand(0, a=101)  # more than was offered
        assert "FF-APP-070" in capsys.readouterr().err
        await story.hand(1, b=5)
        assert story.ledger.lease(B.public).earned == 5

    asyncio.run(test())
