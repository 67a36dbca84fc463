"""A job with a verification window is paid when that is over: nothing is lost, nothing hangs, and it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sim_ledger import ESCROW, PRICE, Died, MemoryLedger

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, SigningKey, digest, local_key
from farflung.core.errors import NetworkError, PolicyError, RunError
from farflung.core.events import WarningEvent
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.ledger.earnings_tally import JobAttest
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import JobCancel, JobFinish, JobSettle, Progress
from farflung.peers.node.output_attestation import attest
from farflung.peers.node.vouchers import RECORD_SECONDS
from farflung.peers.protocol import messages
from farflung.peers.requester.ledger_recorder import Attest, settle
from farflung.peers.requester.output_attestations import collect

REQUESTER, NODES = local_key(8, "requester"), [local_key(8, "node", index) for index in range(2)]
VERIFIERS = [local_key(8, "verifier", index) for index in range(2)]
JOB, ROOT, OUTPUT = digest(NS_SPEC, b"job"), digest(NS_SPEC, b"root"), digest(NS_SPEC, b"output")
WINDOW, UNITS = 40, 7


class Told:
    """What was told and waited for. Whoever waits moves the ledger's clock."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.ledger, self.warned, self.slept = ledger, list[WarningEvent](), list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ledger.now += round(seconds * 1000)

    def settle(self, attest: Attest | None = None) -> JobRow:
        client: Any = self.ledger
        return asyncio.run(settle(client, JOB, OUTPUT, self.warned.append, self.sleep, attest))


class Verifiers:
    """Sign as nodes do, but for those that do not answer."""

    def __init__(self, told: Told, answering: int) -> None:
        self._told, self._answering, self.asked = told, answering, 0

    async def attest(self, row: JobRow) -> JobAttest | None:
        client: Any = self._told.ledger
        return await collect(client, row, self._connection)

    async def _connection(self, peer: PeerId) -> Any:
        self.asked += 1
        key = next(key for key in VERIFIERS if key.public == peer)
        if key in VERIFIERS[self._answering :]:
            raise NetworkError("FF-NET-001", "nobody answers")
        return Line(key, self._told.ledger)


class Line:
    """To one verifier."""

    def __init__(self, key: SigningKey, ledger: MemoryLedger) -> None:
        self._key, self._ledger = key, ledger

    async def call(self, method: str, body: bytes, **_: float) -> bytes:
        assert (method, body) == (messages.ATTEST, encode(messages.OutputAttestRequest(JOB)))
        return encode(await attest(self._key, self._ledger.chain, JOB, self._ledger.job, at_once))


async def at_once(seconds: float) -> None:
    assert seconds >= 2 * RECORD_SECONDS


def story(
    window: int = WINDOW, rounds: int = 1, counts_blocks: bool = True, verifiers: Sequence[SigningKey] = ()
) -> Told:
    ledger = MemoryLedger(REQUESTER, JOB, 2, NODES, list(verifiers), 100, LedgerParams(fee_min=0, window_ms=window))
    ledger.counts_blocks = counts_blocks
    for round in range(rounds):
        units = tuple((key.public, UNITS) for key in NODES)
        ledger.apply(REQUESTER, Progress(JOB, round, ROOT, ZERO_HASH, units))
    return Told(ledger)


def is_paid(row: JobRow) -> bool:
    return (row.paid, row.refunded) == (2 * UNITS * PRICE, ESCROW - 2 * UNITS * PRICE)


@pytest.mark.parametrize("counts_blocks", [True, False])
def test_a_job_with_a_window_is_settled_when_it_is_over(counts_blocks: bool) -> None:
    told = story(counts_blocks=counts_blocks)
    row = told.settle()
    assert row.state is JobState.SETTLED
    assert is_paid(row)
    assert [each.code for each in told.warned] == ["FF-APP-330"]
    tries = [op for op in told.ledger.submitted if isinstance(op, JobSettle)]
    assert len(tries) == 1, "only what succeeded is in the list"
    assert told.slept == ([] if counts_blocks else [WINDOW / 1000])


def test_without_a_window_nothing_is_waited_for() -> None:
    told = story(window=0)
    assert told.settle().state is JobState.SETTLED
    assert (told.warned, told.slept) == ([], [])
    assert [type(op) for op in told.ledger.submitted] == [JobFinish, JobSettle]


def test_a_job_that_is_stopped_before_it_has_an_output_waits_too() -> None:
    told = story(rounds=0, counts_blocks=False)
    row = told.settle()
    assert (row.state, row.refunded) == (JobState.CANCELLED, ESCROW)
    assert [type(op) for op in told.ledger.submitted] == [JobCancel, JobCancel]
    assert len(told.warned) == 1


@pytest.mark.parametrize("place", [1, 2])
def test_whoever_died_in_the_window_goes_on_from_the_row(place: int) -> None:
    told = story(counts_blocks=False)
    told.ledger.die_after = place
    with pytest.raises(Died):
        told.settle()
    told.ledger.die_after = None
    assert is_paid(told.settle())
    assert [type(op) for op in told.ledger.submitted] == [JobFinish, JobSettle]


def test_what_the_ledger_refuses_for_good_is_no_reason_to_wait_for_ever() -> None:
    told = story(window=0)

    async def refused(*ops: Any) -> None:
        if isinstance(ops[0], JobSettle):
            raise RunError("FF-APP-070", "the ledger refused it")
        told.ledger.apply(REQUESTER, *ops)

    told.ledger.submit = refused  # type: ignore[method-assign]
    with pytest.raises(RunError, match="FF-APP-070"):
        told.settle()


def test_a_job_whose_deadline_ends_the_window_is_paid_by_the_clock() -> None:
    told = story(window=10**9, counts_blocks=False)
    assert told.settle().state in (JobState.SETTLED, JobState.EXPIRED)
    assert is_paid(told.settle())


def test_a_resumed_requester_does_not_wait_for_what_an_idle_ledger_has_not_said() -> None:
    told = story(window=40_000, counts_blocks=False)
    told.ledger.apply(REQUESTER, JobFinish(JOB, ROOT, OUTPUT))
    told.ledger.now += 30_000  # no block since: the head is old
    assert told.settle().state is JobState.SETTLED
    assert sum(told.slept) == pytest.approx(10, abs=2)


@pytest.mark.parametrize("rounds", [1, 0], ids=["finished", "stopped"])
def test_two_verifiers_end_the_window_and_nobody_waits(rounds: int) -> None:
    told = story(window=10_000, rounds=rounds, counts_blocks=False, verifiers=VERIFIERS)
    row = told.settle(Verifiers(told, 2).attest)
    assert row.state is (JobState.SETTLED if rounds else JobState.CANCELLED)
    assert is_paid(row) or not rounds
    assert [type(op) for op in told.ledger.submitted][1] is JobAttest
    assert (told.warned, told.slept) == ([], [])


def test_one_of_two_verifiers_ends_no_window_and_is_asked_again() -> None:
    told = story(window=40_000, counts_blocks=False, verifiers=VERIFIERS)
    verifiers = Verifiers(told, 1)
    assert is_paid(told.settle(verifiers.attest))
    assert not [op for op in told.ledger.submitted if isinstance(op, JobAttest)]
    assert [round(each) for each in told.slept] == [30, 10]
    assert (verifiers.asked, len(told.warned)) == (4, 1)


def test_a_verifier_attests_no_job_that_goes_on_or_is_over() -> None:
    told = story(window=0, verifiers=VERIFIERS)
    about = VERIFIERS[0], told.ledger.chain, JOB, told.ledger.job, at_once
    for _ in range(2):
        with pytest.raises(PolicyError, match="FF-APP-640"):
            asyncio.run(attest(*about))
        told.settle()
