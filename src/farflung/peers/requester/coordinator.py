"""Carries out the effects of `train.rounds` over the network and the log.

What it knows beyond the log (what members stated, opened, and hold) it can ask for again: killed at any moment, the
next coordinator replays the log and asks the same questions, and the members answer with the same bits. The ledger is
told by peers.requester.ledger_recorder, from the log alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, ProtocolError, RunError, VerificationError
from farflung.core.events import ProcessExitEvent, ReexecutionEvent
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.job.spec import JobTerms
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import PATIENCE_SECONDS, Dial, MemberCalls, as_failure
from farflung.peers.requester.audits import AuditCoordinator
from farflung.peers.requester.commitment_checks import (
    is_kept,
    is_possible,
    is_stated,
    promised_by,
    statement,
)
from farflung.peers.requester.payload_checks import CheckerSupervisor
from farflung.peers.requester.payload_exchange import PayloadExchange
from farflung.peers.requester.round_timing import NO_BENCHMARKS, RoundClock, RoundEventEmitter
from farflung.peers.rundir.archive import SNAPSHOT_EVERY, Archive, RunLog, roots_by_round
from farflung.peers.rundir.journal import EventEmitter
from farflung.train import rounds
from farflung.train.public_state import PublicState
from farflung.train.run_log import Contribution, RoundEndRecord, RoundMember, RunEndRecord
from farflung.train.sync_arithmetic import Sync
from farflung.verify.commitment_check import is_commitment, is_root_signed, opens
from farflung.verify.speed_check import suspected
from farflung.verify.submission_checks import PayloadCheckRequest

OWN_DISK: Final = ("FF-CORE-050", "FF-CORE-051")  # cannot be written: the same for whichever peer comes next

NO_ATTESTATIONS: Final[Mapping[PeerId, Hash]] = MappingProxyType({})

Anchor = Callable[[int, Hash], Awaitable[Hash]]  # of a round and its commitments: what it is drawn from
OnClosed = Callable[[PublicState], None]
OnLost = Callable[[PeerId, bool], None]


class Coordinator:
    """Runs rounds until the run ends. `on_closed` hears of each closed round, in order; `on_lost` of members that
    are gone, and whether they may come back: not who broke the rules.
    """

    def __init__(
        self,
        terms: JobTerms,
        log: RunLog,
        archive: Archive,
        state: rounds.CoordinatorState,
        public: PublicState,
        audits: AuditCoordinator,
        inspection: CheckerSupervisor,
        dial: Dial,
        exchange: PayloadExchange,
        anchor: Anchor,
        journal: EventEmitter,
        on_closed: OnClosed,
        on_lost: OnLost,
        patience: Callable[[PeerId], float] = lambda _: PATIENCE_SECONDS,
        benchmarks: Mapping[PeerId, int] = NO_BENCHMARKS,
        attested: Mapping[PeerId, Hash] = NO_ATTESTATIONS,
    ) -> None:
        self._terms, self._log, self._archive = terms, log, archive
        self._state, self._public, self._next_public = state, public, public
        self._audits, self._inspection, self._drop_anchor = audits, inspection, anchor
        self._attested = attested
        self._exchange, self._journal, self._on_closed, self._on_lost = exchange, journal, on_closed, on_lost
        self._lines = MemberCalls(dial, patience, self._is_counted)
        self._arrivals = RoundClock(terms.spec, benchmarks=benchmarks)
        self._aside: set[PeerId] = set()  # passed over, and not back yet
        self._catching: dict[PeerId, asyncio.Lock] = {}
        self._at_work = defaultdict[PeerId | None, OwnedTasks](OwnedTasks)  # for each peer; None: for nobody
        self._sync = Sync.of(terms.spec)
        self._events: asyncio.Queue[rounds.Event] = asyncio.Queue()
        self._promises: dict[PeerId, messages.TrainReply] = {}
        self._shares: dict[PeerId, messages.StoredContribution] = {}
        self._held = dict.fromkeys(state.members, state.round)  # round of the public state at each peer
        self._flagged: asyncio.Event = asyncio.Event()
        self._last_error: FarflungError | None = None
        self._failure: FarflungError | None = None
        self._resumed_round = state.round if state.phase is rounds.RoundPhase.TRAIN else -1
        self._chronicle = RoundEventEmitter(journal, terms.spec.rounds)
        self._finished: RunEndRecord | None = None

    def lose(self, peer: PeerId, reason: str, *, may_return: bool = True) -> None:
        """Evidence that a member is gone, from whoever noticed it first."""
        if self._is_counted(peer):
            self._aside.discard(peer)
            self._journal.emit(ProcessExitEvent(peer=peer.hex(), reason=reason))
            self.post(rounds.MemberLossInput(peer))
            self._on_lost(peer, may_return)

    @property
    def public(self) -> PublicState:
        """The public state of the round that is open."""
        return self._public

    def _is_counted(self, peer: PeerId) -> bool:
        """Whether a peer is a member, or was passed over and will be again."""
        return peer in self._state.members or peer in self._aside

    def may_join(self, peer: PeerId) -> bool:
        """Whether a peer is missed."""
        return not self._is_counted(peer) and peer not in self._state.excluded

    def state_for(self, peer: PeerId) -> PublicState:
        """Where a peer that was lost goes on: with the open round, or with one of which it owes an opening."""
        owed = self._audits.owes(peer)
        return self._public if owed is None else self._archive.state(owed, self._terms, self._log.records)

    async def join(self, peer: PeerId, round: int) -> None:
        """A peer holds the public state of `round`; it opens what it owes of it, then counts from the next round on."""
        self._held[peer] = round
        await self._audits.made()
        if self._audits.owes(peer) is not None:
            await self._audits.collect(round, peer)
        await self._catch_up(peer, self._state.round)
        self.post(rounds.MemberJoinInput(peer))

    @property
    def last_error(self) -> FarflungError | None:
        """What the member said that was lost last; None: its process ended."""
        return self._last_error

    def fail(self, error: FarflungError) -> None:
        """The run cannot go on in this session."""
        self._failure = error
        self.post(rounds.StopInput())  # wakes the loop, which raises

    def post(self, event: rounds.Event) -> None:
        """Lets an event reach the rounds: a stop, a lost process."""
        self._events.put_nowait(event)

    async def run(self) -> tuple[RunEndRecord, PublicState]:
        """From where the log ends to the end of the run, or until no member is left (REASON_ALONE)."""
        self.post(rounds.BeginInput())
        try:
            while self._finished is None:
                event = await self._events.get()
                if self._failure is not None:
                    raise as_failure(self._failure)
                self._state, effects = rounds.step(self._state, event)
                for effect in effects:
                    self._carry_out(effect)
                self._chronicle.see(self._state)  # after the report of the round before
                self._arrivals.see(self._state)
        finally:
            self._exchange.close()
            await asyncio.gather(*(each.close() for each in self._at_work.values()))
        return self._finished, self._public

    def _carry_out(self, effect: rounds.Effect) -> None:
        match effect:
            case rounds.WriteRecord(record):
                self._log.write(record)
                self._audits.see(record)
            case rounds.RequestTraining(round, peer):
                self._exchange.prepare(self._state.members, self._lines)
                self._spawn(peer, self._train(round, peer))
            case rounds.RequestBeacon(round):
                self._spawn(None, self._anchor(round))
            case rounds.RequestReveal(round, peer):
                self._spawn(peer, self._reveal(round, peer))
            case rounds.RequestMerge(round, peer, accepted):
                self._spawn(peer, self._merge(round, peer, accepted))
            case rounds.OpenWindow(round, phase):
                over = rounds.WindowEndInput(round, phase)
                asyncio.get_running_loop().call_later(self._arrivals.grace(), self.post, over)
            case rounds.SkipMember(round, peer, phase):
                self._pass_over(round, peer, phase)
            case rounds.MergeLocally(round, accepted):
                if self._terms.spec.churn.adaptive:
                    self.post(self._arrivals.pace(self._state))  # before anything that opens the next round
                self._spawn(None, self._merge_own(round, accepted))
                for peer in set(self._state.members) - self._state.in_round:
                    # Who waits for the next round has time now.
                    self._spawn(peer, self._catch_up(peer, round + 1))
            case rounds.ReportRound(closed, accepted):
                self._report(closed, accepted)
            case rounds.AuditRound(round):
                self._spawn(None, self._see_through(round))
            case rounds.ExcludeMember(peer, round):
                self._audits.exclude(peer)
                self._journal.emit(
                    ProcessExitEvent(peer=peer.hex(), reason=f"excluded: its work in round {round} is false")
                )
                self._on_lost(peer, False)
            case rounds.ExpelMember(peer, round, root):
                self._on_lost(peer, False)
                why = f"its public state after round {round} is {root[:4].hex()}, not everybody's"
                self._journal.emit(ProcessExitEvent(peer=peer.hex(), reason=why))
            case rounds.HaltRun(round, root):
                self.fail(_outvoted(round, root))
            case rounds.EndRun(finished):
                self._finished = finished

    def _spawn(self, peer: PeerId | None, work: Coroutine[Any, Any, None]) -> None:
        self._at_work[peer].begin(self._guard(peer, work))

    async def _guard(self, peer: PeerId | None, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FarflungError as error:
            self._failed(peer, error)
        except Exception as error:  # the task's boundary: the rounds wait for this task
            self._failed(peer, RunError("FF-APP-099", f"{type(error).__name__}: {error}"[:300]))

    def _failed(self, peer: PeerId | None, error: FarflungError) -> None:
        self._last_error = error
        if peer is None or error.code in OWN_DISK:
            self.fail(error)  # not the peer's fault
        else:
            broke_rules = isinstance(error, VerificationError | ProtocolError)
            self.lose(peer, f"{error.code} {error.message}", may_return=not broke_rules)

    def _pass_over(self, round: int, peer: PeerId, phase: rounds.RoundPhase) -> None:
        """The round goes on without a member. In MERGE its work counts already, and its answer brings it back."""
        self._aside.add(peer)
        self._chronicle.passed_over(round, peer, phase.value)
        if phase is rounds.RoundPhase.TRAIN:
            self._arrivals.passed_over(self._state, peer)
        if phase is not rounds.RoundPhase.MERGE:
            self._at_work[peer].cancel()
            self._spawn(peer, self._drop(round, peer))

    async def _drop(self, round: int, peer: PeerId) -> None:
        """Lets a member drop its round; when it has merged what was closed since, it counts from the next one on.

        What is drawn of it is opened first: dropped, it is gone.
        """
        if self._audits.owes(peer) == round:
            await self._lines.patiently(peer, lambda: self._audits.collect(round, peer))
        await self._lines.ask(peer, messages.DROP, encode(messages.DropRoundRequest(self._terms.id, round)))
        await self._catch_up(peer, self._state.round)
        self._back(peer)

    def _back(self, peer: PeerId) -> None:
        if peer in self._aside:
            self._aside.discard(peer)
            self.post(rounds.MemberJoinInput(peer))
            self._spawn(peer, self._catch_up(peer, max(self._log.accepted, default=-1) + 1))

    async def _catch_up(self, peer: PeerId, round: int) -> None:
        """Lets a peer that came while a round was open merge what was closed since."""
        async with self._catching.setdefault(peer, asyncio.Lock()):
            while (held := self._held.get(peer, round)) < round:
                shares = tuple(self._archive.share(c) for c in self._log.accepted[held])
                await self._lines.ask(
                    peer, messages.MERGE, encode(messages.MergeRequest(self._terms.id, held, shares))
                )
                self._held[peer] = held + 1

    async def _train(self, round: int, peer: PeerId) -> None:
        await self._catch_up(peer, round)
        keep_from = max(0, round - SNAPSHOT_EVERY - 1)
        is_even = not self._terms.spec.churn.adaptive  # everybody has all steps, as the terms say
        members = () if is_even else tuple(RoundMember(p, w) for p, w in sorted(self._state.assigned.items()))
        request = messages.TrainRequest(self._terms.id, round, keep_from, members)
        data = await self._lines.ask(peer, messages.TRAIN, encode(request))
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
            raise VerificationError("FF-APP-360", "a commitment stands for something else than is said of it")
        if round == self._resumed_round and not promise.was_stored:
            self._journal.emit(ReexecutionEvent(peer=peer.hex(), round=round))
        self._promises[peer] = promise
        self._arrivals.arrived(self._state, peer, promise.seconds)
        self._chronicle.arrived(round, peer, "train")
        timed = self._arrivals.timed(peer, is_resumed=round == self._resumed_round)
        self.post(rounds.CommitmentInput(round, promise.commitment, promised, timed))

    def _is_weight(self, peer: PeerId, weight: int) -> bool:
        return weight <= self._state.assigned.get(peer, 0) and self._terms.spec.is_weight(weight)

    async def _anchor(self, round: int) -> None:
        self.post(rounds.BeaconInput(round, await self._drop_anchor(round, self._audits.anchor(round))))

    async def _reveal(self, round: int, peer: PeerId) -> None:
        share = await self._exchange.reveal(round, peer, tuple(self._state.in_round), self._lines)
        c = share.contribution
        is_whole = (
            self._is_weight(peer, c.weight)
            and len(c.nonce) == len(c.trace) == ID_BYTES  # the log takes no record of any size
            and len(c.sandbox) <= limits.SANDBOX_CHARACTERS
            and opens(c, self._state.commitments[peer], self._terms.id, round)
            and share.manifest.id == c.object
        )
        if not is_whole:
            raise VerificationError("FF-APP-054", "a payload is not the one that was committed")
        if c.attests != self._attested.get(peer, ZERO_HASH):
            raise VerificationError("FF-APP-416", "a payload names another attestation than its node's offer")
        if share.manifest.size > self._sync.bound(self._terms.layout):
            raise VerificationError("FF-APP-055", "a payload is longer than its format allows")
        await self._exchange.bring(share, self._lines)
        promise = self._promises.get(peer)
        if promise is not None and not is_stated(promise, c, self._terms.spec.segments):
            raise VerificationError("FF-APP-355", "a member states other figures than it has committed to")
        said = statement(promise)
        payload = self._archive.payload(c)
        await self._inspection.check(
            PayloadCheckRequest(round, self._public.root(self._terms.layout), c, said, payload)
        )
        await self._lines.patiently(peer, lambda: self._audits.open(round, peer))
        self._shares[peer] = share
        self._arrivals.arrived(self._state, peer)
        self._chronicle.arrived(round, peer, "reveal")
        self.post(rounds.ContributionInput(round, c))

    def _share(self, contribution: Contribution) -> messages.StoredContribution:
        known = self._shares.get(contribution.peer)
        is_same = known is not None and known.contribution == contribution
        return known if known is not None and is_same else self._archive.share(contribution)

    async def _merge(self, round: int, peer: PeerId, accepted: tuple[Contribution, ...]) -> None:
        await self._flagged.wait()
        # What the checks suspect is opened now, before it is gone.
        await self._lines.patiently(peer, lambda: self._audits.open(round, peer))
        request = self._exchange.order(round, tuple(self._share(c) for c in accepted))
        data = await self._lines.ask(peer, messages.MERGE, encode(request))
        merged = decode(data, messages.MergeReply, limits.CONTROL_BYTES)
        if not is_root_signed(peer, merged.signature, self._terms.id, round, merged.root):
            raise VerificationError("FF-APP-056", "a root is not signed by the peer that sent it")
        self._exchange.merged(round, peer, merged)
        self._held[peer] = round + 1
        if round != self._state.round or peer in self._aside:
            self._back(peer)
            return
        self._arrivals.arrived(self._state, peer)
        self._chronicle.arrived(round, peer, "merge")
        self.post(rounds.MemberRootInput(round, peer, merged.root, merged.signature))

    async def _merge_own(self, round: int, accepted: tuple[Contribution, ...]) -> None:
        root = self._public.root(self._terms.layout)
        self._audits.flag(round, await self._flags(round, root, accepted))
        self._flagged.set()
        parts = await asyncio.to_thread(self._archive.parts, accepted)
        self._next_public = await asyncio.to_thread(self._sync.apply, self._public, self._terms.layout, parts)
        root = self._next_public.root(self._terms.layout)
        self.post(rounds.OwnRootInput(round, root))

    async def _flags(self, round: int, root: Hash, accepted: tuple[Contribution, ...]) -> dict[PeerId, str]:
        """Suspicions of the submission checks; after a crash the accepted payloads are checked once more."""
        if not self._terms.spec.is_audited:
            return {}
        for c in accepted:
            if c.peer not in self._shares or round != self._state.round:
                payload = self._archive.payload(c)
                await self._inspection.check(PayloadCheckRequest(round, root, c, None, payload))
        odd = await self._inspection.conclude(round, tuple(c.peer for c in accepted))
        return suspected(self._terms.spec, self._log.committed(round), accepted, odd)

    async def _see_through(self, round: int) -> None:
        if not self._audits.is_flagged(round):
            root = roots_by_round(self._log.records)[round]
            self._audits.flag(round, await self._flags(round, root, self._log.accepted[round]))
        found = await self._audits.see_through(round)
        self.post(replace(found, scores=await self._audits.scores(round)))

    def _report(self, closed: RoundEndRecord, accepted: tuple[Contribution, ...]) -> None:
        self._public = self._next_public
        self._archive.remember(self._public)
        self._flagged.clear()
        now_round, spec = self._public.round, self._terms.spec
        if (
            now_round % SNAPSHOT_EVERY == 0
            or now_round % spec.evaluate.every == 0
            or now_round == spec.rounds
        ):
            self._archive.save_state(self._public, self._terms)
        told = self._exchange.told(closed.round)
        self._chronicle.closed(closed, accepted, self._promises, told)
        self._promises, self._shares = {}, {}
        self._on_closed(self._public)


def _outvoted(round: int, root: Hash) -> VerificationError:
    return VerificationError(
        "FF-APP-074",
        f"all members agree on another public state after round {round} than this coordinator",
        cause=f"theirs is {root[:4].hex()}; the mistake is here, not with them",
        hint="`farflung resume` merges the round again; if it stays so, check this machine's memory",
    )
