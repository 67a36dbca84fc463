"""A job that another process of its requester took over: what the earlier one says of it counts no more."""

from __future__ import annotations

import pytest
from ledger_world import CAPS, JOB, NODES, OTHER_JOB, REQUESTER, ROOTS, World

from farflung.core.ids import Hash
from farflung.ledger.table_rows import JobRow, KeyRow
from farflung.ledger.transactions import JobCancel, JobCoordinate, JobFinish, JobSettle, Op, coordinator_of

MINE, OTHERS = Hash(b"\x01" * 32), Hash(b"\x02" * 32)


def running() -> World:
    world = World()
    for key in NODES[:2]:
        assert world.do(key, world.register()) == "ok"
    assert world.do(REQUESTER, world.create()) == "ok"
    assert world.do(REQUESTER, world.schedule(world.offer(NODES[0]))) == "ok"
    return world


def term(number: int, mark: Hash, job: Hash = JOB) -> JobCoordinate:
    return JobCoordinate(job, number, mark)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([term(1, MINE)], "ok"),
        ([term(1, MINE), term(1, MINE)], "ok"),  # again: it holds it
        ([term(1, MINE), term(2, OTHERS)], "ok"),
        ([term(1, MINE), term(1, OTHERS)], "FF-LEDG-405"),  # two that read the same row: one is first
        ([term(1, MINE), term(2, OTHERS), term(1, MINE)], "FF-LEDG-405"),
        ([term(1, MINE), term(2, MINE)], "FF-LEDG-405"),
        ([term(0, MINE)], "FF-LEDG-405"),
        ([term(2, MINE)], "FF-LEDG-405"),
        ([term(1, Hash(bytes(32)))], "FF-LEDG-405"),
        ([term(1, MINE, OTHER_JOB)], "FF-LEDG-031"),
    ],
)
def test_a_term_is_taken_by_one_process_and_in_order(said: list[JobCoordinate], code: str) -> None:
    world = running()
    assert [world.do(REQUESTER, each) for each in said] == ["ok"] * (len(said) - 1) + [code]
    assert world.do(NODES[0], term(1, OTHERS)) == "FF-LEDG-032"


def test_a_job_that_was_never_taken_over_has_no_row_of_a_term() -> None:
    world = running()
    assert world.do(REQUESTER, world.progress(0, (NODES[0], 1))) == "ok"
    assert world.state.find(KeyRow, coordinator_of(JOB)) is None


def sayings(world: World) -> dict[str, Op]:
    return {
        "draw": world.draw(0),
        "progress": world.progress(0, (NODES[0], 1)),
        "schedule": world.schedule(world.offer(NODES[1])),
        "finish": JobFinish(JOB, ROOTS[0], CAPS),
        "settle": JobSettle(JOB),
        "cancel": JobCancel(JOB),
    }


@pytest.mark.parametrize("name", sayings(World()))
def test_whoever_holds_an_earlier_term_moves_nothing(name: str) -> None:
    world = running()
    if name in ("finish", "settle"):
        assert world.do(REQUESTER, world.progress(0, (NODES[0], 1))) == "ok"
    if name == "settle":
        assert world.do(REQUESTER, JobFinish(JOB, ROOTS[0], CAPS)) == "ok"
    assert world.do(REQUESTER, term(1, MINE)) == "ok"
    op, before = sayings(world)[name], world.state.find(JobRow, JOB)
    assert world.do(REQUESTER, op) == "FF-LEDG-406"  # a process of term 0
    assert world.do(REQUESTER, term(2, OTHERS)) == "ok"
    assert world.do(REQUESTER, term(1, MINE), op) == "FF-LEDG-405"
    assert world.do(REQUESTER, op) == "FF-LEDG-406"
    assert world.do(REQUESTER, op, term(2, OTHERS)) == "FF-LEDG-406"  # said too late
    assert world.state.find(JobRow, JOB) == before
    assert world.do(REQUESTER, term(2, OTHERS), op) == "ok"
