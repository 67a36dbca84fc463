"""Runs a node that lends itself, to train or to audit: it registers, takes one lease at a time, runs a worker.

It serves what it stores, without torch: that lives in the worker, in its sandbox.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from farflung.core import limits
from farflung.core.attestations import attestation_hash
from farflung.core.codec import decode, encode
from farflung.core.errors import PolicyError, ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.core.io.extras import require
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.units import Millis
from farflung.host import lease as slots
from farflung.host.io.code_digest import image_digest
from farflung.host.io.machine_probe import capabilities
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.host.worker_limits import cpu_bound, limits_for
from farflung.ledger.transactions import LeaseOffer, LeaseRole, sign_offer
from farflung.market.provider_offer import caps_hash, lasting
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import any_of, client_in_run, reaches_of, validators_in
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower, first_key
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.dispute_files import DisputeJob
from farflung.peers.node.disputes import DisputeAgent, parts_of
from farflung.peers.node.lan_discovery import open_endpoint
from farflung.peers.node.policy import LeasePolicy, check_passes
from farflung.peers.node.reachability import Reachability
from farflung.peers.node.routes import Answer, Caller, NodeCall, NodeRole, Route
from farflung.peers.node.tamper_watch import TamperWatch
from farflung.peers.node.training_lease import TrainingLease
from farflung.peers.node.vouchers import VoucherStore
from farflung.peers.node.workspace import JobWorkspace
from farflung.peers.process.channel import Channel, ChannelEmitter, by_name, report_end
from farflung.peers.program.stall_watch import STALLED, StallWatch
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import reach
from farflung.peers.protocol.directory import DirectoryPublisher
from farflung.peers.protocol.job_key import LeaseKey, sign_lease_key
from farflung.peers.protocol.messages import order
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.reply_bounds import WorkerReplies

ANSWER_MS = 10_000  # within which this node's own policy must answer a proposal
LEASE_MS = 24 * 3600 * 1000  # a lease that nobody ends is over after a day
WATCH_SECONDS = 0.25


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
        self._disk = DiskObjectStore(self._folder / "store", "provider.store")
        self._addresses: dict[PeerId, messages.PeerAddress] = {}
        self._lease_key = LeaseKey()
        self.requester: PeerId | None = None  # of the last lease
        self._proposal: messages.LeaseOfferRequest | None = None
        self._lease: TrainingLease | AuditLease | None = None
        # Lost its worker: it serves what is on its disk until it is started anew.
        self._past: TrainingLease | None = None
        self._slot: slots.Slot = None
        self._process: WorkerProcess | None = None
        self._pipe: WorkerPipe | None = None
        self._stall: StallWatch | None = None  # of the request under way
        self._orders = OwnedTasks()  # under way
        self._facts = capabilities(self._folder, config.flops or None)
        self._policy = LeasePolicy(
            chain, role.role, config.unit_price, config.stake, self._facts.memory_bytes, image_digest
        )
        self.counter = ByteCounter()
        self.endpoint, self.path_manager = open_endpoint(config, self.handle, self.counter, channel)
        self.reachability = Reachability(key, self.endpoint, self.path_manager)
        self.tamper_watch = TamperWatch(self._folder, chain, key.public, channel)
        self.vouchers = VoucherStore(self._folder / "vouchers", key.public, chain, channel)
        folder = self._folder / "briefs"
        self.disputes = DisputeAgent(folder, key, parts_of, channel, contests=config.contests)

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """One request of one peer, by the role's table; objects are served to the members of a lease."""
        peer, route = connection.peer, self._role.routes.get(method)
        if method.startswith("object."):
            return self._serve(peer, method, body)
        caller = route.caller if route is not None else Caller.REQUESTER
        is_allowed, lease = self._admitted(peer, caller)
        if not is_allowed:
            raise PolicyError("FF-APP-041", f"{method[:40]!r} is for the requester of a lease on this node")
        if route is None:
            raise ProtocolError("FF-APP-043", f"a {self._role.name} does not serve {method[:40]!r}")
        reply = route.answer(NodeCall(self, lease, peer), _decoded(route, lease, body))
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
            call.node._channel.report("bytes", **by_name(call.node.counter))
            return reply

        return answer

    # What the table of each role has

    def _keep(self, call: NodeCall, said: messages.VoucherUpdate) -> None:
        """A voucher of the lease, also of one whose worker is gone. Raises PolicyError FF-APP-305."""
        if said.job not in [lease.job for lease in (self._lease, self._past) if lease is not None]:
            raise PolicyError("FF-APP-305", "a voucher is of a job that is not worked on here")
        self.vouchers.take(call.peer, said)

    def _admit(self, call: NodeCall, said: messages.MembersUpdate) -> None:
        self._know(said.members)
        call.lease.admit(frozenset(self._addresses) | {call.peer})

    def _show(self, call: NodeCall, said: messages.RelayPassesUpdate) -> None:
        """Passes for ways through relays, at the requester's cost. Raises PolicyError FF-APP-241."""
        check_passes(said.passes, call.peer, self._key.public, int(time.time()))
        for signed in said.passes:
            self.endpoint.payer.put(signed)

    def join_group(self, call: NodeCall, said: messages.GroupJoinRequest) -> Awaitable[None]:
        """The job's group at a relay."""
        return call.lease.fanning.follow(said, self._lease_key)  # type: ignore[no-any-return]

    def _propose(self, call: NodeCall, proposal: messages.LeaseOfferRequest) -> messages.LeaseOfferReply:
        """Takes a job into the free slot if the policy agrees, and signs the offer that binds both sides."""
        self._policy.judge(call.peer, proposal)
        job = proposal.terms.id
        if self._slot is None:
            self._take(call.peer, proposal)
        elif self._slot.job != job or self.requester != call.peer:
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        asked = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
        said = self.tamper_watch.attest(job, self._facts, self._process)
        attests = attestation_hash(said)
        if isinstance(self._lease, TrainingLease):
            self._lease.attests = attests
        offer = LeaseOffer(self._chain, job, self._key.public, *asked, self._role.role, attests)
        lease_key = self._lease_key.public
        signature = sign_lease_key(self._key, job, lease_key)
        return messages.LeaseOfferReply(sign_offer(self._key, offer), lease_key, signature, said)

    def _take(self, requester: PeerId, proposal: messages.LeaseOfferRequest) -> None:
        terms, now = proposal.terms, _now()
        self._lease_key = LeaseKey()
        if self._past is not None and self._past.job != terms.id:
            self._past = None
        taken = self._lease_for(proposal)
        self._happened(slots.LeaseOfferEvent(terms.id, Millis(now + ANSWER_MS), Millis(now + LEASE_MS)))
        self.requester, self._proposal, self._lease = requester, proposal, taken
        try:
            self._happened(slots.LeaseAcceptEvent(terms.id))
        except RunError:  # no worker: the slot must not wait for one
            self.release("the worker cannot be started")
            raise

    def _lease_for(self, proposal: messages.LeaseOfferRequest) -> TrainingLease | AuditLease:
        terms = proposal.terms
        workspace = JobWorkspace(self._key, terms, self._disk, self.dial, proposal.dataset_bytes)
        if self._role.role is LeaseRole.AUDIT:
            return AuditLease(workspace, proposal.chain, partial(self.disputes.found, terms.id))
        own, private = partial(self.disputes.own, terms.id), self._folder / "private"
        return TrainingLease(workspace, private, self._config.cheat, self.endpoint, own)

    def _happened(self, event: slots.Event) -> None:
        """Moves the slot and carries out what follows."""
        self._slot, effects = slots.handle(self._slot, event, _now())
        for effect in effects:
            match effect:
                case slots.WorkerLaunchAction():
                    self._launch()
                case slots.WorkerStopAction() | slots.WorkerKillAction():
                    self._end_worker()
                case slots.LeaseEndAction():
                    if isinstance(self._lease, TrainingLease):
                        self._lease.fanning.leave()
                        self._past = self._lease
                    if self.requester is not None:
                        self.endpoint.payer.drop(self.requester)
                    self._lease = self._proposal = None
                case slots.LeaseAnswerAction():
                    pass  # the answer travels as the reply to the proposal

    def _launch(self) -> None:
        assert self._proposal is not None
        terms, tokens = self._proposal.terms, self._proposal.units_max
        bounds = limits_for(self._proposal.worker_bytes, cpu_bound(terms.layout.size, tokens, self._facts.flops))
        self._process = start_worker(self._folder / "scratch", self._folder / "worker.log", bounds)
        self._pipe = WorkerPipe(self._process.socket, WorkerReplies(terms.layout).to)
        self._channel.report("worker", pid=self._process.pid, tier=self._process.tier.name)

    def _end_worker(self) -> None:
        """Ends the worker, if there is one, and tells the slot."""
        if self._slot is None:
            return
        self._orders.cancel()  # first: they wait for the worker's socket, which `terminate` closes
        why = "there is no worker"
        if self._process is not None:
            self._channel.report("usage", process=f"{self._config.name} worker", **self._process.usage())
            why = self._process.terminate()
        self._process = self._pipe = self._stall = None
        self._happened(slots.WorkerExitEvent(self._slot.job, why))

    async def watch(self) -> None:
        """Lets time pass for the slot, and notices a worker that ended by itself."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._process is not None and self._process.is_running():
                over = self._process.over_limit() or (self._pipe.fault if self._pipe is not None else "")
                over = over or self._stalled(self._process)
                if over:
                    self._channel.report(
                        "warning", code="FF-APP-086", message=f"{self._config.name}: its worker is ended: {over}"
                    )
                    self._end_worker()
                    continue
                if self._is_tampered(self._process):
                    continue
            if self._process is not None and not self._process.is_running():
                self._end_worker()
            elif self._slot is not None:
                self._happened(slots.LeaseTickEvent())

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

    def _start(self, call: NodeCall, start: messages.LeaseStartRequest) -> Awaitable[messages.LeaseStartReply]:
        return self.in_turn(call.lease, lambda: self._started(call, start))

    async def _started(self, call: NodeCall, start: messages.LeaseStartRequest) -> messages.LeaseStartReply:
        self._know(start.members)
        if self._pipe is None or self._process is None:
            raise _worker_gone()
        call.lease.sandbox = self._process.tier.name
        job_key = self._lease_key.unwrap(start.job, start.wrapped_key)
        assert self._proposal is not None
        await self.disputes.attend(DisputeJob(self._proposal.terms, job_key, start), self._disk)
        started: messages.LeaseStartReply = await call.lease.start(start, job_key, self._pipe, call.peer)
        self._past = None
        self._happened(slots.WorkerStartEvent(start.job))
        return started

    def _know(self, members: tuple[messages.PeerAddress, ...]) -> None:
        left, self._addresses = self._addresses, {a.peer: a for a in members}
        self.path_manager.forget(left.keys() - self._addresses.keys())
        for address in members:
            self.path_manager.learn(address.peer, address.places)

    async def dial(self, peer: PeerId) -> Connection:
        """A connection to a fellow member, directly or through its relay, or the one on which the requester came."""
        address = self._addresses.get(peer)
        if address is None:  # not that peer's fault
            raise PolicyError("FF-APP-047", f"no address is known for {peer[:4].hex()}")
        return await reach(self.path_manager, address)

    def _end(self, call: NodeCall, said: messages.LeaseEndRequest) -> None:
        """The requester ends the lease: what the job left here is deleted."""
        if self._past is not None and self._past.job == said.job:
            self._past.end()
        if self._slot is not None and self._slot.job == said.job:
            if self._lease is not None:
                self._lease.end()
            self.release("the requester ended the lease")
        self._past = None

    def release(self, reason: str) -> None:
        """Ends the lease, if there is one."""
        if self._slot is not None:
            self._happened(slots.LeaseFinishEvent(self._slot.job, reason))

    def presence(
        self, places: tuple[EndpointAddress, ...], reach_ledger: Callable[[], Awaitable[Connection]]
    ) -> DirectoryPublisher:
        """How this node stays in the directory."""
        return DirectoryPublisher(self._key, places, self._facts, self._role.role, reach_ledger)

    async def register(self, client: LedgerClient) -> None:
        """Registers the node and bonds its stake, unless that is done. What was measured enters no root."""
        config = self._config
        terms = caps_hash(lasting(self._facts)), config.unit_price, config.stake, config.expires
        await client.register(*terms, *first_key(config.credential))

    async def close(self) -> None:
        """Ends the lease and serves nobody any more."""
        await self.vouchers.close()
        await self.tamper_watch.close()
        self.release("the agent ends")
        await self.reachability.close()
        await self.path_manager.close()
        await self.endpoint.close()


def _worker_gone() -> RunError:
    return RunError("FF-APP-049", "the worker is gone", hint="look into worker.log in the provider's folder")


async def lend(role: NodeRole, config: NodeConfig, channel: Channel) -> None:
    """A node's process: serves until the channel ends; registers when told (locally: in turn), or at once.

    Raises UsageError FF-CORE-120 before it registers: PyTorch is not installed.
    """
    require("torch")
    node, tasks = NodeAgent(config, channel, role), OwnedTasks()
    try:
        places = await node.reachability.open(config.relays)
        reaches = reaches_of(validators_in(config.ledger), node.endpoint)
        reach_ledger = any_of(reaches)
        client = client_in_run(reaches, config.key, config.genesis.genesis, ChannelEmitter(channel).emit)
        for each in (node.vouchers, node.tamper_watch, node.disputes):
            each.follow(client)
        presence = node.presence(places, reach_ledger)
        node.reachability.follow(presence)
        place = {"host": places[0].host, "port": places[0].port}
        channel.report("ready", peer=config.key.public.hex(), **place, pid=os.getpid())
        follower = KeyRegistryFollower(reach_ledger, node.endpoint.admission.keyring, node.endpoint.recheck)
        for work in (node.watch(), node.disputes.stay(), follower.stay()):
            tasks.begin(work)

        async def register() -> None:
            await node.register(client)
            await presence.publish()
            tasks.begin(presence.stay())
            channel.report("registered")

        if config.registers:
            await register()
        while (said := await channel.next()) is not None:
            if said.get("do") == "register":
                await register()
            elif said.get("do") == "leave":
                await node.vouchers.claim_all()
                await node.disputes.clear()
                await client.leave()
                channel.report("left")
    finally:
        await tasks.close()
        await node.close()
    report_end(channel, config.name, by_name(node.counter))


def _decoded(route: Route, lease: TrainingLease | AuditLease | None, body: bytes) -> Any:
    """A message; one about a lease names its job. Raises ProtocolError, PolicyError FF-APP-057."""
    if route.request is bytes:
        return body
    return order(lease.job, body, route.request) if lease else decode(body, route.request, limits.CONTROL_BYTES)


def _by_node(verb: Callable[[NodeAgent, NodeCall, Any], Any]) -> Answer:
    return lambda call, message: verb(call.node, call, message)


LEASE_ROUTES: Final[Mapping[str, Route]] = {
    messages.PROPOSE: Route(messages.LeaseOfferRequest, Caller.ANYONE, _by_node(NodeAgent._propose)),
    messages.START: Route(messages.LeaseStartRequest, Caller.REQUESTER, _by_node(NodeAgent._start)),
    messages.MEMBERS: Route(messages.MembersUpdate, Caller.REQUESTER, _by_node(NodeAgent._admit)),
    messages.PASSES: Route(messages.RelayPassesUpdate, Caller.REQUESTER, _by_node(NodeAgent._show)),
    messages.VOUCH: Route(messages.VoucherUpdate, Caller.PAYER, _by_node(NodeAgent._keep)),
    messages.END: Route(messages.LeaseEndRequest, Caller.LEAVING_REQUESTER, _by_node(NodeAgent._end)),
}
