"""Derives from the run's log alone whose work an audit examines: the draws, and who owes an opening.

Who is drawn in a committed round is judged, whether the round went on with it or not: it had committed to its work, and
the coordinator knows to what. So it saves nobody anything to die, to be late or to break off when it is drawn.

The requester tells the ledger the hash of all commitments before it knows of any draw, each round once; the id of the
block that takes it is what nobody knew. Asked again after a crash, the ledger names the same block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from farflung.core.errors import RunError
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobTerms
from farflung.ledger.block import Block
from farflung.ledger.transactions import JobCoordinate, JobDraw
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.rundir.archive import RunLog
from farflung.train.run_log import AuditsRecord, BeaconRecord, Commitment, Contribution
from farflung.verify import audit_sample

_NOBODY: Final[Mapping[PeerId, str]] = {}


class AuditDraws:
    """The draws of one job."""

    def __init__(self, terms: JobTerms, log: RunLog) -> None:
        self._terms, self._log = terms, log

    def commitments(self, round: int) -> tuple[Commitment, ...]:
        """Of a round that was committed."""
        return self._log.committed(round).commitments

    def anchor(self, round: int) -> Hash:
        """What the ledger is told of a committed round."""
        return audit_sample.anchor(self._terms.id, round, self.commitments(round))

    def is_made(self, round: int) -> bool:
        """Whether the log names the block that a round is drawn from."""
        return any(isinstance(r, BeaconRecord) and r.round == round for r in reversed(self._log.records))

    def beacon(self, round: int) -> Hash:
        """The random number of a round whose block is known."""
        return audit_sample.beacon(self.anchor(round), self.block(round))

    def block(self, round: int) -> Hash:
        """What a round is drawn from beside its commitments; it is known."""
        records = reversed(self._log.records)
        return next(r.block for r in records if isinstance(r, BeaconRecord) and r.round == round)

    def of(self, round: int, flags: Mapping[PeerId, str] = _NOBODY) -> dict[PeerId, audit_sample.AuditSample]:
        """Whose contribution to a committed round is audited; nobody's while its block is not known."""
        if not self.is_made(round):
            return {}
        spec, accepted = self._terms.spec, self._log.accepted
        probation = spec.audit.probation
        counts = [(c.peer, audit_sample.standing(accepted, round, c.peer, probation)) for c in self.commitments(round)]
        found = audit_sample.draw(spec.audit, spec.segments, self.beacon(round), counts, flags)
        return {d.peer: d for d in found}

    def owed(self, round: int) -> tuple[Contribution, ...]:
        """What was committed to in a round, is drawn, and was not accepted; ascending by peer."""
        accepted = {c.peer for c in self._log.accepted.get(round, ())}
        drawn = self.of(round)
        return tuple(c for c in self._log.promised[round] if c.peer in drawn and c.peer not in accepted)

    def debts(self, peer: PeerId) -> list[int]:
        """Rounds of which a peer that is out of them owes an opening, and that are not judged; the newest first."""
        judged = sum(isinstance(record, AuditsRecord) for record in self._log.records)
        rounds = sorted((r for r in self._log.promised if r >= judged), reverse=True)
        return [r for r in rounds if any(c.peer == peer for c in self.owed(r))]


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
        return await self._ledger.unforeseen(_height_of(op, row.requester, await self._ledger.blocks()))


def _height_of(op: JobDraw, requester: PeerId, blocks: Sequence[Block]) -> int:
    """The block that took a draw; 0, of which there is none, where whoever was asked left it out.

    Others may have said the same in vain before: a stranger, or a process of the requester that was superseded.
    """
    term = 0
    for block in blocks:
        for tx in (signed.tx for signed in block.txs if signed.tx.sender == requester):
            named = [each.term for each in tx.ops if isinstance(each, JobCoordinate) and each.job == op.job]
            term = max(term, *named, 0)
            if op in tx.ops and max(named, default=0) == term:
                return block.header.height
    return 0
