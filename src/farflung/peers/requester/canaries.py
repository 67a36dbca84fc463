"""Begins some audits with a canary, whose answer is known, so that a verifier that guesses is found out.

    the draw        a coin that follows from the requester's key says of which contributions (`is_due`)
    before opening  the drawn peer falsifies one border of its own trace, and signs that it was asked to (`prepare`)
    the audit       who is asked first is asked about the false trace, then about the true one (`test`)

To the verifier both are orders like any other; it is the first of the draw's order, which everybody can compute: who is
asked out of turn would know why. What comes of it decides nothing about the peer. Where a peer cannot plant, or a
verifier cannot be reached, there is no canary. After a crash coin, plant and answer are the same again.
"""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.commitments import number
from farflung.core.crypto import NS_CANARY
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.events import CanaryEndEvent
from farflung.core.ids import PeerId
from farflung.ledger.canaries import plant_fault, planted_root
from farflung.ledger.transactions import Canary, VerdictFinding
from farflung.net.io.connection import Connection
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import Dial
from farflung.peers.requester.audit_session import OPEN_SECONDS, AuditCase, AuditSession, is_refusal
from farflung.peers.requester.job_context import JobContext
from farflung.train.contribution_trace import are_opened
from farflung.train.run_log import Contribution
from farflung.verify.audit_accounts import rerun_tokens
from farflung.verify.audit_sample import ODDS


class Canaries:
    """The canaries of one job."""

    def __init__(self, job: JobContext, session: AuditSession, dial: Dial) -> None:
        self._key, self._terms, self._journal = job.key, job.terms, job.journal
        self._session, self._dial = session, dial
        self._planted: dict[tuple[int, PeerId], messages.CanaryOpenReply | None] = {}

    def is_due(self, round: int, peer: PeerId) -> bool:
        """Whether the audit of a drawn contribution is to begin with one: known to the requester alone. Its share is
        rounded down to whole odds.
        """
        luck = self._key.secret(NS_CANARY, self._terms.id, number(round), peer)
        return int.from_bytes(luck[:4], "little") < int(self._terms.spec.audit.canaries * ODDS)

    async def prepare(self, connection: Connection, round: int, peer: PeerId, segment: int) -> None:
        """Lets a peer plant, while it has the states of its round. Raises NetworkError when it is gone."""
        if not self.is_due(round, peer) or (round, peer) in self._planted:
            return
        request = messages.SegmentOpenRequest(self._terms.id, round, segment)
        planted: messages.CanaryOpenReply | None = None
        try:
            data = await connection.call(messages.PLANT, encode(request), timeout=OPEN_SECONDS)
            planted = decode(data, messages.CanaryOpenReply, limits.OPENING_BYTES)
        except NetworkError as error:
            if not is_refusal(error):
                raise
            # It is there and does not: an audit without a canary.
        self._planted[round, peer] = planted

    async def test(self, case: AuditCase, order: messages.AuditRequest) -> Canary | None:
        """One verifier's answer to what was planted; None: there is nothing, or nobody has answered."""
        c = case.contribution
        planted = await self._remembered(case)
        if planted is None or self._fault(planted, case):
            return None
        false = replace(c, trace=planted_root(planted.plant), nonce=planted.plant.nonce)
        asked = replace(order, contribution=false, opened=planted.opened)
        try:
            said = await self._session.ask(case.verifiers[0], case._replace(contribution=false), asked)
        except FarflungError:
            return None
        canary = Canary(planted.plant, said.testimony.verdict)
        self._tell(canary, c.weight)
        return canary

    async def _remembered(self, case: AuditCase) -> messages.CanaryOpenReply | None:
        """What was planted; of a coordinator that was started anew the peer is asked again, which gives the same."""
        place = case.round, case.contribution.peer
        if not self.is_due(*place):
            return None
        if place not in self._planted:
            with contextlib.suppress(FarflungError):
                await self.prepare(await self._dial(place[1]), *place, case.drawn.segment)
        return self._planted.pop(place, None)

    def _fault(self, planted: messages.CanaryOpenReply, case: AuditCase) -> str:
        """Why this is no false end of just this contribution, which the verifier would be right to find true."""
        c, plant, segment = case.contribution, planted.plant, case.drawn.segment
        if (plant.trace, *_stated(c)) != (c.trace, plant.truth.payload, plant.truth.weight, plant.truth.nonce):
            return "it is of other work"
        start = planted.opened.start
        root, segments = planted_root(plant), self._terms.spec.segments
        if start.index != segment or not are_opened(root, segments, [start]):
            return "its start does not open under it"
        return plant_fault(plant, self._terms.id, c.peer, case.round, segment)

    def _tell(self, canary: Canary, weight: int) -> None:
        said, spec = canary.verdict.verdict, self._terms.spec
        times = 1 + spec.audit.jackpot if said.finding is VerdictFinding.FALSE else 0
        self._journal.emit(
            CanaryEndEvent(
                round=said.round,
                peer=said.node.hex(),
                segment=said.segment,
                verifier=said.verifier.hex(),
                finding=VerdictFinding(said.finding).name.lower(),
                tokens=times * rerun_tokens(spec, said, weight),
            )
        )


def _stated(c: Contribution) -> tuple[bytes, int, bytes]:
    return c.payload, c.weight, c.nonce
