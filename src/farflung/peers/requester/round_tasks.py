"""Does over the network what `train.rounds` asks for: trains, reveals, checks, merges and audits, a task for each.

A member's answer is trusted in nothing that can be checked: its signature, its weight, what it had committed to, and
what its trace opens. Who says what cannot be is refused by an error of this task (peers.requester.coordinator).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import VerificationError
from farflung.core.events import ProcessExitEvent, ReexecutionEvent, WarningEvent
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash, PeerId
from farflung.core.units import Seconds
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import MemberCalls
from farflung.peers.requester.audits import AuditCoordinator
from farflung.peers.requester.commitment_checks import is_kept, is_possible, is_stated, promised_by, statement
from farflung.peers.requester.coordinator import OpenRounds, RoundTask
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.members import Membership
from farflung.peers.requester.payload_checks import CheckerSupervisor
from farflung.peers.requester.payload_exchange import PayloadExchange
from farflung.peers.requester.round_timing import RoundClock, RoundEventEmitter
from farflung.peers.rundir.archive import SNAPSHOT_EVERY, roots_by_round
from farflung.train import rounds
from farflung.train.public_state import PublicState
from farflung.train.rounds import RoundPhase
from farflung.train.run_log import Contribution, Record, RoundEndRecord, RoundMember
from farflung.train.sync_arithmetic import Sync
from farflung.train.vector_store import are_equal
from farflung.train.worker_messages import AcceptedPayload
from farflung.verify.commitment_check import is_commitment, is_root_signed, opens
from farflung.verify.speed_check import suspected
from farflung.verify.submission_checks import PayloadCheckRequest

OnClosed = Callable[[PublicState], None]
Recorded = Callable[[int], Awaitable[None]]


class RoundTasks:
    """The work of one job's rounds, in one session."""

    def __init__(
        self,
        job: JobContext,
        members: Membership,
        audits: AuditCoordinator,
        checker: CheckerSupervisor,
        exchange: PayloadExchange,
        on_closed: OnClosed,
        recorded: Recorded,
    ) -> None:
        """`on_closed` hears of each closed round, in order; `recorded` waits until the ledger has a round."""
        self._job, self._terms, self._log, self._archive = job, job.terms, job.log, job.archive
        self._members, self._audits, self._checker, self._exchange = members, audits, checker, exchange
        self._on_closed, self._recorded = on_closed, recorded
        self._attested = members.attested
        self._clock = RoundClock(job.terms.spec, benchmarks=members.benchmarks)
        self._told = RoundEventEmitter(job.journal, job.terms.spec.rounds)
        self._sync = Sync.of(job.terms.spec, job.archive.store)
        self._catching: dict[PeerId, asyncio.Lock] = {}
        self._promises: dict[PeerId, messages.TrainReply] = {}
        self._shares: dict[PeerId, messages.StoredContribution] = {}
        self._flagged = asyncio.Event()
        self._clipped: Mapping[PeerId, float] = {}
        self._is_still_told = False

    def begin(self, coordinator: OpenRounds) -> None:
        """Whose work it is; before anything else."""
        state, self._rounds = coordinator.state, coordinator
        self._calls = MemberCalls(self._members.dial, self._members.patience, coordinator.is_counted)
        self._public = self._next_public = self._job.state(state.round)
        self._held = dict.fromkeys(state.members, state.round)  # round of the public state at each peer
        self._resumed_round = state.round if state.phase is RoundPhase.TRAIN else -1

    @property
    def public(self) -> PublicState:
        """The public state of the round that is open."""
        return self._public

    def stepped(self) -> None:
        """The state is another one: tells of a round that was opened, after the report of the one before."""
        self._told.see(self._rounds.state)
        self._clock.see(self._rounds.state)

    def written(self, record: Record) -> None:
        """A record is in the log."""
        self._audits.see(record)

    def close(self) -> None:
        """The rounds end, or this session of them."""
        self._exchange.close()

    # Members come and go

    def lost(self, peer: PeerId, reason: str, *, may_return: bool) -> None:
        """A member is gone; who broke the rules does not come back."""
        self._job.journal.emit(ProcessExitEvent(peer=peer.hex(), reason=reason))
        self._members.lost(peer, may_return)

    def excluded(self, peer: PeerId, round: int) -> None:
        """A member's work is false: it is out, and what is still drawn of it is not judged."""
        self._audits.exclude(peer)
        self.lost(peer, f"excluded: its work in round {round} is false", may_return=False)

    def skipped(self, round: int, peer: PeerId, phase: RoundPhase) -> None:
        """A phase was closed without a member."""
        self._told.passed_over(round, peer, phase.value)
        if phase is RoundPhase.TRAIN:
            self._clock.passed_over(self._rounds.state, peer)

    def state_for(self, peer: PeerId) -> PublicState:
        """Where a peer that was lost goes on: with the open round, or with one of which it owes an opening."""
        owed = self._audits.owes(peer)
        return self._public if owed is None else self._job.state(owed)

    async def rejoin(self, peer: PeerId, round: int) -> None:
        """A peer holds the public state of `round`; it opens what it owes of it, and merges what was closed since."""
        self._held[peer] = round
        await self._audits.made()
        if self._audits.owes(peer) is not None:
            await self._audits.collect(round, peer)
        await self.catch_up(peer, self._rounds.state.round)

    async def catch_up(self, peer: PeerId, round: int) -> None:
        """Lets a peer that came while a round was open merge what was closed since."""
        async with self._catching.setdefault(peer, asyncio.Lock()):
            while (held := self._held.get(peer, round)) < round:
                shares = tuple(self._archive.share(c) for c in self._log.accepted[held])
                request = messages.MergeRequest(self._terms.id, held, shares)
                await self._calls.ask(peer, messages.MERGE, encode(request))
                self._held[peer] = held + 1

    async def drop(self, round: int, peer: PeerId) -> None:
        """Lets a member drop its round; when it has merged what was closed since, it counts from the next one on.

        What is drawn of it is opened first: dropped, it is gone.
        """
        if self._audits.owes(peer) == round:
            await self._calls.patiently(peer, lambda: self._audits.collect(round, peer))
        await self._calls.ask(peer, messages.DROP, encode(messages.DropRoundRequest(self._terms.id, round)))
        await self.catch_up(peer, self._rounds.state.round)
        self._rounds.back(peer)

    # Time

    def grace(self) -> Seconds:
        """How long a window is open."""
        return self._clock.grace()

    def pace(self) -> rounds.Event | None:
        """What the next round assigns, where the job follows what was measured."""
        return self._clock.pace(self._rounds.state) if self._terms.spec.churn.adaptive else None

    # A round

    def train(self, round: int, peer: PeerId) -> RoundTask:
        """Lets a member train; its commitment."""
        self._exchange.prepare(self._rounds.state.members, self._calls)
        return self._train(round, peer)

    async def _train(self, round: int, peer: PeerId) -> rounds.Event:
        await self.catch_up(peer, round)
        await self._recorded(round - limits.UNRECORDED_ROUNDS - 1)  # members work no further ahead of their pay
        keep_from = max(0, round - SNAPSHOT_EVERY - 1)
        is_even = not self._terms.spec.churn.adaptive  # everybody has all steps, as the terms say
        assigned = sorted(self._rounds.state.assigned.items())
        members = () if is_even else tuple(RoundMember(p, w) for p, w in assigned)
        request = messages.TrainRequest(self._terms.id, round, keep_from, members)
        data = await self._calls.ask(peer, messages.TRAIN, encode(request))
        promise = decode(data, messages.TrainReply, limits.CONTROL_BYTES)
        said = promise.commitment
        is_own = said.peer == peer and len(said.digest) == ID_BYTES
        if not is_own or not is_commitment(said, self._terms.id, round):
            raise VerificationError("FF-APP-053", "a commitment is not signed by the peer that sent it")
        if not is_possible(promise, self._terms.spec.sync.steps):
            raise VerificationError("FF-APP-060", "a round's statistics are not possible")
        promised = promised_by(promise)
        may_weigh = self._is_weight(peer, promised.weight)
        if not may_weigh or not is_kept(promised, promise, self._terms.id, round):
            raise VerificationError("FF-APP-360", "a commitment does not match what it is said to be")
        is_resumed = round == self._resumed_round
        if is_resumed and not promise.was_stored:
            self._job.journal.emit(ReexecutionEvent(peer=peer.hex(), round=round))
        self._promises[peer] = promise
        self._clock.arrived(self._rounds.state, peer, promise.seconds)
        self._told.arrived(round, peer, "train")
        timed = self._clock.timed(peer, is_resumed=is_resumed)
        return rounds.CommitmentInput(round, promise.commitment, promised, timed)

    def _is_weight(self, peer: PeerId, weight: int) -> bool:
        return weight <= self._rounds.state.assigned.get(peer, 0) and self._terms.spec.is_weight(weight)

    async def beacon(self, round: int) -> rounds.Event:
        """Anchors a round's commitments; what the round is drawn from."""
        return rounds.BeaconInput(round, await self._audits.anchor(round))

    async def reveal(self, round: int, peer: PeerId) -> rounds.Event:
        """Lets a member show its payload, and open its drawn segment; its contribution."""
        share = await self._exchange.reveal(round, peer, tuple(self._rounds.state.in_round), self._calls)
        c = share.contribution
        is_whole = (
            self._is_weight(peer, c.weight)
            and len(c.nonce) == len(c.trace) == ID_BYTES  # the log takes no record of any size
            and len(c.sandbox) <= limits.SANDBOX_CHARACTERS
            and opens(c, self._rounds.state.commitments[peer], self._terms.id, round)
            and share.manifest.id == c.object
        )
        if not is_whole:
            raise VerificationError("FF-APP-054", "a payload is not the one that was committed")
        if c.attests != self._attested.get(peer, ZERO_HASH):
            raise VerificationError("FF-APP-416", "a payload names another attestation than its node's offer")
        if share.manifest.size > self._job.payload_bytes:
            raise VerificationError("FF-APP-055", "a payload is longer than its format allows")
        await self._exchange.bring(share, self._calls)
        promise = self._promises.get(peer)
        if promise is not None and not is_stated(promise, c, self._terms.spec.segments):
            raise VerificationError("FF-APP-355", "a member states other figures than it has committed to")
        said = statement(promise)
        payload = self._archive.payload(c)
        root = self._public.root(self._terms.layout)
        await self._checker.check(PayloadCheckRequest(round, root, c, said, payload))
        await self._calls.patiently(peer, lambda: self._audits.open(round, peer))
        self._shares[peer] = share
        self._clock.arrived(self._rounds.state, peer)
        self._told.arrived(round, peer, "reveal")
        return rounds.ContributionInput(round, c)

    def _share(self, contribution: Contribution) -> messages.StoredContribution:
        known = self._shares.get(contribution.peer)
        is_same = known is not None and known.contribution == contribution
        return known if known is not None and is_same else self._archive.share(contribution)

    async def merge(self, round: int, peer: PeerId, accepted: tuple[Contribution, ...]) -> rounds.Event | None:
        """Lets a member merge; the root that it comes to, unless the round has gone on without it."""
        await self._flagged.wait()
        # What the checks suspect is opened now, before it is gone.
        await self._calls.patiently(peer, lambda: self._audits.open(round, peer))
        request = self._exchange.order(round, tuple(self._share(c) for c in accepted))
        data = await self._calls.ask(peer, messages.MERGE, encode(request))
        merged = decode(data, messages.MergeReply, limits.CONTROL_BYTES)
        if not is_root_signed(peer, merged.signature, self._terms.id, round, merged.root):
            raise VerificationError("FF-APP-056", "a root is not signed by the peer that sent it")
        self._exchange.merged(round, peer, merged)
        self._held[peer] = round + 1
        if round != self._rounds.state.round or self._rounds.is_aside(peer):
            self._rounds.back(peer)
            return None
        self._clock.arrived(self._rounds.state, peer)
        self._told.arrived(round, peer, "merge")
        return rounds.MemberRootInput(round, peer, merged.root, merged.signature)

    async def merge_own(self, round: int, accepted: tuple[Contribution, ...]) -> rounds.Event:
        """Merges here, beside the members; the root."""
        root = self._public.root(self._terms.layout)
        self._audits.flag(round, await self._flags(round, root, accepted))
        self._flagged.set()
        parts = await asyncio.to_thread(self._archive.parts, accepted)
        self._next_public = await asyncio.to_thread(self._applied, parts)
        return rounds.OwnRootInput(round, self._next_public.root(self._terms.layout))

    def _applied(self, parts: Sequence[AcceptedPayload]) -> PublicState:
        """The next public state; notes what the clip took of whom."""
        layout = self._terms.layout
        merged = self._sync.merged(self._public, layout, parts) if parts else None
        self._clipped = {} if merged is None else merged.clipped
        after = self._sync.moved(self._public, layout, None if merged is None else merged.values)
        may_rest = self._sync.phases > 1 or (self._sync.spec.sync.delay and not self._public.round)
        if parts and not may_rest and are_equal(after.params, self._public.params):
            self._tell_still(self._public.round)
        return after

    def _tell_still(self, round: int) -> None:
        """Says once that a round changed nothing."""
        if not self._is_still_told:
            self._is_still_told = True
            self._job.journal.emit(
                WarningEvent(
                    code="FF-APP-473",
                    message=f"what all providers sent in round {round} changes no weight",
                    hint="raise optimizer.lr, or sync.value_bits: docs/train.md, Ranges",
                )
            )

    async def _flags(self, round: int, root: Hash, accepted: tuple[Contribution, ...]) -> dict[PeerId, str]:
        """Suspicions of the submission checks; after a crash the accepted payloads are checked once more."""
        if not self._terms.spec.is_audited:
            return {}
        for c in accepted:
            if c.peer not in self._shares or round != self._rounds.state.round:
                payload = self._archive.payload(c)
                await self._checker.check(PayloadCheckRequest(round, root, c, None, payload))
        odd = await self._checker.conclude(round, tuple(c.peer for c in accepted))
        return suspected(self._terms.spec, self._log.committed(round), accepted, odd)

    async def audit(self, round: int) -> rounds.Event:
        """All that is found of a closed round."""
        if not self._audits.is_flagged(round):
            root = roots_by_round(self._log.records)[round]
            self._audits.flag(round, await self._flags(round, root, self._log.accepted[round]))
        found = await self._audits.see_through(round)
        return replace(found, scores=await self._audits.scores(round))

    def closed(self, closed: RoundEndRecord, accepted: tuple[Contribution, ...]) -> None:
        """A round is over: keeps its public state, and tells of it."""
        self._public = self._next_public
        self._archive.remember(self._public)
        self._flagged.clear()
        now_round, spec = self._public.round, self._terms.spec
        if now_round == spec.rounds or not (now_round % SNAPSHOT_EVERY and now_round % spec.evaluate.every):
            self._archive.save_state(self._public, self._terms)
        self._told.closed(closed, accepted, self._promises, self._exchange.told(closed.round), self._clipped)
        self._promises, self._shares = {}, {}
        self._on_closed(self._public)
