"""Decides which block may follow which, and finds paths to final blocks.

The links are those of docs/protocol/sdbft.md ("Epochs, views, leaders").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farflung.core.ids import Hash
from farflung.ledger.block import Block, BlockHeader
from farflung.ledger.sdbft.replica_events import BlockCheckedEvent
from farflung.ledger.sdbft.replica_messages import BlockProposal, VoteQuorum
from farflung.ledger.sdbft.vote_tally import ViewTallies


@dataclass(frozen=True, slots=True)
class FinalHead:
    """The last final block, and the view of its FINALIZE certificate; 0 for the root of the epoch."""

    header: BlockHeader
    view: int


def follows(child: BlockHeader, parent: BlockHeader, parent_id: Hash) -> bool:
    """Whether `child` names this parent and has the next height."""
    return child.parent == parent_id and child.height == parent.height + 1


class BlockTree:
    """The blocks between the last final one and the newest: what is executed, and what may be built on what."""

    def __init__(self, head: FinalHead, tallies: ViewTallies) -> None:
        self.head, self.head_id = head, head.header.id
        self._tallies = tallies
        self._judged: dict[Hash, BlockCheckedEvent] = {}

    def move(self, head: FinalHead) -> None:
        """A later block is final: what does not descend from it counts as never executed."""
        self.head, self.head_id = head, head.header.id
        self._tallies.settle(head.view)
        judged, self._judged = self._judged, {}
        headers = [(block, found.header) for block in judged if (found := self._tallies.block(block))]
        for block, header in sorted(headers, key=lambda each: each[1].height):
            if self.is_executed(header.parent):
                self._judged[block] = judged[block]

    def judge(self, judged: BlockCheckedEvent) -> None:
        """Notes what executing a block gave, unless another branch became final meanwhile."""
        found = self._tallies.block(judged.block)
        if found is not None and self.is_executed(found.header.parent):
            self._judged[judged.block] = judged

    def verdict(self, block: Hash) -> BlockCheckedEvent | None:
        """What executing the block gave, if it was."""
        return self._judged.get(block)

    def is_executed(self, block: Hash) -> bool:
        """Whether a block may be executed on this one."""
        judged = self._judged.get(block)
        return block == self.head_id or (judged is not None and judged.is_valid)

    def closes(self, block: Hash) -> bool:
        """Whether this executed block closes the epoch."""
        judged = self._judged.get(block)
        return judged is not None and judged.closes

    @property
    def works(self) -> bool:
        """Whether a block that is not final holds transactions or closes the epoch."""
        return any(judged.is_valid and (judged.works or judged.closes) for judged in self._judged.values())

    def header(self, block: Hash) -> BlockHeader | None:
        """The header of a block that was proposed, or of the final one."""
        if block == self.head_id:
            return self.head.header
        found = self._tallies.block(block)
        return found.header if found else None

    def parents(self, view: int) -> Iterator[Hash]:
        """What is notarized in each p < `view` above which every view is nullified, p descending to the final block."""
        for p in range(view - 1, self.head.view, -1):
            block = self._tallies.notarized(p)
            if block is not None:
                yield block
            if not self._tallies.is_nullified(p):
                return
        yield self.head_id

    def has_link(self, view: int, proposal: BlockProposal) -> bool:
        """Whether the block may be voted for in `view`, once what it rests on is executed.

        A block that closes the epoch is proposed again, and nothing is built on it in its own epoch.
        """
        return any(self._links(x, proposal) for x in self.parents(view))

    def _links(self, x: Hash, proposal: BlockProposal) -> bool:
        if x == proposal.signed.vote.block:
            return self.closes(x)
        parent = self.header(x)
        return parent is not None and follows(proposal.header, parent, x) and not self.closes(x)

    def to_execute(self, block: Hash) -> tuple[BlockProposal | None, Hash]:
        """The lowest block of the branch up to `block` that is not executed; None, and its id, where it is not here."""
        while True:
            proposal = self._tallies.block(block)
            if proposal is None or self.is_executed(proposal.header.parent):
                return proposal, block
            block = proposal.header.parent

    def path(self, final: VoteQuorum) -> tuple[list[Block], Hash | None]:
        """The blocks behind the last final one up to that of `final`, with certificates; or the id of one missing.

        Rule 6: `final` is a FINALIZE quorum, so all its block's ancestors are final with it.
        """
        found: list[Block] = []
        block = final.vote.block  # a closing block may be notarized again in a later view
        while block != self.head_id:
            proposal = self._tallies.block(block)
            certified = final if block == final.vote.block else self._tallies.certificate_of(block)
            if proposal is None or certified is None:
                return [], block
            found.append(Block(proposal.header, proposal.txs, certified.certificate))
            block = proposal.header.parent
        return found[::-1], None

    def gap(self, view: int) -> int | None:
        """The lowest view before `view` of which no quorum is here, or not the block that one notarized."""
        for p in range(self.head.view + 1, view):
            tally = self._tallies.find(p)
            if tally is None or not tally.quorums:
                return p
            if tally.notarized is not None and self._tallies.block(tally.notarized) is None:
                return p
        return None

    def hole(self, block: Hash, view: int) -> int | None:
        """The lowest view between the one where `block` is notarized and `view` that is not known to be nullified."""
        begin = self.head.view if block == self.head_id else self._tallies.view_of(block)
        if begin is None:
            return None
        return next((p for p in range(begin + 1, view) if not self._tallies.is_nullified(p)), None)

    def unfinished_before(self, view: int) -> int:
        """How many views are behind the last final one and before this, but for the newest, whose block is young."""
        return max(0, view - self.head.view - 2)
