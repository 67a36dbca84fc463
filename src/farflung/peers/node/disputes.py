"""Watches for disputes about the work that a node has files of, and plays each to its end.

For its own work it is the accused, for a node that it found false an accuser. Where the ledger has no disputes nothing
is kept and nobody looks. What is kept goes when its game is closed, and when nobody can be accused of it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError, VerificationError, type_and_text
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.host.io.machine_probe import memory_bytes
from farflung.job.token_tree import opened
from farflung.ledger.motions import ParamsRow
from farflung.ledger.pinpoint_game import PinpointRow, PinpointStage
from farflung.ledger.table_rows import JobState, lease_key
from farflung.ledger.transactions import LeaseRole
from farflung.ledger.validators import count_key
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.node.dispute_files import DisputeFileStore, DisputeJob, Place, found_dispute_file, own_dispute_file
from farflung.peers.node.dispute_game import LOOK_SECONDS, DisputeGame
from farflung.peers.process.channel import Channel
from farflung.peers.program import trace as program_trace
from farflung.store.io.disk_store import DiskObjectStore
from farflung.train import worker_messages
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import ContributionTrace
from farflung.verify.canon.dispute_execution import check_memory
from farflung.verify.canon.job_program import JobProgramParts
from farflung.verify.dispute_player import Move
from farflung.verify.segment_audit import SegmentAudit

REST_LOOKS: Final = 20  # looks for a game between two at the job

PartsOf = Callable[[DisputeJob, DiskObjectStore, Blob], Awaitable[JobProgramParts]]
KeptTokens = Callable[[int, int], bytes]  # packed tokens of a round of a seat; nothing where the data set is kept whole


class DisputeAgent:
    """One node's. `contests`: it denies what it is guilty of, as no honest one does."""

    def __init__(
        self, folder: Path, key: SigningKey, parts_of: PartsOf, channel: Channel, *, contests: bool = False
    ) -> None:
        self._files, self._key, self._channel = DisputeFileStore(folder, key), key, channel
        self._parts_of, self._contests = parts_of, contests
        self._ledger: LedgerClient | None = None
        self._cases: dict[Hash, tuple[DisputeJob, DiskObjectStore]] = {}
        self._games: dict[tuple[Hash, PeerId], DisputeGame] = {}
        self._lost: set[tuple[Hash, PeerId]] = set()  # games that this process cannot play
        self._tasks = OwnedTasks()
        self._playing: set[tuple[Hash, PeerId]] = set()
        self._turn = asyncio.Lock()  # one execution at a time: it takes all the memory that is left

    def follow(self, ledger: LedgerClient) -> None:
        """Where games are played, with this node's key."""
        self._ledger = ledger

    async def attend(self, case: DisputeJob, store: DiskObjectStore) -> None:
        """A lease of this job begins: from now on its segments are kept, if it may be disputed down to one tile.

        Raises VerificationError FF-APP-383: as who it is told to train, its work would be false by the law.
        """
        if self._ledger is None or not case.terms.is_proven:
            return
        if not (await self._ledger.committee()).params.dispute_ms:
            return
        leases = await self._ledger.leases(case.terms.id)
        seats = [lease.node for lease in leases if lease.role is LeaseRole.TRAIN]
        if self._key.public in seats and seats.index(self._key.public) != case.start.member:
            raise VerificationError(
                "FF-APP-383",
                "a lease begins with the batches of another seat",
                cause=f"the ledger has seat {seats.index(self._key.public)}, the start says {case.start.member}",
                hint="take no part: honest work on these batches would be found false",
            )
        self._cases[case.terms.id] = case, store

    def own(
        self,
        job: Hash,
        tokens: KeptTokens,
        place: Place,
        trace: ContributionTrace,
        states: worker_messages.OpenSegmentResult,
    ) -> None:
        """Keeps a drawn segment of this node's own work; durable on return. `states`: as its worker gives them."""
        if job in self._cases:
            case, store = self._cases[job]
            made = own_dispute_file(case, self._key.public, place, trace, states)
            self._files.keep(case, replace(made, tokens=tokens(made.round, made.seat)), store)

    def found(self, job: Hash, tokens: KeptTokens, seat: int, audit: SegmentAudit, start: Blob, claimed: Blob) -> None:
        """Keeps a segment that this node found false by its distance; durable on return. Both as they were opened."""
        if job in self._cases:
            case, store = self._cases[job]
            made = found_dispute_file(case.terms, seat, audit, start, claimed)
            self._files.keep(case, replace(made, tokens=tokens(made.round, seat)), store)

    async def stay(self) -> None:
        """Looks, until it is cancelled."""
        looks = 0
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    await self._look(self._files.accusable, is_due=looks % REST_LOOKS == 0)
                except FarflungError as error:
                    self._warn(error)
                looks += 1
        finally:
            await self._tasks.close()

    async def clear(self) -> None:
        """Before this node leaves: what is kept of jobs that are over goes. Raises what the ledger's client raises."""
        await self._look(self._files.accusable, is_due=True)

    async def _look(self, accusable: tuple[tuple[Hash, PeerId], ...], *, is_due: bool) -> None:
        assert self._ledger is not None
        for job, node in accusable:
            if (job, node) in self._playing | self._lost:
                continue
            row = await self._ledger.row(PinpointRow, lease_key(job, node))
            if row is not None and row.stage == PinpointStage.CLOSED:
                self._files.drop(job, node)
            elif row is not None:
                self._begin(row)
            elif is_due:
                await self._clear(self._ledger, job, node)

    async def _clear(self, ledger: LedgerClient, job: Hash, node: PeerId) -> None:
        """Drops what nobody can be accused of any more."""
        row = await ledger.job(job)
        if row is None:
            return
        is_over = row.state in (JobState.SETTLED, JobState.CANCELLED, JobState.EXPIRED)
        self._files.drop(job, node, limits.ROUNDS if is_over else row.round - limits.ACCUSABLE_ROUNDS)

    def _begin(self, row: PinpointRow) -> None:
        named = row.job, row.node
        self._playing.add(named)
        self._tasks.begin(self._play(row)).add_done_callback(lambda _: self._playing.discard(named))

    async def _play(self, row: PinpointRow) -> None:
        """One game to its end. What goes wrong in it is told, and ends nothing else."""
        named = row.job, row.node
        try:
            contest = self._games.get(named) or await self._contest(row)
            if contest is None:
                self._lost.add(named)
                return
            self._games[named] = contest
            await contest.play()
        except NetworkError as error:  # the next look goes on
            self._warn(error)
        except FarflungError as error:
            self._lost.add(named)
            self._warn(error)
        except Exception as error:  # the task's boundary: an execution may raise anything
            self._lost.add(named)
            text = f"a dispute is not played on: {type_and_text(error)}"
            self._channel.report("warning", code="FF-APP-380", message=text[:300])

    async def _contest(self, row: PinpointRow) -> DisputeGame | None:
        """A side of this game; None where nothing is kept of what it is about."""
        assert self._ledger is not None
        dispute_file = self._files.find(row.job, row.node, row.round, row.segment)
        case, job = self._files.case(row.job), await self._ledger.job(row.job)
        if dispute_file is None or case is None or job is None:
            if row.node == self._key.public:
                about = f"segment {row.segment} of round {row.round} is disputed, and is not kept here"
                self._channel.report("warning", code="FF-APP-382", message=about)
            return None
        law = await self._ledger.row(ParamsRow, count_key(job.terms))
        bond_min = law.params.bond_min if law is not None else 0
        parts = partial(self._parts, case, dispute_file.tokens)
        lent = self._ledger, case.terms, dispute_file, parts, self._executed, bond_min
        return DisputeGame(*lent, contests=self._contests)

    async def _parts(self, case: DisputeJob, tokens: Blob) -> JobProgramParts:
        parts = await self._parts_of(case, self._files.disk, tokens)
        check_memory(parts, memory_bytes())
        return parts

    async def _executed(self, work: Callable[[], Move | None]) -> Move | None:
        async with self._turn:
            return await asyncio.to_thread(work)

    def _warn(self, error: FarflungError) -> None:
        text = f"a dispute is not played on: {error.message}: {error.cause}"
        self._channel.report("warning", code=error.code, message=text[:300])


async def parts_of(case: DisputeJob, disk: DiskObjectStore, tokens: Blob) -> JobProgramParts:
    """The job's program with its parts, out of what is kept; `tokens`: of its data set, where that is not kept whole.

    Raises what tracing.parts raises.
    """
    data, shipped = (disk.content(case.job_key, each) for each in (case.start.dataset, case.start.graph))
    parts = await asyncio.to_thread(program_trace.parts, case.terms, partial(opened, data, tokens), shipped)
    assert parts is not None  # such jobs alone are attended
    return parts
