"""One lease to train: a provider's data, its worker, its private state, and what it promised.

Order of durability in a round: payload object, then private state with the result, then the commitment leaves.
A provider that crashed anywhere in between therefore repeats the round or repeats its promise, never both.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from farflung.app import objects
from farflung.app.openings import Openings
from farflung.app.vault import Vault
from farflung.app.wire import (
    OPEN,
    Merged,
    MergeRound,
    OpenSegment,
    Promise,
    RevealRound,
    RevealSegment,
    SegmentOpened,
    Share,
    Shown,
    Start,
    Started,
    TrainRound,
    order,
)
from farflung.app.workplace import Worker, Workplace
from farflung.app.wrapping import KEY_BYTES
from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_OBJECT_KEY, SigningKey, derive
from farflung.core.errors import (
    FarflungError,
    NetworkError,
    PolicyError,
    ProtocolError,
    RunError,
    VerificationError,
)
from farflung.core.ids import Hash, PeerId
from farflung.job.cheats import HONEST
from farflung.job.spec import Terms
from farflung.net.messages import Kind
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest, seal
from farflung.train import messages
from farflung.train.roundlog import Contribution, payload_hash
from farflung.train.sync import Sync
from farflung.train.trace import Trace
from farflung.verify.commitments import commit, nonce_of, sign_root

REPLICA_AWAY: Final = "FF-APP-038"  # the one failure of a reveal that is not the revealing peer's own

NOT_HELD: Final = "FF-TRAIN-081"  # the worker's answer when it does not hold the states of a round


class Result(Wire, frozen=True):
    """What a finished round left behind."""

    round: int
    manifest: Manifest
    trace: Trace
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
        folder: Path,
        dial: objects.Dial,
        dataset_bytes: int,
        sandbox: str = "",
        cheat: str = HONEST,
    ) -> None:
        """`folder` holds private state, sealed; `sandbox` names the worker's tier."""
        self._key, self._terms, self._disk, self._folder, self._dial = key, terms, disk, folder, dial
        self._vault = Vault(folder, bytes(KEY_BYTES))  # until the job's key is here it lists and deletes only
        self.sandbox, self._cheat = sandbox, cheat
        self._payload_bytes = Sync.of(terms.spec.sync).codec.bound(terms.layout)
        self._workplace = Workplace(key.public, terms, disk, dial, dataset_bytes)
        self.shelf = objects.Shelf(disk, self._payload_bytes)
        self._openings = self._openings_under(b"")  # none, until the start
        self._merged: tuple[int, Merged] | None = None
        self._roots: dict[int, Hash] = {}  # of public states held, the newest two
        self._requester = key.public
        self._verifiers: frozenset[PeerId] = frozenset()
        self._result: Result | None = None
        self._old: list[tuple[int, Hash]] = []
        self._round: int | None = None  # of the public state that the worker holds
        self.members: frozenset[PeerId] = frozenset()
        self.turn = asyncio.Lock()  # orders are carried out one at a time

    @property
    def job(self) -> Hash:
        """The job's id."""
        return self._terms.id

    async def start(self, start: Start, job_key: bytes, worker: Worker, requester: PeerId) -> Started:
        """Brings data and public state here and sets the worker up. Replays what was closed since the snapshot.

        Asked again by a coordinator that took over, while worker and state are where it wants them: nothing is done.
        """
        self._check_start(start, job_key)
        self._requester, self._verifiers = requester, frozenset(start.verifiers)
        self.admit(frozenset(a.peer for a in start.members) | {requester})
        target = start.snapshot_round + len(start.replay)
        if self._workplace.is_set_up(worker, job_key) and self._stands_at(target):
            return Started(target, self._roots[target], 0, "")
        self._vault = Vault(self._folder, derive(NS_OBJECT_KEY, job_key, b"vault", self._key.public))
        self._openings = self._openings_under(job_key)
        self._round = self._merged = self._result = None
        await self._workplace.enter(start, job_key, worker, requester, self._cheat)
        snapshot = await self._workplace.bring(start.snapshot, (requester,), Kind.JOIN)
        kept, warning = self._recover(target)
        load = messages.Load(start.snapshot_round, snapshot, kept.inner if kept else b"")
        state = await self._workplace.ask(load, messages.State)
        for past in start.replay:
            state = await self._merge_shares(past.round, past.shares, Kind.JOIN)
        self._holds(target, state.root)
        return Started(target, state.root, len(start.replay), warning)

    def _openings_under(self, job_key: bytes) -> Openings:
        segments = self._terms.spec.segments
        return Openings(self._key, self.job, segments, self._disk, self._vault, job_key)

    def _holds(self, round: int, root: Hash) -> None:
        self._round = round
        self._roots = {r: known for r, known in self._roots.items() if r == round - 1} | {round: root}

    def _stands_at(self, target: int) -> bool:
        """Whether the worker holds the public state of `target`, or has merged it already and remembers its answer."""
        is_merged = self._merged is not None and self._merged[0] == target == (self._round or 0) - 1
        return target in self._roots and (self._round == target or is_merged)

    def admit(self, members: frozenset[PeerId]) -> None:
        """From now on these, and the verifiers, may ask for objects here."""
        self.members = members | self._verifiers

    def recall(self, method: str, body: bytes) -> bytes:
        """What an audit needs and lies here already, for a verifier that asks itself. It makes nothing happen."""
        if method == OPEN:
            return encode(self._openings.repeat(order(self.job, body, OpenSegment)))
        return encode(self._openings.reveal(order(self.job, body, RevealSegment), self._verifiers))

    async def obey(self, method: str, body: bytes) -> bytes:
        """Carries out one order of the lease's requester after the start."""
        match method:
            case "round.train":
                return encode(await self.train(order(self.job, body, TrainRound)))
            case "round.reveal":
                return encode(await self.reveal(order(self.job, body, RevealRound)))
            case "round.merge":
                return encode(await self.merge(order(self.job, body, MergeRound)))
            case "audit.open":
                return encode(await self.open(order(self.job, body, OpenSegment)))
            case "audit.reveal":
                return self.recall(method, body)
        raise ProtocolError("FF-APP-043", f"a provider does not serve {method[:40]!r}")

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

    def _check_start(self, start: Start, job_key: bytes) -> None:
        """Only what the terms name, and no more bytes than they can need. Raises VerificationError FF-APP-058."""
        spec, layout = self._terms.spec, self._terms.layout
        vectors = 2 if spec.sync.outer_momentum > 0 else 1
        rounds = [past.round for past in start.replay]
        last = start.snapshot_round + len(rounds)
        faults = {
            "the public state": start.snapshot.size > 4 * layout.size * vectors + limits.KIB,
            "the rounds": not 0 <= start.snapshot_round <= last <= spec.rounds
            or rounds != list(range(start.snapshot_round, last)),
        }
        self._workplace.check(start, job_key, faults)

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
        trace, said = result.trace, result.trace.statistics
        commitment = commit(self._key, self.job, request.round, trace.payload, said.tokens, trace.root)
        return Promise(commitment, was_stored, said.losses, said.tokens, result.seconds)

    async def _compute(self, round: int) -> Result:
        trained = await self._workplace.ask(messages.Train(round), messages.Trained)
        manifest, chunks = seal(self._workplace.job_key, trained.payload)
        self._disk.put(manifest, chunks)
        result = Result(round, manifest, trained.trace, trained.seconds)
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
        trace, tokens = result.trace, result.trace.statistics.tokens
        payload, held = trace.payload, result.manifest.id
        shown = Contribution(self._key.public, tokens, payload, held, nonce, trace.root, self.sandbox)
        return Shown(Share(shown, result.manifest, request.replica))

    async def open(self, request: OpenSegment) -> SegmentOpened:
        """Opens the state before a segment of the round that is being closed, or repeats what was opened."""
        known = self._openings.find(request.round, request.segment)
        if known is not None:
            return known.opened
        result = self._result
        if result is None or result.round != request.round or self._round != request.round:
            raise PolicyError("FF-APP-084", f"segment {request.segment} of round {request.round} is not open")
        ask = messages.OpenSegment(request.round, request.segment)
        try:
            states = await self._workplace.ask(ask, messages.SegmentOpened)
        except RunError as error:
            if error.code != NOT_HELD:
                raise
            await self._train_again(request.round)
            states = await self._workplace.ask(ask, messages.SegmentOpened)
        before = self._kept(request.round)
        trace = before.result.trace if before is not None and before.result is not None else None
        return self._openings.make(request.round, request.segment, result.trace, trace, states)

    def _kept(self, round: int) -> Kept | None:
        """Private state before a round, and what the round before it gave."""
        try:
            data = self._vault.load(self._name(round))
        except VerificationError:  # damaged: as if it were not there
            return None
        return decode(data, Kept, limits.PIPE_BYTES) if data is not None else None

    async def _train_again(self, round: int) -> None:
        """After a crash the worker holds the round's result but not its way: it goes it again, to the same bits."""
        kept = self._kept(round)
        await self._workplace.ask(
            messages.Rewind(round, kept.inner if kept is not None else b""), messages.State
        )
        await self._workplace.ask(messages.Train(round), messages.Trained)

    async def merge(self, request: MergeRound) -> Merged:
        """Fetches the accepted payloads, merges them, and signs the root that comes out."""
        if self._merged is not None and self._merged[0] == request.round:
            return self._merged[1]  # asked again, over a new connection
        self._check_round(request.round)
        state = await self._merge_shares(request.round, request.shares, Kind.SYNC)
        self._holds(request.round + 1, state.root)
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
            payload = await self._workplace.bring(
                share.manifest, (c.peer, share.replica, self._requester), kind
            )
            if payload_hash(payload) != c.payload:
                raise VerificationError(
                    "FF-APP-036", f"the payload of {c.peer[:4].hex()} is not the accepted one"
                )
            parts.append(messages.Part(c.peer, c.weight, payload))
        return await self._workplace.ask(messages.Merge(round, tuple(parts)), messages.State)

    def _name(self, round: int) -> str:
        return f"{self._name_of_job()}-{round:06d}"

    def _name_of_job(self) -> str:
        return self._terms.id[:8].hex()

    def _forget(self, keep_from: int) -> None:
        """Deletes private states and payloads that no resume can ask for any more."""
        prefix = self._name_of_job()
        self._openings.forget(keep_from)
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

    def is_verifier(self, peer: PeerId) -> bool:
        """Whether a peer may ask for itself what an audit needs: other members see nobody's private state."""
        return peer in self._verifiers

    def end(self) -> None:
        """Deletes what the job left on this disk; of another job that may be resumed here, objects only."""
        for name in self._vault.names():
            if name.startswith(self._name_of_job()):
                self._vault.drop(name)
        self.shelf.clear()
