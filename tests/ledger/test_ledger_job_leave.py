"""A node leaves a job whose requester has vanished, and comes back after its registration ran out."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_world import CAPS, JOB, NODES, OTHER_JOB, PARAMS, REQUESTER, RICH, ROOTS, START, VERIFIERS, World
from msgspec.structs import replace

from farflung.ledger import transactions
from farflung.ledger.params import HOUR_MS
from farflung.ledger.rules.jobs import hour_of
from farflung.ledger.table_rows import NodeState

LONG = replace(PARAMS, job_ms_max=10**9, node_ms_max=10**9)


def silent(*, rounds: int = 1, state: str = "running", draws: int = 0, **law: int) -> World:
    """A job of two nodes and two verifiers with a long deadline, from which its requester has vanished."""
    world = World(replace(LONG, **law))
    for key in (*NODES[:2], *VERIFIERS):
        assert world.do(key, world.register(expires=10**8)) == "ok"
    assert world.do(REQUESTER, world.create(deadline=10**8)) == "ok"
    offers = [world.offer(key) for key in NODES[:2]]
    offers += [world.offer(key, stake=50, units=20, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
    assert world.do(REQUESTER, world.schedule(*offers)) == "ok"
    for number in range(draws):
        assert world.do(REQUESTER, world.draw(number)) == "ok"
    for number in range(rounds):
        assert world.do(REQUESTER, world.progress(number, (NODES[0], 10), (VERIFIERS[0], 4))) == "ok"
    ends = {"output": transactions.JobFinish(JOB, ROOTS[0], CAPS), "stopped": transactions.JobCancel(JOB)}
    if state in ends:
        assert world.do(REQUESTER, ends[state]) == "ok"
    return world


@pytest.mark.parametrize(
    ("job", "after", "code"),
    [
        ({}, HOUR_MS - 1, "FF-LEDG-394"),
        ({}, HOUR_MS, "ok"),
        ({"window_ms": 2 * HOUR_MS}, 2 * HOUR_MS - 1, "FF-LEDG-394"),
        ({"window_ms": 2 * HOUR_MS}, 2 * HOUR_MS, "ok"),
        ({"rounds": 0}, 1, "ok"),
        ({"rounds": 0, "draws": 2}, HOUR_MS - 1, "FF-LEDG-394"),
        ({"rounds": 0, "draws": 1}, HOUR_MS, "ok"),
        ({"rounds": 1, "draws": 1}, HOUR_MS - 1, "FF-LEDG-394"),
        ({"state": "output", "window_ms": 5000}, 4999, "FF-LEDG-394"),
        ({"state": "output", "window_ms": 5000}, 5000, "ok"),
        ({"state": "stopped", "window_ms": 5000}, 5000, "ok"),
    ],
)
def test_a_node_leaves_a_silent_job_when_its_accusers_had_their_time(job: dict[str, Any], after: int, code: str):
    world = silent(**job)
    begins = world.state.time if "state" in job else hour_of(world.state.time)
    before, at = world.balance(NODES[0]), begins + after
    while world.state.time < at - 1:
        world.send(after=min(HOUR_MS, at - 1 - world.state.time))
    op = world.sign(NODES[0], transactions.JobLeave(JOB))
    assert getattr(world.send(op, after=at - world.state.time)[0], "code", "ok") == code
    lease, node = world.lease(NODES[0]), world.node(NODES[0])
    if code == "ok":
        assert (lease.is_open, lease.paid, world.balance(NODES[0]) - before) == (False, 5 * lease.units, lease.paid)
        assert (node.locked, node.free, node.leases) == (0, 500, 0)
    else:
        assert (lease.is_open, node.locked) == (True, 100)


def wait(world: World) -> None:
    """Until the job was silent for an hour, counted from the end of the hour of its last round."""
    for _ in range(2):
        world.send(after=HOUR_MS)


def test_who_left_is_neither_paid_nor_accused_again_and_others_go_on():
    world = silent()
    wait(world)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "ok"
    reserved, escrow = world.job().reserved, world.job().escrow
    assert (reserved, escrow, world.job().paid) == (5 * (60 + 2 * 20), 1000 - 50, 50)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-393"
    assert world.do(NODES[2], transactions.JobLeave(JOB)) == "FF-LEDG-393"
    assert world.do(NODES[2], transactions.JobLeave(OTHER_JOB)) == "FF-LEDG-031"
    assert world.do(REQUESTER, world.accuse(NODES[0])) == "FF-LEDG-049"
    assert world.do(REQUESTER, world.progress(1, (NODES[0], 1))) == "FF-LEDG-057"
    assert world.do(REQUESTER, world.progress(1, (NODES[1], 1))) == "ok"
    assert world.do(VERIFIERS[0], transactions.JobLeave(JOB)) == "FF-LEDG-394"  # it is silent no longer
    assert world.do(NODES[0], transactions.NodeLeave()) == "ok"
    assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
    assert world.do(NODES[1], transactions.JobLeave(JOB)) == "FF-LEDG-033"
    assert (world.job().paid, world.job().refunded) == (5 * 15, 1000 - 5 * 15)


@pytest.mark.parametrize("late", [False, True])
def test_who_lied_in_a_recorded_round_is_accused_as_long_as_it_cannot_leave(late: bool):
    world = silent()
    if late:
        world.send(after=HOUR_MS - 2000)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-394"
    assert world.do(REQUESTER, world.accuse(NODES[0])) == "ok"
    wait(world)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-393"
    assert world.node(NODES[0]).burnt == 50


def test_an_accusers_stake_stays_until_its_dispute_is_decided():
    world = silent(dispute_ms=5 * HOUR_MS)
    assert world.do(REQUESTER, world.accuse(NODES[0])) == "ok"
    wait(world)
    assert world.do(VERIFIERS[0], transactions.JobLeave(JOB)) == "ok"
    assert (world.lease(VERIFIERS[0]).is_open, world.node(VERIFIERS[0]).locked) == (False, 50)
    for _ in range(5):
        wait(world)
    assert world.node(VERIFIERS[0]).locked == 0


def test_a_node_whose_registration_ran_out_registers_again():
    world = World()
    assert world.do(NODES[0], world.register(expires=START + 5000)) == "ok"
    world.send(after=10_000)
    assert (world.node(NODES[0]).state, world.node(NODES[0]).free) == (NodeState.LEFT, 0)
    assert world.do(NODES[0], world.register(price=7)) == "ok"
    assert (world.node(NODES[0]).state, world.node(NODES[0]).unit_price) == (NodeState.ACTIVE, 7)
    assert world.balance(NODES[0]) == RICH - 500
