"""Checks a replica's incoming messages, and requests what it notices to be missing.

Signatures alone make a message trusted, whoever brings it. Nothing is kept but for the views just ahead, one proposal
a view, two votes a seat, view and kind; all else is a hint at most that the sender is ahead (docs/protocol/sdbft.md,
"Catching up" and "Bounds").
"""

from __future__ import annotations

from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger.block import Block, vote_for
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.block_tree import BlockTree, FinalHead, follows
from farflung.ledger.sdbft.catch_up import CatchUpTracker, answer
from farflung.ledger.sdbft.leaders import EpochCommittee, SeatActivity
from farflung.ledger.sdbft.replica_checks import ReplicaChecks
from farflung.ledger.sdbft.replica_messages import (
    BlockProposal,
    FinalBlocks,
    Message,
    ReplicaStatus,
    VoteMessage,
    VoteQuorum,
    is_sound,
    is_whole,
)
from farflung.ledger.sdbft.vote_tally import ViewTallies
from farflung.ledger.votes import SignedVote, Vote, VoteKind, seats_of

VIEWS_AHEAD = 64  # of one's own, for which votes count
PROPOSALS_AHEAD = 8  # of one's own, for which proposals are kept: each may be as large as a block


class ReplicaInbox:
    """The messages' side of a replica; `Replica` adds the rules."""

    def __init__(self, committee: EpochCommittee, head: FinalHead, seat: int | None, checks: ReplicaChecks) -> None:
        self.committee, self._seat, self._checks = committee, seat, checks
        self.is_over = False  # the epoch's closing block is final: rule 8
        self._vote_tallies = ViewTallies(len(committee.members))
        self._block_tree = BlockTree(head, self._vote_tallies)
        self._view = head.view + 1
        self._activity = SeatActivity(len(committee.members), head.view)
        self._catch_up = CatchUpTracker(committee.delta_ms)
        self._cast: dict[int, list[SignedVote]] = {}  # own votes by view
        self._notarized: list[VoteQuorum] = []  # for which rule 5 was not applied yet
        self._missing: Hash | None = None  # a block without which a final one cannot be reached
        self._adopting: Hash | None = None  # a final block of which is not known whether it closes the epoch
        self._is_behind = False  # a message showed that its sender is ahead
        self._now = 0
        self._out: list[ev.Effect] = []

    @property
    def view(self) -> int:
        """The view that the replica is in."""
        return self._view

    @property
    def head(self) -> FinalHead:
        """The last final block."""
        return self._block_tree.head

    def held(self) -> int:
        """How many votes, quorums and proposals are kept: what a flood could drive up."""
        return sum(tally.size for _, tally in self._vote_tallies)

    def status(self) -> ReplicaStatus:
        """Where the replica stands and what it lacks."""
        since, wants = self._lack()
        return ReplicaStatus(self.committee.epoch, self._view, self.head.header.height, since, wants)

    def _broadcast(self, message: Message) -> None:
        self._out.append(ev.BroadcastEffect(message))

    def _receive(self, peer: PeerId, message: Message) -> None:
        self._is_behind = False
        match message:
            case VoteMessage(signed):
                self._on_vote(peer, signed)
            case VoteQuorum():
                self._on_quorum(message)
            case BlockProposal():
                self._on_proposal(peer, message)
            case ReplicaStatus():
                self._on_status(peer, message)
            case FinalBlocks(blocks):
                self._on_blocks(peer, blocks)

    def _is_ours(self, vote: Vote) -> bool:
        """Whether a vote is of this epoch, in form (rule 8); one of a later epoch shows that its sender is ahead."""
        if vote.chain != self.committee.chain or not is_sound(vote):
            return False
        self._is_behind |= vote.epoch > self.committee.epoch
        return vote.epoch == self.committee.epoch

    def _on_vote(self, peer: PeerId, signed: SignedVote, is_signed: bool = False) -> None:
        vote = signed.vote
        if not is_whole(signed) or signed.seat >= len(self.committee.members) or signed.seat == self._seat:
            return
        if not self._is_ours(vote):
            if vote.epoch < self.committee.epoch:
                self._tell(peer)
            return
        if vote.view < self._view - 1 or (vote.view <= self.head.view and vote.kind != VoteKind.FINALIZE):
            self._tell(peer)
        if vote.view > self._view + VIEWS_AHEAD:
            self._is_behind = True
            return
        if is_signed or self._is_countable(signed):
            self._count(signed)
        self._is_behind |= self._is_ahead(vote)

    def _is_ahead(self, vote: Vote) -> bool:
        """Whether who says this has entered a later view: only leaders that are gone are nullified ahead of it."""
        is_early = vote.kind == VoteKind.NULLIFY and self._activity.is_inactive(
            self.committee.leader(vote.view), vote.view
        )
        return vote.view > self._view and not is_early

    def _tell(self, peer: PeerId) -> None:
        if self._catch_up.may_tell(peer, self._now):
            self._out.append(ev.SendEffect(peer, self.status()))

    def _is_countable(self, signed: SignedVote) -> bool:
        """Whether a vote says something new, and is signed."""
        tally, view = self._vote_tallies.find(signed.vote.view), signed.vote.view
        if view <= self.head.view:
            is_news = self._activity.is_news(signed.seat, view)
        else:
            is_news = tally is None or tally.has_room(signed)
        return is_news and self._checks.is_vote_signed(signed, self.committee.members)

    def _count(self, signed: SignedVote) -> None:
        """Counts a vote that is signed; one for a settled view only shows that its seat is there."""
        view = signed.vote.view
        self._activity.note([signed.seat], view)
        if view > self.head.view and self._vote_tallies.at(view).has_room(signed):
            self._add(signed)

    def _add(self, signed: SignedVote) -> None:
        tally = self._vote_tallies.at(signed.vote.view)
        rival = tally.rival(signed)
        if rival is not None:
            self._out.append(ev.AccuseEffect(rival, signed))
        quorum = tally.add(signed)
        if quorum is not None:
            self._hold(quorum)

    def _on_quorum(self, quorum: VoteQuorum) -> None:
        vote = quorum.vote
        if not self._is_ours(vote) or vote.view <= self.head.view:
            return
        tally = self._vote_tallies.find(vote.view)
        if tally is not None and vote.kind in tally.quorums:
            return
        if self._checks.has_quorum(quorum.certificate, vote, self.committee.members):
            self._hold(quorum)
            self._is_behind |= vote.kind == VoteKind.NULLIFY and self._is_ahead(vote)

    def _hold(self, quorum: VoteQuorum) -> None:
        """Rule 1: every quorum that the replica comes to hold goes to all, once."""
        if self._vote_tallies.hold(quorum):
            self._note_quorum(quorum)
            self._broadcast(quorum)

    def _note_quorum(self, quorum: VoteQuorum) -> None:
        self._activity.note(seats_of(quorum.certificate), quorum.vote.view)
        if quorum.vote.kind == VoteKind.NOTARIZE:
            self._notarized.append(quorum)

    def _on_proposal(self, peer: PeerId, proposal: BlockProposal) -> None:
        signed, vote = proposal.signed, proposal.signed.vote
        if vote.kind != VoteKind.NOTARIZE or not is_whole(signed) or not self._is_ours(vote):
            return
        if vote.view <= self.head.view or signed.seat != self.committee.leader(vote.view):
            return
        if vote.view > self._view + PROPOSALS_AHEAD and self._vote_tallies.notarized(vote.view) != vote.block:
            self._is_behind = True
            return
        tally = self._vote_tallies.find(vote.view)
        if (tally is None or tally.takes(vote.block)) and self._is_proposed(proposal):
            self._vote_tallies.keep(proposal)
            self._on_vote(peer, signed, is_signed=True)
        else:
            self._on_vote(peer, signed)

    def _is_proposed(self, proposal: BlockProposal) -> bool:
        """Whether the block is what its leader voted for, whole, of this epoch, and made by a member."""
        header, vote = proposal.header, proposal.signed.vote
        return (
            header.id == vote.block
            and (header.chain, header.epoch) == (self.committee.chain, self.committee.epoch)
            and header.proposer in self.committee.members
            and self._checks.is_vote_signed(proposal.signed, self.committee.members)
            and self._checks.has_txs(header, proposal.txs)
        )

    def _on_status(self, peer: PeerId, status: ReplicaStatus) -> None:
        ours = (self.committee.epoch, self.head.header.height)
        theirs = (status.epoch, status.height)
        self._is_behind = theirs > ours or (theirs == ours and status.view > self._view)
        if theirs > ours or not self._catch_up.may_answer(peer, self._now):
            return
        if status.height < self.head.header.height:
            self._out.append(ev.SendBlocksEffect(peer, max(0, status.height)))
            return
        own = [signed for _, votes in sorted(self._cast.items())[-VIEWS_AHEAD:] for signed in votes]
        self._out.extend(ev.SendEffect(peer, message) for message in answer(self._vote_tallies, status, own))

    def _on_blocks(self, peer: PeerId, blocks: tuple[Block, ...]) -> None:
        """Final blocks: each follows the one before and has a certificate of this epoch's committee.

        Without a FINALIZE certificate at their end they wait for what the same peer sends next.
        """
        fresh = tuple(block for block in blocks if block.header.height > self.head.header.height)
        if self.is_over or self._adopting is not None or not fresh:
            return
        begun: tuple[Block, ...] = ()
        if fresh[0].header.parent != self._block_tree.head_id:
            begun = self._catch_up.run(peer)
        parent, name = self.head.header, self._block_tree.head_id
        if begun:
            parent, name = begun[-1].header, begun[-1].header.id
        for block in fresh:
            if block.header.epoch != self.committee.epoch or not follows(block.header, parent, name):
                return
            parent, name = block.header, block.header.id
        if not all(map(self._is_certified, reversed(fresh))):
            return
        if fresh[-1].certificate.kind == VoteKind.FINALIZE:
            self._final((*begun, *fresh), fresh[-1].certificate.view)
        else:
            self._catch_up.keep_run(peer, (*begun, *fresh))

    def _is_certified(self, block: Block) -> bool:
        header, certificate = block.header, block.certificate
        if certificate.kind == VoteKind.NULLIFY or header.chain != self.committee.chain:
            return False
        vote = vote_for(header, certificate.view, certificate.kind)
        return self._checks.has_quorum(certificate, vote, self.committee.members) and self._checks.has_txs(
            header, block.txs
        )

    def _final(self, blocks: tuple[Block, ...], view: int) -> None:
        raise NotImplementedError

    # What is lacking

    def _lack(self) -> tuple[int, Hash]:
        """The first view of which something is lacking, and the block that is wanted; or the own view, and zero."""
        gap = self._block_tree.gap(self._view) or self._view
        if self._missing is not None:
            return gap, self._missing
        tally = self._vote_tallies.find(self._view)
        proposal = tally.proposal() if tally else None
        if proposal is None or self._block_tree.has_link(self._view, proposal):
            return gap, ZERO_HASH
        parent = proposal.header.parent
        if self._block_tree.header(parent) is None or self._is_uncertified(parent):
            return gap, parent
        return min(gap, self._block_tree.hole(parent, self._view) or gap), ZERO_HASH

    def _is_uncertified(self, block: Hash) -> bool:
        return block != self._block_tree.head_id and self._vote_tallies.view_of(block) is None

    def _ask(self, peer: PeerId) -> None:
        """A gap starts a pull, from whoever showed it."""
        question = self.status()
        lacks = question.since < self._view or question.wants != ZERO_HASH
        if (self._is_behind or lacks) and self._catch_up.may_ask(peer, question, self._now):
            self._out.append(ev.SendEffect(peer, question))
