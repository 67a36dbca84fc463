"""Collects a closed round's loss scores from the verifiers that its beacon names, and waits for them only once.

first of the panel   asked; where it is not there, or says what cannot be, the next one is
it finds harm        the next one is asked too: only what both say takes a round's pay (verify.score_rules)
nobody answers       there are no scores, and the round is paid as without
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.events import LossScoreEvent as ScoredEvent
from farflung.core.ids import PeerId
from farflung.core.units import Seconds
from farflung.job.proof_class import probe_of
from farflung.peers.protocol import messages
from farflung.peers.requester.audit_draw import AuditDraws
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.members import Membership
from farflung.train.contribution_trace import STATED_BITS
from farflung.train.run_log import AuditsRecord
from farflung.train.scores import SignedRoundScores
from farflung.verify import score_rules as rules
from farflung.verify.score_rules import LossStreaks, ScoreContext


class LossProbes:
    """The loss probes of one job, as its coordinator sees them through."""

    def __init__(self, job: JobContext, members: Membership, patience: Seconds) -> None:
        """`patience` bounds the wait for each answer."""
        self._job, self._terms, self._log, self._archive = job, job.terms, job.log, job.archive
        self._members, self._patience = members, patience
        self._draws = AuditDraws(job.terms, job.log)
        self._probe = probe_of(job.terms.spec, is_proven=job.terms.is_proven)
        self._streaks, self._read = LossStreaks(), 0  # of the log's first records

    def suspected(self, round: int) -> Mapping[PeerId, str]:
        """Who is drawn in a round for what the scores of earlier ones say: those that stand before it in the log.

        Rounds are asked about in order.
        """
        for record in self._log.records[self._read :]:
            if isinstance(record, AuditsRecord):
                if record.round >= round - 1:
                    break
                self._streaks.add(record)
            self._read += 1
        return self._streaks.suspected

    async def see_through(self, round: int, verifiers: Collection[PeerId]) -> tuple[SignedRoundScores, ...]:
        """What the panel of a closed round states, in its order; `verifiers`: of whom it is drawn."""
        if self._probe is None:
            return ()
        accepted, began, beacon = self._log.accepted[round], time.monotonic(), self._draws.beacon(round)
        if not rules.panel_of(self._probe, beacon, verifiers):
            return ()
        public = await asyncio.to_thread(self._archive.show, round, self._terms, self._log.records)
        about = ScoreContext(self._job.chain, self._terms.id, round, beacon, accepted, self._probe)
        order = messages.ScoreRequest(
            self._terms.id,
            round,
            beacon,
            public.root,
            public.manifest,
            tuple(self._members.seats.index(c.peer) for c in accepted),
            tuple(self._archive.share(c) for c in accepted),
        )
        said: list[SignedRoundScores] = []
        for verifier in rules.panel_of(self._probe, beacon, verifiers):
            with contextlib.suppress(FarflungError):
                said.append(await self._ask(verifier, order, about))
                if self._terms.is_proven or not rules.harmful(said[0].scores):
                    break
        self._tell(round, said, len(verifiers), time.monotonic() - began)
        return tuple(said)

    async def _ask(self, verifier: PeerId, order: messages.ScoreRequest, about: ScoreContext) -> SignedRoundScores:
        connection = await self._members.dial(verifier)
        data = await connection.call(messages.SCORE, encode(order), timeout=self._patience)
        signed = decode(data, SignedRoundScores, limits.CONTROL_BYTES)
        fault = rules.scores_fault(about, signed, verifier)
        if fault:
            raise VerificationError("FF-APP-407", "a verifier's scores do not hold", cause=fault)
        return signed

    def _tell(self, round: int, said: Sequence[SignedRoundScores], hired: int, seconds: float) -> None:
        if not said:
            return
        gains = rules.gains_of(said)
        harmful = () if self._terms.is_proven else rules.unpaid(said, hired)
        self._job.journal.emit(
            ScoredEvent(
                round=round,
                verifiers=tuple(signed.scores.verifier.hex() for signed in said),
                loss=_nats(said[0].scores.held_before),
                peers=tuple(peer.hex() for peer in gains),
                gains=tuple(_nats(held) for held, _ in gains.values()),
                own=tuple(_nats(own) for _, own in gains.values()),
                unpaid=tuple(peer.hex() for peer in sorted(harmful)),
                seconds=seconds,
            )
        )


def _nats(units: int) -> float:
    return units / (1 << STATED_BITS)
