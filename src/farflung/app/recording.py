"""Closed rounds onto the ledger: in order, each once, while training goes on.

What is recorded follows from the run log alone, so a crash between a round's end and its transaction loses
nothing: whoever comes next records what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.app.coordinator import RunLog, accepted_by_round, roots_by_round
from farflung.app.ledger_client import LedgerClient
from farflung.core.errors import FarflungError, RunError
from farflung.core.ids import Hash
from farflung.ledger.rows import JobState
from farflung.ledger.tx import Progress
from farflung.train.roundlog import contributions_root


class Recorder:
    """Tells the ledger of one job's closed rounds."""

    def __init__(self, ledger: LedgerClient, job: Hash, log: RunLog) -> None:
        self._ledger, self._job, self._log = ledger, job, log
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()

    def wake(self) -> None:
        """A round was closed."""
        self._news.set()

    async def run(self, on_failure: Callable[[FarflungError], None]) -> None:
        """Records rounds as they close, until it is cancelled or the ledger refuses one."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self.catch_up()
        except FarflungError as error:
            on_failure(error)

    async def catch_up(self) -> None:
        """Records every closed round that the ledger does not have; raises RunError FF-APP-068."""
        async with self._turn:
            roots, accepted = roots_by_round(self._log.records), accepted_by_round(self._log.records)
            job = await self._ledger.job(self._job)
            for round in range(job.round if job is not None else 0, len(roots) - 1):
                if job is None or job.state is not JobState.RUNNING:
                    raise _closed_early(job.state.name.lower() if job is not None else "unknown")
                contributions = accepted[round]
                units = tuple((c.peer, c.weight) for c in contributions)
                root = contributions_root(contributions)
                await self._ledger.submit(Progress(self._job, round, roots[round + 1], root, units))


def _closed_early(state: str) -> RunError:
    return RunError(
        "FF-APP-068",
        "the ledger takes no more rounds of this job",
        cause=f"the job is {state} there",
        hint="the run's own log keeps the work; look at the job's deadline",
    )
