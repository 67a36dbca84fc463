"""Runs the requester: funds a job, hires providers, runs its rounds, settles, and saves the model.

Top to bottom, the way of the data: terms → escrow → match → leases → rounds → settlement. It is the coordinator
of its own job. Every step first looks at what is done already, so that all of it can be repeated after a crash.

Components don't reference the requester. The requester wires them: each knows the job (JobContext) and those it is
given, and what it tells of goes to whoever the requester says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from farflung.compress import kernels
from farflung.core.attestations import attestation_hash
from farflung.core.errors import FarflungError, PolicyError, RunError
from farflung.core.events import EscrowEvent, LeasePaymentEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.job.codec_cost import codec_cost
from farflung.ledger.earnings_tally import JobAttest
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import JobCreate, KeyCertify, LeaseRole
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.address_updates import AddressUpdates
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.io.relay_selection import RelaySelector
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.key_registry import first_key
from farflung.peers.process import bandwidth_limits
from farflung.peers.program.trace import graph_bytes
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import as_failure, is_lost_line
from farflung.peers.requester import output_attestations
from farflung.peers.requester.audit_draw import CommitmentAnchors
from farflung.peers.requester.audit_session import WORKER_GONE
from farflung.peers.requester.audits import AuditCoordinator
from farflung.peers.requester.coordinator import Coordinator
from farflung.peers.requester.dataset_server import DatasetServer
from farflung.peers.requester.disputes import DisputeMonitor
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.lease_negotiation import LeaseBudget, StandingAsks, hire, read_asks
from farflung.peers.requester.ledger_recorder import LedgerRecorder, settle, take_over, until_superseded
from farflung.peers.requester.member_setup import ProviderInputs, all_ready, replay_plan
from farflung.peers.requester.members import RETURN_SECONDS, Membership
from farflung.peers.requester.payload_checks import CheckerSupervisor
from farflung.peers.requester.payload_exchange import NetworkAssumptions, PayloadExchange
from farflung.peers.requester.relay_fees import RelayChannels, RelayFee
from farflung.peers.requester.round_tasks import RoundTasks
from farflung.peers.requester.vouchers import VoucherIssuer
from farflung.peers.rundir import attestations
from farflung.peers.rundir.archive import roots_by_round
from farflung.peers.rundir.inputs import module_source
from farflung.peers.transfer import objects
from farflung.peers.transfer.fanout import PayloadFanout
from farflung.plan.run_price import audit_units, price
from farflung.train import model_file, public_state, rounds
from farflung.train.blobs import parts_of
from farflung.train.model_file import model_hash
from farflung.train.public_state import PublicState
from farflung.train.run_log import RunEndRecord, RunStartRecord

ALONE_SECONDS = 60.0  # for which members that all died at once are waited for
ALONE_TIMES = 3  # that one round may cost all members their lives: then it is the work that kills them

ReachDirectory = Callable[[], Awaitable[Connection]]
OnClosed = Callable[[PublicState, ByteCounter], None]


class JobOutcome(msgspec.Struct, frozen=True):
    """How a job ended. Money in pico-credits."""

    finished: RunEndRecord
    public: PublicState
    escrow: int
    paid: int
    refunded: int
    burnt: int
    output: Hash


class Requester:
    """One job, from its terms to its settlement."""

    def __init__(
        self,
        job: JobContext,
        listen: ListenConfig,
        machine: Credential,
        assumptions: NetworkAssumptions,
        fee: RelayFee,
        on_closed: OnClosed = lambda _, __: None,
    ) -> None:
        """`machine`: what it proves where it listens; `assumptions`: what is said of the lines; `fee`: what relays
        are paid. `on_closed` hears after each round its public state, and what this process has sent and received
        so far.
        """
        self._job, self._key, self._terms, self._journal = job, job.key, job.terms, job.journal
        self._machine, self._assumptions, self._on_closed = machine, assumptions, on_closed
        kernels.settle(codec_cost(job.terms.spec, job.terms.layout.size))
        self._objects = objects.ObjectServer(job.archive.disk, job.payload_bytes)
        self._data = DatasetServer(job.terms, job.folder, job.archive)
        self._checker = CheckerSupervisor(job.folder.root, job.terms)
        self._coordinator: Coordinator | None = None
        self._recording: LedgerRecorder | None = None
        self._asks: StandingAsks | None = None
        self._stop_reason = ""
        self.counter = ByteCounter()
        self.endpoint = Endpoint(machine, self._serve, self.counter, listen=listen, pacer=bandwidth_limits.line_pacer())
        self._fanout = PayloadFanout(self.endpoint, self._objects, job.archive.disk)
        self.paths = PathManager(self.endpoint)
        self._address_updates = AddressUpdates(self.endpoint, self.paths)  # hears where members are now
        self._relays: RelaySelector | None = None
        self._telling = OwnedTasks()
        self._channels = RelayChannels(job.key, self.endpoint, fee, job.journal.emit)
        self._members = Membership(job, self.paths, self._supplies, lambda: self._channels.passes)
        self._vouchers = VoucherIssuer(job.key, job.terms.id, self._members.dial)
        self._members.vouch = self._vouchers.give

    async def open(self, relays: tuple[EndpointAddress, ...] = ()) -> None:
        """Starts to listen; with `relays` it stays at the best of them, and is reached there alone."""
        places: tuple[EndpointAddress, ...] = (EndpointAddress(*await self.endpoint.start()),)
        if relays:
            self._relays = RelaySelector(self.endpoint, relays)
            self._relays.on_change = self._moved
            await self.endpoint.attached()
            places = self._relays.places
        self._members.move(places)

    def _moved(self, places: tuple[EndpointAddress, ...]) -> None:
        """Members hear of other relays at once, those that come later from the list of members."""
        self._members.move(places)
        self._telling.begin(self._address_updates.tell(self._key, places))

    async def close(self) -> None:
        """Closes the network side, the checker and the log."""
        if self._relays is not None:
            await self._relays.close()
        await self._telling.close()
        await self._members.rest()
        await self._vouchers.close()
        await self._channels.close()
        self._checker.close()
        self._fanout.leave()
        await self.paths.close()
        await self.endpoint.close()
        self._job.log.close()

    def stop(self, reason: str) -> None:
        """Lets the round that is open finish, then settles; the log says why."""
        self._stop_reason = reason
        if self._coordinator is not None:
            self._coordinator.post(rounds.StopInput(reason))

    def lost(self, peer: PeerId, reason: str) -> None:
        """Evidence from outside the network that a provider is gone: its process ended."""
        if self._coordinator is not None:
            self._coordinator.lose(peer, reason)

    def back(self, peer: PeerId) -> None:
        """A provider that died was started again: it is brought back now."""
        if self._coordinator is None or self._coordinator.may_join(peer):
            self._members.bring_back(peer)

    async def _serve(self, connection: Connection, method: str, body: bytes) -> bytes:
        """Members of the job fetch data, public state and payloads here, and leave replicas."""
        if not self._members.is_member(connection.peer):
            raise PolicyError("FF-APP-042", "objects are served to the members of a lease only")
        if method == messages.HELD:
            return await self._fanout.answer(body)
        if method == messages.DATASET:
            return await asyncio.to_thread(self._data.serve, body)
        return self._objects.serve(connection.peer, method, body)

    async def run(self, ledger: LedgerClient, reach_directory: ReachDirectory, budget: LeaseBudget) -> JobOutcome:
        """The job, from its funding or from wherever its log ends, to its settlement.

        Raises RunError FF-APP-605 where another process of the account took it over.
        """
        await self._fund(ledger, budget)
        if ledger.counts_blocks:
            return await self._funded(ledger, reach_directory, budget)
        work = asyncio.create_task(self._funded(ledger, reach_directory, budget))
        watch = asyncio.create_task(until_superseded(ledger, self._terms.id, self._members.term))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ends = [task for task in (work, watch) if task.cancel()]
            await asyncio.gather(*ends, return_exceptions=True)
        if work.cancelled():
            raise watch.result()
        return work.result()

    async def _funded(self, ledger: LedgerClient, reach_directory: ReachDirectory, budget: LeaseBudget) -> JobOutcome:
        self._ledger, self._budget = ledger, self._with_audits(budget)

        async def read_addresses() -> Mapping[PeerId, messages.PeerAddress]:
            return (await read_asks(ledger, await reach_directory())).addresses

        self._members.hire(ledger, self._budget, read_addresses)
        self._disputes = DisputeMonitor(ledger, self._terms.id, self._journal, lambda: graph_bytes(self._job.folder))
        following = asyncio.create_task(self._disputes.run())
        try:
            finished, public = await self._to_end(reach_directory)
            await (await self._recorder()).catch_up()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await self._disputes.over()
        return await self._settle(ledger, finished, public)

    async def _to_end(self, reach_directory: ReachDirectory) -> tuple[RunEndRecord, PublicState]:
        """Rounds until the log is finished. When death takes all members at once, those that return are waited for."""
        alone_since: float | None = None
        times_alone: dict[int, int] = {}  # by round
        while True:
            state = self._replayed()
            public = self._job.state(state.round)
            self._job.archive.remember(public)
            if state.phase is rounds.RoundPhase.DONE:
                return next(r for r in self._job.log.records if isinstance(r, RunEndRecord)), public
            try:
                state = await self._assemble(reach_directory, state, public)
                alone_since = None
                finished, public = await self._drive(await self._recorder(), state)
                if finished.reason != rounds.REASON_ALONE:
                    return finished, public
                times_alone[finished.rounds] = times_alone.get(finished.rounds, 0) + 1
                error = self._coordinator.last_error if self._coordinator is not None else None
                is_death = error is None or error.code in WORKER_GONE or is_lost_line(error)
            except FarflungError as failed:
                error, is_death = failed, alone_since is not None
            alone_since = alone_since or time.monotonic()
            is_repeated = max(times_alone.values(), default=0) > ALONE_TIMES
            if not is_death or is_repeated or time.monotonic() - alone_since > ALONE_SECONDS:
                raise as_failure(error)
            await asyncio.sleep(RETURN_SECONDS)

    def _with_audits(self, budget: LeaseBudget) -> LeaseBudget:
        units = audit_units(self._terms.spec, price(self._terms.spec))
        return msgspec.structs.replace(budget, audit_units=units)

    async def _recorder(self) -> LedgerRecorder:
        """The one of this process, so that it tells of everything once; first asked for when leases are there."""
        if self._recording is None:
            leases = await self._ledger.leases(self._terms.id)
            verifiers = sum(lease.role is LeaseRole.AUDIT for lease in leases)
            hear = (self._vouchers.hand, self._disputes.follow)
            self._recording = LedgerRecorder(self._ledger, self._job, verifiers, *hear)
        return self._recording

    async def _fund(self, ledger: LedgerClient, budget: LeaseBudget) -> None:
        spec = self._terms.spec
        job = await ledger.job(self._terms.id)
        if job is not None and job.requester != self._key.public:
            raise RunError("FF-APP-069", "somebody else has put this job on the ledger", hint="start a new run")
        self._members.term = await take_over(ledger, self._job.log.records, job)
        if job is None:
            price = budget.unit_price
            create = JobCreate(self._terms.id, budget.escrow, price, spec.rounds, budget.deadline)
            await ledger.submit(create, *await self._unregistered(ledger))
        if job is None or job.state in (JobState.CREATED, JobState.RUNNING):
            await self._channels.fund(ledger, budget.deadline)
        stakes = spec.network.providers * self._terms.stake
        self._journal.emit(EscrowEvent(job=self._terms.id.hex(), escrow=budget.escrow, stakes=stakes))

    async def _unregistered(self, ledger: LedgerClient) -> tuple[KeyCertify, ...]:
        """This machine's key, unless the account has said something of its keys before."""
        known = await ledger.keys(self._key.public)
        return () if known.epoch or known.void else first_key(self.endpoint.credential)

    def _replayed(self) -> rounds.CoordinatorState:
        spec, terms = self._terms.spec, self._terms
        if not self._job.log.records:
            self._job.log.write(RunStartRecord(terms.id, self._key.public, terms.initial_root, spec.rounds))
        counts = (spec.rounds, spec.sync.steps, spec.sync.topk, spec.round_tokens)
        quorum = spec.churn.quorum
        fresh = rounds.CoordinatorState(terms.id, *counts, (), is_audited=spec.is_audited, quorum=quorum)
        return rounds.replay(fresh, self._job.log.records)

    async def _assemble(
        self, reach_directory: ReachDirectory, state: rounds.CoordinatorState, public: PublicState
    ) -> rounds.CoordinatorState:
        """Members with data and public state, verifiers with data. Members that do not come count as lost."""
        await self._members.rest()
        if self._asks is None:
            self._asks = await read_asks(self._ledger, await reach_directory())
        members, asks = self._members, self._asks
        members.know(asks.addresses.values())
        members.benchmarks = asks.benchmarks
        await self._channels.admit(asks.addresses, members.hand_passes)
        hired = await hire(self._ledger, self._terms, self._budget, asks, members.dial, self._journal)
        attestations.keep(self._job.folder, hired.attested)
        leases = await self._ledger.leases(self._terms.id)
        seats = [lease.node for lease in leases if lease.role is LeaseRole.TRAIN]
        verifiers = tuple(sorted(lease.node for lease in leases if lease.role is LeaseRole.AUDIT))
        members.barred |= state.excluded
        members.gather(seats, verifiers)
        members.setup.attested |= {p: attestation_hash(said) for p, said in hired.attested.items()}
        supplies, replay = self._supplies(public.round)
        root = public.root(self._terms.layout)
        wanted = [p for p in hired.members if p not in members.barred and (not state.members or p in state.members)]
        setup = members.setup
        work = {p: setup.member(p, hired.keys[p], supplies, replay, root) for p in wanted}
        helpers = {p: setup.verifier(p, hired.keys[p], supplies) for p in hired.verifiers}
        (ready, error), _ = await asyncio.gather(all_ready(work, self._journal), all_ready(helpers, self._journal))
        if not ready and error is not None:
            raise as_failure(error)
        missing = set(state.members) - set(ready)
        state = msgspec.structs.replace(state, members=state.members or tuple(ready))
        for peer in missing:
            state, _ = rounds.step(state, rounds.MemberLossInput(peer))
        for peer in set(seats) - set(ready):
            members.bring_back(peer)
        return state

    def _supplies(self, round: int) -> tuple[ProviderInputs, tuple[messages.PastRound, ...]]:
        """What a node begins `round` with: data, module and the newest stored public state before it, sealed in the own
        store for nodes to fetch, and the rounds closed since.
        """
        roots = {r: root for r, root in roots_by_round(self._job.log.records).items() if r <= round}
        stored = self._job.archive.latest_state(self._terms, roots)
        packed = parts_of(public_state.pieces(stored, self._terms.layout))
        put = self._job.archive.put
        module, graph = module_source(self._job.folder), graph_bytes(self._job.folder)
        supplies = ProviderInputs(self._data.supplied(), put(module), put(graph), put(*packed), stored.round)
        return supplies, replay_plan(self._job.archive, self._job.log.records, stored.round, round)

    async def _drive(
        self, recorder: LedgerRecorder, state: rounds.CoordinatorState
    ) -> tuple[RunEndRecord, PublicState]:
        def closed(after: PublicState) -> None:
            recorder.wake()
            for c in self._job.log.accepted[after.round - 1]:
                self._objects.keep(c.object)
            self._on_closed(after, self.counter)

        job, members = self._job, self._members
        anchors = CommitmentAnchors(self._ledger, job.terms.id)
        audits = AuditCoordinator(job, members, anchors, self._budget.answer)
        exchange = PayloadExchange(self._machine, job, self._fanout, members.setup.lease_keys, self._assumptions)
        tasks = RoundTasks(job, members, audits, self._checker, exchange, closed, recorder.recorded)
        coordinator = self._coordinator = Coordinator(state, job.log, tasks)
        self._members.follow(coordinator)
        if self._stop_reason:
            coordinator.post(rounds.StopInput(self._stop_reason))
        recorder.wake()
        recording = asyncio.create_task(recorder.run(coordinator.fail))
        try:
            return await coordinator.run(), tasks.public
        finally:
            recording.cancel()
            await asyncio.gather(recording, audits.close(), return_exceptions=True)

    async def _settle(self, ledger: LedgerClient, finished: RunEndRecord, public: PublicState) -> JobOutcome:
        output = self.hand_over(public)
        job = await settle(ledger, self._terms.id, output, self._journal.emit, attest=self._attest)
        for lease in await ledger.leases(self._terms.id):
            self._journal.emit(LeasePaymentEvent(peer=lease.node.hex(), units=lease.units, paid=lease.paid))
        await self._members.dismiss()
        await self._channels.sign()
        moved = (job.paid, job.refunded, job.burnt)
        return JobOutcome(finished, public, sum(moved), *moved, output)

    async def _attest(self, row: JobRow) -> JobAttest | None:
        """What the job's verifiers sign of its end; those whom this process did not hire are looked up first. The law
        takes no mark of those that the job names.
        """
        if self._terms.spec.audit.verifiers:
            return None
        with contextlib.suppress(FarflungError):
            await self._members.look_up(await output_attestations.verifiers_of(self._ledger, row))
        return await output_attestations.collect(self._ledger, row, self._members.dial)

    def hand_over(self, public: PublicState) -> Hash:
        """Writes the model as safetensors; the digest of the file is the job's output on the ledger."""
        data = model_file.pieces(self._terms, public)
        write_atomic(self._job.folder.model_file, iter(data), "run.model")
        return model_hash(*data)
