"""Limits a replica's requests for missing blocks, and its replies to those of others.

See docs/protocol/sdbft.md, "Catching up".

A gap starts it, not a time-out: whoever is carried to new views by quorums never sees its own timer fire. Each peer is
asked for the same thing once in 3 `delta_ms`, is answered ANSWERS times in a `delta_ms`, and is told once in a
`delta_ms` that its votes come late; so no message makes more than one other, and a flood makes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.ids import PeerId
from farflung.ledger.block import Block
from farflung.ledger.sdbft.leaders import ROUND_TRIPS
from farflung.ledger.sdbft.replica_messages import (
    BlockProposal,
    FinalBlocks,
    Message,
    ReplicaStatus,
    VoteMessage,
    VoteQuorum,
)
from farflung.ledger.sdbft.vote_tally import ViewTallies
from farflung.ledger.votes import SignedVote, VoteKind

T = TypeVar("T")

ANSWERS = 8  # to one peer in one `delta_ms`
QUORUMS_SHOWN = 256  # in one answer
PROPOSALS_SHOWN = 8  # in one answer, beside the one that was wanted
BLOCKS_SHOWN = 256  # in one message, if so many fit
PEERS_KEPT = 256  # whose questions are remembered
RUNS_KEPT = 8  # of blocks whose FINALIZE certificate is still to come, by sender


class CatchUpTracker:
    """Who was asked what and when, and who was answered how often."""

    def __init__(self, delta_ms: int) -> None:
        self._delta_ms = delta_ms
        self._asked: dict[PeerId, tuple[int, ReplicaStatus]] = {}
        self._answered: dict[PeerId, tuple[int, int]] = {}
        self._told: dict[PeerId, int] = {}
        self._runs: dict[PeerId, tuple[Block, ...]] = {}

    def may_ask(self, peer: PeerId, question: ReplicaStatus, now_ms: int) -> bool:
        """Whether to send the peer this question: it is another than the last, or that one was long ago."""
        since, last = self._asked.get(peer, (0, None))
        if last == question and now_ms < since + ROUND_TRIPS * self._delta_ms:
            return False
        _remember(self._asked, peer, (now_ms, question))
        return True

    def may_answer(self, peer: PeerId, now_ms: int) -> bool:
        """Whether the peer's question is answered."""
        begun, count = self._answered.get(peer, (now_ms, 0))
        if now_ms >= begun + self._delta_ms:
            begun, count = now_ms, 0
        if count == ANSWERS:
            return False
        _remember(self._answered, peer, (begun, count + 1))
        return True

    def may_tell(self, peer: PeerId, now_ms: int) -> bool:
        """Whether to tell a peer that its votes come late."""
        last = self._told.get(peer)
        if last is not None and now_ms < last + self._delta_ms:
            return False
        _remember(self._told, peer, now_ms)
        return True

    def run(self, peer: PeerId) -> tuple[Block, ...]:
        """Blocks of the peer's that wait for the rest of their run."""
        return self._runs.get(peer, ())

    def keep_run(self, peer: PeerId, blocks: tuple[Block, ...]) -> None:
        """Keeps them until blocks become final."""
        _remember(self._runs, peer, blocks, RUNS_KEPT)

    def drop_runs(self) -> None:
        """Blocks became final: runs begin behind them."""
        self._runs.clear()


def _remember(table: dict[PeerId, T], peer: PeerId, value: T, most: int = PEERS_KEPT) -> None:
    table.pop(peer, None)
    table[peer] = value
    if len(table) > most:
        del table[next(iter(table))]


def in_messages(stored: Iterable[Block], most: int = BLOCKS_SHOWN) -> list[FinalBlocks]:
    """Final blocks of the first one's epoch: as many as one message takes, the last with a FINALIZE certificate.

    Where none of these has one, the run goes on in further messages up to the first that has: a NOTARIZE certificate
    alone makes nothing final.
    """
    parts: list[list[Block]] = [[]]
    room, ends = limits.COMMITTEE_BYTES - limits.BLOCK_FRAME_BYTES, 0
    left = room
    for block in stored:
        size, part = len(encode(block)), parts[-1]
        if part and block.header.epoch != part[0].header.epoch:
            break
        if part and (size > left or len(part) == most):
            if ends:
                break
            part, left = [], room
            parts.append(part)
        part.append(block)
        left -= size
        ends = len(part) if block.certificate.kind == VoteKind.FINALIZE else ends
        if ends and len(parts) > 1:
            break
    return [*(FinalBlocks(tuple(part)) for part in parts[:-1]), FinalBlocks(tuple(parts[-1][:ends]))] if ends else []


def answer(tallies: ViewTallies, status: ReplicaStatus, own: Iterable[SignedVote]) -> list[Message]:
    """What another at the same height lacks: quorums from a view on, the blocks that they notarized, own votes.

    The wanted block comes before the other proposals, and its quorum before it.
    """
    shown: list[Message] = []
    proposals: list[Message] = []
    for view, tally in tallies:
        block = tally.notarized
        proposal = tally.proposal(block) or tallies.block(block) if block else None
        is_wanted = block == status.wants
        if view < status.since and not is_wanted:
            continue
        shown.extend(list(tally.quorums.values())[: max(0, QUORUMS_SHOWN - len(shown))])
        if proposal is not None:
            proposals.insert(0 if is_wanted else len(proposals), proposal)
    open_votes = [signed for signed in own if not _is_settled(tallies, signed)]
    return [*shown, *proposals[: PROPOSALS_SHOWN + 1], *spoken(tallies, open_votes)]


def _is_settled(tallies: ViewTallies, signed: SignedVote) -> bool:
    tally = tallies.find(signed.vote.view)
    return tally is not None and signed.vote.kind in tally.quorums


def spoken(tallies: ViewTallies, votes: Iterable[SignedVote]) -> list[VoteMessage | BlockProposal]:
    """Own votes as they were sent first: a leader's NOTARIZE is in its proposal."""
    return [_spoken(tallies, signed) for signed in votes]


def _spoken(tallies: ViewTallies, signed: SignedVote) -> VoteMessage | BlockProposal:
    tally = tallies.find(signed.vote.view)
    if tally is not None and signed.vote.kind == VoteKind.NOTARIZE:
        proposal = tally.proposal(signed.vote.block)
        if proposal is not None and proposal.signed == signed:
            return proposal
    return VoteMessage(signed)


def entry(tallies: ViewTallies, view: int) -> list[VoteQuorum]:
    """The quorums by which `view` was entered."""
    tally = tallies.find(view - 1)
    return list(tally.quorums.values()) if tally else []
