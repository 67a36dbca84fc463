"""Carries out an audit lease: a verifier repeats sampled segments of others' work, blind, and judges the claims.

    audit.run     fetch the public state and the opened start, train the segment again, commit to what came out
    audit.judge   only now is the peer's claim here: compare, encode again, sign a verdict
    audit.score   what each accepted contribution of a round does to the loss: nobody's secret, and no verdict

The verifier holds no state of the job but its data: it may die between the two, and gives the same result again. What
it cannot fetch from the peer, though it asks itself and waits, is withheld, and it says so under its signature. Its
own trouble is nobody's fault: a line that is dead for everybody, or a worker that fails, ends an audit without a
verdict, and the coordinator asks another verifier.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.commitments import BorderRoots
from farflung.core.errors import PolicyError, ProtocolError, RunError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.io.spool_file import spooled
from farflung.host.io.machine_probe import memory_bytes
from farflung.job.proof_class import probe_of
from farflung.ledger.transactions import SignedVerdict, Verdict, VerdictFinding, sign_verdict
from farflung.net.messages import MessageKind
from farflung.peers.node import graph_trial
from farflung.peers.node.opening_deadlines import OpeningDeadlines, WithheldError
from farflung.peers.node.voucher_bound import WorkAccount
from farflung.peers.node.workspace import JobWorkspace, WorkerHandle
from farflung.peers.program import graph_runs
from farflung.peers.protocol import messages as protocol_messages
from farflung.peers.transfer import objects
from farflung.store.sealed_objects import ObjectManifest
from farflung.train import public_state, segments, worker_messages
from farflung.train.blobs import Blob, parts_of
from farflung.train.contribution_trace import are_opened
from farflung.train.inner_state import VECTORS
from farflung.train.run_log import contributions_root, payload_hash
from farflung.train.scores import RoundScores, SignedRoundScores, seed_of, sign_scores
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync
from farflung.verify import segment_audit as chair
from farflung.verify import segment_opening
from farflung.verify.audit_accounts import segment_tokens
from farflung.verify.audit_verdict import EXCESS_CAP, AuditFinding
from farflung.verify.blind_commitment import BlindCommitment, blind, nonce_of
from farflung.verify.canon import accusation_check
from farflung.verify.canon.dispute_execution import check_memory
from farflung.verify.canon.graph_requests import AccusationRequest

ROUNDS_HELD: Final = 2  # of audits: the round that is judged, and the one before
BLAMED: Final = (  # what the worker says of a state that no honest peer can have gone on from
    "FF-TRAIN-058",
    "FF-TRAIN-062",
    "FF-TRAIN-070",
    "FF-TRAIN-071",
    "FF-TRAIN-082",
    "FF-COMP-020",
)

Place = tuple[int, PeerId, int]  # round, node, segment
Retain = Callable[[int, chair.SegmentAudit, Blob, Blob], None]  # a seat, its audit, its start and claimed end


class PendingAudit(NamedTuple):
    """An audit under way: what it was asked, and what the segment gave here."""

    order: protocol_messages.AuditRequest
    opened: protocol_messages.SegmentOpenReply
    audit: chair.SegmentAudit
    start: Blob
    snapshot: Blob
    blind: BlindCommitment


class AuditLease:
    """Carries out one job's audits on this verifier."""

    def __init__(
        self,
        workspace: JobWorkspace,
        account: WorkAccount,
        chain: Hash,
        retain: Retain = lambda _seat, _audit, _start, _claimed: None,
    ) -> None:
        """`account` counts what is not paid; `retain` keeps a segment that is found false by its distance: this
        verifier may have to prove it.
        """
        self._workspace, self._account, self._chain, self._retain = workspace, account, chain, retain
        self._key, self._terms, self._disk = workspace.key, workspace.terms, workspace.disk
        self.objects = objects.ObjectServer(self._disk, 0)  # nobody leaves anything with a verifier
        self._requester = self._key.public
        self._held: dict[Place, PendingAudit] = {}
        self._fetched: set[Hash] = set()
        self._debts = OpeningDeadlines(self._key.public, workspace.dial)
        self._is_tried = False  # the job's graph, before the first verdict
        self.members: frozenset[PeerId] = frozenset()
        self.sandbox = ""
        self.turn = asyncio.Lock()

    @property
    def job(self) -> Hash:
        """The job's id."""
        return self._terms.id

    async def start(
        self, start: protocol_messages.LeaseStartRequest, job_key: bytes, worker: WorkerHandle, requester: PeerId
    ) -> protocol_messages.LeaseStartReply:
        """Brings the data here and sets the worker up."""
        self._requester = requester
        self.admit(frozenset(a.peer for a in start.members) | {requester})
        self._debts.know(requester, start.members)
        if not self._workspace.is_set_up(worker, job_key):
            self._workspace.check(start, job_key, {})
            await self._workspace.enter(start, job_key, worker, requester)
        return protocol_messages.LeaseStartReply(start.snapshot_round, ZERO_HASH, 0, "")

    def admit(self, members: frozenset[PeerId]) -> None:
        """Who is in the job from now on."""
        self.members = members

    def allows(self, peer: PeerId) -> bool:
        """A verifier serves no objects to anybody but the requester."""
        return peer == self._requester

    def is_verifier(self, peer: PeerId) -> bool:
        """Nobody audits a verifier."""
        return False

    async def run(self, asked: protocol_messages.AuditRequest) -> protocol_messages.AuditReply:
        """Trains the segment again and commits to what came out; the same again when asked again."""
        node = asked.contribution.peer
        known = self._held.get((asked.round, node, asked.segment))
        if known is not None and known.order == asked:
            return protocol_messages.AuditReply(known.blind, None)
        spec = self._terms.spec
        if not (0 <= asked.round < spec.rounds and 0 <= asked.segment < spec.segments):
            raise PolicyError("FF-APP-057", "an order does not fit where the lease stands", cause="no such segment")
        await self._account.check(asked.round)
        self._forget(asked.round)
        packed = await self._fetch(asked.snapshot, self._requester)
        public = public_state.check(
            public_state.unpack(packed, self._terms.layout), self._terms.layout, asked.round, asked.root
        )
        if not self._is_tried:
            await graph_trial.try_on_node(self._workspace, await self._workspace.graph(), packed, asked.member)
            self._is_tried = True
        params = segments.params_root(self._terms.layout, public.params)
        place = segment_opening.OpenedSegment(self._terms.spec, asked.round, asked.segment, asked.contribution, params)
        run = None
        if asked.opened is not None:
            with contextlib.suppress(WithheldError):
                run = await self._rerun(asked, asked.opened, place, packed, public)
        try:
            # What came by way of the coordinator and does not hold may be its doing: the peer's own word decides.
            run = run or await self._rerun(asked, await self._ask_opening(asked), place, packed, public)
        except WithheldError:
            return protocol_messages.AuditReply(
                None, self._verdict(asked, AuditFinding(VerdictFinding.WITHHELD, 0), ZERO_HASH)
            )
        if run is None:
            return protocol_messages.AuditReply(
                None, self._verdict(asked, AuditFinding(VerdictFinding.FALSE, EXCESS_CAP), ZERO_HASH)
            )
        opened, state, audit = run
        self._account.audited(asked.round, segment_tokens(spec, asked.segment, asked.contribution.weight))
        said = blind(self._key, self.job, asked.round, node, asked.segment, audit.mine.border)
        self._held[asked.round, node, asked.segment] = PendingAudit(asked, opened, audit, state, packed, said)
        return protocol_messages.AuditReply(said, None)

    async def _rerun(
        self,
        asked: protocol_messages.AuditRequest,
        opened: protocol_messages.SegmentOpenReply,
        place: segment_opening.OpenedSegment,
        packed: Blob,
        public: public_state.PublicState,
    ) -> tuple[protocol_messages.SegmentOpenReply, Blob, chair.SegmentAudit] | None:
        """What the segment gives here; None when what was opened cannot be what an honest peer committed to."""
        layout = self._terms.layout
        if segment_opening.start_fault(place, opened.start) or self._chain_fault(asked, opened):
            return None
        border = segment_opening.read_border(opened.start)
        state = await self._from_peer(opened.state, asked.contribution.peer)
        if not chair.is_start(place, layout, border, state):
            return None
        await self._workspace.supply(asked.round, (asked.member,), (asked.contribution.peer,))
        try:
            reran = await self._workspace.ask(
                worker_messages.RerunCommand(packed, asked.member, asked.segment, state, place.steps),
                worker_messages.RerunResult,
            )
        except RunError as error:
            if error.code not in BLAMED:
                raise  # our own worker's trouble
            return None
        audit = chair.begin(place, layout, self._terms.tolerance, border, state, public.params, reran)
        return opened, state, audit

    def _chain_fault(self, asked: protocol_messages.AuditRequest, opened: protocol_messages.SegmentOpenReply) -> str:
        """Whether the round goes on from the committed end of the peer's round before it."""
        before: BorderRoots | None = None
        start = segment_opening.read_border(opened.start)
        # It says openly that it lost what it had: no end to go on from.
        is_fresh = start.optimizer == ZERO_HASH
        if asked.segment == 0 and asked.before != ZERO_HASH and not is_fresh:
            last = self._terms.spec.segments
            leaves = opened.before
            if len(leaves) != 1 or leaves[0].index != last or not are_opened(asked.before, last, leaves):
                return "the end of the round before is not opened"
            try:
                before = segment_opening.read_border(leaves[0])
            except ProtocolError as error:
                return error.message
        return segment_opening.chain_fault(before, start)

    async def judge(self, asked: protocol_messages.VerdictRequest) -> protocol_messages.VerdictReply:
        """Compares with what the peer claims. Raises PolicyError FF-APP-087 when the audit must be run again first."""
        held = self._held.get((asked.round, asked.peer, asked.segment))
        if held is None:
            raise PolicyError("FF-APP-087", "this audit was not run here", hint="order it again")
        try:
            revealed = asked.revealed
            if revealed is None or isinstance(self._ends(held, revealed), str):
                revealed = await self._ask_reveal(held)  # as with the opening
            shown = await self._shown(held, revealed)
        except WithheldError:
            found = AuditFinding(VerdictFinding.WITHHELD, 0)
        else:
            found = chair.judge(held.audit, shown, await self._reencode(held, shown.last))
            found = await self._by_graph(held, shown.end, found)
            if accusation_check.needs_graph(found):
                self._retain(held.order.member, held.audit, held.start, shown.end)
        node, border = asked.peer, held.audit.mine.border
        nonce = nonce_of(self._key, self.job, asked.round, node, asked.segment)
        return protocol_messages.VerdictReply(self._verdict(held.order, found, held.blind.digest), border, nonce)

    async def _by_graph(self, held: PendingAudit, claimed: Blob, found: AuditFinding) -> AuditFinding:
        """The finding that is signed: where the job has a graph, it must find the same distance false.

        Raises RunError FF-VERI-103 where this machine has no memory for that: another verifier is asked.
        """
        graph = await self._workspace.graph() if accusation_check.needs_graph(found) else None
        if graph is None:
            return found
        needed, place = check_memory(graph.parts, memory_bytes()), held.audit.place
        # other audits may have been run since
        await self._workspace.supply(place.round, (held.order.member,), (held.order.contribution.peer,))
        graph = graph._replace(tokens=self._workspace.kept_tokens(place.round, held.order.member))
        first, after = place.borders[place.segment : place.segment + 2]
        steps = held.order.member, first, after - first
        request = AccusationRequest(*graph.about, held.snapshot, place.round, *steps, held.start, claimed)
        said = await graph_runs.finding(request, needed, self._disk.root)
        return accusation_check.confirmed(found, said.is_false)

    def _ends(
        self, held: PendingAudit, revealed: protocol_messages.SegmentRevealReply
    ) -> segment_opening.ClaimedEnds | str:
        return segment_opening.read_ends(held.audit.place, held.audit.start, revealed.leaves)

    async def _shown(self, held: PendingAudit, revealed: protocol_messages.SegmentRevealReply) -> chair.SegmentClaim:
        """The peer's leaves and states; a state that this verifier has itself is not fetched."""
        place, node = held.audit.place, held.order.contribution.peer
        ends = self._ends(held, revealed)
        if isinstance(ends, str):
            return chair.SegmentClaim(revealed.leaves, b"", b"")
        same = chair.is_same(held.audit.mine.border, ends.end)
        end: Blob = b"" if same else await self._from_peer(revealed.end, node)
        if same and place.segment + 1 == place.segments:
            last: Blob = await asyncio.to_thread(self._own_last, held)
        else:
            last = await self._from_peer(revealed.last, node)
        return chair.SegmentClaim(revealed.leaves, end, last)

    def _own_last(self, held: PendingAudit) -> Blob:
        """What the encoding was made of, when the segment is the round's last one and came out the same here."""
        optimizer, layout, round = self._terms.spec.optimizer, self._terms.layout, held.order.round
        mine = segments.unpack(held.audit.mine.end, optimizer, layout, round)
        start = segments.unpack(held.start, optimizer, layout, round)
        last = BorderState(round, mine.step, mine.params, (), start.residual, start.offset)
        spool = spooled([parts_of(segments.pieces(last, optimizer, layout))], self._disk.root)
        return spool.views()[0]

    async def _reencode(self, held: PendingAudit, last: Blob) -> worker_messages.ReencodeResult | None:
        try:
            request = worker_messages.ReencodeCommand(held.snapshot, held.order.contribution.peer, last)
            return await self._workspace.ask(request, worker_messages.ReencodeResult)
        except RunError as error:
            if error.code not in BLAMED:
                raise
            return None

    async def score(self, asked: protocol_messages.ScoreRequest) -> SignedRoundScores:
        """The losses of a round, signed. Raises PolicyError FF-APP-405 where the job asks for none, or for others."""
        accepted = tuple(share.contribution for share in asked.shares)
        probe = probe_of(self._terms.spec, is_proven=self._terms.is_proven)
        is_possible = len(asked.members) == len(accepted) <= self._terms.spec.network.providers
        if probe is None or not is_possible:
            raise PolicyError("FF-APP-405", "there is nothing to score", cause="the terms say otherwise")
        await self._account.check(asked.round)
        self._forget(asked.round)
        packed = await self._fetch(asked.snapshot, self._requester)
        layout = self._terms.layout
        public_state.check(public_state.unpack(packed, layout), layout, asked.round, asked.root)
        payloads = [await self._fetch(share.manifest, self._requester) for share in asked.shares]
        if [payload_hash(payload) for payload in payloads] != [c.payload for c in accepted]:
            raise VerificationError("FF-APP-406", "a payload to be scored is not the one that was accepted")
        parts = tuple(
            worker_messages.AcceptedPayload(c.peer, c.weight, p) for c, p in zip(accepted, payloads, strict=True)
        )
        await self._workspace.supply(asked.round, asked.members, probe=(seed_of(asked.beacon), probe.windows))
        request = worker_messages.LossProbeCommand(packed, asked.members, parts, probe.windows, seed_of(asked.beacon))
        probed = await self._workspace.ask(request, worker_messages.LossProbeResult)
        self._account.audited(asked.round, probe.tokens(len(accepted), self._terms.spec.model.context))
        about = (self._chain, self.job, asked.round, asked.beacon, contributions_root(accepted))
        return sign_scores(self._key, RoundScores(*about, self._key.public, probed.held_before, probed.each))

    def _verdict(self, asked: protocol_messages.AuditRequest, found: AuditFinding, result: Hash) -> SignedVerdict:
        c = asked.contribution
        about = (self._chain, self.job, asked.round, c.peer, asked.segment, c.trace)
        return sign_verdict(self._key, Verdict(*about, self._key.public, found.finding, found.excess, result))

    async def _ask_opening(self, asked: protocol_messages.AuditRequest) -> protocol_messages.SegmentOpenReply:
        body = encode(
            protocol_messages.SegmentOpenRequest(self.job, asked.round, asked.segment, asked.contribution.trace)
        )
        return await self._ask_peer(
            asked.contribution.peer, protocol_messages.OPEN, body, protocol_messages.SegmentOpenReply
        )

    async def _ask_reveal(self, held: PendingAudit) -> protocol_messages.SegmentRevealReply:
        asked = held.order
        trace = asked.contribution.trace
        body = encode(protocol_messages.SegmentRevealRequest(self.job, asked.round, asked.segment, trace, held.blind))
        return await self._ask_peer(
            asked.contribution.peer, protocol_messages.UNVEIL, body, protocol_messages.SegmentRevealReply
        )

    async def _ask_peer(
        self, peer: PeerId, method: str, body: bytes, kind: type[protocol_messages.OpeningT]
    ) -> protocol_messages.OpeningT:
        """The peer's answer; one that cannot be read is none."""

        async def ask() -> protocol_messages.OpeningT:
            data = await (await self._debts.reach(peer)).call(method, body, timeout=None)
            return protocol_messages.read_opening(data, kind)

        # it seals two states or three before it answers, and their sizes are not known here yet
        return await self._debts.paid(peer, ask, self._largest_state())

    async def _from_peer(self, manifest: ObjectManifest, peer: PeerId) -> Blob:
        """A state that the peer had committed to; raises WithheldError."""
        if manifest.size > self._largest_state():
            raise WithheldError("FF-APP-088", "a committed state is withheld", cause="it is larger than any state")

        async def ask() -> Blob:
            await self._debts.reach(peer)
            return await self._fetch(manifest, peer)

        return await self._debts.paid(peer, ask, manifest.size)

    def _largest_state(self) -> int:
        """Bytes of a state at a border of a segment."""
        spec = self._terms.spec
        vectors = 2 + len(VECTORS[spec.optimizer.name]) + int(Sync.of(spec).is_offset)
        return 4 * self._terms.layout.size * vectors + limits.KIB

    async def _fetch(self, manifest: ObjectManifest, source: PeerId) -> Blob:
        self._fetched.add(manifest.id)
        return await self._workspace.bring(manifest, (source,), MessageKind.AUDIT)

    def _forget(self, round: int) -> None:
        """What belongs to rounds before the last one is judged, or will be ordered again; so will what is too much."""
        held = {place: each for place, each in self._held.items() if place[0] >= round - 1}
        most = ROUNDS_HELD * self._terms.spec.network.providers
        self._held = dict(list(held.items())[-most + 1 :]) if len(held) >= most else held
        keep = {m.id for h in self._held.values() for m in (h.order.snapshot, h.opened.state)}
        for object_id in self._fetched - keep:
            self._disk.delete(object_id)
        self._fetched &= keep

    def end(self) -> None:
        """Deletes what the job left on this disk."""
        self._workspace.close()
        self._held.clear()
        self.objects.clear()
