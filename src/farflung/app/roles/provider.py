"""The provider's agent: registers a node, leases it, runs a worker, and serves what it stores. No torch here."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from farflung.app import wire
from farflung.app.directory import PUBLISH, advertise
from farflung.app.leash import Orders, Report, by_name, report, report_end, run_role
from farflung.app.ledger_client import LedgerClient
from farflung.app.tenancy import Tenancy
from farflung.app.vault import Vault
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, PolicyError, ProtocolError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.layout import Layout
from farflung.core.units import Millis
from farflung.host import lease
from farflung.host.io.probe import capabilities
from farflung.host.io.process import WorkerProcess, start_worker
from farflung.host.limits import limits_for
from farflung.job.check import check
from farflung.job.model import gpt_shapes
from farflung.ledger.block import Genesis
from farflung.ledger.tx import Offer, SignedOffer, sign_offer
from farflung.market.offer import caps_hash
from farflung.net.counters import Counter
from farflung.net.endpoints import EndpointRecord
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.plan.memory import memory
from farflung.store.io.disk import Disk
from farflung.train.io.pipe import WorkerPipe

ANSWER_MS = 10_000  # within which this node's own policy must answer a proposal
LEASE_MS = 24 * 3600 * 1000  # a lease that nobody ends is over after a day
WATCH_SECONDS = 0.25

OrderT = TypeVar("OrderT", wire.Start, wire.TrainRound, wire.RevealRound, wire.MergeRound, wire.End)


def _now() -> Millis:
    return Millis(int(time.monotonic() * 1000))


class Provider:
    """One node: at most one lease at a time."""

    def __init__(self, config: Report, key: SigningKey, genesis: Genesis) -> None:
        self._key, self._genesis = key, genesis
        self._name = str(config["name"])
        self._folder = Path(config["folder"])
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unit_price, self._stake = int(config["unit_price"]), int(config["stake"])
        self._disk = Disk(self._folder / "store", "provider.store")
        self._vault = Vault(self._folder / "private", key)
        self._addresses: dict[PeerId, tuple[str, int]] = {}
        self._requester: PeerId | None = None
        self._proposal: wire.Proposal | None = None
        self._tenancy: Tenancy | None = None
        self._slot: lease.Slot = None
        self._process: WorkerProcess | None = None
        self._pipe: WorkerPipe | None = None
        self._orders: set[asyncio.Task[bytes]] = set()  # under way
        self._facts = msgspec.structs.replace(capabilities(self._folder), flops=int(config["flops"]))
        self.counter = Counter()
        self.endpoint = Endpoint(key, self.handle, self.counter, port=int(config["port"]))

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        """One request of one peer: anyone may propose; only the requester of the lease may order."""
        if method.startswith("object."):
            return self._serve(connection.peer, method, body)
        if method == wire.PROPOSE:
            return encode(self._propose(connection, decode(body, wire.Proposal, limits.CONTROL_BYTES)))
        if connection.peer != self._requester or self._tenancy is None:
            raise PolicyError("FF-APP-041", f"{method[:40]!r} is for the requester of a lease on this node")
        return await self._order(connection, self._tenancy, method, body)

    def _serve(self, peer: PeerId, method: str, body: bytes) -> bytes:
        if self._tenancy is None or not self._tenancy.allows(peer):
            raise PolicyError("FF-APP-042", "objects are served to the members of a lease only")
        return self._tenancy.shelf.serve(peer, method, body)

    async def _order(self, connection: Connection, tenancy: Tenancy, method: str, body: bytes) -> bytes:
        """Carries out an order of the lease's requester. What is under way when the lease ends is given up."""
        if method == wire.END:
            self._end(_order_for(tenancy, body, wire.End).job)
            return b""
        work = asyncio.create_task(self._carry_out(connection, tenancy, method, body))
        self._orders.add(work)
        work.add_done_callback(self._orders.discard)
        try:
            return await work
        except asyncio.CancelledError:
            if self._tenancy is tenancy:
                raise
            raise _worker_gone() from None

    async def _carry_out(self, connection: Connection, tenancy: Tenancy, method: str, body: bytes) -> bytes:
        async with tenancy.turn:
            match method:
                case wire.START:
                    return encode(
                        await self._start(connection, tenancy, _order_for(tenancy, body, wire.Start))
                    )
                case wire.TRAIN:
                    return encode(await tenancy.train(_order_for(tenancy, body, wire.TrainRound)))
                case wire.REVEAL:
                    return encode(await tenancy.reveal(_order_for(tenancy, body, wire.RevealRound)))
                case wire.MERGE:
                    merged = await tenancy.merge(_order_for(tenancy, body, wire.MergeRound))
                    report("bytes", **by_name(self.counter.sent))
                    return encode(merged)
        raise ProtocolError("FF-APP-043", f"a provider does not serve {method[:40]!r}")

    def _propose(self, connection: Connection, proposal: wire.Proposal) -> SignedOffer:
        """Takes a job into the free slot if the policy agrees, and signs the offer that binds both sides."""
        self._judge(proposal)
        job = proposal.terms.id
        if self._slot is None:
            self._take(connection.peer, proposal)
        elif self._slot.job != job or self._requester != connection.peer:
            raise PolicyError("FF-APP-046", "this node is leased already", hint="propose to another provider")
        asked = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
        return sign_offer(self._key, Offer(self._genesis.chain, job, self._key.public, *asked))

    def _take(self, requester: PeerId, proposal: wire.Proposal) -> None:
        terms, now = proposal.terms, _now()
        tenancy = Tenancy(
            self._key, terms, self._disk, self._vault, self.dial, dataset_bytes=proposal.dataset_bytes
        )
        self._happened(lease.Offer(terms.id, Millis(now + ANSWER_MS), Millis(now + LEASE_MS)))
        self._requester, self._proposal, self._tenancy = requester, proposal, tenancy
        try:
            self._happened(lease.Accept(terms.id))
        except RunError:  # no worker: the slot must not wait for one
            self.release("the worker cannot be started")
            raise

    def _judge(self, proposal: wire.Proposal) -> None:
        """The provider's policy: the right ledger, its price, a job that makes sense, memory that is there."""
        if proposal.chain != self._genesis.chain:
            raise PolicyError("FF-APP-044", "the job is on another ledger")
        if proposal.unit_price < self._unit_price:
            raise PolicyError(
                "FF-APP-045",
                "the job pays less than this node asks",
                cause=f"it pays {proposal.unit_price} micro-credits a unit, the node asks {self._unit_price}",
                hint="raise unit_price, or hire another provider",
            )
        proposal.terms.layout.check()
        check(proposal.terms.spec)
        if (fault := self._fault(proposal)) is not None:
            raise PolicyError("FF-APP-073", "the proposal does not fit together", cause=fault)
        if self._needs(proposal) > self._facts.memory_bytes:
            raise PolicyError("FF-APP-048", "the job needs more memory than this node has")

    def _fault(self, proposal: wire.Proposal) -> str | None:
        """What would make this node work unpaid, lock more than it has, or need more memory than was judged."""
        spec = proposal.terms.spec
        if not 0 <= proposal.dataset_bytes <= limits.DATA_BYTES:
            return f"a data set of {proposal.dataset_bytes} bytes"
        if not 0 <= proposal.stake <= self._stake:
            return f"a stake of {proposal.stake} micro-credits, the node has {self._stake}"
        if proposal.units_max < spec.rounds * spec.round_tokens:
            return f"{proposal.units_max} units are paid, the work has {spec.rounds * spec.round_tokens}"
        if spec.model.kind == "gpt" and proposal.terms.layout != Layout.of(gpt_shapes(spec.model)):
            return "the layout is not that of the model"
        return None

    def _needs(self, proposal: wire.Proposal) -> int:
        return memory(proposal.terms.spec, proposal.terms.layout, proposal.dataset_bytes).worker

    def _happened(self, event: lease.Event) -> None:
        """Moves the slot and carries out what follows."""
        self._slot, effects = lease.handle(self._slot, event, _now())
        for effect in effects:
            match effect:
                case lease.Launch():
                    self._launch()
                case lease.Stop() | lease.Kill():
                    self._end_worker()
                case lease.Ended():
                    self._tenancy = self._requester = self._proposal = None
                case lease.Answer():
                    pass  # the answer travels as the reply to the proposal

    def _launch(self) -> None:
        assert self._proposal is not None
        bounds = limits_for(self._needs(self._proposal))
        self._process = start_worker(self._folder / "scratch", self._folder / "worker.log", bounds)
        self._pipe = WorkerPipe(self._process.socket)
        report("worker", pid=self._process.pid)

    def _end_worker(self) -> None:
        """Ends the worker, if there is one, and tells the slot."""
        if self._slot is None:
            return
        for work in self._orders:
            work.cancel()  # first: it waits for the worker's socket, which `terminate` closes
        why = "there is no worker"
        if self._process is not None:
            report("usage", process=f"{self._name} worker", **self._process.usage())
            why = self._process.terminate()
        self._process = self._pipe = None
        self._happened(lease.Exited(self._slot.job, why))

    async def watch(self) -> None:
        """Lets time pass for the slot, and notices a worker that ended by itself."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._process is not None and not self._process.is_running():
                self._end_worker()
            elif self._slot is not None:
                self._happened(lease.Tick())

    async def _start(self, connection: Connection, tenancy: Tenancy, start: wire.Start) -> wire.Started:
        self._addresses = {a.peer: (a.host, a.port) for a in start.members}
        if self._pipe is None:
            raise _worker_gone()
        started = await tenancy.start(start, self._pipe, connection.peer)
        self._happened(lease.Started(start.job))
        return started

    async def dial(self, peer: PeerId) -> Connection:
        """A connection to a fellow member, or the one on which the requester came."""
        address = self._addresses.get(peer)
        if address is None:
            raise NetworkError("FF-APP-047", f"no address is known for {peer[:4].hex()}")
        return await self.endpoint.dial(peer, *address)

    def _end(self, job: Hash) -> None:
        """The requester ends the lease: what the job left here is deleted."""
        if self._slot is not None and self._slot.job == job:
            if self._tenancy is not None:
                self._tenancy.end()
            self.release("the requester ended the lease")

    def release(self, reason: str) -> None:
        """Ends the lease, if there is one."""
        if self._slot is not None:
            self._happened(lease.Finish(self._slot.job, reason))

    async def advertise(self, ledger: Connection, host: str, port: int) -> None:
        """Publishes where this node listens and what it has."""
        record = EndpointRecord(self._key.public, host, port, 1)
        await ledger.call(PUBLISH, encode(advertise(self._key, record, self._facts)))

    async def register(self, client: LedgerClient, expires: int) -> None:
        """Registers the node and bonds its stake, unless that is done. What was measured enters no root."""
        stated = msgspec.structs.replace(self._facts, flops=0, disk_bytes=0, memory_bytes=0)
        await client.register(caps_hash(stated), self._unit_price, self._stake, expires)


def _order_for(tenancy: Tenancy, body: bytes, kind: type[OrderT]) -> OrderT:
    order = decode(body, kind, limits.CONTROL_BYTES)
    if order.job != tenancy.job:
        raise PolicyError("FF-APP-057", "an order does not fit where the lease stands", cause="another job")
    return order


def _worker_gone() -> RunError:
    return RunError("FF-APP-049", "the worker is gone", hint="look into worker.log in the provider's folder")


async def main(orders: Orders) -> None:
    """Serves until the supervisor closes the leash; registers when told (in a local network: in turn)."""
    config = await orders.next()
    if config is None:
        return
    key = SigningKey(bytes.fromhex(config["key"]))
    genesis = decode(bytes.fromhex(config["genesis"]), Genesis, limits.TX_BYTES)
    provider = Provider(config, key, genesis)
    host, port = await provider.endpoint.start()
    validator = PeerId(bytes.fromhex(config["ledger"]["peer"]))

    async def reach_ledger() -> Connection:
        return await provider.endpoint.dial(validator, config["ledger"]["host"], config["ledger"]["port"])

    ledger = await reach_ledger()
    client = LedgerClient(reach_ledger, key, genesis)
    report("ready", peer=key.public.hex(), host=host, port=port, pid=os.getpid())
    watching = asyncio.create_task(provider.watch())
    while (order := await orders.next()) is not None:
        if order.get("do") == "register":
            await provider.register(client, int(config["expires"]))
            await provider.advertise(ledger, host, port)
            report("registered")
        elif order.get("do") == "leave":
            await client.leave()
            report("left")
    watching.cancel()
    provider.release("the agent ends")
    await provider.endpoint.close()
    report_end(config["name"], provider.counter.sent)


if __name__ == "__main__":
    run_role(main)
