"""Runs a node that lends itself, to train or to audit: it registers, takes one lease at a time, runs a worker.

It serves what it stores, without torch: that lives in the worker, in its sandbox.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from farflung.core.attestations import attestation_hash
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, PolicyError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.units import Millis
from farflung.host import lease as slots
from farflung.host.io.code_digest import image_digest
from farflung.host.io.machine_probe import capabilities
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.ledger.transactions import LeaseOffer, LeaseRole, NodeRegister, sign_offer
from farflung.market.provider_offer import caps_hash, lasting
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.key_registry import first_key
from farflung.peers.node import output_attestation, registration
from farflung.peers.node.admission import FOLLOW_SECONDS, LeaseAdmission
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.disk_floor import DiskFloor
from farflung.peers.node.dispute_files import DisputeJob
from farflung.peers.node.disputes import DisputeAgent, parts_of
from farflung.peers.node.job_departure import JobDeparture
from farflung.peers.node.lan_discovery import open_endpoint
from farflung.peers.node.policy import LeasePolicy
from farflung.peers.node.reachability import Reachability
from farflung.peers.node.routes import Answer, Caller, NodeCall, NodeRole, decoded
from farflung.peers.node.slot_clock import SlotClock, SlotDue
from farflung.peers.node.tamper_watch import TamperWatch
from farflung.peers.node.training_lease import TrainingLease
from farflung.peers.node.voucher_bound import VoucherBound
from farflung.peers.node.vouchers import VoucherStore
from farflung.peers.node.workspace import JobWorkspace
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.channel import Channel, by_name
from farflung.peers.program.stall_watch import STALLED, StallWatch
from farflung.peers.program.worker_bounds import bounds_of_lease
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import reach
from farflung.peers.protocol.directory import DirectoryPublisher
from farflung.peers.protocol.job_key import LeaseKey, sign_lease_key
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.reply_bounds import WorkerReplies

ANSWER_MS = 10_000  # within which this node's own policy must answer a proposal
LEASE_MS = 24 * 3600 * 1000  # a lease that nobody ends is over after a day
WATCH_SECONDS = 0.25
AWAY_SECONDS = 10.0  # after which a node that ends waits no longer for a requester that is not there
LINGER_SECONDS = 30.0  # for which a node that ends serves what an audit may ask for
_NEW_WORK: Final = (messages.TRAIN, messages.AUDIT, messages.START)  # what a lease that is to end does not begin


def _now() -> Millis:
    return Millis(int(time.monotonic() * 1000))


class NodeAgent:
    """One node: at most one lease at a time, for one role."""

    def __init__(self, config: NodeConfig, channel: Channel, role: NodeRole) -> None:
        """Raises UsageError FF-APP-198, FF-NET-151: no bound for the line."""
        key, chain = config.key, config.genesis.genesis.chain
        self._config, self._channel, self._role = config, channel, role
        self._key, self._chain, self._folder = key, chain, config.folder
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._disk_floor = DiskFloor(self._folder, config.disk_floor)
        self._disk = DiskObjectStore(self._folder / "store", "provider.store")
        self._addresses: dict[PeerId, messages.PeerAddress] = {}
        self.lease_key = LeaseKey()
        self.requester: PeerId | None = None  # of the last lease
        self._proposal: messages.LeaseOfferRequest | None = None
        self._lease: TrainingLease | AuditLease | None = None
        self._past: TrainingLease | None = None  # lost its worker: serves what is on its disk until it is started anew
        self._slot: slots.Slot = None
        self._process: WorkerProcess | None = None
        self._pipe: WorkerPipe | None = None
        self._stall: StallWatch | None = None  # of the request under way
        self._orders = OwnedTasks()  # under way
        self._facts = config.facts(capabilities(self._folder, config.flops or None, config.threads))
        offers = config.unit_price, config.stake, self._facts.memory_bytes
        policy = LeasePolicy(chain, role.role, *offers, image_digest, *config.jobs_taken)
        self._policy = policy._replace(upload=bandwidth_limits.known_upload(self._folder))
        self.counter = ByteCounter()
        self.endpoint, self.path_manager = open_endpoint(config, self.handle, self.counter, channel)
        self.reachability = Reachability(key, self.endpoint, self.path_manager)
        # A run's own nodes wait longer: on a loaded computer all workers start at once, and nobody else asks.
        follow = FOLLOW_SECONDS if config.registers else 10 * FOLLOW_SECONDS
        self.admission, self._hold = LeaseAdmission(key.public, claims=config.claims), SlotClock(follow)
        self._looks = OwnedTasks()  # whether an offer became a lease
        self._closed, self._asked = "", 0.0  # by the owner; when the last lease ended, or an audit asked since
        self.worked: set[Hash] = set()  # jobs whose pay is not final
        self.tamper_watch = TamperWatch(self._folder, chain, key.public, channel)
        self.vouchers = VoucherStore(self._folder / "vouchers", key.public, chain, channel)
        self.voucher_bound = VoucherBound(self._folder / "unpaid", key.public, self.vouchers.claim, channel)
        self.departure, self.attest = JobDeparture(key.public), partial(output_attestation.attest, key, chain)
        self.disputes = DisputeAgent(self._folder / "briefs", key, parts_of, channel, contests=config.contests)

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """One request of one peer, by the role's table; objects are served to the members of a lease."""
        peer, route = connection.peer, self._role.routes.get(method)
        if method.startswith("object."):
            return self._serve(peer, method, body)
        if method == messages.TERM:
            return await self.admission.introduce(connection, body)
        if route is None:
            raise self._role.unserved(method)
        is_allowed, lease = self._admitted(peer, route.caller)
        if is_allowed and route.caller is Caller.AUDITORS:
            self._asked = time.monotonic()
        if peer == self.requester:
            if self._slot is not None:
                self.admission.check_term(connection, self._slot.job)
            self._hold.order(time.monotonic())
            is_over = bool(self.closed) and method in _NEW_WORK
            if is_over and lease is not None:
                self._warn("FF-APP-575", f"the lease ends: {self.closed}")
                self._end_worker(self.closed)
            if is_over or (self._hold.is_parked(peer) and not is_allowed):
                if method == messages.END:
                    self._hold.free()
                raise _worker_gone()
        if not is_allowed:
            raise PolicyError("FF-APP-041", f"{method[:40]!r} is for the requester of a lease on this node")
        reply = route.answer(NodeCall(self, lease, peer), decoded(route, lease.job if lease else None, body))
        if inspect.isawaitable(reply):
            reply = await reply
        return reply if isinstance(reply, bytes) else b"" if reply is None else encode(reply)

    def _admitted(self, peer: PeerId, caller: Caller) -> tuple[bool, TrainingLease | AuditLease | None]:
        """Whether a peer is one of those callers, and of which lease."""
        is_requester, lease = peer == self.requester, self._lease
        standing = self._past or lease
        match caller:
            case Caller.ANYONE:
                return True, None
            case Caller.PAYER:
                return is_requester, None
            case Caller.REQUESTER:
                return is_requester and lease is not None, lease
            case Caller.LEAVING_REQUESTER:
                return is_requester and standing is not None, standing
            case Caller.AUDITORS:
                return standing is not None and (is_requester or standing.is_verifier(peer)), standing
            case Caller.MEMBERS:
                return lease is not None and lease.allows(peer), lease

    def _serve(self, peer: PeerId, method: str, body: bytes) -> bytes:
        for lease in (self._lease, self._past):
            if lease is not None and lease.allows(peer):
                return lease.objects.serve(peer, method, body)
        raise PolicyError("FF-APP-042", "objects are served to the members of a lease only")

    async def in_turn(self, lease: TrainingLease | AuditLease, work: Callable[[], Any]) -> Any:
        """Carries out an order when those before it are done. What is under way when the lease ends is given up."""

        async def turn() -> Any:
            async with lease.turn:
                done = work()
                return await done if inspect.isawaitable(done) else done

        try:
            return await self._orders.begin(turn())
        except asyncio.CancelledError:
            if self._lease is lease:
                raise
            raise _worker_gone() from None

    @staticmethod
    def counted(verb: Callable[[Any, Any], Awaitable[Any]]) -> Answer:
        """As `in_turn`; the supervisor is told what was sent so far."""

        async def answer(call: NodeCall, message: Any) -> Any:
            reply = await call.node.in_turn(call.lease, lambda: verb(call.lease, message))
            call.node._channel.report("round", job=call.lease.job.hex(), round=message.round)
            call.node._channel.report("bytes", **by_name(call.node.counter))
            return reply

        return answer

    async def propose(self, call: NodeCall, proposal: messages.LeaseOfferRequest) -> messages.LeaseOfferReply:
        """Takes a job into the free slot if policy and ledger agree, and signs the offer that binds both sides."""
        self._policy.judge(call.peer, proposal)
        if self._is_free(call.peer, proposal):
            await self.admission.admit(call.peer, proposal)
            if self._is_free(call.peer, proposal):  # still
                self._take(call.peer, proposal)
        job = proposal.terms.id
        asked = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
        said = self.tamper_watch.attest(job, self._facts, self._process)
        attests = attestation_hash(said)
        if isinstance(self._lease, TrainingLease):
            self._lease.attests = attests
        offer = LeaseOffer(self._chain, job, self._key.public, *asked, self._role.role, attests)
        lease_key = self.lease_key.public
        signature = sign_lease_key(self._key, job, lease_key)
        return messages.LeaseOfferReply(sign_offer(self._key, offer), lease_key, signature, said)

    def _is_free(self, requester: PeerId, proposal: messages.LeaseOfferRequest) -> bool:
        """Whether the slot is free for this job; not: it has it already. Raises PolicyError FF-APP-046, 575, 576."""
        if self._slot is not None and self._slot.job == proposal.terms.id and self.requester == requester:
            return False
        if self._slot is not None or self._hold.is_kept(requester, proposal.terms.id, time.monotonic()):
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        if why := self.closed:
            raise PolicyError(
                "FF-APP-575", "this node takes no lease now", cause=why, hint="propose to another provider"
            )
        self._disk_floor.check(proposal.terms, self._role.role)
        return True

    def _take(self, requester: PeerId, proposal: messages.LeaseOfferRequest) -> None:
        terms, now = proposal.terms, _now()
        self.lease_key = LeaseKey()
        if self._past is not None and self._past.job != terms.id:
            self._past = None
        taken = self._lease_for(proposal)
        self._happened(slots.LeaseOfferEvent(terms.id, Millis(now + ANSWER_MS), Millis(now + LEASE_MS)))
        self.requester, self._proposal, self._lease = requester, proposal, taken
        self._hold.offer(time.monotonic())
        self.worked.add(terms.id)
        told = {"requester": requester.hex(), "price": proposal.unit_price, "units": proposal.units_max}
        self._channel.report("lease", job=terms.id.hex(), **told)
        try:
            self._happened(slots.LeaseAcceptEvent(terms.id))
        except RunError:  # no worker: the slot must not wait for one
            self.release("the worker cannot be started")
            raise

    def _lease_for(self, proposal: messages.LeaseOfferRequest) -> TrainingLease | AuditLease:
        terms, sizes = proposal.terms, (proposal.dataset_bytes, self._config.data_cache)
        workspace = JobWorkspace(self._key, terms, self._disk, self.dial, *sizes)
        workspace.threads, workspace.device = self._facts.threads, self._config.device
        known = terms.id, workspace.kept_tokens
        account = self.voucher_bound.account(terms, self._role.role)
        if self._role.role is LeaseRole.AUDIT:
            return AuditLease(workspace, account, proposal.chain, partial(self.disputes.found, *known))
        own, private = partial(self.disputes.own, *known), self._folder / "private"
        return TrainingLease(workspace, private, account, self._config.cheat, self.endpoint, own)

    def _happened(self, event: slots.Event) -> None:
        """Moves the slot and carries out what follows."""
        self._slot, effects = slots.handle(self._slot, event, _now())
        for effect in effects:
            match effect:
                case slots.WorkerLaunchAction():
                    self._launch()
                case slots.WorkerStopAction() | slots.WorkerKillAction():
                    self._end_worker()
                case slots.LeaseEndAction(job=job, reason=reason):
                    if isinstance(self._lease, TrainingLease):
                        self._lease.fanning.leave()
                        self._past, self._asked = self._lease, time.monotonic()
                    if self.requester is not None:
                        self.endpoint.payer.drop(self.requester)
                    self._lease = self._proposal = None
                    self._channel.report("lease_end", job=job.hex(), reason=reason)
                case slots.LeaseAnswerAction():
                    pass  # the answer travels as the reply to the proposal

    def _launch(self) -> None:
        assert self._proposal is not None
        terms, facts = self._proposal.terms, self._facts
        bounds = bounds_of_lease(self._proposal, facts.threads, facts.flops, self._config.device)
        self._process = start_worker(self._folder / "scratch", self._folder / "worker.log", bounds)
        self._pipe = WorkerPipe(self._process.socket, WorkerReplies(terms.layout).to, self._folder)
        self._channel.report("worker", pid=self._process.pid, tier=self._process.tier.name)

    def _end_worker(self, reason: str = "") -> None:
        """Ends the worker, if there is one, and tells the slot. `reason`: better known than by how it ended."""
        if self._slot is None:
            return
        self._orders.cancel()  # first: they wait for the worker's socket, which `terminate` closes
        why = "there is no worker"
        if self._process is not None:
            self._channel.report("usage", process=f"{self._config.name} worker", **self._process.usage())
            why = self._process.terminate()
        self._process = self._pipe = self._stall = None
        self._happened(slots.WorkerExitEvent(self._slot.job, reason or why))

    async def watch(self) -> None:
        """Lets time pass for the slot, and notices a worker that ended by itself."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._process is not None and self._process.is_running():
                over = self._process.over_limit() or (self._pipe.fault if self._pipe is not None else "")
                over = over or self._stalled(self._process)
                if over:
                    self._warn("FF-APP-086", f"its worker is ended: {over}")
                    self._end_worker()
                    continue
                if self._is_tampered(self._process):
                    continue
            if self._process is not None and not self._process.is_running():
                self._end_worker()
            elif self._slot is not None:
                self._happened(slots.LeaseTickEvent())
                self._tend()

    def _tend(self) -> None:
        """Frees the slot of a requester that is silent (node.slot_clock)."""
        if self._slot is None or self.requester is None:
            return
        now = time.monotonic()
        if self._lease is not None and self._lease.turn.locked():
            self._hold.order(now)
        is_connected = self.endpoint.connection(self.requester) is not None
        if self._closed and not is_connected and now - self._hold.ordered > AWAY_SECONDS:
            self._end_worker(self._closed)
            return
        match self._hold.due(now, is_connected=is_connected):
            case SlotDue.LEASE if not len(self._looks):
                self._looks.begin(self._look(self._slot.job, self.requester))
            case SlotDue.PARK:
                self._hold.park(self.requester, self._slot.job, now)
                self._warn("FF-APP-578", "the requester is silent: the worker is ended until it comes back")
                self._end_worker("the requester is silent")

    async def _look(self, job: Hash, requester: PeerId) -> None:
        """Whether the ledger holds the lease that was offered; if not, the slot is free."""
        try:
            is_leased = await self.admission.is_leased(job)
        except FarflungError:
            return  # the ledger is away: asked again
        if self._slot is None or self._slot.job != job:
            return
        if is_leased:
            self._hold.lease()
            return
        self.admission.note_unfollowed(requester)
        self._warn("FF-APP-579", "an offer was signed and no lease followed: the slot is free again")
        self._drop("no lease followed the offer")

    def _warn(self, code: str, text: str) -> None:
        self._channel.report("warning", code=code, message=f"{self._config.name}: {text}")

    @property
    def closed(self) -> str:
        """Why no lease is taken, and none goes on past its round; empty: they are."""
        return self._closed or self._disk_floor.fault()

    @property
    def jobs(self) -> list[Hash]:
        """The jobs that are worked on here, also of a lease that lost its worker."""
        return [lease.job for lease in (self._lease, self._past) if lease is not None]

    def close_slot(self, why: str) -> None:
        """From now on no lease is taken, and the one that is held ends before its next round."""
        self._closed = why

    def open_slot(self) -> None:
        """Leases are taken again."""
        self._closed = ""

    def _stalled(self, process: WorkerProcess) -> str:
        """Why a worker that was asked for something must be ended: its model never returns."""
        if self._pipe is None or not self._pipe.is_busy:
            self._stall = None
            return ""
        now, used = time.monotonic(), process.usage()["cpu_seconds"]
        self._stall = self._stall or StallWatch(now, used)
        return STALLED if self._stall.is_stalled(now, used) else ""

    def _is_tampered(self, process: WorkerProcess) -> bool:
        """Whether somebody reached into the work: then the lease ends, and the ledger hears why."""
        if self._slot is None or self._slot.state is not slots.LeaseState.RUNNING:
            return False  # before that, the worker's walls are not up
        must_end = self.tamper_watch.look(self._config.name, self._slot.job, process)
        if must_end:
            self._end_worker()
        return must_end

    def start(self, call: NodeCall, start: messages.LeaseStartRequest) -> Awaitable[messages.LeaseStartReply]:
        """Brings the job here, when the orders before are done."""
        return self.in_turn(call.lease, lambda: self._started(call, start))

    async def _started(self, call: NodeCall, start: messages.LeaseStartRequest) -> messages.LeaseStartReply:
        self.know(start.members)
        if self._pipe is None or self._process is None:
            raise _worker_gone()
        call.lease.sandbox = self._process.tier.name
        if not self._hold.is_leased:
            await self.admission.check_leased(start.job)
            self._hold.lease()
        job_key = self.lease_key.unwrap(start.job, start.wrapped_key)
        assert self._proposal is not None
        await self.disputes.attend(DisputeJob(self._proposal.terms, job_key, start), self._disk)
        started: messages.LeaseStartReply = await call.lease.start(start, job_key, self._pipe, call.peer)
        self._past = None
        self._happened(slots.WorkerStartEvent(start.job))
        return started

    def know(self, members: tuple[messages.PeerAddress, ...]) -> None:
        """Who works on the job, and where."""
        left, self._addresses = self._addresses, {a.peer: a for a in members}
        self.path_manager.forget(left.keys() - self._addresses.keys())
        for address in members:
            self.path_manager.learn(address.peer, address.places)

    async def dial(self, peer: PeerId) -> Connection:
        """A connection to a fellow member, directly or through its relay, or the one on which the requester came."""
        if (address := self._addresses.get(peer)) is None:  # not that peer's fault
            raise PolicyError("FF-APP-047", f"no address is known for {peer[:4].hex()}")
        return await reach(self.path_manager, address)

    def end(self, call: NodeCall, said: messages.LeaseEndRequest) -> None:
        """The requester ends the lease: what the job left here is deleted."""
        if self._past is not None and self._past.job == said.job:
            self._past.end()
        if self._slot is not None and self._slot.job == said.job:
            self._drop("the requester ended the lease")
        self._hold.free()
        self._past = None

    def _drop(self, reason: str) -> None:
        """Ends the lease and deletes what the job left here."""
        if self._lease is not None:
            self._lease.end()
        self.release(reason)
        self._past = None

    def release(self, reason: str) -> None:
        """Ends the lease, if there is one."""
        if self._slot is not None:
            self._happened(slots.LeaseFinishEvent(self._slot.job, reason))

    def presence(
        self, places: tuple[EndpointAddress, ...], reach_ledger: Callable[[], Awaitable[Connection]]
    ) -> DirectoryPublisher:
        """How this node stays in the directory."""
        return DirectoryPublisher(self._key, places, self._facts, self._role.role, reach_ledger, self._config.declared)

    def wanted(self) -> NodeRegister:
        """What this node says of itself on the ledger."""
        config = self._config
        return NodeRegister(caps_hash(lasting(self._facts)), config.unit_price, config.stake, config.expires)

    async def register(self, client: LedgerClient) -> None:
        """Registers the node and bonds its stake, where that is due. What was measured enters no root."""
        wanted, first = self.wanted(), first_key(self._config.credential)
        if client.counts_blocks:
            await client.register(wanted.caps, wanted.unit_price, wanted.stake, wanted.expires, *first)
        else:
            await registration.renew(client, wanted, int(time.time() * 1000), *first)

    @property
    def is_leased(self) -> bool:
        """Whether a lease is held, or somebody still asks for openings that are owed of its last round."""
        is_owed = self._past is not None and time.monotonic() - self._asked < LINGER_SECONDS
        return self._slot is not None or is_owed

    @property
    def owed(self) -> tuple[Hash, int] | None:
        """Job and newest round of the lease that ended last: until its audits are over, somebody may ask for them."""
        return (self._past.job, self._past.newest) if self._past is not None and self._past.newest >= 0 else None

    async def idle(self) -> None:
        """Until the node is leased no more."""
        while self.is_leased:  # noqa: ASYNC110 - an audit that does not come has no event
            await asyncio.sleep(WATCH_SECONDS)

    async def sweep(self, warn: Callable[[FarflungError], None]) -> None:
        """Claims what the ledger does not say, leaves jobs that are silent or due, removes what ended jobs left."""
        leave = partial(self.departure.sweep, self._slot.job if self._slot else None, is_closed=bool(self.closed))
        rest = self.voucher_bound.sweep, self.disputes.clear, self.tamper_watch.sweep, self.admission.clear
        for work in (self.vouchers.claim_all, leave, *rest):
            try:
                await work()
            except FarflungError as error:
                warn(error)

    async def close(self) -> None:
        """Ends the lease and serves nobody any more."""
        await self.vouchers.close()
        await self.tamper_watch.close()
        await self._looks.close()
        self.release("the agent ends")
        await self.reachability.close()
        await self.path_manager.close()
        await self.endpoint.close()


def _worker_gone() -> RunError:
    return RunError("FF-APP-049", "the worker is gone", hint="look into worker.log in the provider's folder")
