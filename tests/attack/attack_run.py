"""A coordinator with honest members and one that says what it likes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from attack_world import (
    BOUND,
    JOB_KEY,
    LAYOUT,
    MEMBERS,
    REQUESTER,
    SPEC,
    TERMS,
    VERIFIERS,
    Party,
    Worker,
    initial,
    start_order,
)
from sim_ledger import MemoryLedger, genesis_of

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, digest
from farflung.core.errors import PolicyError, ProtocolError
from farflung.core.events import AnyEvent, AuditEndEvent, ProcessExitEvent, RoundEndEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.units import Seconds
from farflung.ledger.table_rows import LeaseRow
from farflung.ledger.transactions import LeaseRole
from farflung.net.certificates import credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io.connection import Connection
from farflung.net.io.multicast_member import NoEndpoint
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.node.training_lease import TrainingLease
from farflung.peers.node.voucher_bound import VoucherBound, WorkAccount
from farflung.peers.node.workspace import JobWorkspace
from farflung.peers.process.channel import LogChannel
from farflung.peers.protocol import messages
from farflung.peers.protocol.job_key import LeaseKey
from farflung.peers.requester.audits import AuditCoordinator
from farflung.peers.requester.coordinator import Coordinator
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.payload_exchange import NetworkAssumptions, PayloadExchange
from farflung.peers.requester.round_tasks import RoundTasks
from farflung.peers.requester.round_timing import NO_BENCHMARKS
from farflung.peers.rundir.archive import Archive, RunLog
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import Journal
from farflung.peers.transfer import objects
from farflung.peers.transfer.fanout import PayloadFanout
from farflung.train import rounds
from farflung.train.contribution_trace import ContributionTrace
from farflung.train.public_state import PublicState
from farflung.train.run_log import (
    AcceptSetRecord,
    AuditsRecord,
    CommitmentsRecord,
    Contribution,
    RoundEndRecord,
    RunStartRecord,
    payload_hash,
)
from farflung.verify.commitment_check import commit, nonce_of
from farflung.verify.io.checker import CheckerState
from farflung.verify.submission_checks import (
    CheckerSetup,
    PayloadCheckReply,
    PayloadCheckRequest,
    RoundFlagsReply,
    RoundFlagsRequest,
)

replace = msgspec.structs.replace

PATIENCE = Seconds(90.0)  # with a verifier's answer
EVE, HONEST = MEMBERS[2], MEMBERS[:2]
ROUND = 1  # in which the hostile member attacks; round 0 it does as it must
ORDERS: dict[str, type[Any]] = {
    messages.TRAIN: messages.TrainRequest,
    messages.REVEAL: messages.RevealRequest,
    messages.MERGE: messages.MergeRequest,
    messages.DROP: messages.DropRoundRequest,
    messages.OPEN: messages.SegmentOpenRequest,
    messages.PLANT: messages.SegmentOpenRequest,
    messages.UNVEIL: messages.SegmentRevealRequest,
}
AUDITS: dict[str, type[Any]] = {
    messages.AUDIT: messages.AuditRequest,
    messages.JUDGE: messages.VerdictRequest,
    messages.SCORE: messages.ScoreRequest,
}
NO_ATTESTED: Mapping[PeerId, Hash] = {}
CHAIN = genesis_of(REQUESTER, *MEMBERS, *VERIFIERS).chain


def ledger_of() -> MemoryLedger:
    """A ledger on which this job is funded and everybody is hired."""
    units = SPEC.rounds * SPEC.round_tokens * len(MEMBERS)
    return MemoryLedger(REQUESTER, TERMS.id, SPEC.rounds, MEMBERS, VERIFIERS, units)


class Near:
    """Submission checks without a process: the same desk."""

    def __init__(self) -> None:
        self._desk = CheckerState()
        self._desk.handle(CheckerSetup(SPEC, LAYOUT, SPEC.round_tokens))

    async def check(self, request: PayloadCheckRequest) -> None:
        checked = self._desk.handle(request)
        assert isinstance(checked, PayloadCheckReply)
        if checked.code:
            raise ProtocolError(checked.code, checked.words)

    async def conclude(self, round: int, peers: tuple[PeerId, ...]) -> dict[PeerId, str]:
        found = self._desk.handle(RoundFlagsRequest(round, peers))
        assert isinstance(found, RoundFlagsReply)
        return dict(found.flags)


class PayingLedger:
    """In the place of a ledger: whenever it is asked, all that was worked is paid."""

    def __init__(self, node: PeerId) -> None:
        self._node, self._looks = node, 0

    async def row(self, _kind: type[Any], _key: bytes) -> LeaseRow:
        self._looks += 1
        return LeaseRow(TERMS.id, self._node, 1, 1, 1 << 60, self._node, units=self._looks << 40)


def account_of(folder: Path, key: SigningKey, role: LeaseRole) -> WorkAccount:
    """What a node counts that is paid and holds no voucher."""

    async def nothing(_job: Hash) -> None:
        """There is nothing to claim."""

    bound = VoucherBound(folder / "unpaid", key.public, nothing, LogChannel())
    bound.follow(cast(Any, PayingLedger(key.public)))
    return bound.account(TERMS, role)


class Member(Party):
    """An honest member: the real lease, with a worker that needs no torch."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        super().__init__(key, folder / "store")
        self.worker = Worker(key)
        private = folder / "private"
        workspace = JobWorkspace(key, TERMS, self.disk, self.dial, dataset_bytes=10**6)
        self.lease = TrainingLease(workspace, private, account_of(folder, key, LeaseRole.TRAIN))
        self.shelf = self.lease.objects
        self.lease_key = LeaseKey()
        self.places: dict[PeerId, messages.PeerAddress] = {}

    async def dial(self, peer: PeerId) -> Connection:
        place = self.places[peer].places[0]
        return await self.endpoint.dial(peer, place.host, place.port)

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method == messages.ENTER:
            await self.lease.fanning.follow(
                decode(body, messages.GroupJoinRequest, limits.CONTROL_BYTES), self.lease_key
            )
            return b""
        if method == messages.HELD:
            return await self.lease.fanning.answer(body)
        if method not in ORDERS:
            return await super().handle(connection, method, body)
        return encode(await self.obey(connection, method, decode(body, ORDERS[method], limits.CONTROL_BYTES)))

    async def obey(self, connection: Connection, method: str, order: Any) -> Any:
        """The reply to an order of the coordinator."""
        verb: dict[str, Callable[[Any], Awaitable[Any]]] = {
            messages.TRAIN: self.lease.train,
            messages.REVEAL: self.lease.reveal,
            messages.MERGE: self.lease.merge,
            messages.DROP: self._drop,
            messages.OPEN: self.lease.open,
            messages.PLANT: self.lease.plant,
            messages.UNVEIL: self._unveil,
        }
        return await verb[method](order)

    async def _drop(self, order: messages.DropRoundRequest) -> None:
        await self.lease.abandon(order)
        self.lease.drop(order)

    async def _unveil(self, order: messages.SegmentRevealRequest) -> messages.SegmentRevealReply:
        return self.lease.unveil(order)


class Judge(Party):
    """A verifier: the real lease, with a worker that needs no torch.

    `twists[method](verifier, order, honest reply)` changes what it says of the hostile member's work in round ROUND.
    """

    def __init__(self, key: SigningKey, folder: Path) -> None:
        super().__init__(key, folder / "store")
        self.worker = Worker(key)
        self.workspace = JobWorkspace(key, TERMS, self.disk, self.dial, dataset_bytes=10**6)
        self.lease = AuditLease(self.workspace, account_of(folder, key, LeaseRole.AUDIT), CHAIN)
        self.shelf = self.lease.objects
        self.places: dict[PeerId, messages.PeerAddress] = {}
        self.twists: dict[str, Callable[[Judge, Any, Any], Any]] = {}
        self.said: list[tuple[str, Any, Any]] = []

    async def dial(self, peer: PeerId) -> Connection:
        place = self.places[peer].places[0]
        return await self.endpoint.dial(peer, place.host, place.port)

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method not in AUDITS:
            return await super().handle(connection, method, body)
        async with self.lease.turn:
            return encode(await self._obey(method, decode(body, AUDITS[method], limits.CONTROL_BYTES)))

    async def _obey(self, method: str, order: Any) -> Any:
        verb: dict[str, Callable[[Any], Awaitable[Any]]] = {
            messages.AUDIT: self.lease.run,
            messages.JUDGE: self.lease.judge,
            messages.SCORE: self.lease.score,
        }
        said = await verb[method](order)
        nodes = {
            messages.AUDIT: lambda: order.contribution.peer,
            messages.JUDGE: lambda: order.peer,
            messages.SCORE: lambda: EVE.public,  # among all others
        }
        node = nodes[method]()
        if method in self.twists and (order.round, node) == (ROUND, EVE.public):
            said = self.twists[method](self, order, said)
        self.said.append((method, order, said))
        return said


Twist = Callable[["Hostile", Any, Any], Any]


class Hostile(Member):
    """Does as it must, then changes what it says: `twists[method](member, order, honest reply)` in round ROUND."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        super().__init__(key, folder)
        self.twists: dict[str, Twist] = {}
        self.seen: dict[PeerId, Any] = {}  # what others said in the round before it answers
        self.connection: Connection | None = None
        self.withholds = False  # payloads, which are all of this size

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method == objects.CHUNK and self.withholds:
            asked, _ = decode(body, tuple[Hash, int], limits.CONTROL_BYTES)
            if self.disk.has(asked) and self.disk.manifest(asked).size == BOUND:
                raise PolicyError("FF-APP-042", "never")
        return await super().handle(connection, method, body)

    async def obey(self, connection: Connection, method: str, order: Any) -> Any:
        self.connection = connection
        said = await super().obey(connection, method, order)
        if order.round == ROUND and method in self.twists:
            said = self.twists[method](self, order, said)
        return said

    def promise(
        self, said: messages.TrainReply, payload: bytes, weight: int = SPEC.round_tokens
    ) -> messages.TrainReply:
        """A well-signed promise of any payload."""
        trace = self.traced(payload, weight)
        made = commit(EVE, TERMS.id, ROUND, payload_hash(payload), weight, trace.root)
        opens = {"payload": payload_hash(payload), "trace": trace.root, "nonce": nonce_of(EVE, TERMS.id, ROUND)}
        return replace(said, commitment=made, statistics=trace.statistics, path=trace.statistics_path, **opens)

    def traced(self, payload: bytes, weight: int) -> ContributionTrace:
        """What stands under such a promise."""
        trace = self.worker.trace_of(payload)
        return replace(trace, statistics=replace(trace.statistics, tokens=weight))

    def opened(
        self, shown: messages.RevealReply, payload: bytes, weight: int = SPEC.round_tokens
    ) -> messages.RevealReply:
        """The opening of such a promise; the payload lies in this member's store."""
        manifest, nonce = self.put(payload), nonce_of(EVE, TERMS.id, ROUND)
        trace = self.traced(payload, weight)
        made = (payload_hash(payload), manifest.id, nonce, trace.root, "none", trace.statistics.stated)
        told = Contribution(EVE.public, weight, *made)
        return messages.RevealReply(messages.StoredContribution(told, manifest, shown.share.replica))


class Run:
    """A coordinator with two honest members and a hostile one; and the members, as it is told of them."""

    def __init__(
        self,
        folder: Path,
        verifiers: Sequence[SigningKey] = VERIFIERS,
        benchmarks: Mapping[PeerId, int] = NO_BENCHMARKS,
        attested: Mapping[PeerId, Hash] = NO_ATTESTED,
    ) -> None:
        self.benchmarks, self.attested = benchmarks, attested
        self.home = Party(REQUESTER, folder / "home")
        self.assumptions = NetworkAssumptions()
        self.fanning = PayloadFanout(
            NoEndpoint(credential_of(REQUESTER), ByteCounter()), self.home.shelf, self.home.disk
        )
        self.honest = [Member(key, folder / str(i)) for i, key in enumerate(HONEST)]
        self.eve = Hostile(EVE, folder / "eve")
        self.members: list[Member] = [*self.honest, self.eve]
        self.judges = [Judge(key, folder / f"judge-{i}") for i, key in enumerate(verifiers)]
        self.seats = [member.key.public for member in self.members]
        self.verifiers = tuple(judge.key.public for judge in self.judges)
        self.evidence = folder / "evidence"
        self.rehired: list[PeerId] = []
        self.out: list[tuple[PeerId, bool]] = []
        self.events: list[AnyEvent] = []
        self.log_path = folder / "rounds.log"
        (folder / "snapshots").mkdir()
        self.log = RunLog(self.log_path, REQUESTER)
        self.archive = Archive(self.home.disk, folder / "snapshots", JOB_KEY, REQUESTER.public)
        self.journal = Journal(folder / "events.jsonl", 0.0, [lambda event, _: self.events.append(event)])
        self.job = JobContext(REQUESTER, CHAIN, TERMS, RunFolder(folder), self.log, self.archive, self.journal)
        self.fresh = rounds.CoordinatorState(
            TERMS.id, SPEC.rounds, SPEC.sync.steps, 0, SPEC.round_tokens, (), is_audited=SPEC.is_audited
        )
        self.on_closed: Callable[[int], None] = lambda _round: None
        self.on_lost: Callable[[PeerId, bool], None] = lambda _peer, _may_return: None
        self.places: dict[PeerId, messages.PeerAddress] = {}

    async def go(self) -> Coordinator:
        """The whole run."""
        parties: list[Party | Member | Judge] = [self.home, *self.members, *self.judges]
        for party in parties:
            await party.endpoint.start()
        try:
            places = self.places = {p.key.public: p.address for p in parties}
            for index, member in enumerate(self.members):
                member.places = places
                order = start_order(self.home, index, tuple(places.values()), initial())
                await member.lease.start(order, JOB_KEY, member.worker, REQUESTER.public)
            for judge in self.judges:
                judge.places = places
                order = start_order(self.home, 0, tuple(places.values()), initial())
                await judge.lease.start(order, JOB_KEY, judge.worker, REQUESTER.public)
            return await self._coordinate()
        finally:
            for fanning in (self.fanning, *(member.lease.fanning for member in self.members)):
                fanning.leave()
            for party in parties:
                await party.endpoint.close()
            self.log.close()
            self.journal.close()

    async def dial(self, peer: PeerId) -> Connection:
        place = self.places[peer].places[0]
        return await self.home.endpoint.dial(peer, place.host, place.port)

    async def look(self, peer: PeerId) -> None:
        """Nobody here is started again between two rounds."""

    async def rehire(self, verifier: PeerId) -> None:
        self.rehired.append(verifier)

    def lost(self, peer: PeerId, may_return: bool) -> None:
        self.out.append((peer, may_return))
        self.on_lost(peer, may_return)

    def patience(self, _peer: PeerId) -> float:
        return 0.0

    async def drop(self, _round: int, commitments: Hash) -> Hash:
        """The block that a round is drawn from."""
        return digest("test/block/1", commitments)

    async def _coordinate(self) -> Coordinator:
        self.log.write(RunStartRecord(TERMS.id, REQUESTER.public, TERMS.initial_root, SPEC.rounds))
        state = replace(rounds.replay(self.fresh, self.log.records), members=tuple(self.seats))
        self.archive.remember(initial())

        def closed(after: PublicState) -> None:
            self.on_closed(after.round - 1)

        async def recorded(_round: int) -> None:
            """The ledger is never behind."""

        me: Any = self  # its members, and its ledger
        audits = self.audits = AuditCoordinator(self.job, me, me, PATIENCE)
        keys = {member.key.public: member.lease_key.public for member in self.members}
        exchange = PayloadExchange(REQUESTER, self.job, self.fanning, keys, self.assumptions)
        near: Any = Near()
        tasks = self.tasks = RoundTasks(self.job, me, audits, near, exchange, closed, recorded)
        coordinator = self.coordinator = Coordinator(state, self.log, tasks)
        finished, public = await coordinator.run(), tasks.public
        assert (finished.rounds, finished.reason) == (SPEC.rounds, rounds.REASON_COMPLETE)
        assert finished.root == public.root(LAYOUT)
        return coordinator

    @property
    def left(self) -> list[ProcessExitEvent]:
        """Who is out, and why."""
        return [event for event in self.events if isinstance(event, ProcessExitEvent)]

    @property
    def concluded(self) -> dict[tuple[int, str], AuditEndEvent]:
        """What the audits found, by round and node."""
        return {(e.round, e.peer): e for e in self.events if isinstance(e, AuditEndEvent)}

    @property
    def audited(self) -> list[AuditsRecord]:
        """The audits in the log."""
        return [r for r in self.log.records if isinstance(r, AuditsRecord)]

    def check(self, reason: str, *, accepted_last: bool) -> None:
        """Out with this reason, once; the honest ones finished; the log replays; nothing of it was taken after."""
        left = self.left
        assert {event.peer for event in left} == {EVE.public.hex()}
        assert reason in left[0].reason
        assert all(event.reason.startswith("excluded") for event in left[1:])  # what it had committed to is judged
        assert len([e for e in self.events if isinstance(e, RoundEndEvent)]) == SPEC.rounds
        again = RunLog(self.log_path, REQUESTER)
        again.close()
        replayed = rounds.replay(self.fresh, again.records)
        assert replayed.phase is rounds.RoundPhase.DONE
        for member in self.honest:
            assert member.worker.state.root(LAYOUT) == replayed.root
        honest = {key.public for key in HONEST}
        for record in again.records:
            if isinstance(record, AcceptSetRecord):
                is_in = record.round < ROUND or (record.round == ROUND and accepted_last)
                assert {c.peer for c in record.contributions} == (honest | {EVE.public} if is_in else honest)
            if isinstance(record, RoundEndRecord):
                assert {peer for peer, _ in record.signatures} >= honest
            if isinstance(record, CommitmentsRecord) and record.round > ROUND:
                assert {c.peer for c in record.commitments} == honest
        for round in range(ROUND + accepted_last):  # what it did before it left is judged like everybody's
            assert self.concluded[round, EVE.public.hex()].finding == "holds"
        self.check_honest()

    def check_honest(self) -> None:
        """Nothing is held against the honest: every one of their contributions was audited, and found good."""
        assert [record.round for record in self.audited] == list(range(SPEC.rounds))
        for round in range(SPEC.rounds):
            for key in HONEST:
                assert self.concluded[round, key.public.hex()].finding == "holds"
        assert not {peer for peer, _ in self.out} & {key.public for key in HONEST}
