"""The ledger hears of every closed round once, whenever the coordinator died in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farflung.app.recording import Recorder
from farflung.core.crypto import digest
from farflung.core.errors import RunError
from farflung.core.ids import PeerId
from farflung.ledger.rows import JobRow, JobState
from farflung.ledger.tx import Progress
from farflung.train.roundlog import Accepted, Closed, Contribution, Opened, Record

JOB, PEER = digest("test/job"), PeerId(digest("test/peer"))
ROUNDS = 4


class Log:
    """A run log with `closed` closed rounds."""

    def __init__(self, closed: int) -> None:
        self.records: list[Record] = [Opened(JOB, PEER, digest("test/root"), ROUNDS)]
        for round in range(closed):
            paid = Contribution(PEER, 10, digest("test/p"), digest("test/o"), digest("test/n"))
            self.records += [Accepted(round, (paid,)), Closed(round, digest("test/root", bytes([round])), ())]


class Ledger:
    """The rule that matters here: rounds strictly in sequence, while the job runs."""

    def __init__(self, round: int = 0, state: JobState = JobState.RUNNING) -> None:
        self.row = JobRow(JOB, PEER, 100, 1, ROUNDS, 10, state=state, round=round)
        self.taken: list[int] = []

    async def job(self, _: Any) -> JobRow:
        return self.row

    async def submit(self, op: Progress) -> None:
        assert op.round == self.row.round
        self.taken.append(op.round)
        self.row = JobRow(JOB, PEER, 100, 1, ROUNDS, 10, state=JobState.RUNNING, round=op.round + 1)


def record(ledger: Ledger, log: Log) -> None:
    recorder: Any = Recorder
    asyncio.run(recorder(ledger, JOB, log).catch_up())


@pytest.mark.parametrize("known", range(ROUNDS + 1))
def test_whatever_the_ledger_knew_it_knows_all_closed_rounds_after(known: int) -> None:
    ledger = Ledger(known)
    record(ledger, Log(ROUNDS))
    assert ledger.taken == list(range(known, ROUNDS))
    record(ledger, Log(ROUNDS))
    assert ledger.taken == list(range(known, ROUNDS))


def test_work_that_the_ledger_would_not_pay_is_an_error_and_not_a_silence() -> None:
    with pytest.raises(RunError, match="FF-APP-068"):
        record(Ledger(2, JobState.EXPIRED), Log(3))


def test_a_settled_job_with_all_rounds_needs_nothing() -> None:
    ledger = Ledger(3, JobState.SETTLED)
    record(ledger, Log(3))
    assert ledger.taken == []


def test_a_refusal_reaches_the_coordinator_while_training_goes_on() -> None:
    async def scenario() -> list[Any]:
        told: list[Any] = []
        maker: Any = Recorder
        recorder = maker(Ledger(0, JobState.EXPIRED), JOB, Log(1))
        recorder.wake()
        await recorder.run(told.append)
        return told

    (error,) = asyncio.run(scenario())
    assert error.code == "FF-APP-068"
