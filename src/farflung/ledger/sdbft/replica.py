"""Implements one seat of a committee, or a follower.

It is SDBFT as a function from events to effects (docs/protocol/sdbft.md).

The rules are numbered as on that page. All of them are taken up in `_step`, one after another, until none has anything
to do; what the rest of the class does is trust or refuse messages (`ReplicaInbox`), and keep within bounds.
A replica lives for one epoch. Times are whole milliseconds of any clock that does not go back.

    replica = Replica(reign, head, key)             at the beginning of an epoch: head = FinalHead(root, 0)
    replica = Replica(reign, head, key, records)    after a crash: all records of the vote log, in order (rule 7)
    effects = replica.handle(ReplicaStartEvent(), now_ms)     and so on, see replica_events
    replica.records()                               what a shorter vote log must still hold
"""

from __future__ import annotations

from collections.abc import Iterable

from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.block import Block
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.block_tree import FinalHead
from farflung.ledger.sdbft.catch_up import entry, spoken
from farflung.ledger.sdbft.leaders import EpochCommittee
from farflung.ledger.sdbft.replica_checks import ReplicaChecks
from farflung.ledger.sdbft.replica_inbox import ReplicaInbox
from farflung.ledger.sdbft.replica_messages import BlockProposal, VoteMessage, VoteQuorum
from farflung.ledger.sdbft.vote_rules import may_finalize, may_notarize, may_nullify
from farflung.ledger.sdbft.votelog_records import Record
from farflung.ledger.votes import SignedVote, Vote, VoteKind, sign_vote

EARLY_NULLIFY = 64  # views ahead at most: votes for later ones count nowhere


class Replica(ReplicaInbox):
    """The rules. Without a key of the committee it follows, and signs nothing."""

    def __init__(
        self,
        committee: EpochCommittee,
        head: FinalHead,
        key: SigningKey | None,
        records: Iterable[Record] = (),
        checks: ReplicaChecks | None = None,
    ) -> None:
        super().__init__(committee, head, committee.seat(key.public) if key else None, checks or ReplicaChecks())
        self._key = key
        self._judging: set[tuple[Hash, bool]] = set()
        self._built: ev.BlockBuiltEvent | None = None
        self._building = 0  # the view for which a block was asked
        self._pending = self._was_working = False
        self._entered = self._worked = self._fired = 0
        self._clock_due = 0  # no block without work is due before
        self._wake: int | None = None
        self._records: list[Record] = []  # of votes signed while this event is handled
        self._logged: set[tuple[int, VoteKind]] = set()  # quorums that are in the vote log
        self._restore(records)

    # What a shell may ask

    def records(self) -> tuple[Record, ...]:
        """The records that are still needed: whoever keeps these alone may forget the log before."""
        kept: list[Record] = []
        for _, tally in self._vote_tallies:
            kept += [*tally.quorums.values(), *tally.proposals]
        return (*kept, *(VoteMessage(signed) for _, votes in sorted(self._cast.items()) for signed in votes))

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Effect]:
        """Takes one event; what is to be done now, in this order."""
        self._now = now_ms
        match event:
            case ev.ReplicaStartEvent():
                self._entered = self._fired = now_ms
                self._broadcast(self.status())
            case ev.ReplicaMessageEvent(peer, message):
                self._receive(peer, message)
            case ev.ReplicaPeerEvent(peer):
                self._out.append(ev.SendEffect(peer, self.status()))
            case ev.WaitingTxsEvent(is_pending):
                self._pending = is_pending
            case ev.ClockDueEvent(at_ms):
                self._clock_due = at_ms
            case ev.BlockBuiltEvent():
                self._built = event
            case ev.BlockCheckedEvent():
                self._block_tree.judge(event)
            case ev.BlocksStoredEvent(block, closes):
                self._adopted(block, closes)
            case ev.ReplicaTickEvent():
                self._tick()
        while not self.is_over and self._adopting is None and self._step():
            pass
        if isinstance(event, ev.ReplicaMessageEvent):
            self._ask(event.peer)
        self._plan()
        return self._effects()

    def _effects(self) -> list[ev.Effect]:
        """Rule 7: votes, with all that they rest on, are logged before anything leaves."""
        out, self._out = self._out, []
        records, self._records = self._records, []
        return [ev.LogVotesEffect(tuple(records)), *out] if records else out

    def _account(self, signed: SignedVote) -> list[Record]:
        """A vote as the log holds it: NOTARIZE behind the proposal that it is for."""
        said = spoken(self._vote_tallies, [signed])
        tally = self._vote_tallies.find(signed.vote.view)
        rests = tally.proposal(signed.vote.block) if tally and signed.vote.kind == VoteKind.NOTARIZE else None
        return [rests, *said] if rests is not None and rests not in said else [*said]

    def _is_unlogged(self, quorum: VoteQuorum) -> bool:
        name = (quorum.vote.view, quorum.vote.kind)
        is_new = name not in self._logged
        self._logged.add(name)
        return is_new

    def _restore(self, records: Iterable[Record]) -> None:
        """Rule 7: a restarted replica holds its votes and what they rest on, and is where they say."""
        for record in records:
            if isinstance(record, VoteQuorum):
                if record.vote.view > self._block_tree.head.view and self._vote_tallies.hold(record):
                    self._logged.add((record.vote.view, record.vote.kind))
                    self._note_quorum(record)
            elif record.signed.vote.view > self._block_tree.head.view:
                self._restore_vote(record)
        self._view = self._vote_tallies.open_after(self._block_tree.head.view)
        self._activity.note(range(len(self.committee.members)), self._view - 1)

    def _restore_vote(self, record: VoteMessage | BlockProposal) -> None:
        signed = record.signed
        view, tally = signed.vote.view, self._vote_tallies.at(signed.vote.view)
        if isinstance(record, BlockProposal):
            self._vote_tallies.keep(record)
        if signed.seat == self._seat and signed not in self._cast.get(view, ()):
            self._cast.setdefault(view, []).append(signed)
        quorum = tally.add(signed) if tally.has_room(signed) else None
        if quorum is not None and self._vote_tallies.hold(quorum):  # a committee of one logs no quorums
            self._note_quorum(quorum)

    # The rules

    def _step(self) -> bool:
        """Does the next thing that a rule asks for; False when there is none."""
        return self._finish() or self._enter() or self._finalize() or self._notarize() or self._lead()

    def _finish(self) -> bool:
        """Rule 6: a FINALIZE quorum makes its block and all ancestors final."""
        self._missing = None
        for view, quorum in self._vote_tallies.finals():
            blocks, missing = self._block_tree.path(quorum)
            if missing is None:
                self._final(tuple(blocks), view)
                return True
            self._missing = self._missing or missing
        return False

    def _final(self, blocks: tuple[Block, ...], view: int) -> None:
        header = blocks[-1].header if blocks else self._block_tree.head.header
        verdict = self._block_tree.verdict(header.id)
        self._block_tree.move(FinalHead(header, view))
        self._catch_up.drop_runs()
        self._cast = {at: votes for at, votes in self._cast.items() if at > view}
        self._logged = {(at, kind) for at, kind in self._logged if at > view}
        self._judging = {name for name in self._judging if self._vote_tallies.block(name[0]) is not None}
        if blocks:
            self._out.append(ev.FinalBlocksEffect(blocks))
            if verdict is None or not verdict.is_valid:
                self._adopting = header.id  # rule 8: whether the epoch is over is not known yet
            else:
                self.is_over = verdict.closes

    def _adopted(self, block: Hash, closes: bool) -> None:
        if block == self._block_tree.head_id:
            self._adopting, self.is_over = None, closes

    def _enter(self) -> bool:
        """Rule 1: a quorum for a view opens the next, and one of NOTARIZE shows that all before are over."""
        view = self._vote_tallies.open_after(max(self._block_tree.head.view, self._view - 1))
        if view <= self._view:
            return False
        self._view, self._entered, self._fired = view, self._now, self._now
        self._nullify_inactive()
        return True

    def _nullify_inactive(self) -> None:
        """Leaders that are gone: their views are nullified while the view before them runs."""
        for view in range(self._view, self._view + min(len(self.committee.members), EARLY_NULLIFY)):
            leader = self.committee.leader(view)
            is_gone = leader != self._seat and self._activity.is_inactive(leader, view)
            if is_gone and may_nullify(self._kinds(view)):
                self._vote(view, VoteKind.NULLIFY, ZERO_HASH)
            elif not is_gone and view > self._view:
                return

    def _finalize(self) -> bool:
        """Rule 5: FINALIZE what a quorum notarized, unless the view was nullified by this seat."""
        while self._notarized:
            quorum = self._notarized.pop()
            view = quorum.vote.view
            if view > self._block_tree.head.view and may_finalize(self._kinds(view)):
                self._vote(view, VoteKind.FINALIZE, quorum.vote.block)
                return True
        return False

    def _notarize(self) -> bool:
        """Rule 3: NOTARIZE the first proposal of the view's leader that is linked, executed and valid."""
        tally = self._vote_tallies.find(self._view)
        proposal = tally.proposal() if tally else None
        if proposal is None or not may_notarize(self._kinds(self._view)):
            return False
        block = proposal.signed.vote.block
        if not self._execute(block) or not self._block_tree.has_link(self._view, proposal):
            return False
        if self._seat is None or self._seat == self.committee.leader(self._view):
            return False
        self._vote(self._view, VoteKind.NOTARIZE, block)
        return True

    def _execute(self, block: Hash) -> bool:
        """Whether the block is executed and valid; asks for the lowest of its branch that is not."""
        if self._block_tree.is_executed(block):
            return True
        proposal, lowest = self._block_tree.to_execute(block)
        if proposal is None:
            return False
        is_new = self._vote_tallies.view_of(lowest) is None
        judged = self._block_tree.verdict(lowest)
        if (lowest, is_new) not in self._judging and (judged is None or not judged.is_valid):
            self._judging.add((lowest, is_new))
            self._out.append(ev.CheckBlockEffect(ev.DraftBlock(proposal.header, proposal.txs), is_new))
        return False

    def _lead(self) -> bool:
        """Rule 2: the leader proposes on the newest notarized block that it sees a link through."""
        if self._seat != self.committee.leader(self._view) or not may_notarize(self._kinds(self._view)):
            return False
        parent = next(self._block_tree.parents(self._view), None)
        if parent is None or not self._execute(parent):
            return False
        if self._block_tree.closes(parent):
            proposal = self._vote_tallies.block(parent)
            return proposal is not None and self._propose(ev.DraftBlock(proposal.header, proposal.txs))
        if self._built is not None and self._built.view == self._view:
            built, self._built, self._building = self._built, None, 0
            return built.draft.header.parent == parent and self._propose_built(built)
        header = self._block_tree.header(parent)
        if self._building < self._view and header is not None and self._now >= self._due():
            self._building = self._view
            self._out.append(ev.BuildBlockEffect(self._view, header))
        return False

    def _propose_built(self, built: ev.BlockBuiltEvent) -> bool:
        is_proposed = self._propose(built.draft)
        self._block_tree.judge(ev.BlockCheckedEvent(built.draft.header.id, True, built.closes, built.works))
        return is_proposed

    def _propose(self, draft: ev.DraftBlock) -> bool:
        vote = self._statement(self._view, VoteKind.NOTARIZE, draft.header.id)
        if self._key is None or self._seat is None:
            return False
        proposal = BlockProposal(draft.header, draft.txs, sign_vote(self._key, self._seat, vote))
        if self._vote_tallies.at(self._view).takes(vote.block):
            self._vote_tallies.keep(proposal)
        self._note_own(proposal.signed)
        self._broadcast(proposal)
        return True

    # Own votes

    def _kinds(self, view: int) -> list[VoteKind]:
        """What this seat has signed in a view."""
        return [signed.vote.kind for signed in self._cast.get(view, ())]

    def _statement(self, view: int, kind: VoteKind, block: Hash) -> Vote:
        """Rule 8: every vote names the epoch."""
        return Vote(self.committee.chain, self.committee.epoch, view, kind, block)

    def _vote(self, view: int, kind: VoteKind, block: Hash) -> None:
        if self._key is None or self._seat is None:
            return
        signed = sign_vote(self._key, self._seat, self._statement(view, kind, block))
        self._broadcast(VoteMessage(signed))
        self._note_own(signed)

    def _note_own(self, signed: SignedVote) -> None:
        """Rule 7: a vote is written behind all that it rests on."""
        self._cast.setdefault(signed.vote.view, []).append(signed)
        self._records += [q for _, tally in self._vote_tallies for q in tally.quorums.values() if self._is_unlogged(q)]
        self._records += self._account(signed)
        self._add(signed)

    # Time

    @property
    def _is_working(self) -> bool:
        """Rule 2: transactions wait, or a block that is not final has some or closes the epoch."""
        return self._pending or self._block_tree.works

    def _due(self) -> int:
        """When the leader proposes: at once if there is work (rule 2), else when the clock has something to do."""
        return self._entered if self._is_working else max(self._entered + self.committee.idle_ms, self._clock_due)

    def _deadline(self) -> int:
        """When the timer of the view fires next."""
        span = self.committee.span_ms(self._block_tree.unfinished_before(self._view))
        if self._fired > self._entered:
            return self._fired + span
        if self._is_working:
            return max(self._entered, self._worked) + span
        return self._due() + span

    def _tick(self) -> None:
        """Rule 4: NULLIFY when the timer fires; then, and after each such span, say again what was said in the view."""
        self._wake = None
        if self.is_over or self._adopting is not None or self._now < self._deadline():
            return
        self._fired = self._now
        self._repeat()
        if may_nullify(self._kinds(self._view)):
            self._vote(self._view, VoteKind.NULLIFY, ZERO_HASH)

    def _repeat(self) -> None:
        quorums = entry(self._vote_tallies, self._view)
        for quorum in quorums:
            self._broadcast(quorum)
        for message in spoken(self._vote_tallies, self._cast.get(self._view, ())):
            self._broadcast(message)
        if self._seat is None or not quorums:  # who only follows, or came by blocks, is not understood otherwise
            self._broadcast(self.status())

    def _plan(self) -> None:
        """Asks for the next ReplicaTickEvent."""
        if self._is_working and not self._was_working:
            self._worked = self._now
        self._was_working = self._is_working
        wake = self._deadline()
        if self._seat == self.committee.leader(self._view) and self._now < self._due():
            wake = min(wake, self._due())
        if not self.is_over and wake != self._wake:
            self._wake = wake
            self._out.append(ev.WakeEffect(wake))
