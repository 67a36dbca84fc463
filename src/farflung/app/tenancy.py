"""One lease on a provider: its data, its worker, its private state, and what it promised.

Order of durability in a round: payload object, then private state with the result, then the commitment leaves.
A provider that crashed anywhere in between therefore repeats the round or repeats its promise, never both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from farflung.app import objects
from farflung.app.scoring import Worker
from farflung.app.vault import Vault
from farflung.app.wire import (
    Merged,
    MergeRound,
    Promise,
    RevealRound,
    Share,
    Shown,
    Start,
    Started,
    TrainRound,
)
from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError, PolicyError, RunError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.job.spec import Terms
from farflung.net.io.connection import Connection
from farflung.net.messages import Kind
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest, open_object, seal
from farflung.train import messages
from farflung.train.roundlog import Contribution, payload_hash
from farflung.train.sync import Sync
from farflung.verify.commitments import commit, nonce_of, sign_root

REPLICA_AWAY: Final = "FF-APP-038"  # the one failure of a reveal that is not the revealing peer's own

KEY_BYTES: Final = 32

ReplyT = TypeVar("ReplyT", bound=messages.Reply)


class Result(Wire, frozen=True):
    """What a finished round left behind."""

    round: int
    manifest: Manifest
    payload: Hash
    losses: tuple[float, ...]
    tokens: int
    seconds: float


class Kept(Wire, frozen=True):
    """Private state before round `round`, and the result of the round before it."""

    round: int
    inner: bytes
    result: Result | None


class Tenancy:
    """Carries out one job's requests on this provider."""

    def __init__(
        self,
        key: SigningKey,
        terms: Terms,
        disk: Disk,
        vault: Vault,
        dial: Callable[[PeerId], Awaitable[Connection]],
        dataset_bytes: int,
    ) -> None:
        self._key, self._terms, self._disk, self._vault, self._dial = key, terms, disk, vault, dial
        self._payload_bytes = Sync.of(terms.spec.sync).codec.bound(terms.layout)
        self._dataset_bytes = dataset_bytes
        self.shelf = objects.Shelf(disk, self._payload_bytes)
        self._merged: tuple[int, Merged] | None = None
        self._job_key = b""
        self._requester = key.public
        self._worker: Worker | None = None
        self._result: Result | None = None
        self._old: list[tuple[int, Hash]] = []
        self._round: int | None = None  # of the public state that the worker holds
        self.members: frozenset[PeerId] = frozenset()
        self.turn = asyncio.Lock()  # orders are carried out one at a time

    @property
    def job(self) -> Hash:
        """The job's id."""
        return self._terms.id

    async def start(self, start: Start, worker: Worker, requester: PeerId) -> Started:
        """Brings data and public state here and sets the worker up. Replays what was closed since the snapshot."""
        self._check_start(start)
        self._job_key, self._worker, self._requester = start.job_key, worker, requester
        self._round = self._merged = None
        self.members = frozenset(a.peer for a in start.members) | {requester}
        dataset = await self._object(start.dataset, (requester,), Kind.JOIN)
        module = await self._object(start.module, (requester,), Kind.JOIN)
        snapshot = await self._object(start.snapshot, (requester,), Kind.JOIN)
        setup = messages.Setup(self._terms.spec, dataset, module, start.member, self._key.public)
        await self._ask(setup, messages.Ready)
        target = start.snapshot_round + len(start.replay)
        kept, warning = self._recover(target)
        load = messages.Load(start.snapshot_round, snapshot, kept.inner if kept else b"")
        state = await self._ask(load, messages.State)
        for past in start.replay:
            state = await self._merge_shares(past.round, past.shares, Kind.JOIN)
        self._round = target
        return Started(target, state.root, len(start.replay), warning)

    def _recover(self, round: int) -> tuple[Kept | None, str]:
        """Private state for `round`, or already the result of it; a damaged file is said and left out."""
        warning = ""
        for name in (round + 1, round):
            try:
                data = self._vault.load(self._name(name))
            except VerificationError as error:
                warning = f"{error.code}: {error.message}"
                continue
            if data is not None:
                kept = decode(data, Kept, limits.PIPE_BYTES)
                if kept.result is not None and name > round and self._disk.begin(kept.result.manifest):
                    continue  # the payload is gone or damaged: its round is trained again, to the same bits
                self._result = kept.result if kept.result and kept.result.round == round else None
                return kept, warning
        return None, warning or ("" if round == 0 else "private state is not here: the peer joins anew")

    def _check_start(self, start: Start) -> None:
        """Only what the terms name, and no more bytes than they can need. Raises VerificationError FF-APP-058."""
        spec, layout = self._terms.spec, self._terms.layout
        vectors = 2 if spec.sync.outer_momentum > 0 else 1
        rounds = [past.round for past in start.replay]
        last = start.snapshot_round + len(rounds)
        faults = {
            "the job's key": len(start.job_key) != KEY_BYTES,
            "the data set": start.dataset.content != self._terms.dataset
            or start.dataset.size > self._dataset_bytes,
            "the module": not self._is_module(start.module),
            "the public state": start.snapshot.size > 4 * layout.size * vectors + limits.KIB,
            "the rounds": not 0 <= start.snapshot_round <= last <= spec.rounds
            or rounds != list(range(start.snapshot_round, last)),
        }
        for what, is_wrong in faults.items():
            if is_wrong:
                raise VerificationError(
                    "FF-APP-058", "a start does not keep to the job's terms", cause=f"{what} is another"
                )

    def _is_module(self, module: Manifest) -> bool:
        if self._terms.module == ZERO_HASH:
            return module.size == 0
        return module.content == self._terms.module and module.size <= limits.MODULE_BYTES

    def _check_round(self, round: int) -> None:
        if round != self._round:
            held = "none yet" if self._round is None else f"that of round {self._round}"
            raise PolicyError(
                "FF-APP-057", "an order does not fit where the lease stands", cause=f"public state: {held}"
            )

    async def train(self, request: TrainRound) -> Promise:
        """Trains (or remembers having trained), makes the result durable, and only then promises it."""
        self._check_round(request.round)
        self._forget(request.keep_from)
        was_stored = self._result is not None and self._result.round == request.round
        if not was_stored:
            self._result = await self._compute(request.round)
        result = self._result
        assert result is not None
        commitment = commit(self._key, self._terms.id, request.round, result.payload, result.tokens)
        return Promise(commitment, was_stored, result.losses, result.tokens, result.seconds)

    async def _compute(self, round: int) -> Result:
        trained = await self._ask(messages.Train(round), messages.Trained)
        manifest, chunks = seal(self._job_key, trained.payload)
        self._disk.put(manifest, chunks)
        payload = payload_hash(trained.payload)
        result = Result(round, manifest, payload, trained.losses, trained.tokens, trained.seconds)
        self._vault.save(self._name(round + 1), encode(Kept(round + 1, trained.inner, result)))
        self._old.append((round, manifest.id))
        return result

    async def reveal(self, request: RevealRound) -> Shown:
        """Copies the payload to the replica, then opens the commitment."""
        result = self._result
        if result is None or result.round != request.round:
            raise PolicyError("FF-APP-035", f"nothing was committed for round {request.round}")
        try:
            await objects.push(await self._dial(request.replica), self._disk, result.manifest, Kind.SYNC)
        except FarflungError as error:
            raise NetworkError(
                REPLICA_AWAY, "the replica did not take the payload", cause=str(error)[:200]
            ) from error
        nonce = nonce_of(self._key, self._terms.id, request.round)
        shown = Contribution(self._key.public, result.tokens, result.payload, result.manifest.id, nonce)
        return Shown(Share(shown, result.manifest, request.replica))

    async def merge(self, request: MergeRound) -> Merged:
        """Fetches the accepted payloads, merges them, and signs the root that comes out."""
        if self._merged is not None and self._merged[0] == request.round:
            return self._merged[1]  # asked again, over a new connection
        self._check_round(request.round)
        state = await self._merge_shares(request.round, request.shares, Kind.SYNC)
        self._round = request.round + 1
        self._old += [(request.round, share.manifest.id) for share in request.shares]
        merged = Merged(state.root, sign_root(self._key, self._terms.id, request.round, state.root))
        self._merged = (request.round, merged)
        return merged

    async def _merge_shares(self, round: int, shares: tuple[Share, ...], kind: Kind) -> messages.State:
        peers = {share.contribution.peer for share in shares}
        if len(peers) != len(shares) or len(peers) > limits.PEERS:
            raise VerificationError("FF-APP-059", "an accept set is too long, or names a peer twice")
        parts = []
        for share in shares:
            c = share.contribution
            if share.manifest.size > self._payload_bytes:
                raise VerificationError("FF-APP-055", "a payload is longer than its format allows")
            payload = await self._object(share.manifest, (c.peer, share.replica, self._requester), kind)
            if payload_hash(payload) != c.payload:
                raise VerificationError(
                    "FF-APP-036", f"the payload of {c.peer[:4].hex()} is not the accepted one"
                )
            parts.append(messages.Part(c.peer, c.weight, payload))
        return await self._ask(messages.Merge(round, tuple(parts)), messages.State)

    async def _object(self, manifest: Manifest, sources: tuple[PeerId, ...], kind: Kind) -> bytes:
        others = tuple(dict.fromkeys(p for p in sources if p != self._key.public))
        await objects.fetch(self._disk, manifest, others, self._dial, kind)
        chunks = [self._disk.chunk(manifest.id, i) for i in range(len(manifest.chunks))]
        return open_object(self._job_key, manifest, chunks)

    async def _ask(self, message: messages.Request, kind: type[ReplyT]) -> ReplyT:
        assert self._worker is not None
        reply = await self._worker.request(message)
        if not isinstance(reply, kind):
            raise RunError(
                "FF-APP-037", f"the worker answered {type(reply).__name__} to {type(message).__name__}"
            )
        return reply

    def _name(self, round: int) -> str:
        return f"{self._name_of_job()}-{round:06d}"

    def _name_of_job(self) -> str:
        return self._terms.id[:8].hex()

    def _forget(self, keep_from: int) -> None:
        """Deletes private states and payloads that no resume can ask for any more."""
        prefix = self._name_of_job()
        for name in self._vault.names():
            job, _, round = name.rpartition("-")
            if job == prefix and int(round) < keep_from:
                self._vault.drop(name)
        for _, object_id in [entry for entry in self._old if entry[0] < keep_from]:
            self._disk.delete(object_id)
        self._old = [entry for entry in self._old if entry[0] >= keep_from]

    def allows(self, peer: PeerId) -> bool:
        """Whether a peer may ask for, or leave, objects of this job."""
        return peer in self.members

    def end(self) -> None:
        """Deletes what the job left on this disk; of another job that may be resumed here, objects only."""
        for name in self._vault.names():
            if name.startswith(self._name_of_job()):
                self._vault.drop(name)
        self.shelf.clear()
