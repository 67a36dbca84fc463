"""A ledger over sockets, a node that trained a tiny GPT's round, and a verifier: their counsels play, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dispute_match as match
import pytest
from core_asks import scheduled
from core_tiny_program import ROUND, SEGMENT
from ledger_world import CAPS, NODES, NONCE, PARAMS, REQUESTER, ROOTS, START, VALIDATOR, VERIFIERS, genesis
from msgspec.structs import replace
from role_configs import QuietChannel

from farflung.core.commitments import BorderRoots, commitment_digest, number
from farflung.core.crypto import NS_ACK, NS_OBJECT, SigningKey, digest
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.job.spec import JobTerms
from farflung.ledger import transactions
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.pinpoint_game import Challenge, PinpointRow, PinpointStage
from farflung.ledger.table_rows import JobRow, JobState, NodeRow, lease_key
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node import dispute_game, disputes
from farflung.peers.node.dispute_files import DisputeJob
from farflung.peers.node.disputes import DisputeAgent
from farflung.peers.protocol import messages as protocol_messages
from farflung.peers.validator.requests import LedgerRequestHandler
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import seal
from farflung.train import segments, worker_messages
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import ContributionTrace, TrainingStatistics
from farflung.train.run_log import Contribution
from farflung.train.segments import BorderState
from farflung.verify.dispute_player import DisputeRole, next_move
from farflung.verify.segment_audit import SegmentAudit
from farflung.verify.segment_opening import OpenedSegment

A, B = NODES[1], VERIFIERS[0]  # the accused, whose seat is 1, and who accuses it
FRIEND = NODES[2]  # with an account, and no lease
BOND, STAKE, PRICE, UNITS = 8, 100, 5, 10_000
DISPUTE = 40_000  # of a time that counts blocks, a second each
JOB_KEY, DATA = b"\x07" * 32, b"what the job learns from"
PAYLOAD = digest(NS_OBJECT, b"payload")
LAW = replace(
    PARAMS,
    window_ms=10_000,
    dispute_ms=DISPUTE,
    bond_min=BOND,
    job_ms_max=10**9,
    node_ms_max=10**9,
    challenge_rounds=16,
)
SPEC, OPTIMIZER = match.SPEC, match.SPEC.optimizer
Change = Callable[[int], BorderState]


@functools.cache
def job_terms() -> JobTerms:
    """The job's: its program is that of the small GPT. Traced when it is first used, and not while tests are found."""
    layout = match.job().model.layout
    fixed = digest(NS_OBJECT, DATA), ZERO_HASH, layout, REQUESTER.public, ROOTS[0], match.tolerance()
    return JobTerms(SPEC, *fixed, program=match.parts().program, unproven="", stake=STAKE)


def claimed(index: int, *, is_false: bool) -> BorderState:
    """The state that the node claims at a border: the honest one, or that of who left a step out."""
    return match.cheat() if is_false and index > SEGMENT else match.border(index)


class Work:
    """A round of the node's, as its worker would open it."""

    def __init__(self, *, is_false: bool) -> None:
        self.states = [claimed(index, is_false=is_false) for index in range(SPEC.segments + 1)]
        self.borders = tuple(self._border(index) for index in range(SPEC.segments + 1))
        said = TrainingStatistics((1.0,) * SPEC.sync.steps, 0.1, SPEC.round_tokens)
        self.trace = ContributionTrace(self.borders, said, PAYLOAD)

    def _border(self, index: int) -> BorderRoots:
        return segments.border(job_terms().layout, OPTIMIZER, index, self.states[index], ZERO_HASH)

    def opened(self, segment: int = SEGMENT) -> worker_messages.OpenSegmentResult:
        begin, end = segments.start(self.states, segment), segments.end(self.states, segment)
        start, ended = (segments.pack(each, OPTIMIZER, job_terms().layout) for each in (begin, end))
        public = b"" if segment else segments.weights(self.states[0])
        return worker_messages.OpenSegmentResult(start, ended, b"", public)

    @property
    def contribution(self) -> Contribution:
        node, weight = A.public, SPEC.round_tokens
        return Contribution(node, weight, PAYLOAD, PAYLOAD, NONCE, self.trace.root, "none")

    def signature(self) -> Any:
        c = self.contribution
        promise = commitment_digest(job_terms().id, A.public, ROUND, PAYLOAD, c.weight, c.trace, NONCE)
        return A.sign(NS_ACK, job_terms().id, number(ROUND), promise)

    def audit(self, segment: int = SEGMENT) -> SegmentAudit:
        """As a verifier has it that found the segment false."""
        place = OpenedSegment(SPEC, ROUND, segment, self.contribution, self.borders[0].params)
        base = segments.begin(self.states[segment], match.job().start)
        rerun = worker_messages.RerunResult(self.borders[segment + 1], b"", (), 0.0)
        return SegmentAudit(place, job_terms().layout, job_terms().tolerance, self.borders[segment], base, rerun)

    def slash(self, chain: Hash, segment: int = SEGMENT) -> transactions.JobSlash:
        c = self.contribution
        about = chain, job_terms().id, ROUND, A.public, segment, c.trace
        said = [
            transactions.Verdict(*about, key.public, transactions.VerdictFinding.FALSE, 3000, ROOTS[1])
            for key in VERIFIERS
        ]
        verdicts = tuple(map(transactions.sign_verdict, VERIFIERS, said))
        return transactions.JobSlash(
            job_terms().id,
            A.public,
            transactions.CommitmentOpening(PAYLOAD, c.weight, NONCE, self.signature()),
            verdicts,
            CAPS,
            job_terms().rest,
            job_terms().program,
        )

    def challenge(self, segment: int = SEGMENT, bond: int = 3 * PRICE * UNITS) -> Challenge:
        c = self.contribution
        claim = ROUND, segment, c.trace, PAYLOAD, c.weight, NONCE, self.signature()
        return Challenge(job_terms().id, A.public, *claim, job_terms().rest, job_terms().program, bond)


@functools.cache
def honest() -> Work:
    """What an honest node holds."""
    return Work(is_false=False)


@functools.cache
def lying() -> Work:
    """What one that left a step out holds."""
    return Work(is_false=True)


async def _deaf(_connection: Connection, _method: str, _body: bytes) -> bytes:
    return b""


class Court:
    """The ledger, on which the job runs; and its people."""

    def __init__(self, folder: Path, law: Any = LAW) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.genesis = folder, genesis(law)
        self.store = LedgerStore.open(folder / "chain.db", self.genesis)
        self.chain = self.store.load(VALIDATOR)
        self.server = Endpoint(
            VALIDATOR, LedgerRequestHandler(self.chain, self.store, is_local=True).handle, ByteCounter()
        )
        self.people: dict[bytes, Endpoint] = {}
        self.clients: dict[bytes, LedgerClient] = {}
        self.disk = DiskObjectStore(folder / "lease")
        self.start = self._start()

    def _start(self) -> protocol_messages.LeaseStartRequest:
        def put(data: bytes) -> Any:
            manifest, chunks = seal(JOB_KEY, data)
            self.disk.put(manifest, chunks)
            return manifest

        data, none = put(DATA), put(b"")
        return protocol_messages.LeaseStartRequest(
            job_terms().id, b"", match.SEAT, (), (), data, none, put(b"a graph"), none, 0, ()
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Court]:
        await self.server.start()
        try:
            await self._found()
            yield self
        finally:
            for endpoint in (*self.people.values(), self.server):
                await endpoint.close()
            self.store.close()

    def client(self, key: SigningKey) -> LedgerClient:
        if key.public not in self.clients:
            own = self.people[key.public] = Endpoint(key, _deaf, ByteCounter())
            reach = lambda: own.dial(VALIDATOR.public, *self.server.address)  # noqa: E731
            self.clients[key.public] = LedgerClient(reach, key, self.genesis)
        return self.clients[key.public]

    async def do(self, key: SigningKey, *ops: transactions.Op) -> None:
        await self.client(key).submit(*ops)

    async def _found(self) -> None:
        """The job runs, and its round is the newest that is recorded."""
        for key in (*NODES[:2], *VERIFIERS):
            await self.do(key, transactions.NodeRegister(CAPS, PRICE, 500, START + 10**8))
        create = transactions.JobCreate(job_terms().id, 400_000, PRICE, 40, START + 10**8)
        offers = [self._offer(key, UNITS, transactions.LeaseRole.TRAIN) for key in NODES[:2]]
        offers += [self._offer(key, 20, transactions.LeaseRole.AUDIT) for key in VERIFIERS]
        await self.do(REQUESTER, create, scheduled(job_terms().id, offers))
        await self.record(ROUND + 1)

    def _offer(self, key: SigningKey, units: int, role: transactions.LeaseRole) -> transactions.SignedLeaseOffer:
        chain, until = self.genesis.chain, START + 10**7
        return transactions.sign_offer(
            key, transactions.LeaseOffer(chain, job_terms().id, key.public, PRICE, STAKE, units, until, role)
        )

    async def record(self, rounds: int, first: int = 0) -> None:
        said = [
            transactions.Progress(job_terms().id, each, ROOTS[0], CAPS, ((B.public, 0),))
            for each in range(first, rounds)
        ]
        await self.do(REQUESTER, *said)

    # What it says

    def row(self) -> PinpointRow:
        found = self.chain.state.find(PinpointRow, lease_key(job_terms().id, A.public))
        assert found is not None
        return found

    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        found = self.chain.state.find(JobRow, job_terms().id)
        return found is not None and found.state is JobState.CANCELLED

    def dispute(self) -> DisputeRow:
        found = self.chain.state.find(DisputeRow, lease_key(job_terms().id, A.public))
        assert found is not None
        return found

    def stake(self, key: SigningKey) -> int:
        found = self.chain.state.find(NodeRow, key.public)
        assert found is not None
        return found.stake

    async def balance(self, key: SigningKey) -> int:
        return (await self.client(key).account(key.public)).balance

    # Who plays

    async def agent(self, key: SigningKey, *, contests: bool = False) -> DisputeAgent:
        """A node's process, with what lies in its folder; its lease has begun."""
        made = self.unattended(key, contests=contests)
        await made.attend(DisputeJob(job_terms(), JOB_KEY, self.start), self.disk)
        return made

    def unattended(self, key: SigningKey, *, contests: bool = False) -> DisputeAgent:
        """Of whom no lease has begun."""
        made = DisputeAgent(self._folder(key), key, _parts, QuietChannel(), contests=contests)
        made.follow(self.client(key))
        return made

    def reborn(self, key: SigningKey, *, contests: bool = False) -> DisputeAgent:
        """The process that takes the place of one that died: all that it knows lies in its folder."""
        own = self.people[key.public]
        reach = lambda: own.dial(VALIDATOR.public, *self.server.address)  # noqa: E731
        self.clients[key.public] = LedgerClient(reach, key, self.genesis)
        return self.unattended(key, contests=contests)

    def _folder(self, key: SigningKey) -> Path:
        return self.folder / key.public.hex()[:6]

    async def accused(self, work: Work, *, contests: bool = False) -> DisputeAgent:
        made = await self.agent(A, contests=contests)
        made.own(job_terms().id, whole, (ROUND, SEGMENT), work.trace, work.opened())
        return made

    async def accuser(self, work: Work, key: SigningKey = B) -> DisputeAgent:
        made, opened = await self.agent(key), work.opened()
        made.found(job_terms().id, whole, match.SEAT, work.audit(), opened.start, opened.end)
        return made

    async def ended(self) -> DisputeRow:
        """The dispute, when it is decided."""
        await until(lambda: not self.dispute().is_pending)
        return self.dispute()

    async def pass_time(self, stages: tuple[PinpointStage, ...] = tuple(PinpointStage)) -> None:
        """Blocks of nothing, while the game is in one of these stages and a side has moved: its clock goes on."""
        while self.dispute().is_pending:
            if self.row().stage in stages and (self.row().stage != PinpointStage.FIRST or any(self.row().children)):
                await self.do(NODES[0], transactions.Transfer(NODES[0].public, 1))
            await asyncio.sleep(0.005)


def whole(_round: int, _seat: int) -> bytes:
    """Of a data set that is kept whole no pieces are kept."""
    return b""


async def _parts(_case: DisputeJob, _disk: DiskObjectStore, _tokens: Blob) -> Any:
    return match.parts()


@asynccontextmanager
async def at_work(*counsels: DisputeAgent) -> AsyncIterator[None]:
    """Their processes run, until they die."""
    tasks = [asyncio.create_task(each.stay()) for each in counsels]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(is_so: Callable[[], object]) -> None:
    """Looks until it is so."""
    while not is_so():  # noqa: ASYNC110 - what is looked at are blocks and files
        await asyncio.sleep(0.005)


async def slander(court: Court, liar: match.Liar, key: SigningKey) -> None:
    """Plays a wrong tree against the accused, to the end."""
    player = liar.player(DisputeRole.CHALLENGER)._replace(terms=job_terms().rest)
    while court.dispute().is_pending:
        move = next_move(player, court.row())
        if move is not None:
            with contextlib.suppress(RunError):
                await court.do(key, move)
        await asyncio.sleep(0.005)


Play = Callable[[Court], Awaitable[None]]


def in_court(folder: Path, play: Play, law: Any = LAW) -> None:
    """Runs a play; what hangs fails."""

    async def body() -> None:
        async with asyncio.timeout(200), Court(folder, law).open() as court:
            await play(court)

    asyncio.run(body())


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits."""
    for module in (dispute_game, disputes):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the processes report."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(QuietChannel, "report", lambda _, kind, **facts: said.append({"kind": kind, **facts}))
    return said
