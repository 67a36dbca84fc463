"""Canaries: some audits begin with one of which the answer is known, so that a verifier that guesses is found out.

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

from farflung.app import wire
from farflung.app.cases import Case
from farflung.app.hearing import OPEN_SECONDS, Dial, Hearing, is_refusal
from farflung.app.journal import Emitter
from farflung.core import limits
from farflung.core.claims import number
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_CANARY, SigningKey
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.events import CanaryConcluded
from farflung.core.ids import PeerId
from farflung.job.spec import Terms
from farflung.ledger.canaries import plant_fault, planted_root
from farflung.ledger.tx import Canary, Finding
from farflung.net.io.connection import Connection
from farflung.train.roundlog import Contribution
from farflung.train.trace import are_opened
from farflung.verify.sample import ODDS
from farflung.verify.tally import rerun_tokens


class Canaries:
    """The canaries of one job."""

    def __init__(self, key: SigningKey, terms: Terms, hearing: Hearing, dial: Dial, journal: Emitter) -> None:
        """`key`: the requester's."""
        self._key, self._terms, self._hearing = key, terms, hearing
        self._dial, self._journal = dial, journal
        self._planted: dict[tuple[int, PeerId], wire.Planted | None] = {}

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
        request = wire.OpenSegment(self._terms.id, round, segment)
        planted: wire.Planted | None = None
        try:
            data = await connection.call(wire.PLANT, encode(request), timeout=OPEN_SECONDS)
            planted = decode(data, wire.Planted, limits.OPENING_BYTES)
        except NetworkError as error:
            if not is_refusal(error):
                raise
            # It is there and does not: an audit without a canary.
        self._planted[round, peer] = planted

    async def test(self, case: Case, order: wire.AuditOrder) -> Canary | None:
        """One verifier's answer to what was planted; None: there is nothing, or nobody has answered."""
        c = case.contribution
        planted = await self._remembered(case)
        if planted is None or self._fault(planted, case):
            return None
        false = replace(c, trace=planted_root(planted.plant), nonce=planted.plant.nonce)
        asked = replace(order, contribution=false, opened=planted.opened)
        try:
            said = await self._hearing.ask(case.ring[0], case._replace(contribution=false), asked)
        except FarflungError:
            return None
        canary = Canary(planted.plant, said.testimony.verdict)
        self._tell(canary, c.weight)
        return canary

    async def _remembered(self, case: Case) -> wire.Planted | None:
        """What was planted; of a coordinator that was started anew the peer is asked again, which gives the same."""
        place = case.round, case.contribution.peer
        if not self.is_due(*place):
            return None
        if place not in self._planted:
            with contextlib.suppress(FarflungError):
                await self.prepare(await self._dial(place[1]), *place, case.drawn.segment)
        return self._planted.pop(place, None)

    def _fault(self, planted: wire.Planted, case: Case) -> str:
        """Why this is no false end of just this contribution, which the verifier would be right to find true."""
        c, plant, segment = case.contribution, planted.plant, case.drawn.segment
        if (plant.trace, *_stated(c)) != (
            c.trace,
            plant.truth.payload,
            plant.truth.weight,
            plant.truth.nonce,
        ):
            return "it is of other work"
        start = planted.opened.start
        root, segments = planted_root(plant), self._terms.spec.segments
        if start.index != segment or not are_opened(root, segments, [start]):
            return "its start does not open under it"
        return plant_fault(plant, self._terms.id, c.peer, case.round, segment)

    def _tell(self, canary: Canary, weight: int) -> None:
        said, spec = canary.verdict.verdict, self._terms.spec
        times = 1 + spec.audit.jackpot if said.finding is Finding.FALSE else 0
        self._journal.emit(
            CanaryConcluded(
                round=said.round,
                peer=said.node.hex(),
                segment=said.segment,
                verifier=said.verifier.hex(),
                finding=Finding(said.finding).name.lower(),
                tokens=times * rerun_tokens(spec, said, weight),
            )
        )


def _stated(c: Contribution) -> tuple[bytes, int, bytes]:
    return c.payload, c.weight, c.nonce
