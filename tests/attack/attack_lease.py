"""One provider in this process, an honest requester, a fellow member and a stranger."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from attack_world import (
    DATA,
    LAYOUT,
    MEMBERS,
    REQUESTER,
    SEGMENTS,
    SPEC,
    STRANGER,
    TERMS,
    VERIFIERS,
    Party,
    Worker,
    initial,
    refusal,
    start_order,
)
from role_configs import QuietChannel, node_config
from worker_end import WorkerEnd

from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.release import JOB_FORMAT
from farflung.host.sandbox import SandboxTier
from farflung.ledger.block import Genesis
from farflung.ledger.table_rows import JobRow, KeyRow, LeaseRow
from farflung.ledger.transactions import JobCoordinate, LeaseRole, coordinator_of
from farflung.market.provider_offer import Capabilities
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.messages import MessageKind
from farflung.peers.node.agent import NodeAgent
from farflung.peers.node.provider import PROVIDER
from farflung.peers.node.verifier import VERIFIER
from farflung.peers.protocol import messages as protocol_messages
from farflung.train import worker_messages
from farflung.verify.commitment_check import is_commitment, is_root_signed, opens

replace = msgspec.structs.replace

ME, FELLOW = MEMBERS[:2]
GENESIS = Genesis("attack", 0, (), (local_key(9, "validator").public,))
FACTS = Capabilities(2, 1 << 40, 1 << 40, 10**9, 1, "Linux", "x86_64", "2.13.0")
UNITS = SPEC.rounds * SPEC.round_tokens
PROPOSAL = protocol_messages.LeaseOfferRequest(
    JOB_FORMAT, GENESIS.chain, TERMS, len(DATA), 1 << 29, 10, 500, UNITS, 10**9
)

ORDERS = (
    protocol_messages.START,
    protocol_messages.TRAIN,
    protocol_messages.REVEAL,
    protocol_messages.MERGE,
    protocol_messages.OPEN,
    protocol_messages.PLANT,
    protocol_messages.UNVEIL,
    protocol_messages.MEMBERS,
    protocol_messages.PASSES,
    protocol_messages.VOUCH,
    protocol_messages.END,
)


class FundedLedger:
    """In the place of a ledger: every job is the honest requester's, with money, and this node has its lease."""

    def __init__(self) -> None:
        self.jobs: dict[Hash, JobRow | None] = {}  # others than that
        self.is_leased, self.earned = True, 0  # units that its lease counts
        self.term: JobCoordinate | None = None

    async def job(self, job: Hash) -> JobRow | None:
        if job in self.jobs:
            return self.jobs[job]
        return JobRow(job, REQUESTER.public, 1 << 50, 1 << 20, SPEC.rounds, 10**9)

    async def row(self, kind: type[Any], key: bytes) -> Any:
        if kind is KeyRow:
            name = coordinator_of(TERMS.id)
            held = self.term if key == name else None
            return KeyRow(name, PeerId(held.mark), name, held.term) if held is not None else None
        lease = LeaseRow(TERMS.id, ME.public, 10, 500, UNITS, ME.public, units=self.earned)
        return lease if self.is_leased else None


class Process:
    """In the place of a worker process: a task at the far end of the real socket."""

    def __init__(self, key: SigningKey, worker: Worker | None = None) -> None:
        self.socket, self._theirs = socket.socketpair()
        self.pid, self.worker, self.is_stuck = 0, worker or Worker(key), False
        self.lie = b""  # sent in place of a reply
        self.tier = SandboxTier("none", ())
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        end = WorkerEnd(self._theirs)
        while (request := await end.next()) is not None and not self.is_stuck:
            reply = await self._answer(request)
            if self.lie:
                self._theirs.sendall(self.lie)
            else:
                await end.reply(reply)
        await asyncio.Event().wait()

    async def _answer(self, request: worker_messages.Request) -> worker_messages.Reply:
        try:
            return await self.worker.request(request)
        except RunError as error:
            return worker_messages.WorkerFailure(error.code, error.message, error.cause, error.hint)

    def is_running(self) -> bool:
        return not self._task.done()

    def over_limit(self) -> str:
        return ""

    def usage(self) -> dict[str, float]:
        return {"cpu_seconds": 0.0}

    def terminate(self) -> str:
        self.socket.close()
        self._task.cancel()
        self._theirs.close()
        return "ended"


class Scene:
    """One provider (or, by its role, a verifier), an honest requester, a fellow member, a verifier and a stranger."""

    def __init__(self, folder: Path, key: SigningKey = ME, role: LeaseRole = LeaseRole.TRAIN) -> None:
        roles = {LeaseRole.TRAIN: PROVIDER, LeaseRole.AUDIT: VERIFIER}
        config = node_config(key, folder / "me", GENESIS, allow_modules=True)
        self.provider = NodeAgent(config, QuietChannel(), roles[role])
        self.ledger = FundedLedger()
        self.provider.admission.follow(self.ledger)
        self.provider.voucher_bound.follow(cast(Any, self.ledger))
        self.home = Party(REQUESTER, folder / "home")
        self.fellow = Party(FELLOW, folder / "fellow")
        self.verifier = Party(VERIFIERS[1], folder / "verifier")
        self.stranger = Party(STRANGER, folder / "stranger")
        self.parties = (self.home, self.fellow, self.verifier, self.stranger)
        self.key, self.proposal = key, replace(PROPOSAL, role=role)
        self.state = initial()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scene]:
        await self.provider.endpoint.start()
        for party in self.parties:
            await party.endpoint.start()
        try:
            yield self
        finally:
            self.provider.release("the test ends")
            for endpoint in (*(p.endpoint for p in self.parties), self.provider.endpoint):
                await endpoint.close()

    async def call(self, party: Party, method: str, body: bytes, kind: MessageKind = MessageKind.CONTROL) -> bytes:
        connection = await party.endpoint.dial(self.key.public, *self.provider.endpoint.address)
        return await connection.call(method, body, kind=kind, timeout=60)

    async def refused(self, party: Party, method: str, message: Any, kind: MessageKind = MessageKind.CONTROL) -> str:
        body = message if isinstance(message, bytes) else encode(message)
        return await refusal(self.call(party, method, body, kind))

    async def order(self, method: str, message: Any) -> str:
        return await self.refused(self.home, method, message)

    @property
    def start(self) -> protocol_messages.LeaseStartRequest:
        mine = protocol_messages.PeerAddress(self.key.public, (EndpointAddress(*self.provider.endpoint.address),))
        members = (self.home.address, mine, self.fellow.address, self.verifier.address)
        return start_order(self.home, 0, members, self.state, self.provider.lease_key.public)

    async def begin(self) -> None:
        """The honest requester leases and starts the provider."""
        assert await self.order(protocol_messages.PROPOSE, self.proposal) == "ok"
        assert await self.order(protocol_messages.START, self.start) == "ok"

    async def round(self, number: int) -> protocol_messages.StoredContribution:
        """One honest round, everything checked."""
        worker = self.process.worker
        train = protocol_messages.TrainRequest(TERMS.id, number, 0)
        promise = decode(
            await self.call(self.home, protocol_messages.TRAIN, encode(train)), protocol_messages.TrainReply, 10**6
        )
        assert is_commitment(promise.commitment, TERMS.id, number)
        reveal = protocol_messages.RevealRequest(TERMS.id, number, FELLOW.public)
        share = decode(
            await self.call(self.home, protocol_messages.REVEAL, encode(reveal)), protocol_messages.RevealReply, 10**6
        ).share
        assert opens(share.contribution, promise.commitment, TERMS.id, number)
        assert self.fellow.disk.has(share.manifest.id)
        await self.opened(number)
        merge = protocol_messages.MergeRequest(TERMS.id, number, (share,))
        merged = decode(
            await self.call(self.home, protocol_messages.MERGE, encode(merge)), protocol_messages.MergeReply, 10**6
        )
        assert is_root_signed(ME.public, merged.signature, TERMS.id, number, merged.root)
        assert worker.state.root(LAYOUT) == merged.root
        return share

    def root(self, number: int, segment: int = 0) -> Hash:
        """The trace under which the provider has opened a segment; nothing that there is when it has opened none."""
        opening = self.provider._lease._openings.find(number, segment)  # type: ignore[union-attr]
        return (opening.trace(SEGMENTS) if opening is not None else None) or Hash(bytes(32))

    async def opened(self, number: int, segment: int = 0) -> protocol_messages.SegmentOpenReply:
        """An audit's opening, by the requester's order."""
        order = protocol_messages.SegmentOpenRequest(TERMS.id, number, segment)
        opened = decode(
            await self.call(self.home, protocol_messages.OPEN, encode(order)), protocol_messages.SegmentOpenReply, 10**6
        )
        assert opened.start.index == segment
        assert self.provider._disk.has(opened.state.id)
        return opened

    @property
    def process(self) -> Process:
        process = self.provider._process
        assert isinstance(process, Process)
        return process

    async def serves(self) -> None:
        """The provider still does an honest requester's whole job, from its lease to its end."""
        if self.provider._slot is None:
            await self.begin()
        first = self.provider._lease._round  # type: ignore[union-attr]
        if first is None:
            assert await self.order(protocol_messages.START, self.start) == "ok"
        for number in range(first or 0, SPEC.rounds):
            await self.round(number)
        assert await self.order(protocol_messages.END, protocol_messages.LeaseEndRequest(TERMS.id)) == "ok"
        assert self.provider._slot is None
        assert list((self.provider._folder / "store").iterdir()) == []
        assert list((self.provider._folder / "private").iterdir()) == []
