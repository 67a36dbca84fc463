"""Records closed rounds on the ledger, in order, each once, while training goes on; settles the job after the last.

What is recorded follows from the run log alone, so a crash between a round's end and its transaction loses
nothing: whoever comes next records what is missing.

Where jobs have a verification window (docs/protocol/ledger, "The window") nobody is paid before it is over, or the
job's verifiers agree: who lied is still accused until then, and nodes claim by their vouchers. What is to be done next
follows from the job's row alone, so whoever was stopped in `settle` goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from farflung.core.errors import FarflungError, ProtocolError, RunError
from farflung.core.events import PerjuryEvent, SlashEvent, WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.units import Seconds, format_seconds
from farflung.ledger.earnings_tally import JobAttest
from farflung.ledger.rules.bounties import finders_of, share_of
from farflung.ledger.table_rows import HOLDS_MONEY, JobRow, JobState, KeyRow, LeaseRow
from farflung.ledger.transactions import (
    JobCancel,
    JobCoordinate,
    JobFinish,
    JobPerjury,
    JobSettle,
    Progress,
    VerdictFinding,
    coordinator_of,
)
from farflung.peers.ledger_client.client import LedgerClient, dispute_of, superseded
from farflung.peers.requester.audits import evidence_file
from farflung.peers.requester.job_context import JobContext
from farflung.peers.rundir.archive import roots_by_round
from farflung.train.run_log import CommitmentsRecord, Record, RoundEndRecord, RunEndRecord, contributions_root
from farflung.verify import evidence as evidence_files
from farflung.verify.audit_accounts import AuditAccounts, SlashRecord
from farflung.verify.disqualified_verifiers import PerjuryRecord
from farflung.verify.evidence import AuditEvidence, accusation, evidence_hash


class LedgerRecorder:
    """Tells the ledger of one job's rounds: each when its audits are over, and of whom they found guilty."""

    def __init__(
        self,
        ledger: LedgerClient,
        job: JobContext,
        verifiers: int,
        hand: Hand = lambda chain, epoch, earned: None,
        follow: Follow = lambda node, round, segment: None,
    ) -> None:
        """`verifiers`: how many were hired. `hand` is told of what is recorded, as (chain, newest round, units since
        the job began): vouchers go out. `follow` hears of each dispute about a segment of a node, pending or decided.
        """
        self._ledger, self._job, self._log, self._hand, self._follow = ledger, job, job.log, hand, follow
        self._accounts, self._earned = AuditAccounts(job.terms, verifiers), Counter[PeerId]()
        self._read = self._folded = 0  # records of the log: recorded, and in the accounts
        self._units: dict[int, dict[PeerId, int]] = {}  # of the round that is recorded next
        self._roots: dict[int, Hash] = {}
        self._recorded = self._handed = -1  # newest rounds
        self._told: set[PeerId] = set()  # of whose end this process has told
        self._news, self._step = asyncio.Event(), asyncio.Event()
        self._turn = asyncio.Lock()

    def wake(self) -> None:
        """A round was closed or judged."""
        self._news.set()

    async def run(self, on_failure: Callable[[FarflungError], None]) -> None:
        """Records rounds as they come, until it is cancelled or the ledger refuses one."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self.catch_up()
        except FarflungError as error:
            on_failure(error)

    async def recorded(self, round: int) -> None:
        """Waits until the ledger has a round, and those before it."""
        while self._recorded < round:
            await self._step.wait()

    async def catch_up(self) -> None:
        """Records everything that the ledger does not have; raises RunError FF-APP-068."""
        async with self._turn:
            job, records = await self._ledger.job(self._job.terms.id), self._log.records
            while self._read < len(records):
                await self._record_next(records[self._read], job)
                self._read += 1
            is_running = job is not None and job.state is JobState.RUNNING
            if is_running and self._recorded >= 0 and isinstance(records[-1], RunEndRecord):
                await self._punish_guessers(self._recorded)
            if self._recorded > self._handed:
                self._handed = self._recorded
                lost = self._accounts.guilty.keys() | self._accounts.disqualified.found.keys()
                whole = {node: units for node, units in self._earned.items() if node not in lost}
                self._hand(self._ledger.chain, self._recorded, whole)

    async def _record_next(self, record: Record, job: JobRow | None) -> None:
        """What the ledger hears of for one record of the log: of the round that it judges, if any.

        It may be asked again for a record, when the ledger was away; in the accounts each is once.
        """
        if self._read == self._folded:
            self._units = self._accounts.extend([record])
            self._folded += 1
            self._roots |= roots_by_round([record])
            for units in self._units.values():
                self._earned.update(units)
        for round, units in self._units.items():
            if job is None or job.state is not JobState.RUNNING:
                if round >= (job.round if job is not None else 0):
                    raise _closed_early(job.state.name.lower() if job is not None else "unknown")
                return
            if round >= job.round:
                root = contributions_root(self._log.accepted[round])
                said = Progress(self._job.terms.id, round, self._roots[round + 1], root, tuple(units.items()))
                await self._record(said)
            for guilty in [g for g in self._accounts.guilty.values() if g.round == round]:
                await self._slash(guilty)
            await self._punish_guessers(round - 1)
            self._recorded = round
            self._step.set()
            self._step = asyncio.Event()

    async def _record(self, said: Progress) -> None:
        """Records a round; without those who left meanwhile, and those who gave notice for a round before this one:
        what these do anyway is neither paid nor vouched for.
        """
        try:
            await self._ledger.submit(said)
        except RunError as error:
            if "FF-LEDG-057" not in error.cause:
                raise
            there = {lease.node for lease in await self._ledger.leases(said.job) if lease.is_open}
            for node, count in said.units:
                first = await self._ledger.notice(said.job, node) if node in there else 0
                if node not in there or 0 < first <= said.round:
                    there.discard(node)
                    self._earned[node] -= count
            units = tuple((node, count) for node, count in said.units if node in there)
            await self._ledger.submit(replace(said, units=units))

    async def _slash(self, guilty: SlashRecord) -> None:
        """Takes the stake of a node that is guilty, unless that is done; tells of it once, whoever did it."""
        if guilty.node in self._told:
            return
        evidence = self._read_evidence(evidence_file(self._job.folder.evidence, guilty.round, guilty.node))
        named = evidence_hash(evidence)
        if (await self._lease(guilty.node)).is_open:
            await self._ledger.submit(accusation(self._job.terms, evidence, guilty.verdicts))
        lease = await self._lease(guilty.node)
        dispute = await dispute_of(self._ledger, self._job.terms.id, guilty.node)
        taken, pending = lease.slashed if dispute is None else 0, 0 if dispute is None else dispute.taken
        accusers = [signed.verdict.verifier for signed in guilty.verdicts] if self._job.terms.is_proven else []
        finders = finders_of(lease, taken, accusers)
        bounty = share_of(taken, len(finders)) * len(finders)
        self._told.add(guilty.node)
        verdict = guilty.verdicts[0].verdict
        if dispute is not None:
            self._follow(guilty.node, guilty.round, verdict.segment)
        self._job.journal.emit(
            SlashEvent(
                peer=guilty.node.hex(),
                round=guilty.round,
                segment=verdict.segment,
                why="withheld its committed state"
                if verdict.finding is VerdictFinding.WITHHELD
                else "its work is false",
                slashed=taken,
                bounty=bounty,
                burnt=taken - bounty,
                evidence=named.hex(),
                pending=pending,
            ),
            durable=True,
        )

    async def _punish_guessers(self, round: int) -> None:
        """Takes the stakes of verifiers that were found out up to `round`: the one before the newest, or the last.

        A round later, because what such a verifier said of others meanwhile may be what condemns them
        (verify.disqualified_verifiers).
        """
        for perjury in [p for p in self._accounts.disqualified.found.values() if p.round <= round]:
            if perjury.verifier not in self._told and self._accounts.owed(perjury.verifier) is not None:
                await self._punish(perjury)

    async def _punish(self, perjury: PerjuryRecord) -> None:
        if (await self._lease(perjury.verifier)).is_open:
            await self._ledger.submit(JobPerjury(self._job.terms.id, perjury.canary))
        taken = (await self._lease(perjury.verifier)).slashed
        bounty = share_of(taken, 1)
        self._told.add(perjury.verifier)
        self._job.journal.emit(
            PerjuryEvent(
                verifier=perjury.verifier.hex(),
                round=perjury.round,
                peer=perjury.planter.hex(),
                slashed=taken,
                bounty=bounty,
                burnt=taken - bounty,
            ),
            durable=True,
        )

    async def _lease(self, node: PeerId) -> LeaseRow:
        return next(x for x in await self._ledger.leases(self._job.terms.id) if x.node == node)

    def _read_evidence(self, path: Path) -> AuditEvidence:
        try:
            return evidence_files.read(path.read_bytes())
        except (OSError, ProtocolError) as error:
            raise RunError(
                "FF-APP-092",
                "the evidence of a verdict cannot be read",
                cause=f"{path.name}: {error}"[:200],
                hint="restore the run's evidence folder from a copy; without it nobody can be slashed",
            ) from error


def _closed_early(state: str) -> RunError:
    return RunError(
        "FF-APP-068",
        "the ledger takes no more rounds of this job",
        cause=f"the job is {state} there",
        hint="the run's own log keeps the work; look at the job's deadline",
    )


LEAST_MS: Final = 1_000  # between two tries to settle, where this computer's clock is ahead of the ledger's
AGAIN_SECONDS: Final = 30.0  # between two tries to have a window ended early
TERM_LOOK_SECONDS: Final = 5.0
IN_WINDOW: Final = (JobState.OUTPUT, JobState.STOPPED)  # the job waits for its verification window

Hand = Callable[[Hash, int, Mapping[PeerId, int]], None]
Follow = Callable[[PeerId, int, int], None]
Attest = Callable[[JobRow], Awaitable[JobAttest | None]]


async def job_row(ledger: LedgerClient, job: Hash) -> JobRow:
    """The job's row. Raises RunError FF-APP-066 where there is none."""
    row = await ledger.job(job)
    if row is None:
        raise RunError("FF-APP-066", "the ledger does not know the job", hint="is this the run's own ledger?")
    return row


def check_newest(records: Sequence[Record], job: JobRow | None) -> None:
    """Whether a log has all that the ledger knows of its job. What the ledger is told is in the log before: one that
    lacks a round is an old copy, and whoever holds it must give no order. Raises RunError FF-APP-560; FF-APP-695
    where it has none at all: more likely the same job is run again.
    """
    closed = sum(isinstance(record, RoundEndRecord) for record in records)
    committed = max((record.round + 1 for record in records if isinstance(record, CommitmentsRecord)), default=0)
    if job is not None and (job.round > closed or job.drawn > committed):
        if not closed and not committed:
            raise RunError(
                "FF-APP-695",
                "the network knows this job already, and this folder has no round of it",
                cause=f"a run of the same job, seed and account began {max(job.round, job.drawn)} rounds of it",
                hint="run it with another --seed, or go on with `farflung resume` where that run's folder is",
            )
        raise RunError(
            "FF-APP-560",
            f"this folder is an old copy of the run: its log ends after {closed} rounds",
            cause=f"the ledger knows {max(job.round, job.drawn)} of this job: the newest folder is elsewhere",
            hint="go on with `farflung resume` where the newest folder is, or copy it here again",
        )


async def take_over(ledger: LedgerClient, records: Sequence[Record], job: JobRow | None) -> JobCoordinate | None:
    """Makes this process the one that coordinates a job which an earlier process has begun; None: nobody has.

    Two copies of a folder may be as old as each other: the one that begins later has the next term, and neither the
    ledger nor a node that it reaches obeys the other one any more. A ledger that counts blocks is in the run's own
    folder, and is copied with it. Raises RunError FF-APP-560 (an old copy), FF-APP-605 (another one was first).
    """
    check_newest(records, job)
    if job is None or job.state not in HOLDS_MONEY or ledger.counts_blocks:
        return None
    term = await ledger.coordinate(job.job)
    check_newest(records, await ledger.job(job.job))  # the other one may have recorded a round meanwhile
    return term


async def until_superseded(
    ledger: LedgerClient,
    job: Hash,
    term: JobCoordinate | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> RunError:
    """Looks every few seconds until another process coordinates the job, and returns what ends this one (FF-APP-605).

    `term`: of this process. A process that was frozen meanwhile might otherwise wait for members that left it. What a
    validator says wrongly, or does not say, ends no run: the next look is soon.
    """
    held = None if term is None else (term.term, PeerId(term.mark))
    while True:
        await sleep(TERM_LOOK_SECONDS)
        with contextlib.suppress(FarflungError):
            row = await ledger.row(KeyRow, coordinator_of(job))
            if row is not None and (row.epoch, row.node) != held:
                return superseded(f"the ledger has term {row.epoch} of it")


async def settle(
    ledger: LedgerClient,
    job: Hash,
    output: Hash,
    tell: Callable[[WarningEvent], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    attest: Attest | None = None,
) -> JobRow:
    """Ends the job, and returns its row when the ledger has paid; `tell` hears of a window that is waited for.

    `attest`: what ends the window early, where the job's verifiers agree.
    """
    row = await job_row(ledger, job)
    if row.state is JobState.RUNNING and row.round:
        await ledger.submit(JobFinish(job, row.root, output))
    elif row.state in (JobState.CREATED, JobState.RUNNING):
        await ledger.submit(JobCancel(job))
    is_told = False
    while (row := await job_row(ledger, job)).state in IN_WINDOW:
        left = await _left(ledger, row)
        if left > 0 and not ledger.counts_blocks:  # an idle ledger's head is old
            left = min(left, max(row.until - await ledger.time(), LEAST_MS))
        if left > 0 and attest is not None and await _shortened(ledger, row, attest):
            continue
        if left > 0 and not is_told:
            is_told = True
            tell(_waits(left))
        if left > 0 and not ledger.counts_blocks:
            pause = left / 1000 if attest is None else min(AGAIN_SECONDS, left / 1000)
            await sleep(pause)
            if pause < left / 1000:
                continue
        await _try(ledger, row)
    return row


async def _shortened(ledger: LedgerClient, row: JobRow, attest: Attest) -> bool:
    """Whether the ledger took what ends the window: it refuses it where a verifier's lease has ended meanwhile."""
    said = await attest(row)
    try:
        if said is not None:
            await ledger.submit(said)
    except RunError:
        return False
    return said is not None


async def _try(ledger: LedgerClient, row: JobRow) -> None:
    """One try; a refusal counts only if the window is over. Even refused it is a block, by which time moves on."""
    try:
        await ledger.submit(JobSettle(row.job) if row.state is JobState.OUTPUT else JobCancel(row.job))
    except RunError:
        if await _left(ledger, row) <= 0 and (await job_row(ledger, row.job)).state in IN_WINDOW:
            raise


async def _left(ledger: LedgerClient, row: JobRow) -> int:
    """Ledger milliseconds until the window is over."""
    return row.until - (await ledger.head()).header.time


def _waits(left: int) -> WarningEvent:
    span = format_seconds(Seconds(left / 1000))
    return WarningEvent(
        code="FF-APP-330",
        message=f"the ledger pays in {span}, when the job's verification window is over",
        hint="nothing: stopped now, the run goes on from here when it is resumed",
    )
