"""A requester that runs the verifiers of a job without a graph gains nothing by what they say of an honest provider."""

from __future__ import annotations

import pytest
from ledger_world import CAPS, NODES, OTHER_JOB, PARAMS, REQUESTER, ROOTS, START, VERIFIERS, WINDOW, World
from ledger_world import JOB as PROVEN
from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.ledger.state_transition import total_money
from farflung.ledger.transactions import JobCancel, JobFinish, JobSettle, LeaseRole, VerdictFinding

HONEST, JOB = NODES[0], OTHER_JOB  # without a graph
ENDS = ("settle", "cancel", "clock")
FINDINGS = [(VerdictFinding.FALSE, 9000), (VerdictFinding.FALSE, 10**9), (VerdictFinding.WITHHELD, 0)]


def hired(*owned: SigningKey) -> World:
    """The honest provider earned 10 units in a job whose verifiers are the requester's own accounts."""
    world = World()
    for key in (HONEST, *owned):
        assert world.do(key, world.register()) == "ok"
    audits = [world.offer(key, JOB, units=20, role=LeaseRole.AUDIT) for key in owned]
    assert world.do(REQUESTER, world.create(JOB), world.schedule(world.offer(HONEST, JOB), *audits, job=JOB)) == "ok"
    assert world.do(REQUESTER, world.progress(0, (HONEST, 10), job=JOB)) == "ok"
    return world


def end(world: World, how: str) -> World:
    """The job is over: paid and refunded."""
    ops = {"settle": (JobFinish(JOB, ROOTS[0], CAPS), JobSettle(JOB)), "cancel": (JobCancel(JOB),)}
    if how in ops:
        assert world.do(REQUESTER, *ops[how]) == "ok"
    else:
        world.send(after=START + 60_000 - world.state.time)
    return world


def wealth(world: World, *keys: SigningKey) -> int:
    """All that one owner of these keys has: what is free and staked."""
    return sum(world.balance(key) + (world.node(key).stake if key != REQUESTER else 0) for key in keys)


@pytest.mark.parametrize("finding", FINDINGS)
@pytest.mark.parametrize("verifier", [VERIFIERS[0], REQUESTER])
def test_one_verifier_of_its_own_takes_nothing(verifier: SigningKey, finding: tuple[VerdictFinding, int]) -> None:
    world = hired(verifier)
    before = wealth(world, HONEST)
    for sender in (REQUESTER, verifier):
        op = world.accuse(HONEST, verifier, job=JOB, finding=finding[0], excess=finding[1])
        assert world.do(sender, op) in ("FF-LEDG-051", "FF-LEDG-392")
    assert world.do(REQUESTER, JobCancel(JOB)) == "ok"
    assert wealth(world, HONEST) == before + 10 * 5


@pytest.mark.parametrize("finding", FINDINGS)
def test_its_own_account_is_no_second_verifier(finding: tuple[VerdictFinding, int]) -> None:
    world = hired(VERIFIERS[0], REQUESTER)
    op = world.accuse(HONEST, VERIFIERS[0], REQUESTER, job=JOB, finding=finding[0], excess=finding[1])
    assert world.do(REQUESTER, op) == "FF-LEDG-392"
    assert world.lease(HONEST, JOB).is_open


@pytest.mark.parametrize("finding", FINDINGS)
def test_two_further_accounts_of_its_own_get_nothing_of_the_stake(finding: tuple[VerdictFinding, int]) -> None:
    world = hired(*VERIFIERS)
    before = wealth(world, REQUESTER, *VERIFIERS)
    op = world.accuse(HONEST, *VERIFIERS, job=JOB, finding=finding[0], excess=finding[1])
    assert world.do(REQUESTER, op) == "ok"
    assert wealth(world, REQUESTER, *VERIFIERS) == before
    assert world.node(HONEST).burnt == world.lease(HONEST, JOB).slashed > 0


@pytest.mark.guarantee
@pytest.mark.parametrize("finding", FINDINGS)
@pytest.mark.parametrize("how", ENDS)
def test_two_further_accounts_of_its_own_gain_nothing_of_the_pay(how: str, finding: tuple[VerdictFinding, int]) -> None:
    owned = (REQUESTER, *VERIFIERS)
    world, honest = hired(*VERIFIERS), end(hired(*VERIFIERS), how)
    minted = total_money(world.state)
    assert world.do(REQUESTER, world.accuse(HONEST, *VERIFIERS, job=JOB, finding=finding[0], excess=finding[1])) == "ok"
    assert wealth(end(world, how), *owned) <= wealth(honest, *owned)
    row = world.job(JOB)
    assert (row.burnt, row.held, row.paid) == (10 * 5, 0, 0)
    assert row.paid + row.refunded + row.burnt == honest.job(JOB).paid + honest.job(JOB).refunded
    assert total_money(world.state) == minted


def test_pay_that_a_voucher_claimed_is_burnt_as_what_the_requester_recorded_is() -> None:
    """Who records nothing, so as to have nothing burnt, is outrun by the node's own claim."""
    world = hired(*VERIFIERS)
    assert world.do(HONEST, world.settle_many((HONEST, 30), job=JOB)) == "ok"
    assert world.do(REQUESTER, world.accuse(HONEST, *VERIFIERS, job=JOB)) == "ok"
    assert end(world, "cancel").job(JOB).burnt == 30 * 5


def test_its_own_account_ends_no_window() -> None:
    world = World(replace(PARAMS, window_ms=WINDOW))
    for key in (HONEST, VERIFIERS[0], REQUESTER):
        assert world.do(key, world.register()) == "ok"
    audits = [world.offer(key, units=20, role=LeaseRole.AUDIT) for key in (VERIFIERS[0], REQUESTER)]
    assert world.do(REQUESTER, world.create(), world.schedule(world.offer(HONEST), *audits)) == "ok"
    assert world.do(REQUESTER, world.progress(0, (HONEST, 10)), JobFinish(PROVEN, ROOTS[0], CAPS)) == "ok"
    assert world.do(REQUESTER, world.attest(VERIFIERS[0], REQUESTER)) == "FF-LEDG-392"
    assert world.do(REQUESTER, world.attest(VERIFIERS[0])) == "FF-LEDG-223"
    assert world.do(REQUESTER, JobSettle(PROVEN)) == "FF-LEDG-229"


def test_what_will_be_burnt_hires_nobody() -> None:
    world = hired(*VERIFIERS)
    assert world.do(REQUESTER, world.accuse(HONEST, *VERIFIERS, job=JOB)) == "ok"
    new, row = NODES[1], world.job(JOB)
    assert world.do(new, world.register()) == "ok"
    free = (row.escrow - row.reserved) // 5
    assert world.do(REQUESTER, world.schedule(world.offer(new, JOB, units=free + 1), job=JOB)) == "FF-LEDG-041"
    assert world.do(REQUESTER, world.schedule(world.offer(new, JOB, units=free), job=JOB)) == "ok"
    assert end(world, "cancel").job(JOB).burnt == 10 * 5
