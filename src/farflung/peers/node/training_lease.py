"""Carries out a training lease: a provider's data, its worker, its private state, and what it committed to.

Order of durability in a round: payload object, then private state with the result, then the commitment leaves.
A provider that crashed anywhere in between therefore repeats the round or repeats its promise, never both.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.crypto import NS_OBJECT_KEY, derive
from farflung.core.errors import FarflungError, NetworkError, PolicyError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.job.cheat_names import HONEST
from farflung.net.certificates import credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io.multicast_member import GroupEndpoint, NoEndpoint
from farflung.net.messages import MessageKind
from farflung.peers.node import graph_trial
from farflung.peers.node.sealed_files import PrivateCheckpoint, PrivateRoundResult, PrivateStateStore, SealedFileStore
from farflung.peers.node.segment_openings import Retain, SampledSegments, SegmentSealer
from farflung.peers.node.voucher_bound import WorkAccount
from farflung.peers.node.workspace import JobWorkspace, WorkerHandle
from farflung.peers.protocol.job_key import KEY_BYTES
from farflung.peers.protocol.messages import (
    CanaryOpenReply,
    DropRoundRequest,
    LeaseStartReply,
    LeaseStartRequest,
    MergeReply,
    MergeRequest,
    RevealReply,
    RevealRequest,
    SegmentOpenReply,
    SegmentOpenRequest,
    SegmentRevealReply,
    SegmentRevealRequest,
    StoredContribution,
    TrainReply,
    TrainRequest,
    TransferMeasurement,
)
from farflung.peers.transfer import objects
from farflung.peers.transfer.fanout import PayloadFanout
from farflung.train import worker_messages
from farflung.train.run_log import Contribution, payload_hash
from farflung.train.sync_arithmetic import Sync
from farflung.verify.commitment_check import commit, nonce_of, sign_root

REPLICA_SECONDS: Final = 2.0  # a replica that is out of reach for so long is replaced


class TrainingLease:
    """Carries out one job's requests on this provider."""

    def __init__(
        self,
        workspace: JobWorkspace,
        folder: Path,
        account: WorkAccount,
        cheat: str = HONEST,
        group: GroupEndpoint | None = None,
        retain: Retain = lambda _place, _trace, _states: None,
    ) -> None:
        """`folder` holds private state, sealed; `account` counts what is not paid; `group` speaks to groups; `retain`
        keeps what disputes are played with.

        `sandbox` names the worker's tier, `attests` what the node says of itself, once that is known.
        """
        self._workspace, self._folder, self._dial = workspace, folder, workspace.dial
        self._key, self._terms, self._disk = workspace.key, workspace.terms, workspace.disk
        self._keep(bytes(KEY_BYTES))  # until the job's key is here the vault lists and deletes only
        self.sandbox, self.attests, self._cheat, self._retain = "", ZERO_HASH, cheat, retain
        self._account = account
        self._payload_bytes = Sync.of(self._terms.spec).bound(self._terms.layout)
        self.objects = objects.ObjectServer(self._disk, self._payload_bytes)
        group = group or NoEndpoint(credential_of(self._key), ByteCounter())
        self.fanning = PayloadFanout(group, self.objects, self._disk)
        self._openings = self._openings_under(b"")  # none, until the start
        self._merged: tuple[int, MergeReply] | None = None
        self._roots: dict[int, Hash] = {}  # of public states held, the newest two
        self._requester = self._key.public
        self._verifiers: frozenset[PeerId] = frozenset()
        self._result: PrivateRoundResult | None = None
        self._is_training = False
        self._dropped = -1  # the last round that this peer was passed over in
        # Of a round, and what each member may contribute.
        self._assigned: tuple[int, dict[PeerId, int]] = (-1, {})
        self._old: list[tuple[int, Hash]] = []
        self._round: int | None = None  # of the public state that the worker holds
        self.members: frozenset[PeerId] = frozenset()
        self.turn = asyncio.Lock()  # orders are carried out one at a time

    @property
    def job(self) -> Hash:
        """The job's id."""
        return self._terms.id

    @property
    def newest(self) -> int:
        """The last round that it took part in, as far as this process knows; -1: none."""
        trained = self._result.round if self._result is not None else -1
        return max(trained, self._merged[0] if self._merged is not None else -1)

    async def start(
        self, start: LeaseStartRequest, job_key: bytes, worker: WorkerHandle, requester: PeerId
    ) -> LeaseStartReply:
        """Brings data and public state here and sets the worker up. Replays what was closed since the snapshot.

        Asked again by a coordinator that took over, while worker and state are where it wants them: nothing is done.
        """
        self._check_start(start, job_key)
        self._requester, self._verifiers = requester, frozenset(start.verifiers)
        self.admit(frozenset(a.peer for a in start.members) | {requester})
        target = start.snapshot_round + len(start.replay)
        if self._workspace.is_set_up(worker, job_key) and self._stands_at(target):
            return LeaseStartReply(target, self._roots[target], 0, "")
        self._keep(derive(NS_OBJECT_KEY, job_key, b"vault", self._key.public))
        self._openings = self._openings_under(job_key)
        self._round = self._merged = self._result = None
        graph = await self._workspace.enter(start, job_key, worker, requester, self._cheat)
        snapshot = await self._workspace.bring(start.snapshot, (requester,), MessageKind.JOIN)
        await graph_trial.try_on_node(self._workspace, graph, snapshot, start.member)
        self._dropped = -1
        kept, warning = self._private.recover(target, self._disk)
        self._result = kept.result if kept and kept.result and kept.result.round == target else None
        load = worker_messages.LoadCommand(start.snapshot_round, snapshot, kept.inner if kept else b"")
        state = await self._workspace.ask(load, worker_messages.StateResult)
        for past in start.replay:
            state = await self._merge_shares(past.round, past.shares, MessageKind.JOIN)
        self._holds(target, state.root)
        return LeaseStartReply(target, state.root, len(start.replay), warning)

    def _keep(self, secret: bytes) -> None:
        self._vault = SealedFileStore(self._folder, secret)
        self._private = PrivateStateStore(self._vault, self._terms.id)

    def _openings_under(self, job_key: bytes) -> SampledSegments:
        segments = self._terms.spec.segments
        return SampledSegments(self._key, self.job, segments, self._disk, self._vault, job_key)

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

    def repeat(self, request: SegmentOpenRequest) -> SegmentOpenReply:
        """What was opened already, for a verifier that asks itself. It makes nothing happen."""
        return self._openings.repeat(request)

    def unveil(self, request: SegmentRevealRequest) -> SegmentRevealReply:
        """What came out of a segment, for a verifier that has committed to its own result."""
        return self._openings.reveal(request, self._verifiers)

    def _check_start(self, start: LeaseStartRequest, job_key: bytes) -> None:
        """Only what the terms name, and no more bytes than they can need. Raises VerificationError FF-APP-058."""
        spec, layout = self._terms.spec, self._terms.layout
        vectors = len(Sync.of(spec).public_names(max(0, start.snapshot_round)))
        rounds = [past.round for past in start.replay]
        last = start.snapshot_round + len(rounds)
        faults = {
            "the public state": start.snapshot.size > 4 * layout.size * vectors + limits.KIB,
            "the rounds": not 0 <= start.snapshot_round <= last <= spec.rounds
            or rounds != list(range(start.snapshot_round, last)),
        }
        self._workspace.check(start, job_key, faults)

    def _check_round(self, round: int) -> None:
        if round != self._round:
            held = "none yet" if self._round is None else f"that of round {self._round}"
            raise PolicyError(
                "FF-APP-057", "an order does not fit where the lease stands", cause=f"public state: {held}"
            )

    async def train(self, request: TrainRequest) -> TrainReply:
        """Trains (or remembers having trained), makes the result durable, and only then promises it."""
        self._check_round(request.round)
        self._check_dropped(request.round)
        self._forget(request.keep_from)
        steps = self._assign(request)
        was_stored = self._result is not None and self._result.round == request.round
        if not was_stored:
            await self._account.check()
            self._check_dropped(request.round)  # said while pay was waited for
            self._result = await self._compute(request.round, steps)
        result = self._result
        assert result is not None
        trace, said = result.trace, result.trace.statistics
        commitment = commit(self._key, self.job, request.round, trace.payload, said.tokens, trace.root)
        opens = (trace.payload, trace.root, nonce_of(self._key, self.job, request.round))
        return TrainReply(commitment, was_stored, said, trace.statistics_path, result.seconds, *opens)

    def _assign(self, request: TrainRequest) -> int:
        """Steps of the own round. Raises VerificationError FF-APP-196: more, or less, than a member can be assigned."""
        spec, assigned = self._terms.spec, {m.peer: m.weight for m in request.members}
        own = assigned.get(self._key.public, spec.round_tokens)
        if len(assigned) > limits.PEERS or not all(map(spec.is_weight, (own, *assigned.values()))):
            raise VerificationError("FF-APP-196", "a round assigns what the terms do not allow")
        self._assigned = (request.round, assigned)
        return spec.steps_of(own)

    async def _compute(self, round: int, steps: int) -> PrivateRoundResult:
        self._is_training = True
        try:
            await self._workspace.supply(round)
            self._workspace.look_ahead(round + 1)
            trained = await self._workspace.ask(worker_messages.TrainCommand(round, steps), worker_messages.TrainResult)
        finally:
            self._is_training = False
        self._check_dropped(round)  # said while the answer was on its way
        manifest = self._disk.seal(self._workspace.job_key, trained.payload)
        result = PrivateRoundResult(round, manifest, trained.trace, trained.seconds)
        self._private.save(PrivateCheckpoint(round + 1, trained.inner, result))
        self._account.trained(round, trained.trace.statistics.tokens)
        self._old.append((round, manifest.id))
        return result

    def _check_dropped(self, round: int) -> None:
        if round <= self._dropped:
            raise _dropped(round)

    async def abandon(self, request: DropRoundRequest) -> None:
        """Ends the training of a round that was closed without this peer, before its turn comes to drop it."""
        worker, is_open = self._workspace.worker, request.round == self._round
        if is_open:
            self._dropped = max(self._dropped, request.round)
        if worker is not None and is_open and self._is_training:
            await worker.abandon()

    def drop(self, request: DropRoundRequest) -> None:
        """The round did not happen for this peer, which goes on from before it. Of a merged round it means nothing."""
        if request.round == self._round:
            self._undo(request.round)

    def _undo(self, round: int) -> None:
        if self._result is not None and self._result.round == round:
            self._result = None
        self._private.undo(round)
        self._account.closed(round, is_accepted=False)

    async def reveal(self, request: RevealRequest) -> RevealReply:
        """Copies the payload to the replica, by the group if it can be, then opens the commitment."""
        result = self._result
        if result is None or result.round != request.round:
            raise PolicyError("FF-APP-035", f"nothing was committed for round {request.round}")
        began, replica, manifest = time.monotonic(), request.replica, result.manifest
        try:
            if not await self.fanning.give(request.fan, manifest, replica, self._dial):
                await objects.push(
                    self._disk, manifest, replica, self._dial, MessageKind.SYNC, patience=REPLICA_SECONDS
                )
        except FarflungError as error:
            raise NetworkError(
                objects.REPLICA_AWAY, "the replica did not take the payload", cause=str(error)[:200]
            ) from error
        nonce = nonce_of(self._key, self._terms.id, request.round)
        trace, said = result.trace, result.trace.statistics
        made = (said.tokens, trace.payload, manifest.id, nonce, trace.root, self.sandbox, said.stated)
        shown = Contribution(self._key.public, *made, self.attests)
        moved = TransferMeasurement(manifest.size, time.monotonic() - began)
        return RevealReply(StoredContribution(shown, manifest, replica), moved)

    async def open(self, request: SegmentOpenRequest) -> SegmentOpenReply:
        """Opens the state before a segment of the round that is being closed, or repeats what was opened."""
        known = self._openings.find(request.round, request.segment)
        if known is not None:
            return known.opened
        return await self._showing.open(self._drawn(request), request.segment)

    async def plant(self, request: SegmentOpenRequest) -> CanaryOpenReply:
        """Falsifies the trace of the round that is being closed, to test a verifier with; the same again."""
        known = self._openings.find(request.round, request.segment, is_planted=True)
        if known is not None and known.plant is not None:
            return CanaryOpenReply(known.plant, known.opened)
        return await self._showing.plant(self._drawn(request), request.segment)

    def _drawn(self, request: SegmentOpenRequest) -> PrivateRoundResult:
        result = self._result
        if result is None or result.round != request.round or self._round != request.round:
            raise PolicyError("FF-APP-084", f"segment {request.segment} of round {request.round} is not open")
        return result

    @property
    def _showing(self) -> SegmentSealer:
        return SegmentSealer(self._terms, self._workspace, self._private, self._openings, self._retain)

    async def merge(self, request: MergeRequest) -> MergeReply:
        """Fetches the accepted payloads, merges them, and signs the root that comes out."""
        if self._merged is not None and self._merged[0] == request.round:
            return self._merged[1]  # asked again, over a new connection
        self._check_round(request.round)
        if not any(share.contribution.peer == self._key.public for share in request.shares):
            self._undo(request.round)
        moved = await self._gather(request)
        state = await self._merge_shares(request.round, request.shares, MessageKind.SYNC)
        self._holds(request.round + 1, state.root)
        self._old += [(request.round, share.manifest.id) for share in request.shares]
        self._old += [(request.round, taken) for taken in self.fanning.taken()]
        signature = sign_root(self._key, self._terms.id, request.round, state.root)
        merged = MergeReply(state.root, signature, moved, self.fanning.epoch)
        self._merged = (request.round, merged)
        self._account.closed(request.round, is_accepted=True)
        return merged

    async def _gather(self, request: MergeRequest) -> TransferMeasurement:
        """Brings the payloads here in the way of the round; what it does not bring, `_merge_shares` fetches."""
        shares = [share for share in request.shares if share.manifest.size <= self._payload_bytes]
        of = {s: (s.replica,) if request.from_replica else self._sources(s) for s in shares}
        wanted = [(share.manifest, sources) for share, sources in of.items()]
        return await self.fanning.collect(wanted, self._dial, is_fanned=request.is_fanned)

    def _sources(self, share: StoredContribution) -> tuple[PeerId, ...]:
        holders = (share.contribution.peer, share.replica, self._requester)
        return tuple(dict.fromkeys(peer for peer in holders if peer != self._key.public))

    async def _merge_shares(
        self, round: int, shares: tuple[StoredContribution, ...], kind: MessageKind
    ) -> worker_messages.StateResult:
        peers = {share.contribution.peer for share in shares}
        if len(peers) != len(shares) or len(peers) > limits.PEERS:
            raise VerificationError("FF-APP-059", "an accept set is too long, or names a peer twice")
        parts = []
        for share in shares:
            c = share.contribution
            self._check_weight(round, c)
            if share.manifest.size > self._payload_bytes:
                raise VerificationError("FF-APP-055", "a payload is longer than its format allows")
            payload = await self._workspace.bring(share.manifest, self._sources(share), kind)
            if payload_hash(payload) != c.payload:
                raise VerificationError("FF-APP-036", f"the payload of {c.peer[:4].hex()} is not the accepted one")
            parts.append(worker_messages.AcceptedPayload(c.peer, c.weight, payload))
        return await self._workspace.ask(worker_messages.MergeCommand(round, tuple(parts)), worker_messages.StateResult)

    def _check_weight(self, round: int, c: Contribution) -> None:
        """Nothing weighs more than the terms allow, or than was assigned before the round. Raises FF-APP-197."""
        spec, (assigned_in, assigned) = self._terms.spec, self._assigned
        most = assigned.get(c.peer, 0) if assigned and assigned_in == round else spec.round_tokens
        if not spec.is_weight(c.weight) or c.weight > most:
            raise VerificationError("FF-APP-197", "an accepted contribution weighs more than was assigned")

    def _forget(self, keep_from: int) -> None:
        """Deletes private states and payloads that no resume can ask for any more."""
        self._openings.forget(keep_from)
        self._private.forget(keep_from)
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
        self._workspace.close()
        self.fanning.leave()
        self._private.end()
        self.objects.clear()


def _dropped(round: int) -> PolicyError:
    return PolicyError(
        "FF-APP-195",
        f"round {round} was closed without this peer",
        cause="it was too slow for the others, or for the coordinator's window",
        hint="nothing: it takes part in the next round",
    )
