"""Runs a node that lends itself, to train or to audit: it registers, takes one lease at a time, runs a worker.

It serves what it stores, without torch: that lives in the worker, in its sandbox.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from farflung.core import limits
from farflung.core.attestations import attestation_hash
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.relay_passes import SignedRelayPass
from farflung.core.units import Millis
from farflung.host import lease
from farflung.host.io.code_digest import image_digest
from farflung.host.io.machine_probe import capabilities
from farflung.host.io.worker_process import WorkerProcess, start_worker
from farflung.host.worker_limits import cpu_bound, limits_for
from farflung.job.cheat_names import HONEST
from farflung.ledger.block import Genesis
from farflung.ledger.transactions import LeaseOffer, LeaseRole, sign_offer
from farflung.market.provider_offer import caps_hash, lasting
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import any_of, client_in_run, reaches_of, validators_in
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower, credential_in, first_key
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.node.dispute_files import DisputeJob
from farflung.peers.node.disputes import DisputeAgent, parts_of
from farflung.peers.node.lan_discovery import station
from farflung.peers.node.policy import LeasePolicy, check_passes, needs
from farflung.peers.node.reachability import Reachability
from farflung.peers.node.tamper_watch import TamperWatch
from farflung.peers.node.training_lease import TrainingLease
from farflung.peers.node.vouchers import VoucherStore
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.channel import (
    ControlChannel,
    Report,
    ReportingEmitter,
    by_name,
    report,
    report_end,
)
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import reach
from farflung.peers.protocol.directory import DirectoryPublisher
from farflung.peers.protocol.job_key import LeaseKey, sign_lease_key
from farflung.peers.protocol.messages import order
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train.io.worker_pipe import WorkerPipe

ANSWER_MS = 10_000  # within which this node's own policy must answer a proposal
LEASE_MS = 24 * 3600 * 1000  # a lease that nobody ends is over after a day
WATCH_SECONDS = 0.25

# What a verifier may ask for itself when the coordinator got no answer.
FOR_VERIFIERS = (messages.OPEN, messages.UNVEIL)


def _now() -> Millis:
    return Millis(int(time.monotonic() * 1000))


class NodeAgent:
    """One node: at most one lease at a time, for one role."""

    def __init__(self, config: Report, key: SigningKey, genesis: Genesis, role: LeaseRole) -> None:
        self._key, self._genesis, self._role = key, genesis, role
        self._name = str(config["name"])
        self._folder = Path(config["folder"])
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unit_price, self._stake = int(config["unit_price"]), int(config["stake"])
        self._disk = DiskObjectStore(self._folder / "store", "provider.store")
        self._cheat = str(config.get("cheat", HONEST))
        self._addresses: dict[PeerId, messages.PeerAddress] = {}
        self._lease_key = LeaseKey()
        self._requester: PeerId | None = None
        self._proposal: messages.LeaseOfferRequest | None = None
        self._tenancy: TrainingLease | AuditLease | None = None
        # Lost its worker: it serves what is on its disk until it is started anew.
        self._past: TrainingLease | None = None
        self._slot: lease.Slot = None
        self._process: WorkerProcess | None = None
        self._pipe: WorkerPipe | None = None
        self._orders = OwnedTasks()  # under way
        self._facts = capabilities(self._folder, int(config["flops"]))
        self._policy = LeasePolicy(
            genesis.chain, role, self._unit_price, self._stake, self._facts.memory_bytes, image_digest
        )
        self.counter = ByteCounter()
        self._credential, pacer = credential_in(config, key), bandwidth_limits.line_pacer(self._folder)
        lent = config, self._credential, self.handle, self.counter, pacer
        self.endpoint, self.path_manager = station(*lent)
        self.quarters = Reachability(key, self.endpoint, self.path_manager)
        self.vigil = TamperWatch(self._folder, genesis.chain, key.public)
        self.vouchers = VoucherStore(self._folder / "vouchers", key.public, genesis.chain)
        contests = bool(config.get("contests"))
        self.counsel = DisputeAgent(self._folder / "briefs", key, parts_of, contests=contests)

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """One request of one peer: anyone may propose; only the requester of the lease may order."""
        tenancy = self._tenancy
        if method == messages.HELD and isinstance(tenancy, TrainingLease) and tenancy.allows(connection.peer):
            return await tenancy.fanning.answer(body)
        if method.startswith("object."):
            return self._serve(connection.peer, method, body)
        if method == messages.PROPOSE:
            return encode(
                self._propose(connection, decode(body, messages.LeaseOfferRequest, limits.CONTROL_BYTES))
            )
        past = self._past
        if method == messages.VOUCH and connection.peer == self._requester:
            self._keep(connection.peer, decode(body, messages.VoucherUpdate, limits.CONTROL_BYTES))
            return b""
        if past is not None and method in FOR_VERIFIERS and self._may_order(connection.peer, method, past):
            is_requester = connection.peer == self._requester
            return await past.obey(method, body) if is_requester else past.recall(method, body)
        if past is not None and method == messages.END and connection.peer == self._requester:
            self._end(order(past.job, body, messages.LeaseEndRequest).job)
            return b""
        if self._tenancy is None or not self._may_order(connection.peer, method, self._tenancy):
            raise PolicyError("FF-APP-041", f"{method[:40]!r} is for the requester of a lease on this node")
        if method == messages.UNVEIL or connection.peer != self._requester:
            # On the disk already: it waits for no order, and gives none.
            return self._tenancy.recall(method, body)
        return await self._order(connection, self._tenancy, method, body)

    def _keep(self, requester: PeerId, said: messages.VoucherUpdate) -> None:
        """A voucher of the lease, also of one whose worker is gone. Raises PolicyError FF-APP-305."""
        if said.job not in [tenancy.job for tenancy in (self._tenancy, self._past) if tenancy is not None]:
            raise PolicyError("FF-APP-305", "a voucher is of a job that is not worked on here")
        self.vouchers.take(requester, said)

    def _may_order(self, peer: PeerId, method: str, tenancy: TrainingLease | AuditLease) -> bool:
        is_verifiers = method in FOR_VERIFIERS and tenancy.is_verifier(peer)
        return peer == self._requester or is_verifiers

    def _serve(self, peer: PeerId, method: str, body: bytes) -> bytes:
        for tenancy in (self._tenancy, self._past):
            if tenancy is not None and tenancy.allows(peer):
                return tenancy.shelf.serve(peer, method, body)
        raise PolicyError("FF-APP-042", "objects are served to the members of a lease only")

    async def _order(
        self, connection: Connection, tenancy: TrainingLease | AuditLease, method: str, body: bytes
    ) -> bytes:
        """Carries out an order of the lease's requester. What is under way when the lease ends is given up."""
        if method == messages.END:
            self._end(order(tenancy.job, body, messages.LeaseEndRequest).job)
            return b""
        if method == messages.MEMBERS:
            self._know(order(tenancy.job, body, messages.MembersUpdate).members)
            tenancy.admit(frozenset(self._addresses) | {connection.peer})
            return b""
        if method == messages.PASSES:
            self._show(order(tenancy.job, body, messages.RelayPassesUpdate).passes, connection.peer)
            return b""
        if method == messages.ENTER and isinstance(tenancy, TrainingLease):
            await tenancy.fanning.follow(order(tenancy.job, body, messages.GroupJoinRequest), self._lease_key)
            return b""
        if method == messages.DROP and isinstance(tenancy, TrainingLease):
            await tenancy.abandon(order(tenancy.job, body, messages.DropRoundRequest))
        try:
            return await self._orders.begin(self._carry_out(connection, tenancy, method, body))
        except asyncio.CancelledError:
            if self._tenancy is tenancy:
                raise
            raise _worker_gone() from None

    async def _carry_out(
        self, connection: Connection, tenancy: TrainingLease | AuditLease, method: str, body: bytes
    ) -> bytes:
        async with tenancy.turn:
            if method == messages.START:
                return encode(
                    await self._start(
                        connection, tenancy, order(tenancy.job, body, messages.LeaseStartRequest)
                    )
                )
            answer = await tenancy.obey(method, body)
            if method in (messages.MERGE, messages.JUDGE):
                report("bytes", **by_name(self.counter))
            return answer

    def _propose(
        self, connection: Connection, proposal: messages.LeaseOfferRequest
    ) -> messages.LeaseOfferReply:
        """Takes a job into the free slot if the policy agrees, and signs the offer that binds both sides."""
        self._policy.judge(connection.peer, proposal)
        job = proposal.terms.id
        if self._slot is None:
            self._take(connection.peer, proposal)
        elif self._slot.job != job or self._requester != connection.peer:
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        asked = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
        said = self.vigil.attest(job, self._facts, self._process)
        attests = attestation_hash(said)
        if isinstance(self._tenancy, TrainingLease):
            self._tenancy.attests = attests
        offer = LeaseOffer(self._genesis.chain, job, self._key.public, *asked, self._role, attests)
        lease_key = self._lease_key.public
        signature = sign_lease_key(self._key, job, lease_key)
        return messages.LeaseOfferReply(sign_offer(self._key, offer), lease_key, signature, said)

    def _take(self, requester: PeerId, proposal: messages.LeaseOfferRequest) -> None:
        terms, now = proposal.terms, _now()
        self._lease_key = LeaseKey()
        if self._past is not None and self._past.job != terms.id:
            self._past = None
        tenancy = self._tenancy_for(proposal)
        self._happened(lease.LeaseOfferEvent(terms.id, Millis(now + ANSWER_MS), Millis(now + LEASE_MS)))
        self._requester, self._proposal, self._tenancy = requester, proposal, tenancy
        try:
            self._happened(lease.LeaseAcceptEvent(terms.id))
        except RunError:  # no worker: the slot must not wait for one
            self.release("the worker cannot be started")
            raise

    def _tenancy_for(self, proposal: messages.LeaseOfferRequest) -> TrainingLease | AuditLease:
        size = proposal.dataset_bytes
        if self._role is LeaseRole.AUDIT:
            found = partial(self.counsel.found, proposal.terms.id)
            return AuditLease(self._key, proposal.chain, proposal.terms, self._disk, self.dial, size, found)
        private, own = self._folder / "private", partial(self.counsel.own, proposal.terms.id)
        lent = (self._key, proposal.terms, self._disk, private, self.dial, size)
        return TrainingLease(*lent, cheat=self._cheat, station=self.endpoint, retain=own)

    def _happened(self, event: lease.Event) -> None:
        """Moves the slot and carries out what follows."""
        self._slot, effects = lease.handle(self._slot, event, _now())
        for effect in effects:
            match effect:
                case lease.WorkerLaunchAction():
                    self._launch()
                case lease.WorkerStopAction() | lease.WorkerKillAction():
                    self._end_worker()
                case lease.LeaseEndAction():
                    if isinstance(self._tenancy, TrainingLease):
                        self._tenancy.fanning.leave()
                        self._past = self._tenancy
                    if self._requester is not None:
                        self.endpoint.payer.drop(self._requester)
                    self._tenancy = self._proposal = None
                case lease.LeaseAnswerAction():
                    pass  # the answer travels as the reply to the proposal

    def _launch(self) -> None:
        assert self._proposal is not None
        terms, tokens = self._proposal.terms, self._proposal.units_max
        bounds = limits_for(needs(self._proposal), cpu_bound(terms.layout.size, tokens, self._facts.flops))
        self._process = start_worker(self._folder / "scratch", self._folder / "worker.log", bounds)
        self._pipe = WorkerPipe(self._process.socket)
        report("worker", pid=self._process.pid, tier=self._process.tier.name)

    def _end_worker(self) -> None:
        """Ends the worker, if there is one, and tells the slot."""
        if self._slot is None:
            return
        self._orders.cancel()  # first: they wait for the worker's socket, which `terminate` closes
        why = "there is no worker"
        if self._process is not None:
            report("usage", process=f"{self._name} worker", **self._process.usage())
            why = self._process.terminate()
        self._process = self._pipe = None
        self._happened(lease.WorkerExitEvent(self._slot.job, why))

    async def watch(self) -> None:
        """Lets time pass for the slot, and notices a worker that ended by itself."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._process is not None and self._process.is_running():
                over = self._process.over_limit()
                if over:
                    report("warning", code="FF-APP-086", message=f"{self._name}: its worker is ended: {over}")
                    self._end_worker()
                    continue
                if self._is_tampered(self._process):
                    continue
            if self._process is not None and not self._process.is_running():
                self._end_worker()
            elif self._slot is not None:
                self._happened(lease.LeaseTickEvent())

    def _is_tampered(self, process: WorkerProcess) -> bool:
        """Whether somebody reached into the work: then the lease ends, and the ledger hears why."""
        if self._slot is None or self._slot.state is not lease.LeaseState.RUNNING:
            return False  # before that, the worker's walls are not up
        must_end = self.vigil.look(self._name, self._slot.job, process)
        if must_end:
            self._end_worker()
        return must_end

    async def _start(
        self, connection: Connection, tenancy: TrainingLease | AuditLease, start: messages.LeaseStartRequest
    ) -> messages.LeaseStartReply:
        self._know(start.members)
        if self._pipe is None or self._process is None:
            raise _worker_gone()
        tenancy.sandbox = self._process.tier.name
        job_key = self._lease_key.unwrap(start.job, start.wrapped_key)
        assert self._proposal is not None
        await self.counsel.attend(DisputeJob(self._proposal.terms, job_key, start), self._disk)
        started = await tenancy.start(start, job_key, self._pipe, connection.peer)
        self._past = None
        self._happened(lease.WorkerStartEvent(start.job))
        return started

    def _show(self, passes: tuple[SignedRelayPass, ...], payer: PeerId) -> None:
        """Passes for ways through relays, at the requester's cost. Raises PolicyError FF-APP-241."""
        check_passes(passes, payer, self._key.public, int(time.time()))
        for signed in passes:
            self.endpoint.payer.put(signed)

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

    def _end(self, job: Hash) -> None:
        """The requester ends the lease: what the job left here is deleted."""
        if self._past is not None and self._past.job == job:
            self._past.end()
        if self._slot is not None and self._slot.job == job:
            if self._tenancy is not None:
                self._tenancy.end()
            self.release("the requester ended the lease")
        self._past = None

    def release(self, reason: str) -> None:
        """Ends the lease, if there is one."""
        if self._slot is not None:
            self._happened(lease.LeaseFinishEvent(self._slot.job, reason))

    def presence(
        self, places: tuple[EndpointAddress, ...], reach_ledger: Callable[[], Awaitable[Connection]]
    ) -> DirectoryPublisher:
        """How this node stays in the directory."""
        return DirectoryPublisher(self._key, places, self._facts, self._role, reach_ledger)

    async def register(self, client: LedgerClient, expires: int) -> None:
        """Registers the node and bonds its stake, unless that is done. What was measured enters no root."""
        terms = (caps_hash(lasting(self._facts)), self._unit_price, self._stake, expires)
        await client.register(*terms, *first_key(self._credential))


def _worker_gone() -> RunError:
    return RunError("FF-APP-049", "the worker is gone", hint="look into worker.log in the provider's folder")


async def lend(orders: ControlChannel, role: LeaseRole) -> None:
    """A node's process: serves until the supervisor closes the leash; registers when told (locally: in turn)."""
    config = await orders.next()
    if config is None:
        return
    key = SigningKey(bytes.fromhex(config["key"]))
    genesis = decode(bytes.fromhex(config["genesis"]), Genesis, limits.TX_BYTES)
    node = NodeAgent(config, key, genesis, role)
    places = await node.quarters.open(config["relays"])
    reaches = reaches_of(validators_in(config["ledger"]), node.endpoint)
    reach_ledger = any_of(reaches)
    client = client_in_run(reaches, key, genesis, ReportingEmitter().emit)
    node.vouchers.follow(client)
    node.vigil.follow(client)
    node.counsel.follow(client)
    presence = node.presence(places, reach_ledger)
    node.quarters.follow(presence)
    report("ready", peer=key.public.hex(), host=places[0].host, port=places[0].port, pid=os.getpid())
    follower = KeyRegistryFollower(reach_ledger, node.endpoint.admission.keyring, node.endpoint.recheck)
    tasks = OwnedTasks()
    tasks.begin(node.watch())
    tasks.begin(node.counsel.stay())
    tasks.begin(follower.stay())
    while (said := await orders.next()) is not None:
        if said.get("do") == "register":
            await node.register(client, int(config["expires"]))
            await presence.publish()
            tasks.begin(presence.stay())
            report("registered")
        elif said.get("do") == "leave":
            await node.vouchers.claim_all()
            await node.counsel.clear()
            await client.leave()
            report("left")
    await tasks.close()
    await node.vouchers.close()
    await node.vigil.close()
    node.release("the agent ends")
    await node.quarters.close()
    await node.path_manager.close()
    await node.endpoint.close()
    report_end(config["name"], node.counter)
