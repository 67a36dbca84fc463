"""Anchors a round's commitments in the ledger; the id of the block that takes them seeds the audit draw.

The requester tells the ledger the hash of all commitments before it knows of any draw, each round once; the id of the
block that takes it is what nobody knew. Asked again after a crash, the ledger names the same block.
"""

from __future__ import annotations

from farflung.core.errors import RunError
from farflung.core.ids import Hash
from farflung.ledger.transactions import JobDraw
from farflung.peers.ledger_client.client import LedgerClient


class CommitmentAnchors:
    """The anchors of one job."""

    def __init__(self, ledger: LedgerClient, job: Hash) -> None:
        self._ledger, self._job = ledger, job

    async def drop(self, round: int, commitments: Hash) -> Hash:
        """What a round is drawn from: what was unforeseen of the block that holds the hash of its commitments.

        Raises RunError FF-APP-389: the ledger holds another one, or has gone on; what the client raises.
        """
        op = JobDraw(self._job, round, commitments)
        row = await self._ledger.job(self._job)
        if row is not None and row.drawn == round:
            try:
                return await self._ledger.unforeseen(await self._ledger.submit(op))
            except RunError:
                row = await self._ledger.job(self._job)
                if row is None or row.drawn == round:
                    raise
                # What a coordinator before this one had given up came in first.
        if row is None or (row.drawn, row.drawn_of) != (round + 1, commitments):
            raise RunError(
                "FF-APP-389",
                f"the ledger has another draw than round {round}'s",
                cause="the run's log is older than what the ledger was told",
                hint="restore the run's folder from its newest copy",
            )
        blocks = await self._ledger.blocks()
        found = (b.header.height for b in blocks if any(op in signed.tx.ops for signed in b.txs))
        # Of height 0 there is no block: whoever was asked left ours out.
        return await self._ledger.unforeseen(next(found, 0))
