"""The requester: funds a job, finds providers, runs its rounds, settles, and takes the model home.

Top to bottom, the way of the data: terms → escrow → match → leases → rounds → settlement. It is the coordinator
of its own job. Every step first looks at what is done already, so that all of it can be repeated after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import safetensors.numpy

from farflung.app import objects, wire
from farflung.app.coordinator import Archive, Coordinator, RunLog, accepted_by_round, roots_by_round
from farflung.app.folder import RunFolder
from farflung.app.hiring import Budget, Supplies, hire, read_asks, replay_plan, start_members
from farflung.app.journal import Journal
from farflung.app.ledger_client import LedgerClient
from farflung.app.recording import Recorder
from farflung.app.scoring import Scorer
from farflung.core.codec import encode
from farflung.core.crypto import NS_JOB_KEY, NS_OUTPUT, SigningKey, digest
from farflung.core.errors import FarflungError, NetworkError, PolicyError, RunError
from farflung.core.events import Funded, Settled
from farflung.core.ids import Hash, PeerId
from farflung.core.io.durable import write_atomic
from farflung.job.spec import Terms
from farflung.ledger.rows import JobRow, JobState
from farflung.ledger.tx import JobCancel, JobCreate, JobFinish, JobSettle
from farflung.net.counters import Counter
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import Kind
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest, seal
from farflung.train import rounds, snapshot
from farflung.train.roundlog import Closed, Contribution, Finished, Opened
from farflung.train.snapshot import PublicState
from farflung.train.sync import Sync


class Outcome(msgspec.Struct, frozen=True):
    """How a job ended. Money in micro-credits."""

    finished: Finished
    public: PublicState
    escrow: int
    paid: int
    refunded: int
    output: Hash


class Requester:
    """One job, from its terms to its settlement."""

    def __init__(
        self,
        key: SigningKey,
        folder: RunFolder,
        terms: Terms,
        journal: Journal,
        scorer: Scorer,
        port: int = 0,
        on_traffic: Callable[[dict[Kind, int]], None] = lambda _: None,
    ) -> None:
        """`on_traffic` hears after each round what this process has sent so far, by kind."""
        self._key, self._terms, self._journal, self._scorer = key, terms, journal, scorer
        self._folder = folder
        self._job_key = key.secret(NS_JOB_KEY, terms.id)
        self._disk = Disk(folder.store, "requester.store")
        self._shelf = objects.Shelf(self._disk, Sync.of(terms.spec.sync).codec.bound(terms.layout))
        self.archive = Archive(self._disk, folder.snapshots, self._job_key, key.public)
        self.log = RunLog(folder.rounds_file, key)
        self._addresses: dict[PeerId, wire.Address] = {}
        self._coordinator: Coordinator | None = None
        self._stop_asked = False
        self._on_traffic = on_traffic
        self.counter = Counter()
        self.endpoint = Endpoint(key, self._serve, self.counter, port=port)

    async def open(self) -> None:
        """Starts to listen."""
        host, port = await self.endpoint.start()
        self._addresses[self._key.public] = wire.Address(self._key.public, host, port)

    async def close(self) -> None:
        """Closes the network side and the log."""
        await self.endpoint.close()
        self.log.close()

    def stop(self) -> None:
        """Lets the round that is open finish, then settles."""
        self._stop_asked = True
        if self._coordinator is not None:
            self._coordinator.post(rounds.Stop())

    def lost(self, peer: PeerId, reason: str) -> None:
        """Evidence from outside the network that a provider is gone: its process ended."""
        if self._coordinator is not None:
            self._coordinator.lose(peer, reason)

    async def _serve(self, connection: Connection, method: str, body: bytes) -> bytes:
        """Members of the job fetch data, public state and payloads here, and leave replicas."""
        if connection.peer not in self._addresses:
            raise PolicyError("FF-APP-042", "objects are served to the members of a lease only")
        return self._shelf.serve(connection.peer, method, body)

    async def dial(self, peer: PeerId) -> Connection:
        """A connection to a provider of the job."""
        address = self._addresses.get(peer)
        if address is None:
            raise NetworkError("FF-APP-047", f"no address is known for {peer[:4].hex()}")
        return await self.endpoint.dial(peer, address.host, address.port)

    async def run(self, ledger: LedgerClient, directory: Connection, budget: Budget) -> Outcome:
        """The job, from its funding or from wherever its log ends, to its settlement."""
        await self._fund(ledger, budget)
        recorder = Recorder(ledger, self._terms.id, self.log)
        state = self._replayed()
        public = self._public_state(state.round)
        if state.phase is rounds.Phase.DONE:
            finished = next(r for r in self.log.records if isinstance(r, Finished))
        else:
            state = await self._assemble(ledger, directory, budget, state, public)
            finished, public = await self._drive(recorder, state, public)
        await recorder.catch_up()
        return await self._settle(ledger, finished, public)

    async def _fund(self, ledger: LedgerClient, budget: Budget) -> None:
        spec = self._terms.spec
        job = await ledger.job(self._terms.id)
        if job is not None and job.requester != self._key.public:
            raise RunError(
                "FF-APP-069", "somebody else has put this job on the ledger", hint="start a new run"
            )
        if job is None:
            price = budget.unit_price
            await ledger.submit(JobCreate(self._terms.id, budget.escrow, price, spec.rounds, budget.deadline))
        stakes = spec.network.providers * budget.stake
        self._journal.emit(Funded(job=self._terms.id.hex(), escrow=budget.escrow, stakes=stakes))

    def _replayed(self) -> rounds.State:
        spec, terms = self._terms.spec, self._terms
        if not self.log.records:
            self.log.write(Opened(terms.id, self._key.public, terms.initial_root, spec.rounds))
        fresh = rounds.State(terms.id, spec.rounds, spec.sync.steps, spec.sync.topk, spec.round_tokens, ())
        return rounds.replay(fresh, self.log.records)

    def _public_state(self, round: int) -> PublicState:
        """Public state before `round`: the newest stored one, and the accept sets since merged over it."""
        sync, layout = Sync.of(self._terms.spec.sync), self._terms.layout
        roots, accepted = roots_by_round(self.log.records), accepted_by_round(self.log.records)
        public = self.archive.latest_state(self._terms, roots)
        while public.round < round:
            public = sync.apply(public, layout, self.archive.parts(accepted[public.round]))
        return snapshot.check(public, layout, round, roots[round])

    async def _assemble(
        self,
        ledger: LedgerClient,
        directory: Connection,
        budget: Budget,
        state: rounds.State,
        public: PublicState,
    ) -> rounds.State:
        """Members with data and public state. Those that do not come count as lost."""
        asks, addresses = await read_asks(ledger, directory)
        self._addresses.update(addresses)
        peers = await hire(ledger, self._terms, budget, asks, self.dial, self._journal)
        seats = [lease.node for lease in await ledger.leases(self._terms.id)]
        self._addresses = {p: a for p, a in self._addresses.items() if p in seats or p == self._key.public}
        supplies = self._supplies(public)
        replay = replay_plan(self.archive, self.log.records, supplies.snapshot_round, public.round)
        wanted = [p for p in seats if p in peers and (not state.members or p in state.members)]
        members = list(self._addresses.values())
        ready = await start_members(
            self._terms, supplies, replay, public, seats, wanted, members, self.dial, self._journal
        )
        missing = set(state.members) - set(ready)
        state = msgspec.structs.replace(state, members=state.members or tuple(ready))
        for peer in missing:
            state, _ = rounds.step(state, rounds.Lost(peer))
        return state

    def _supplies(self, public: PublicState) -> Supplies:
        """Puts data, module and the newest stored public state into the own store, sealed, for members to fetch."""
        roots = roots_by_round(self.log.records)
        stored = self.archive.latest_state(self._terms, roots)
        packed = snapshot.pack(stored, self._terms.layout)
        dataset = self._folder.dataset_file.read_bytes()
        module = self._folder.module_file.read_bytes() if self._folder.module_file.exists() else b""
        return Supplies(self._job_key, self._put(dataset), self._put(module), self._put(packed), stored.round)

    def _put(self, data: bytes) -> Manifest:
        manifest, chunks = seal(self._job_key, data)
        if not self._disk.has(manifest.id):
            self._disk.put(manifest, chunks)
        return manifest

    async def _drive(
        self, recorder: Recorder, state: rounds.State, public: PublicState
    ) -> tuple[Finished, PublicState]:
        def closed(_: Closed, __: tuple[Contribution, ...], after: PublicState) -> None:
            recorder.wake()
            self._scorer.offer(after)
            self._on_traffic(self.counter.sent)

        coordinator = self._coordinator = Coordinator(
            self._key,
            self._terms,
            self.log,
            self.archive,
            state,
            public,
            self.dial,
            self._journal,
            closed,
        )
        if self._stop_asked:
            coordinator.post(rounds.Stop())
        recorder.wake()
        recording = asyncio.create_task(recorder.run(coordinator.fail))
        try:
            return await coordinator.run()
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)

    async def _settle(self, ledger: LedgerClient, finished: Finished, public: PublicState) -> Outcome:
        output = self.hand_over(public)
        job = await self._job(ledger)
        if job.state is JobState.RUNNING and job.round:
            await ledger.submit(JobFinish(self._terms.id, job.root, output))
            job = await self._job(ledger)
        if job.state is JobState.OUTPUT:
            await ledger.submit(JobSettle(self._terms.id))
        elif job.state in (JobState.CREATED, JobState.RUNNING):
            await ledger.submit(JobCancel(self._terms.id))
        job = await self._job(ledger)
        for lease in await ledger.leases(self._terms.id):
            self._journal.emit(Settled(peer=lease.node.hex(), units=lease.units, paid=lease.paid))
        await self._release()
        return Outcome(finished, public, job.paid + job.refunded, job.paid, job.refunded, output)

    async def _job(self, ledger: LedgerClient) -> JobRow:
        job = await ledger.job(self._terms.id)
        if job is None:
            raise RunError(
                "FF-APP-066", "the ledger does not know the job", hint="is this the run's own ledger?"
            )
        return job

    def hand_over(self, public: PublicState) -> Hash:
        """Writes the model as safetensors; the digest of the file is the job's output on the ledger."""
        data = model_file(self._terms, public)
        write_atomic(self._folder.model_file, data, "run.model")
        return model_hash(data)

    async def _release(self) -> None:
        """Tells every provider that the lease is over; one that is gone needs no telling."""
        for peer in self._addresses:
            if peer != self._key.public:
                with contextlib.suppress(FarflungError):
                    connection = await self.dial(peer)
                    await connection.call(wire.END, encode(wire.End(self._terms.id)))


def model_file(terms: Terms, public: PublicState) -> bytes:
    """The trained tensors as a safetensors file: the same state gives the same bytes."""
    return bytes(safetensors.numpy.save(dict(terms.layout.unflatten(public.params))))


def model_hash(data: bytes) -> Hash:
    """The digest under which a model file stands on the ledger."""
    return digest(NS_OUTPUT, data)
