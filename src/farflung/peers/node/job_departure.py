"""Takes a node out of the jobs in which it has leases, as the law has it (ledger.rules.settlement).

It leaves a job that is silent for a day, or never began. It leaves a job that goes on where its owner takes it away, or
has closed it for a day: it gives notice, and its lease ends when its last round is recorded and the window after that
is over.

A node that gave notice is in the job no more, also when it is started again (node.admission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from farflung.core.errors import FarflungError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.motions import ParamsRow
from farflung.ledger.params import DAY_MS
from farflung.ledger.rules.jobs import ENDING
from farflung.ledger.rules.settlement import deciding_round, leaving_time
from farflung.ledger.table_rows import HOLDS_MONEY, EpochRow, JobRow, JobState, epoch_key
from farflung.ledger.transactions import JobLeave
from farflung.ledger.validators import count_key
from farflung.peers.ledger_client.client import LedgerClient

SILENT_MS: Final = DAY_MS  # so long a requester may be away before this node leaves its job
CLOSED_SECONDS: Final = DAY_MS / 1000  # so long an owner may pause the node before it leaves the job that it was in
LOOK_SECONDS: Final = 30.0  # at most between two looks at a job that is left
NOT_YET: Final = "FF-LEDG-394"  # this computer's clock is ahead of the ledger's


class PendingLeave(NamedTuple):
    """A job that is being left. Milliseconds of the ledger: `begins` counts once round `last` is recorded."""

    job: Hash
    last: int  # the node's last round in it; -1: it gave no notice
    recorded: int  # rounds of the job that are recorded
    begins: int
    now: int

    @property
    def is_noticed(self) -> bool:
        """Whether the node gave notice."""
        return self.last >= 0

    @property
    def is_recorded(self) -> bool:
        """Whether all that is waited for is a time."""
        return self.is_noticed and self.recorded > self.last


class JobDeparture:
    """One node's. `clock`: seconds that only go forward."""

    def __init__(self, own: PeerId, clock: Callable[[], float] = time.monotonic) -> None:
        self._own, self._clock = own, clock
        self._ledger: LedgerClient | None = None
        self._closed_at: float | None = None

    def follow(self, ledger: LedgerClient) -> None:
        """Where rows are read, and notice is given."""
        self._ledger = ledger

    async def sweep(self, busy: Hash | None, *, is_closed: bool) -> None:
        """Leaves what is silent, and what is due since a notice; where the owner has closed this node for a day, gives
        notice. `busy`: the job that it works on now. Raises what the ledger's client raises.
        """
        now = self._clock()
        self._closed_at = (now if self._closed_at is None else self._closed_at) if is_closed else None
        is_away = self._closed_at is not None and now - self._closed_at >= CLOSED_SECONDS
        ledger = self._ledger
        if ledger is None:
            return
        for lease in await ledger.open_leases():
            row, first = await ledger.job(lease.job), await ledger.notice(lease.job, self._own)
            if row is None or row.state not in HOLDS_MONEY or lease.job == busy:
                continue
            if first or is_away:
                await self._leave(ledger, row)
            elif await _is_silent(ledger, row):
                await ledger.submit(JobLeave(lease.job))

    async def give_notice(self) -> None:
        """In every job in which this node has a lease. Raises what the ledger's client raises."""
        if self._ledger is not None:
            await self._leave_all(self._ledger)

    async def finish(
        self,
        tell: Callable[[PendingLeave], None],
        warn: Callable[[FarflungError], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Until this node has left every job. `tell` hears of each job that is waited for."""
        while (ledger := self._ledger) is not None:
            left = LOOK_SECONDS
            try:
                if not await ledger.open_leases():
                    return
                pending = await self._leave_all(ledger)
                if not pending:
                    continue
                for each in pending:
                    tell(each)
                    if each.is_recorded and each.begins > each.now:
                        left = min(left, (each.begins - each.now) / 1000)
            except FarflungError as error:  # the ledger is away: it is asked again
                warn(error)
            await sleep(left)

    async def _leave_all(self, ledger: LedgerClient) -> list[PendingLeave]:
        rows = [await ledger.job(lease.job) for lease in await ledger.open_leases()]
        found = [await self._leave(ledger, row) for row in rows if row is not None and row.state in HOLDS_MONEY]
        return [each for each in found if each is not None]

    async def _leave(self, ledger: LedgerClient, row: JobRow) -> PendingLeave | None:
        """Leaves a job if that may be, else gives notice if that was not done; what is waited for, None: nothing."""
        pending = await self._look(ledger, row)
        is_due = pending.now >= pending.begins
        if not is_due and (row.state is not JobState.RUNNING or pending.is_noticed):
            return pending
        try:
            await ledger.submit(JobLeave(row.job))
        except RunError as error:
            if NOT_YET not in error.cause:
                raise
            return pending
        return None if is_due else await self._look(ledger, row)

    async def _look(self, ledger: LedgerClient, row: JobRow) -> PendingLeave:
        first = await ledger.notice(row.job, self._own)
        last = await ledger.row(EpochRow, epoch_key(row.job, deciding_round(row, first)))
        law = await ledger.row(ParamsRow, count_key(row.terms))
        window = law.params.window_ms if law is not None else 0
        return PendingLeave(row.job, first - 1, row.round, leaving_time(row, first, last, window), await ledger.time())


async def _is_silent(ledger: LedgerClient, row: JobRow) -> bool:
    """Whether its requester did nothing for SILENT_MS, or never drew or recorded anything: the law asks for less."""
    epoch = await ledger.row(EpochRow, epoch_key(row.job, max(0, row.round - 1)))
    if row.state not in ENDING and epoch is None:
        return True
    last = row.until if row.state in ENDING or epoch is None else epoch.time
    return (await ledger.head()).header.time >= last + SILENT_MS
