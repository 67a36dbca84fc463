"""The provider's agent: registers a node, leases it, runs a worker, and serves what it stores. No torch here."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from farflung.app import objects, wire
from farflung.app.directory import PUBLISH, advertise
from farflung.app.leash import Orders, Report, by_name, report, report_end, run_role
from farflung.app.ledger_client import LedgerClient
from farflung.app.tenancy import Tenancy
from farflung.app.vault import Vault
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, PolicyError, ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.host.io.probe import capabilities
from farflung.host.io.process import WorkerProcess, start_worker
from farflung.ledger.block import Genesis
from farflung.ledger.tx import Offer, sign_offer
from farflung.market.offer import caps_hash
from farflung.net.counters import Counter
from farflung.net.endpoints import EndpointRecord
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.store.io.disk import Disk
from farflung.train.io.pipe import WorkerPipe


class Provider:
    """One node: at most one lease at a time."""

    def __init__(self, config: Report, key: SigningKey, genesis: Genesis) -> None:
        self._key, self._genesis = key, genesis
        self._name = str(config["name"])
        self._folder = Path(config["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._unit_price, self._stake = int(config["unit_price"]), int(config["stake"])
        self._disk = Disk(self._folder / "store", "provider.store")
        self._vault = Vault(self._folder / "private", key)
        self._addresses: dict[PeerId, tuple[str, int]] = {}
        self._requester: PeerId | None = None
        self._proposal: wire.Proposal | None = None
        self._tenancy: Tenancy | None = None
        self._process: WorkerProcess | None = None
        self._pipe: WorkerPipe | None = None
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
        return objects.serve(self._disk, method, body)

    async def _order(self, connection: Connection, tenancy: Tenancy, method: str, body: bytes) -> bytes:
        match method:
            case wire.START:
                return encode(
                    await self._start(connection, tenancy, decode(body, wire.Start, limits.CONTROL_BYTES))
                )
            case wire.TRAIN:
                return encode(await tenancy.train(decode(body, wire.TrainRound, limits.CONTROL_BYTES)))
            case wire.REVEAL:
                return encode(await tenancy.reveal(decode(body, wire.RevealRound, limits.CONTROL_BYTES)))
            case wire.MERGE:
                merged = await tenancy.merge(decode(body, wire.MergeRound, limits.CONTROL_BYTES))
                report("bytes", **by_name(self.counter.sent))
                return encode(merged)
            case wire.END:
                self._end(decode(body, wire.End, limits.CONTROL_BYTES).job)
                return b""
        raise ProtocolError("FF-APP-043", f"a provider does not serve {method[:40]!r}")

    def _propose(self, connection: Connection, proposal: wire.Proposal) -> object:
        """Accepts a job that pays the asked price on the right chain, and signs the offer that binds both."""
        if proposal.chain != self._genesis.chain:
            raise PolicyError("FF-APP-044", "the job is on another ledger")
        if proposal.unit_price < self._unit_price:
            raise PolicyError(
                "FF-APP-045",
                "the job pays less than this node asks",
                cause=f"it pays {proposal.unit_price} micro-credits a unit, the node asks {self._unit_price}",
            )
        if (
            self._tenancy is not None
            and self._proposal is not None
            and self._proposal.terms.id != proposal.terms.id
        ):
            raise PolicyError("FF-APP-046", "this node is leased already")
        proposal.terms.layout.check()
        self._requester, self._proposal = connection.peer, proposal
        self._tenancy = Tenancy(self._key, proposal.terms, self._disk, self._vault, self.dial)
        self._spawn()
        offer = Offer(
            self._genesis.chain,
            proposal.terms.id,
            self._key.public,
            proposal.unit_price,
            proposal.stake,
            proposal.units_max,
            proposal.expires,
        )
        return sign_offer(self._key, offer)

    def _spawn(self) -> None:
        if self._process is None:
            self._process = start_worker(self._folder / "scratch", self._folder / "worker.log")
            self._pipe = WorkerPipe(self._process.socket)
            report("worker", pid=self._process.pid)

    async def _start(self, connection: Connection, tenancy: Tenancy, start: wire.Start) -> wire.Started:
        self._addresses = {a.peer: (a.host, a.port) for a in start.members}
        assert self._pipe is not None
        return await tenancy.start(start, self._pipe, connection.peer)

    async def dial(self, peer: PeerId) -> Connection:
        """A connection to a fellow member, or the one on which the requester came."""
        address = self._addresses.get(peer)
        if address is None:
            raise NetworkError("FF-APP-047", f"no address is known for {peer[:4].hex()}")
        return await self.endpoint.dial(peer, *address)

    def _end(self, job: Hash) -> None:
        if self._tenancy is not None and self._proposal is not None and self._proposal.terms.id == job:
            self._tenancy.end()
        self.release()

    def release(self) -> None:
        """Ends the worker and the lease."""
        if self._process is not None:
            report("usage", process=f"{self._name} worker", **self._process.usage())
            self._process.terminate()
        self._process = self._pipe = self._tenancy = self._requester = self._proposal = None

    async def advertise(self, ledger: Connection, host: str, port: int) -> None:
        """Publishes where this node listens and what it has."""
        record = EndpointRecord(self._key.public, host, port, 1)
        await ledger.call(PUBLISH, encode(advertise(self._key, record, self._facts)))

    async def register(self, client: LedgerClient, expires: int) -> None:
        """Registers the node and bonds its stake, unless that is done. What was measured enters no root."""
        stated = msgspec.structs.replace(self._facts, flops=0, disk_bytes=0, memory_bytes=0)
        await client.register(caps_hash(stated), self._unit_price, self._stake, expires)


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
    while (order := await orders.next()) is not None:
        if order.get("do") == "register":
            await provider.register(client, int(config["expires"]))
            await provider.advertise(ledger, host, port)
            report("registered")
        elif order.get("do") == "leave":
            await client.leave()
            report("left")
    provider.release()
    await asyncio.sleep(0)
    await provider.endpoint.close()
    report_end(config["name"], provider.counter.sent)


if __name__ == "__main__":
    run_role(main)
