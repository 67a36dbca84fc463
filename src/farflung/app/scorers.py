"""The scores of a closed round: asked of the verifiers that its beacon names, and never waited for longer than once.

first of the panel   asked; where it is not there, or says what cannot be, the next one is
it finds harm        the next one is asked too: only what both say takes a round's pay (verify.scores)
nobody answers       there are no scores, and the round is paid as without
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence

from farflung.app import objects, wire
from farflung.app.archive import Archive, RunLog
from farflung.app.draws import Draws
from farflung.app.journal import Emitter
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.events import Scored as ScoredEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.units import Seconds
from farflung.job.proof import probe_of
from farflung.job.spec import Terms
from farflung.train.roundlog import Audited
from farflung.train.scores import SignedScores
from farflung.train.trace import STATED_BITS
from farflung.verify import scores as rules
from farflung.verify.scores import Scored, Streaks


class Scorers:
    """The loss probes of one job, as its coordinator sees them through."""

    def __init__(
        self,
        chain: Hash,
        terms: Terms,
        seats: Sequence[PeerId],
        log: RunLog,
        archive: Archive,
        dial: objects.Dial,
        journal: Emitter,
        patience: Seconds,
    ) -> None:
        """`patience` is had with each answer."""
        self._chain, self._terms, self._seats = chain, terms, seats
        self._log, self._archive, self._dial = log, archive, dial
        self._draws = Draws(terms, log)
        self._journal, self._patience = journal, patience
        self._probe = probe_of(terms.spec, is_proven=terms.is_proven)

    def suspected(self, round: int) -> Mapping[PeerId, str]:
        """Who is drawn in a round for what the scores of earlier ones say: those that stand before it in the log."""
        streaks = Streaks()
        for record in self._log.records:
            if isinstance(record, Audited) and record.round < round - 1:
                streaks.add(record)
        return streaks.suspected

    async def see_through(self, round: int, verifiers: Collection[PeerId]) -> tuple[SignedScores, ...]:
        """What the panel of a closed round states, in its order; `verifiers`: of whom it is drawn."""
        if self._probe is None:
            return ()
        accepted, began, beacon = self._log.accepted[round], time.monotonic(), self._draws.beacon(round)
        if not rules.panel_of(self._probe, beacon, verifiers):
            return ()
        public = await asyncio.to_thread(self._archive.show, round, self._terms, self._log.records)
        about = Scored(self._chain, self._terms.id, round, beacon, accepted, self._probe)
        order = wire.ScoreOrder(
            self._terms.id,
            round,
            beacon,
            public.root,
            public.manifest,
            tuple(self._seats.index(c.peer) for c in accepted),
            tuple(self._archive.share(c) for c in accepted),
        )
        said: list[SignedScores] = []
        for verifier in rules.panel_of(self._probe, beacon, verifiers):
            with contextlib.suppress(FarflungError):
                said.append(await self._ask(verifier, order, about))
                if self._terms.is_proven or not rules.harmful(said[0].scores):
                    break
        self._tell(round, said, len(verifiers), time.monotonic() - began)
        return tuple(said)

    async def _ask(self, verifier: PeerId, order: wire.ScoreOrder, about: Scored) -> SignedScores:
        connection = await self._dial(verifier)
        data = await connection.call(wire.SCORE, encode(order), timeout=self._patience)
        signed = decode(data, SignedScores, limits.CONTROL_BYTES)
        fault = rules.scores_fault(about, signed, verifier)
        if fault:
            raise VerificationError("FF-APP-407", "a verifier's scores do not hold", cause=fault)
        return signed

    def _tell(self, round: int, said: Sequence[SignedScores], hired: int, seconds: float) -> None:
        if not said:
            return
        gains = rules.gains_of(said)
        harmful = () if self._terms.is_proven else rules.unpaid(said, hired)
        self._journal.emit(
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
