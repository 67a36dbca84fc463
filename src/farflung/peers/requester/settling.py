"""Settles a job: records the output, waits for the verification window, pays everybody.

Where jobs have a verification window (docs/protocol/ledger, "The window") nobody is paid before it is over: who lied is
still accused until then, and nodes claim by their vouchers. What is to be done next follows from the job's row alone,
so whoever was stopped here goes on here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from farflung.core.errors import RunError
from farflung.core.events import WarningEvent
from farflung.core.ids import Hash
from farflung.core.units import Seconds, format_seconds
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import JobCancel, JobFinish, JobSettle
from farflung.peers.ledger_client.client import LedgerClient

IN_WINDOW = (JobState.OUTPUT, JobState.STOPPED)


async def known(ledger: LedgerClient, job: Hash) -> JobRow:
    """The job's row. Raises RunError FF-APP-066 where there is none."""
    row = await ledger.job(job)
    if row is None:
        raise RunError("FF-APP-066", "the ledger does not know the job", hint="is this the run's own ledger?")
    return row


async def settle(
    ledger: LedgerClient,
    job: Hash,
    output: Hash,
    tell: Callable[[WarningEvent], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> JobRow:
    """Ends the job, and returns its row when the ledger has paid; `tell` hears of a window that is waited for."""
    row = await known(ledger, job)
    if row.state is JobState.RUNNING and row.round:
        await ledger.submit(JobFinish(job, row.root, output))
    elif row.state in (JobState.CREATED, JobState.RUNNING):
        await ledger.submit(JobCancel(job))
    is_told = False
    while (row := await known(ledger, job)).state in IN_WINDOW:
        left = await _left(ledger, row)
        if left > 0 and not is_told:
            is_told = True
            tell(_waits(left))
        if left > 0 and not ledger.counts_blocks:
            await sleep(left / 1000)
        await _try(ledger, row)
    return row


async def _try(ledger: LedgerClient, row: JobRow) -> None:
    """One try; a refusal counts only if the window is over. Even refused it is a block, by which time moves on."""
    try:
        await ledger.submit(JobSettle(row.job) if row.state is JobState.OUTPUT else JobCancel(row.job))
    except RunError:
        if await _left(ledger, row) <= 0 and (await known(ledger, row.job)).state in IN_WINDOW:
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
