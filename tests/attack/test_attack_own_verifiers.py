"""A requester that runs the verifiers of a job without a graph gains nothing by what they say of an honest provider."""

from __future__ import annotations

import pytest
from ledger_world import NODES, OTHER_JOB, REQUESTER, VERIFIERS, World

from farflung.core.crypto import SigningKey
from farflung.ledger.transactions import JobCancel, LeaseRole, VerdictFinding

HONEST, JOB = NODES[0], OTHER_JOB
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
