"""One lease to audit: a verifier repeats drawn segments of others' work, blind, and judges what they claim.

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

from farflung.app import objects, wire
from farflung.app.owing import Debts, WithheldError
from farflung.app.wire import order
from farflung.app.workplace import Worker, Workplace
from farflung.core import limits
from farflung.core.claims import Border
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, ProtocolError, RunError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.job.proof import probe_of
from farflung.job.spec import Terms
from farflung.ledger.tx import Finding, SignedVerdict, Verdict, sign_verdict
from farflung.net.messages import Kind
from farflung.store.io.disk import Disk
from farflung.store.objects import Manifest
from farflung.train import messages, segments, snapshot
from farflung.train.inner import VECTORS
from farflung.train.roundlog import contributions_root, payload_hash
from farflung.train.scores import Scores, SignedScores, seed_of, sign_scores
from farflung.train.segments import BorderState
from farflung.train.sync import Sync
from farflung.train.trace import are_opened
from farflung.verify import audit as chair
from farflung.verify import opening
from farflung.verify.blind import Blind, blind, nonce_of
from farflung.verify.judge import EXCESS_CAP, Found

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
Retain = Callable[[int, chair.Audit, bytes, bytes], None]  # a seat, its audit, its start and claimed end


class Held(NamedTuple):
    """An audit under way: what it was asked, and what the segment gave here."""

    order: wire.AuditOrder
    opened: wire.SegmentOpened
    audit: chair.Audit
    start: bytes
    snapshot: bytes
    blind: Blind


class AuditTenancy:
    """Carries out one job's audits on this verifier."""

    def __init__(
        self,
        key: SigningKey,
        chain: Hash,
        terms: Terms,
        disk: Disk,
        dial: objects.Dial,
        dataset_bytes: int,
        retain: Retain = lambda _seat, _audit, _start, _claimed: None,
    ) -> None:
        """`retain` keeps a segment that is found false by its distance: this verifier may have to prove it."""
        self._retain = retain
        self._key, self._chain, self._terms, self._disk = key, chain, terms, disk
        self._workplace = Workplace(key, terms, disk, dial, dataset_bytes)
        self.shelf = objects.Shelf(disk, 0)  # nobody leaves anything with a verifier
        self._requester = key.public
        self._held: dict[Place, Held] = {}
        self._fetched: set[Hash] = set()
        self._debts = Debts(key.public, dial)
        self._is_tried = False  # the job's graph, before the first verdict
        self.members: frozenset[PeerId] = frozenset()
        self.sandbox = ""
        self.turn = asyncio.Lock()

    @property
    def job(self) -> Hash:
        """The job's id."""
        return self._terms.id

    async def start(
        self, start: wire.Start, job_key: bytes, worker: Worker, requester: PeerId
    ) -> wire.Started:
        """Brings the data here and sets the worker up."""
        self._requester = requester
        self.admit(frozenset(a.peer for a in start.members) | {requester})
        self._debts.know(requester, start.members)
        if not self._workplace.is_set_up(worker, job_key):
            self._workplace.check(start, job_key, {})
            await self._workplace.enter(start, job_key, worker, requester)
        return wire.Started(start.snapshot_round, ZERO_HASH, 0, "")

    def admit(self, members: frozenset[PeerId]) -> None:
        """Who is in the job from now on."""
        self.members = members

    def allows(self, peer: PeerId) -> bool:
        """A verifier serves no objects to anybody but the requester."""
        return peer == self._requester

    def is_verifier(self, peer: PeerId) -> bool:
        """Nobody audits a verifier."""
        return False

    def recall(self, method: str, body: bytes) -> bytes:
        """Raises ProtocolError FF-APP-043: a verifier has nothing that is audited."""
        raise ProtocolError("FF-APP-043", f"a verifier does not serve {method[:40]!r}")

    async def obey(self, method: str, body: bytes) -> bytes:
        """Carries out one order of the requester."""
        match method:
            case "audit.run":
                return encode(await self.run(order(self.job, body, wire.AuditOrder)))
            case "audit.judge":
                return encode(await self.judge(order(self.job, body, wire.AuditReveal)))
            case "audit.score":
                return encode(await self.score(order(self.job, body, wire.ScoreOrder)))
        raise ProtocolError("FF-APP-043", f"a verifier does not serve {method[:40]!r}")

    async def run(self, asked: wire.AuditOrder) -> wire.AuditAnswer:
        """Trains the segment again and commits to what came out; the same again when asked again."""
        node = asked.contribution.peer
        known = self._held.get((asked.round, node, asked.segment))
        if known is not None and known.order == asked:
            return wire.AuditAnswer(known.blind, None)
        spec = self._terms.spec
        if not (0 <= asked.round < spec.rounds and 0 <= asked.segment < spec.segments):
            raise PolicyError(
                "FF-APP-057", "an order does not fit where the lease stands", cause="no such segment"
            )
        self._forget(asked.round)
        packed = await self._fetch(asked.snapshot, self._requester)
        public = snapshot.check(
            snapshot.unpack(packed, self._terms.layout), self._terms.layout, asked.round, asked.root
        )
        if not self._is_tried:
            await self._workplace.try_graph(await self._workplace.parts(), packed, asked.member)
            self._is_tried = True
        params = segments.params_root(self._terms.layout, public.params)
        place = opening.Place(self._terms.spec, asked.round, asked.segment, asked.contribution, params)
        run = None
        if asked.opened is not None:
            with contextlib.suppress(WithheldError):
                run = await self._rerun(asked, asked.opened, place, packed, public)
        try:
            # What came by way of the coordinator and does not hold may be its doing: the peer's own word decides.
            run = run or await self._rerun(asked, await self._ask_opening(asked), place, packed, public)
        except WithheldError:
            return wire.AuditAnswer(None, self._verdict(asked, Found(Finding.WITHHELD, 0), ZERO_HASH))
        if run is None:
            return wire.AuditAnswer(None, self._verdict(asked, Found(Finding.FALSE, EXCESS_CAP), ZERO_HASH))
        opened, state, audit = run
        said = blind(self._key, self.job, asked.round, node, asked.segment, audit.mine.border)
        self._held[asked.round, node, asked.segment] = Held(asked, opened, audit, state, packed, said)
        return wire.AuditAnswer(said, None)

    async def _rerun(
        self,
        asked: wire.AuditOrder,
        opened: wire.SegmentOpened,
        place: opening.Place,
        packed: bytes,
        public: snapshot.PublicState,
    ) -> tuple[wire.SegmentOpened, bytes, chair.Audit] | None:
        """What the segment gives here; None when what was opened cannot be what an honest peer committed to."""
        layout = self._terms.layout
        if opening.start_fault(place, opened.start) or self._chain_fault(asked, opened):
            return None
        border = opening.read_border(opened.start)
        state = await self._from_peer(opened.state, asked.contribution.peer)
        if not chair.is_start(place, layout, border, state):
            return None
        try:
            reran = await self._workplace.ask(
                messages.Rerun(packed, asked.member, asked.segment, state, place.steps), messages.Reran
            )
        except RunError as error:
            if error.code not in BLAMED:
                raise  # our own worker's trouble
            return None
        audit = chair.begun(place, layout, self._terms.tolerance, border, state, public.params, reran)
        return opened, state, audit

    def _chain_fault(self, asked: wire.AuditOrder, opened: wire.SegmentOpened) -> str:
        """Whether the round goes on from the committed end of the peer's round before it."""
        before: Border | None = None
        start = opening.read_border(opened.start)
        # It says openly that it lost what it had: no end to go on from.
        is_fresh = start.optimizer == ZERO_HASH
        if asked.segment == 0 and asked.before != ZERO_HASH and not is_fresh:
            last = self._terms.spec.segments
            leaves = opened.before
            if len(leaves) != 1 or leaves[0].index != last or not are_opened(asked.before, last, leaves):
                return "the end of the round before is not opened"
            try:
                before = opening.read_border(leaves[0])
            except ProtocolError as error:
                return error.message
        return opening.chain_fault(before, start)

    async def judge(self, asked: wire.AuditReveal) -> wire.Judged:
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
            found = Found(Finding.WITHHELD, 0)
        else:
            found = chair.judge(held.audit, shown, await self._reencode(held, shown.last))
            if found.finding is Finding.FALSE and found.excess < EXCESS_CAP:
                self._retain(held.order.member, held.audit, held.start, shown.end)
        node, border = asked.peer, held.audit.mine.border
        nonce = nonce_of(self._key, self.job, asked.round, node, asked.segment)
        return wire.Judged(self._verdict(held.order, found, held.blind.digest), border, nonce)

    def _ends(self, held: Held, revealed: wire.SegmentRevealed) -> opening.Ends | str:
        return opening.read_ends(held.audit.place, held.audit.start, revealed.leaves)

    async def _shown(self, held: Held, revealed: wire.SegmentRevealed) -> chair.Shown:
        """The peer's leaves and states; a state that this verifier has itself is not fetched."""
        place, node = held.audit.place, held.order.contribution.peer
        ends = self._ends(held, revealed)
        if isinstance(ends, str):
            return chair.Shown(revealed.leaves, b"", b"")
        same = chair.is_same(held.audit.mine.border, ends.end)
        end = b"" if same else await self._from_peer(revealed.end, node)
        if same and place.segment + 1 == place.segments:
            last = self._own_last(held)
        else:
            last = await self._from_peer(revealed.last, node)
        return chair.Shown(revealed.leaves, end, last)

    def _own_last(self, held: Held) -> bytes:
        """What the encoding was made of, when the segment is the round's last one and came out the same here."""
        optimizer, layout, round = self._terms.spec.optimizer, self._terms.layout, held.order.round
        mine = segments.unpack(held.audit.mine.end, optimizer, layout, round)
        start = segments.unpack(held.start, optimizer, layout, round)
        last = BorderState(round, mine.step, mine.params, (), start.residual, start.offset)
        return segments.pack(last, optimizer, layout)

    async def _reencode(self, held: Held, last: bytes) -> messages.Reencoded | None:
        try:
            request = messages.Reencode(held.snapshot, held.order.contribution.peer, last)
            return await self._workplace.ask(request, messages.Reencoded)
        except RunError as error:
            if error.code not in BLAMED:
                raise
            return None

    async def score(self, asked: wire.ScoreOrder) -> SignedScores:
        """The losses of a round, signed. Raises PolicyError FF-APP-405 where the job asks for none, or for others."""
        accepted = tuple(share.contribution for share in asked.shares)
        probe = probe_of(self._terms.spec, is_proven=self._terms.is_proven)
        is_possible = len(asked.members) == len(accepted) <= self._terms.spec.network.providers
        if probe is None or not is_possible:
            raise PolicyError("FF-APP-405", "there is nothing to score", cause="the terms say otherwise")
        self._forget(asked.round)
        packed = await self._fetch(asked.snapshot, self._requester)
        layout = self._terms.layout
        snapshot.check(snapshot.unpack(packed, layout), layout, asked.round, asked.root)
        payloads = [await self._fetch(share.manifest, self._requester) for share in asked.shares]
        if [payload_hash(payload) for payload in payloads] != [c.payload for c in accepted]:
            raise VerificationError("FF-APP-406", "a payload to be scored is not the one that was accepted")
        parts = tuple(messages.Part(c.peer, c.weight, p) for c, p in zip(accepted, payloads, strict=True))
        request = messages.Probe(packed, asked.members, parts, probe.windows, seed_of(asked.beacon))
        probed = await self._workplace.ask(request, messages.Probed)
        about = (self._chain, self.job, asked.round, asked.beacon, contributions_root(accepted))
        return sign_scores(self._key, Scores(*about, self._key.public, probed.held_before, probed.each))

    def _verdict(self, asked: wire.AuditOrder, found: Found, result: Hash) -> SignedVerdict:
        c = asked.contribution
        about = (self._chain, self.job, asked.round, c.peer, asked.segment, c.trace)
        return sign_verdict(self._key, Verdict(*about, self._key.public, found.finding, found.excess, result))

    async def _ask_opening(self, asked: wire.AuditOrder) -> wire.SegmentOpened:
        body = encode(wire.OpenSegment(self.job, asked.round, asked.segment, asked.contribution.trace))
        return await self._ask_peer(asked.contribution.peer, wire.OPEN, body, wire.SegmentOpened)

    async def _ask_reveal(self, held: Held) -> wire.SegmentRevealed:
        asked = held.order
        trace = asked.contribution.trace
        body = encode(wire.RevealSegment(self.job, asked.round, asked.segment, trace, held.blind))
        return await self._ask_peer(asked.contribution.peer, wire.UNVEIL, body, wire.SegmentRevealed)

    async def _ask_peer(
        self, peer: PeerId, method: str, body: bytes, kind: type[wire.OpeningT]
    ) -> wire.OpeningT:
        """The peer's answer; one that cannot be read is none."""

        async def ask() -> wire.OpeningT:
            data = await (await self._debts.reach(peer)).call(method, body, timeout=None)
            return wire.read_opening(data, kind)

        # it seals two states or three before it answers, and their sizes are not known here yet
        return await self._debts.paid(peer, ask, self._largest_state())

    async def _from_peer(self, manifest: Manifest, peer: PeerId) -> bytes:
        """A state that the peer had committed to; raises WithheldError."""
        if manifest.size > self._largest_state():
            raise WithheldError(
                "FF-APP-088", "a committed state is withheld", cause="it is larger than any state"
            )

        async def ask() -> bytes:
            await self._debts.reach(peer)
            return await self._fetch(manifest, peer)

        return await self._debts.paid(peer, ask, manifest.size)

    def _largest_state(self) -> int:
        """Bytes of a state at a border of a segment."""
        spec = self._terms.spec
        vectors = 2 + len(VECTORS[spec.optimizer.name]) + int(Sync.of(spec).is_offset)
        return 4 * self._terms.layout.size * vectors + limits.KIB

    async def _fetch(self, manifest: Manifest, source: PeerId) -> bytes:
        self._fetched.add(manifest.id)
        return await self._workplace.bring(manifest, (source,), Kind.AUDIT)

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
        self._held.clear()
        self.shelf.clear()
