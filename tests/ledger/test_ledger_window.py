"""The verification window: what can still happen between a job's end and its settlement, and who ends it early."""

from __future__ import annotations

import pytest
from ledger_world import (
    CAPS,
    JOB,
    NODES,
    OTHER_JOB,
    PARAMS,
    REQUESTER,
    RICH,
    ROOTS,
    START,
    STRANGER,
    VERIFIERS,
    WINDOW,
    World,
)
from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.ledger import transactions
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import JobState

A, B, C = NODES
V, W = VERIFIERS
WINDOWED = replace(PARAMS, window_ms=WINDOW)


def ended(end: str = "output", params: LedgerParams = WINDOWED) -> World:
    """A job with verifiers that has its output, or was stopped, in a block at `until` - WINDOW."""
    world = World(params).watched()
    world.do(REQUESTER, world.progress(0, (A, 10), (B, 20)))
    op = transactions.JobFinish(JOB, ROOTS[0], CAPS) if end == "output" else transactions.JobCancel(JOB)
    assert world.do(REQUESTER, op) == "ok"
    assert world.job().until == world.state.time + WINDOW
    return world


CLOSE = {"output": transactions.JobSettle(JOB), "stop": transactions.JobCancel(JOB)}
CLOSED = {"output": JobState.SETTLED, "stop": JobState.CANCELLED}
ENDS = sorted(CLOSE)


@pytest.mark.parametrize("end", ENDS)
def test_the_requester_ends_nothing_before_the_window_is_over(end: str):
    world = ended(end)
    assert world.do(REQUESTER, CLOSE[end]) == "FF-LEDG-229"
    world.send(after=world.job().until - world.state.time - 1001)
    assert world.do(REQUESTER, CLOSE[end]) == "FF-LEDG-229"  # at until - 1
    world.send(after=1)
    assert world.do(REQUESTER, CLOSE[end]) == "ok"
    assert world.job().state == CLOSED[end]
    assert world.job().paid == 150


@pytest.mark.parametrize("end", ENDS)
def test_a_node_claims_in_the_window_what_was_not_recorded(end: str):
    world = ended(end)
    assert world.do(A, world.settle_many((A, 60))) == "ok"
    world.send(after=WINDOW)
    assert world.do(REQUESTER, CLOSE[end]) == "ok"
    assert world.lease(A).paid == 300


@pytest.mark.parametrize("end", ENDS)
def test_who_lied_is_accused_until_the_window_is_over(end: str):
    world = ended(end)
    assert world.do(V, world.accuse(A)) == "ok"
    assert world.lease(A).slashed == 100
    world.send(after=world.job().until - world.state.time - 1000)
    assert world.do(V, world.accuse(B)) == "FF-LEDG-033"  # at until
    assert world.do(REQUESTER, CLOSE[end]) == "ok"
    assert (world.job().paid, world.job().slashed) == (100, 100)


@pytest.mark.parametrize("end", ENDS)
def test_verifiers_that_have_nothing_against_it_end_the_window(end: str):
    world = ended(end)
    assert world.do(STRANGER, world.attest()) == "ok"
    assert world.do(V, world.accuse(A)) == "FF-LEDG-033"
    assert world.do(REQUESTER, CLOSE[end]) == "ok"


def test_an_attestation_makes_no_window_longer():
    world = ended()
    until = world.job().until
    world.send(after=WINDOW + 5)
    assert world.do(V, world.attest()) == "ok"
    assert world.job().until == until


@pytest.mark.parametrize("by", [(V,), (V, V), (A, B), (V, REQUESTER), (REQUESTER,)])
def test_nobody_else_ends_the_window(by: tuple[SigningKey, ...]):
    world = ended()
    assert world.do(REQUESTER, world.attest(*by)) in ("FF-LEDG-222", "FF-LEDG-223", "FF-LEDG-392")
    assert world.do(REQUESTER, transactions.JobSettle(JOB)) == "FF-LEDG-229"


@pytest.mark.parametrize("change", [{"chain": ROOTS[1]}, {"job": OTHER_JOB}, {"root": ROOTS[1]}, {"output": ROOTS[1]}])
def test_an_attestation_is_of_this_very_end(change: dict[str, object]):
    world = ended()
    assert world.do(V, world.attest(**change)) == "FF-LEDG-222"


def test_only_a_job_that_has_ended_is_attested():
    world = World(WINDOWED).watched()
    assert world.do(V, world.attest()) == "FF-LEDG-033"
    world.do(REQUESTER, world.create(OTHER_JOB))
    assert world.do(V, replace(world.attest(), job=OTHER_JOB)) == "FF-LEDG-033"


def test_a_stopped_job_takes_no_work():
    world = ended("stop")
    assert world.job().state == JobState.STOPPED
    assert world.do(REQUESTER, world.progress(1, (A, 1))) == "FF-LEDG-033"
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS)) == "FF-LEDG-033"
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=1))) == "FF-LEDG-033"
    assert world.do(A, transactions.JobCancel(JOB)) == "FF-LEDG-032"


def test_a_job_that_never_ran_is_cancelled_at_once():
    world = World(WINDOWED)
    world.do(REQUESTER, world.create())
    assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
    assert (world.job().state, world.balance(REQUESTER)) == (JobState.CANCELLED, RICH)


@pytest.mark.parametrize("end", ENDS)
def test_the_deadline_ends_a_window(end: str):
    world = World(replace(WINDOWED, window_ms=90_000)).watched()
    world.do(REQUESTER, world.progress(0, (A, 10)))
    world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS) if end == "output" else transactions.JobCancel(JOB))
    assert world.job().until == world.job().deadline
    world.send(after=START + 60_000 - world.state.time)
    assert (world.job().state, world.lease(A).paid) == (JobState.EXPIRED, 50)


def test_without_a_window_nothing_waits():
    world = World().watched()
    world.do(REQUESTER, world.progress(0, (A, 10)))
    ops = (transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB))
    assert world.do(REQUESTER, *ops) == "ok"
