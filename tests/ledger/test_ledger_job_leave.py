"""A node leaves a job that goes on, or whose requester has vanished; it registers again after its time ran out."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_world import CAPS, JOB, NODES, OTHER_JOB, PARAMS, REQUESTER, RICH, ROOTS, START, VALIDATOR, VERIFIERS, World
from machine_jobs import JobRules
from msgspec.structs import replace

from farflung.ledger import transactions
from farflung.ledger.params import HOUR_MS
from farflung.ledger.rules.jobs import hour_of
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import KeyRow, NodeState

LONG = replace(PARAMS, job_ms_max=10**9, node_ms_max=10**9)


def silent(*, rounds: int = 1, state: str = "running", draws: int = 0, total: int = 3, **law: int) -> World:
    """A job of two nodes and two verifiers with a long deadline, from which its requester has vanished."""
    world = World(replace(LONG, **law))
    for key in (*NODES[:2], *VERIFIERS):
        assert world.do(key, world.register(expires=10**8)) == "ok"
    assert world.do(REQUESTER, world.create(rounds=total, deadline=10**8)) == "ok"
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
        ({}, HOUR_MS - 1, "notice"),
        ({}, HOUR_MS, "ok"),
        ({"window_ms": 2 * HOUR_MS}, 2 * HOUR_MS - 1, "notice"),
        ({"window_ms": 2 * HOUR_MS}, 2 * HOUR_MS, "ok"),
        ({"rounds": 0}, 1, "ok"),
        ({"rounds": 0, "draws": 2}, HOUR_MS - 1, "notice"),
        ({"rounds": 0, "draws": 1}, HOUR_MS, "ok"),
        ({"rounds": 1, "draws": 1}, HOUR_MS - 1, "notice"),
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
    said = getattr(world.send(op, after=at - world.state.time)[0], "code", "ok")
    assert said == code.replace("notice", "ok")
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
    assert world.do(VERIFIERS[0], transactions.JobLeave(JOB)) == "ok"  # it is silent no longer: this is a notice
    assert world.lease(VERIFIERS[0]).is_open
    assert world.do(NODES[0], transactions.NodeLeave()) == "ok"
    assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
    assert world.do(NODES[1], transactions.JobLeave(JOB)) == "FF-LEDG-033"
    assert (world.job().paid, world.job().refunded) == (5 * 15, 1000 - 5 * 15)


@pytest.mark.parametrize("late", [False, True])
def test_who_lied_in_a_recorded_round_is_accused_as_long_as_it_cannot_leave(late: bool):
    world = silent()
    if late:
        world.send(after=HOUR_MS - 2000)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "ok"  # a notice
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-394"
    assert world.do(REQUESTER, world.accuse(NODES[0])) == "ok"
    wait(world)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-393"
    assert world.node(NODES[0]).burnt == 50


def going(*, draws: int = 1, rounds: int = 1, notice: bool = True, **law: int) -> World:
    """The same job with six rounds: node 0 gave notice after these."""
    world = silent(draws=draws, rounds=rounds, total=6, **law)
    assert not notice or world.do(NODES[0], transactions.JobLeave(JOB)) == "ok"
    return world


def first_without(world: World) -> int:
    row = world.state.find(KeyRow, transactions.notice_of(JOB, NODES[0].public))
    return row.epoch if row is not None else 0


@pytest.mark.parametrize(
    ("job", "first"),
    [
        ({"draws": 0, "rounds": 0}, 0),  # nothing was drawn or recorded: it has left
        ({"draws": 1, "rounds": 0}, 3),
        ({"draws": 3, "rounds": 2}, 5),  # round 3 waits for its draw, round 4 may be open
        ({"draws": 0, "rounds": 3}, 5),
        ({"draws": 5, "rounds": 5}, 6),
        ({"draws": 6, "rounds": 5}, 6),  # no round comes after the last
    ],
)
def test_a_notice_names_the_first_round_that_the_node_cannot_have_committed_to(job: dict[str, int], first: int):
    world = going(**job)
    assert (first_without(world), world.lease(NODES[0]).is_open) == (first, first > 0)
    assert first_without(going(notice=False, **job)) == 0


@pytest.mark.parametrize("window_ms", [0, 600_000])
def test_a_node_leaves_a_job_that_goes_on_when_the_window_after_its_last_round_is_over(window_ms: int):
    world = going(window_ms=window_ms)
    first, before = first_without(world), world.balance(NODES[0])
    for number in range(1, first):
        assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-394"
        assert world.do(REQUESTER, world.progress(number, (NODES[0], 2))) == "ok"  # what it had committed to is paid
    over = hour_of(world.state.time) + window_ms
    late = world.progress(first, (NODES[0], 2), (NODES[1], 3))
    assert world.do(REQUESTER, late) == "FF-LEDG-057"
    assert world.do(REQUESTER, world.progress(first, (NODES[1], 3))) == "ok"
    world.send(after=over - 1 - world.state.time)
    op = world.sign(NODES[0], transactions.JobLeave(JOB))
    assert world.send(op, after=1)[0].__class__.__name__ == "AppliedResult"
    lease, node = world.lease(NODES[0]), world.node(NODES[0])
    assert (lease.is_open, lease.units, lease.paid) == (False, 10 + 2 * (first - 1), 5 * (10 + 2 * (first - 1)))
    assert world.balance(NODES[0]) - before == lease.paid
    assert (node.locked, node.free) == (0, 500)
    again = world.schedule(world.offer(NODES[0], stake=1, units=1, expires=10**8))
    assert world.do(REQUESTER, again) == "FF-LEDG-040"  # it is not hired again in this job


@pytest.mark.parametrize("recorded", [1, 2, 3])
def test_who_gave_notice_is_accused_until_it_has_left(recorded: int):
    world = going(window_ms=600_000)
    for number in range(1, recorded):
        assert world.do(REQUESTER, world.progress(number, (NODES[1], 1))) == "ok"
    world.send(after=HOUR_MS - 1 - world.state.time % HOUR_MS)
    assert world.do(REQUESTER, world.accuse(NODES[0])) == "ok"
    assert world.node(NODES[0]).burnt == 50
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "FF-LEDG-393"


def test_who_gave_notice_in_a_job_that_falls_silent_leaves_as_from_any_silent_job():
    world = going()
    wait(world)
    assert world.do(NODES[0], transactions.JobLeave(JOB)) == "ok"
    assert not world.lease(NODES[0]).is_open


@pytest.mark.parametrize(("rounds", "wait", "is_open"), [(2, 1000, True), (1, 45_000, True), (2, 45_000, False)])
def test_the_naive_ledger_agrees_about_a_node_that_leaves(rounds: int, wait: int, is_open: bool):
    machine = JobRules()
    machine.choose(block_size=1, params=PARAMS, jury=(VALIDATOR,), out=0, late=True)
    machine.leave_going_job(JOB, rounds, wait)
    assert machine.world.lease(NODES[0]).is_open == is_open
    for check in (machine.both_agree, machine.nodes_know_their_locks, machine.epochs_and_revocations_of_keys_only_grow):
        check()
    assert total_money(machine.world.state) == machine.world.state.law.minted


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
