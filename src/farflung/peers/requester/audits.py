"""Coordinates a job's audits: draws segments, collects openings, asks verifiers and combines their verdicts.

    after Committed    whose states are opened together with their payloads is drawn (peers.requester.audit_draw)
    after Accepted     flags of the submission checks draw further ones
    who was lost       owes what was drawn: it opens that first when it returns, or is judged without
    beside the rounds  see_through(round): run, reveal, judge; a second verifier confirms, a third decides
    before the next    the verdicts go into the log (train.rounds), the evidence of a false one onto the disk

All of it can be asked again after a crash: draws follow from the log, openings lie with the peers, and verifiers give
the same results again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError, RunError
from farflung.core.events import AuditDrawEvent, AuditEndEvent
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.units import Seconds
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.transactions import DAMNING, Canary, SignedVerdict, VerdictFinding
from farflung.net.io.connection import Connection
from farflung.peers.protocol import messages
from farflung.peers.requester.audit_draw import AuditDraws, CommitmentAnchors
from farflung.peers.requester.audit_session import (
    OPEN_SECONDS,
    AuditCase,
    AuditSession,
    VerifierStatement,
    confirmed,
    encoded,
    is_refusal,
    is_unmatched,
)
from farflung.peers.requester.canaries import Canaries
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.loss_scores import LossProbes
from farflung.peers.requester.members import Membership
from farflung.peers.rundir.archive import PublishedState
from farflung.train.contribution_trace import are_opened
from farflung.train.rounds import VerdictsInput
from farflung.train.run_log import BeaconRecord, CommitmentsRecord, Contribution, Record, RoundStartRecord
from farflung.train.scores import SignedRoundScores
from farflung.verify import audit_sample
from farflung.verify import evidence as evidence_files
from farflung.verify.audit_accounts import AuditAccounts, rerun_tokens
from farflung.verify.audit_verdict import WHOLE, conclude, needs_another
from farflung.verify.evidence import AuditEvidence

# For which one that was lost is waited for; and twice as long as its round took: it may have to train that again.
RETURN_SECONDS: Final = 30.0
TRY_AGAIN_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 3.0  # between two looks whether a member under audit still knows its lease
GIVE_UP_SECONDS: Final = 900.0  # for which verifiers are asked in turn, before the run gives up


class AuditCoordinator:
    """The audits of one job."""

    def __init__(self, job: JobContext, members: Membership, anchors: CommitmentAnchors, patience: Seconds) -> None:
        """`patience` bounds the wait for each answer of a verifier."""
        self._job, self._terms, self._log, self._archive = job, job.terms, job.log, job.archive
        self._members, self._anchors = members, anchors
        self._verifiers = members.verifiers
        self._draws = AuditDraws(job.terms, job.log)
        self._session = AuditSession(job, members.dial, patience)
        self._canaries = Canaries(job, self._session, members.dial)
        self._probes = LossProbes(job, members, patience)
        self._accounts = AuditAccounts(job.terms, len(members.verifiers))
        self._accounts.extend(job.log.records)
        self._opened: dict[tuple[int, PeerId], messages.SegmentOpenReply | None] = {}
        self._flags: dict[int, dict[PeerId, str]] = {}
        self._excluded: set[PeerId] = set()
        self._false: dict[PeerId, int] = {}  # the first round in which a peer's work was found false
        self._under_way: dict[int, asyncio.Event] = {}  # rounds whose cases are not all judged yet
        self._discredited = set(self._accounts.discredited)
        self._returning: dict[PeerId, asyncio.Task[None]] = {}
        self._is_drawn = asyncio.Event()  # the newest round that was committed, if there is any
        if not (job.log.promised and job.terms.spec.is_audited) or self._draws.is_made(max(job.log.promised)):
            self._is_drawn.set()
        self._began, self._took = time.monotonic(), 0.0  # the newest round, until it was committed

    def see(self, record: Record) -> None:
        """Notices how long rounds take, which of them can be drawn and who is found out, from what the log is told."""
        self._accounts.extend([record])
        if isinstance(record, RoundStartRecord):
            self._began = time.monotonic()
        if isinstance(record, CommitmentsRecord):
            self._took = time.monotonic() - self._began
            if self._terms.spec.is_audited:
                self._is_drawn.clear()
        if isinstance(record, BeaconRecord):
            self._is_drawn.set()

    async def anchor(self, round: int) -> Hash:
        """Tells the ledger of a committed round; what the round is drawn from."""
        return await self._anchors.drop(round, self._draws.anchor(round))

    async def made(self) -> None:
        """Waits until the newest round that was committed can be drawn."""
        await self._is_drawn.wait()

    def flag(self, round: int, flags: dict[PeerId, str]) -> None:
        """What the submission checks suspect in the accepted payloads of a round; earlier scores do besides."""
        self._flags[round] = {**self._probes.suspected(round), **flags}

    def is_flagged(self, round: int) -> bool:
        """Whether the checks of a round have spoken."""
        return round in self._flags

    async def open(self, round: int, peer: PeerId) -> None:
        """Lets a peer open its drawn segment, if it is drawn: before it may merge the round."""
        await self.made()
        drawn = self._draws.of(round, self._flags.get(round, {})).get(peer)
        if drawn is None or (round, peer) in self._opened:
            return
        self._job.journal.emit(
            AuditDrawEvent(round=round, peer=peer.hex(), segment=drawn.segment, flagged=drawn.flagged)
        )
        connection = await self._members.dial(peer)
        try:
            await self._canaries.prepare(connection, round, peer, drawn.segment)
            await self._ask_opening(connection, round, drawn, OPEN_SECONDS)
        except NetworkError as error:
            if not is_refusal(error):
                raise
            # It is there and opens nothing: its work counts, verifiers ask it themselves, and say that it withholds.
            self._opened[round, peer] = None

    async def _ask_opening(
        self, connection: Connection, round: int, drawn: audit_sample.AuditSample, seconds: float
    ) -> None:
        request = messages.SegmentOpenRequest(self._terms.id, round, drawn.segment)
        data = await connection.call(messages.OPEN, encode(request), timeout=seconds)
        self._opened[round, drawn.peer] = messages.read_opening(data, messages.SegmentOpenReply)

    # What is owed

    def owes(self, peer: PeerId) -> int | None:
        """The round of which a peer that was lost must open a segment before it counts again; the newest, if any."""
        if peer in self._excluded:
            return None
        return next((r for r in self._draws.debts(peer) if (r, peer) not in self._opened), None)

    async def collect(self, round: int, peer: PeerId) -> None:
        """Lets a peer open what it owes of a round that went on without it. Raises what it, or its line, says."""
        drawn = self._draws.of(round)[peer]
        if (round, peer) not in self._opened:
            await self._ask_opening(await self._members.dial(peer), round, drawn, self._grace)
            self._job.journal.emit(AuditDrawEvent(round=round, peer=peer.hex(), segment=drawn.segment, flagged=""))

    @property
    def _grace(self) -> float:
        return min(RETURN_SECONDS + 2 * self._took, limits.OWED_SECONDS)

    async def _returned(self, round: int, peer: PeerId) -> None:
        """Gives a peer the time to come back and open. Verifiers ask it in any case: this says nothing of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                while (round, peer) not in self._opened and peer not in self._excluded:
                    with contextlib.suppress(FarflungError):
                        await self.collect(round, peer)
                        return
                    await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def close(self) -> None:
        """Gives up what is under way for verifiers that died."""
        for task in self._returning.values():
            task.cancel()
        await asyncio.gather(*self._returning.values(), return_exceptions=True)

    def exclude(self, peer: PeerId) -> None:
        """The peer is out: what is still drawn of its work is not judged any more."""
        self._excluded.add(peer)

    # The audits of a closed round

    async def see_through(self, round: int) -> VerdictsInput:
        """All verdicts of a round, and its canaries; node and verifier ascend. None where no verifier is left."""
        accepted, owed = self._log.accepted[round], self._draws.owed(round)
        drawn = self._draws.of(round, self._flags.get(round, {}))
        asked = self._asked(round)
        cases = [self._case(round, c, drawn[c.peer], asked) for c in (*accepted, *owed) if c.peer in drawn]
        if not cases or not asked:
            return VerdictsInput(round, ())
        ended = self._under_way[round] = asyncio.Event()
        try:
            public = await asyncio.to_thread(self._archive.show, round, self._terms, self._log.records)
            found = await asyncio.gather(*(self._one(case, public) for case in cases))
        finally:
            ended.set()
            del self._under_way[round]
        self._opened = {place: opened for place, opened in self._opened.items() if place[0] > round}
        verdicts = [said for each, _ in found for said in each]
        tests = sorted((c for _, c in found if c is not None), key=lambda c: c.verdict.verdict.node)
        ordered = sorted(verdicts, key=lambda s: (s.verdict.node, s.verdict.verifier))
        return VerdictsInput(round, tuple(ordered), tuple(tests))

    async def scores(self, round: int) -> tuple[SignedRoundScores, ...]:
        """What those who are asked say of the losses of a round: the last for which its public state is shown."""
        try:
            return await self._probes.see_through(round, self._asked(round))
        finally:
            self._archive.hide(round)

    def _asked(self, round: int) -> list[PeerId]:
        return [v for v in self._verifiers if v not in self._accounts.disqualified.unasked(round)]

    def _case(self, round: int, c: Contribution, drawn: audit_sample.AuditSample, asked: Sequence[PeerId]) -> AuditCase:
        return AuditCase(round, c, drawn, audit_sample.verifier_order(self._draws.beacon(round), c.peer, asked))

    async def _one(self, case: AuditCase, public: PublishedState) -> tuple[list[SignedVerdict], Canary | None]:
        began = time.monotonic()
        watch = asyncio.create_task(self._keep(case.contribution.peer))
        try:
            return await self._judged(case, public, began)
        finally:
            watch.cancel()

    async def _keep(self, peer: PeerId) -> None:
        """While its work is under audit: verifiers need what it sealed, which it serves under its lease alone."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(FarflungError):
                await self._members.look(peer)

    async def _judged(
        self, case: AuditCase, public: PublishedState, began: float
    ) -> tuple[list[SignedVerdict], Canary | None]:
        is_owed = case.contribution not in self._log.accepted[case.round]
        if is_owed:
            await self._returned(case.round, case.contribution.peer)
        order = self._order(case, public)
        test = None if is_owed else await self._canaries.test(case, order)
        hired, said = len(case.verifiers), dict[PeerId, VerifierStatement]()
        is_proven = self._job.terms.is_proven
        while case.contribution.peer not in self._excluded:
            verdicts = [s.testimony.verdict.verdict for s in said.values()]
            is_guess = len(said) < quorum_of(hired) and any(is_unmatched(s, case) for s in said.values())
            if verdicts and not is_guess and not needs_another(verdicts, hired, is_proven=is_proven):
                break
            said.update([await self._next(case, order, said)])
        said = confirmed(said, case)
        testimonies = [said[v].testimony for v in sorted(said)]
        if any(t.verdict.verdict.finding in DAMNING for t in testimonies):
            await self._earlier(case.round)
        if testimonies and not self._is_out(case):
            self._conclude(case, order, [said[v] for v in sorted(said)], time.monotonic() - began)
        return [t.verdict for t in testimonies], test

    async def _earlier(self, round: int) -> None:
        """Waits for the rounds before: of two accusations the log has the first one, and the other is not told."""
        for ended in [ended for other, ended in self._under_way.items() if other < round]:
            await ended.wait()

    def _is_out(self, case: AuditCase) -> bool:
        peer = case.contribution.peer
        return peer in self._excluded or self._false.get(peer, case.round) < case.round

    async def _next(
        self, case: AuditCase, order: messages.AuditRequest, said: dict[PeerId, VerifierStatement]
    ) -> tuple[PeerId, VerifierStatement]:
        """The next verifier's part. One that cannot be reached is passed over, and asked again when it is back."""
        left = tuple(v for v in case.verifiers if v not in said)
        last: FarflungError | None = None
        until = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < until:
            # The sort is stable: among the others the drawn order stays.
            for verifier in sorted(left, key=lambda v: v in self._discredited):
                try:
                    return verifier, await self._session.ask(verifier, case, order)
                except FarflungError as error:
                    last = error
                self._bring_back(verifier)  # the next one takes the case meanwhile
            await asyncio.sleep(TRY_AGAIN_SECONDS)
        raise RunError(
            "FF-APP-089",
            "no verifier can be reached",
            cause=str(last)[:300],
            hint="`farflung resume` goes on when a verifier is back",
        )

    def _bring_back(self, verifier: PeerId) -> None:
        """Rehires a verifier that died, beside the audits; one that cannot come yet is tried again by the next case."""

        async def rehire() -> None:
            with contextlib.suppress(FarflungError):
                await self._members.rehire(verifier)

        task = self._returning.get(verifier)
        if task is None or task.done():
            self._returning[verifier] = asyncio.create_task(rehire())

    def _order(self, case: AuditCase, public: PublishedState) -> messages.AuditRequest:
        c = case.contribution
        earlier = self._log.accepted.get(case.round - 1, ())
        before = next((e.trace for e in earlier if e.peer == c.peer), ZERO_HASH)
        return messages.AuditRequest(
            self._terms.id,
            case.round,
            self._members.seats.index(c.peer),
            c,
            before,
            case.drawn.segment,
            public.root,
            public.manifest,
            self._opened.get((case.round, c.peer)),
        )

    def _conclude(
        self, case: AuditCase, order: messages.AuditRequest, said: list[VerifierStatement], seconds: float
    ) -> None:
        """Tells what was found; keeps the evidence when it is false."""
        verdicts = [s.testimony.verdict.verdict for s in said]
        found = conclude(verdicts, quorum_of(len(case.verifiers)), is_proven=self._job.terms.is_proven)
        self._discredited.update(found.discredited)
        if found.is_guilty:
            self._false.setdefault(case.contribution.peer, case.round)
            alike = [s for s in said if s.testimony.verdict.verdict.finding is found.finding]
            self._store(case, order, alike)
        peer = case.contribution.peer
        self._job.journal.emit(
            AuditEndEvent(
                round=case.round,
                peer=peer.hex(),
                segment=case.drawn.segment,
                verifiers=tuple(v.verifier.hex() for v in verdicts),
                finding=VerdictFinding(found.finding).name.lower(),
                excess=max(v.excess for v in verdicts) / WHOLE,
                tokens=sum(rerun_tokens(self._terms.spec, v, case.contribution.weight) for v in verdicts),
                seconds=round(seconds, 3),
            )
        )

    def _store(self, case: AuditCase, order: messages.AuditRequest, said: list[VerifierStatement]) -> None:
        """Writes the evidence; durable on return, and before the verdicts are logged."""
        revealed = next((s.revealed for s in said if s.revealed is not None), None)
        shown = (*((order.opened.start,) if order.opened else ()), *(revealed.leaves if revealed else ()))
        trace, segments = case.contribution.trace, self._terms.spec.segments
        leaves = tuple(leaf for leaf in shown if are_opened(trace, segments, [leaf]))  # others prove nothing
        states = (
            *((order.opened.state,) if order.opened else ()),
            *((revealed.end, revealed.last) if revealed else ()),
        )
        evidence = AuditEvidence(
            self._terms.id,
            case.round,
            case.contribution,
            self._draws.commitments(case.round),
            self._draws.block(case.round),
            case.drawn.segment,
            case.drawn.flagged,
            leaves,
            states,
            tuple(s.testimony for s in said),
        )
        folder = self._job.folder.evidence
        folder.mkdir(mode=0o700, exist_ok=True)
        path = evidence_file(folder, case.round, case.contribution.peer)
        write_atomic(path, evidence_files.write(encoded(evidence)), "run.evidence")


def evidence_file(folder: Path, round: int, peer: PeerId) -> Path:
    """Where the evidence of one guilty contribution lies."""
    return folder / f"{round:06d}-{peer.hex()[:16]}.bin"
