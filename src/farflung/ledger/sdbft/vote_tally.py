"""Keeps the votes, quorums and proposals of the unsettled views, and limits the number of each."""

from __future__ import annotations

from collections.abc import Iterator

from farflung.core.ids import Hash
from farflung.ledger.sdbft.replica_messages import BlockProposal, VoteQuorum
from farflung.ledger.votes import SignedVote, VoteKind, certificate_of, excludes, is_quorum

VOTES_KEPT = 2  # of one seat, view and kind: the second is evidence
PROPOSALS_KEPT = 2  # of one view: the first, and the one that a quorum chose


class ViewTally:
    """One view."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._of_seat: dict[int, list[SignedVote]] = {}
        self._for: dict[tuple[VoteKind, Hash], dict[int, SignedVote]] = {}
        self.quorums: dict[VoteKind, VoteQuorum] = {}
        self.proposals: list[BlockProposal] = []

    @property
    def size(self) -> int:
        """How many votes, quorums and proposals are kept."""
        return sum(map(len, self._of_seat.values())) + len(self.quorums) + len(self.proposals)

    @property
    def notarized(self) -> Hash | None:
        """The block that a quorum notarized here. A FINALIZE quorum says so too (lemma 2)."""
        found = self.quorums.get(VoteKind.NOTARIZE) or self.quorums.get(VoteKind.FINALIZE)
        return found.vote.block if found else None

    @property
    def is_nullified(self) -> bool:
        """Whether the view may be passed over."""
        return VoteKind.NULLIFY in self.quorums

    def has_room(self, signed: SignedVote) -> bool:
        """Whether this vote is new, and not the third of its seat and kind."""
        votes = [kept for kept in self._of_seat.get(signed.seat, ()) if kept.vote.kind == signed.vote.kind]
        return len(votes) < VOTES_KEPT and all(kept.vote != signed.vote for kept in votes)

    def rival(self, signed: SignedVote) -> SignedVote | None:
        """An earlier vote of the same seat that together with this one proves a fault."""
        for kept in self._of_seat.get(signed.seat, ()):
            if excludes(kept.vote, signed.vote):
                return kept
        return None

    def add(self, signed: SignedVote) -> VoteQuorum | None:
        """Counts a vote that is signed and has room; the quorum that it completes, if it does."""
        vote = signed.vote
        self._of_seat.setdefault(signed.seat, []).append(signed)
        voters = self._for.setdefault((vote.kind, vote.block), {})
        voters[signed.seat] = signed
        if vote.kind in self.quorums or not is_quorum(len(voters), self._seats):
            return None
        certificate = certificate_of(voters.values(), self._seats)
        return VoteQuorum(vote, certificate.seats, certificate.signatures)

    def proposal(self, block: Hash | None = None) -> BlockProposal | None:
        """The proposal of this block, or the first."""
        for kept in self.proposals:
            if block is None or kept.signed.vote.block == block:
                return kept
        return None

    def takes(self, block: Hash) -> bool:
        """Whether a proposal of this block is kept: the view's first, and the one that a quorum chose."""
        if self.proposal(block) is not None or len(self.proposals) == PROPOSALS_KEPT:
            return False
        return not self.proposals or block == self.notarized


class ViewTallies:
    """The views that are not settled, by number."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._views: dict[int, ViewTally] = {}
        self._blocks: dict[Hash, BlockProposal] = {}
        self._notarized: dict[Hash, int] = {}
        self._final: dict[int, VoteQuorum] = {}

    def __iter__(self) -> Iterator[tuple[int, ViewTally]]:
        return iter(sorted(self._views.items()))

    def __len__(self) -> int:
        return len(self._views)

    def find(self, view: int) -> ViewTally | None:
        """What is known of a view."""
        return self._views.get(view)

    def at(self, view: int) -> ViewTally:
        """The same, begun where nothing is known."""
        return self._views.setdefault(view, ViewTally(self._seats))

    def hold(self, quorum: VoteQuorum) -> bool:
        """Keeps a quorum; False if its kind is held for its view."""
        vote = quorum.vote
        tally = self.at(vote.view)
        if vote.kind in tally.quorums:
            return False
        tally.quorums[vote.kind] = quorum
        if vote.kind == VoteKind.FINALIZE:
            self._final[vote.view] = quorum
        if vote.kind != VoteKind.NULLIFY:
            self._notarized[vote.block] = max(vote.view, self._notarized.get(vote.block, 0))
        return True

    def keep(self, proposal: BlockProposal) -> None:
        """Keeps a proposal that `ViewTally.takes`."""
        self.at(proposal.signed.vote.view).proposals.append(proposal)
        self._blocks.setdefault(proposal.signed.vote.block, proposal)

    def finals(self) -> list[tuple[int, VoteQuorum]]:
        """The FINALIZE quorums by view, the latest first."""
        return sorted(self._final.items(), reverse=True)

    def block(self, block: Hash) -> BlockProposal | None:
        """A block that was proposed, under whichever view."""
        return self._blocks.get(block)

    def view_of(self, block: Hash) -> int | None:
        """The last view in which the block is known to be notarized."""
        return self._notarized.get(block)

    def notarized(self, view: int) -> Hash | None:
        """The block that is notarized in a view."""
        tally = self._views.get(view)
        return tally.notarized if tally else None

    def is_nullified(self, view: int) -> bool:
        """Whether a view is nullified."""
        tally = self._views.get(view)
        return tally is not None and tally.is_nullified

    def open_after(self, view: int) -> int:
        """The view that the quorums let in, when all up to `view` are over.

        NULLIFY may be voted ahead of a leader that is gone, so such a quorum says nothing of the views before it.
        """
        view = max(view, max(self._notarized.values(), default=0)) + 1
        while self.is_nullified(view):
            view += 1
        return view

    def certificate_of(self, block: Hash) -> VoteQuorum | None:
        """A quorum that stands for the block: FINALIZE where there is one."""
        tally = self._views.get(self._notarized.get(block, 0))
        if tally is None:
            return None
        return tally.quorums.get(VoteKind.FINALIZE) or tally.quorums.get(VoteKind.NOTARIZE)

    def settle(self, view: int) -> None:
        """Forgets `view` and all before it: a block is final there."""
        for old in [each for each in self._views if each <= view]:
            del self._views[old]
            self._final.pop(old, None)
        kept = [proposal for tally in self._views.values() for proposal in tally.proposals]
        self._blocks = {proposal.signed.vote.block: proposal for proposal in reversed(kept)}
        self._notarized = {block: at for block, at in self._notarized.items() if at > view}
