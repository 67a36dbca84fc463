"""Disputes: each edge has one signer, one deadline, one time-out, and the money goes where the page says."""

from __future__ import annotations

import pytest
from ledger_world import (
    BOND,
    CAPS,
    DISPUTE,
    EVIDENCE,
    JOB,
    NODES,
    OTHER_JOB,
    PARAMS,
    REQUESTER,
    RICH,
    ROOTS,
    START,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
    genesis,
)
from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH
from farflung.ledger import transactions
from farflung.ledger.block import check_genesis
from farflung.ledger.disputes import DisputeAnswer, DisputeState, JuryVote
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import AccountRow, JobState, NodeState

A, B, C = NODES
V, W = VERIFIERS
DENIAL = DisputeAnswer(JOB, BOND, ROOTS[1])
GUILTY, INNOCENT = JuryVote(JOB, A.public, True), JuryVote(JOB, A.public, False)
DISPUTED = replace(PARAMS, dispute_ms=DISPUTE, bond_min=BOND)
LENT = RICH - 500  # what a node has besides its stake


def accused(answered: bool = False, jury: tuple[SigningKey, ...] = (VALIDATOR,)) -> World:
    """A has earned 10 units at 5 of 60 at most, and is accused of a lie; its stake was 100."""
    world = World(DISPUTED, validators=jury).watched()
    world.do(REQUESTER, world.progress(0, (A, 10), (V, 4)))
    assert world.do(REQUESTER, world.accuse(A)) == "ok"
    if answered:
        assert world.do(A, DENIAL) == "ok"
    return world


def wait(world: World, offset: int = 0) -> World:
    """To the dispute's deadline."""
    world.send(after=world.dispute(A).deadline - world.state.time + offset)
    return world


# What an accusation does


def test_a_dispute_holds_stake_and_pay_until_it_is_decided():
    world = accused()
    row, node, job = world.dispute(A), world.node(A), world.job()
    assert (row.taken, row.pay, row.bond, row.money) == (100, 300, 0, 400)
    assert (row.accusers, row.evidence) == (tuple(sorted((V.public, W.public))), EVIDENCE)
    assert (row.state, row.deadline) == (DisputeState.OPEN, row.opened + DISPUTE)
    assert (node.free, node.locked, node.leases, node.burnt) == (400, 0, 0, 0)
    assert (job.escrow, job.reserved, job.slashed) == (700, 500, 0)
    assert (world.lease(A).is_open, world.lease(A).slashed, world.lease(A).disputes) == (False, 0, 0)
    assert [world.lease(key).disputes for key in VERIFIERS] == [1, 1]
    assert [world.balance(key) for key in VERIFIERS] == [LENT] * 2


def test_who_withheld_keeps_the_rest_of_its_stake_meanwhile():
    world = World(DISPUTED).watched()
    assert world.do(W, world.accuse(A, finding=transactions.VerdictFinding.WITHHELD, excess=0)) == "ok"
    assert (world.dispute(A).taken, world.node(A).free) == (50, 450)


def test_what_silence_costs_is_burnt_whole_after_a_dispute_too():
    """With the bond of its denial: two verifiers that lie about a silence gain nothing."""
    world = World(DISPUTED).watched()
    world.do(W, world.accuse(A, finding=transactions.VerdictFinding.WITHHELD, excess=0))
    assert world.do(A, DENIAL) == "ok"
    assert world.do(VALIDATOR, GUILTY) == "ok"
    assert [world.balance(key) for key in VERIFIERS] == [LENT] * 2
    assert (world.dispute(A).state, world.node(A).burnt) == (DisputeState.UPHELD, 50 + BOND)


def test_a_node_is_accused_once_in_a_job_and_works_there_no_more():
    world = accused()
    assert world.do(REQUESTER, world.accuse(A)) == "FF-LEDG-049"
    assert world.do(REQUESTER, world.progress(1, (A, 1))) == "FF-LEDG-057"


# Silence


def test_silence_costs_what_a_slash_costs():
    world = wait(accused())
    assert world.dispute(A).state == DisputeState.UPHELD
    assert [world.balance(key) for key in VERIFIERS] == [LENT + 25] * 2
    assert (world.node(A).burnt, world.node(A).free, world.dispute(A).money) == (50, 400, 0)
    assert (world.lease(A).slashed, world.lease(A).evidence, world.lease(A).paid) == (100, EVIDENCE, 0)
    assert (world.job().slashed, world.job().refunded, world.balance(REQUESTER)) == (100, 300, RICH - 700)
    assert [world.lease(key).disputes for key in VERIFIERS] == [0, 0]


def test_the_last_moment_for_an_answer_is_before_the_deadline():
    late = wait(accused(), -1000)
    assert late.do(A, DENIAL) == "FF-LEDG-231"
    in_time = wait(accused(), -1001)
    assert in_time.do(A, DENIAL) == "ok"


# Answers


@pytest.mark.parametrize("key", [B, V, REQUESTER, VALIDATOR])
def test_only_the_accused_answers(key: SigningKey):
    assert accused().do(key, DENIAL) == "FF-LEDG-231"


def test_an_answer_has_a_bond_and_evidence():
    world = accused()
    assert world.do(A, replace(DENIAL, bond=BOND - 1)) == "FF-LEDG-232"
    assert world.do(A, replace(DENIAL, evidence=ZERO_HASH)) == "FF-LEDG-232"
    assert world.do(A, replace(DENIAL, bond=RICH)) == "FF-LEDG-010"
    assert world.do(A, replace(DENIAL, bond=BOND + 1)) == "ok"
    assert (world.dispute(A).bond, world.balance(A), world.dispute(A).money) == (9, LENT - 9, 409)
    assert world.do(A, DENIAL) == "FF-LEDG-231"


def test_after_an_answer_the_jury_has_as_long_again():
    world = accused(answered=True)
    row = world.dispute(A)
    assert (row.state, row.answer) == (DisputeState.ANSWERED, ROOTS[1])
    assert row.deadline == world.state.time + DISPUTE


# The jury


def test_a_jury_that_finds_guilty_costs_the_bond_too():
    world = accused(answered=True)
    assert world.do(VALIDATOR, GUILTY) == "ok"
    assert world.dispute(A).state == DisputeState.UPHELD
    assert [world.balance(key) for key in VERIFIERS] == [LENT + (100 + BOND) // 4] * 2
    assert (world.node(A).burnt, world.balance(A)) == (54, LENT - BOND)
    assert (world.lease(A).slashed, world.lease(A).paid) == (100, 0)
    assert world.balance(REQUESTER) == RICH - 700


def test_a_jury_that_finds_innocent_pays_the_node_and_costs_its_accusers_their_stakes():
    world = accused(answered=True)
    assert world.do(VALIDATOR, INNOCENT) == "ok"
    assert world.dispute(A).state == DisputeState.OVERTURNED
    assert world.balance(A) == LENT + 100 + 50 + 2 * 25
    assert (world.lease(A).paid, world.lease(A).slashed, world.lease(A).evidence) == (50, 0, ZERO_HASH)
    for key in VERIFIERS:
        lease, node = world.lease(key), world.node(key)
        assert (lease.is_open, lease.slashed, lease.evidence, lease.disputes) == (False, 50, ROOTS[1], 0)
        assert (node.free, node.locked, node.leases, node.burnt) == (450, 0, 0, 25)
    job = world.job()
    assert (job.slashed, job.paid, job.refunded, job.reserved) == (100, 50, 250, 300)
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)) == "ok"
    assert (world.job().paid, world.job().refunded) == (50, 950)


def test_a_jury_that_does_not_decide_costs_nobody_anything():
    world = wait(accused(answered=True))
    assert world.dispute(A).state == DisputeState.LAPSED
    assert world.balance(A) == LENT + 100 + 50
    assert [world.balance(key) for key in VERIFIERS] == [LENT] * 2
    assert [world.lease(key).is_open for key in VERIFIERS] == [True, True]
    assert (world.node(A).burnt, world.job().slashed, world.balance(REQUESTER)) == (0, 0, RICH - 1000 + 250)


def test_an_odd_stake_of_an_accuser_is_halved_downwards():
    world = World(DISPUTED).watched(stake=51)
    world.do(REQUESTER, world.accuse(A))
    world.do(A, DENIAL)
    world.do(VALIDATOR, INNOCENT)
    assert world.balance(A) == LENT + 100 + 2 * 25
    assert world.node(V).burnt == 26


def test_a_jury_votes_after_the_answer_and_before_the_deadline():
    assert accused().do(VALIDATOR, GUILTY) == "FF-LEDG-233"
    assert World(DISPUTED).watched().do(VALIDATOR, GUILTY) == "FF-LEDG-233"
    assert wait(accused(answered=True), -1000).do(VALIDATOR, GUILTY) == "FF-LEDG-233"
    assert wait(accused(answered=True), -1001).do(VALIDATOR, GUILTY) == "ok"


@pytest.mark.parametrize("key", [A, B, V, REQUESTER, STRANGER])
def test_only_jurors_vote(key: SigningKey):
    assert accused(answered=True).do(key, GUILTY) == "FF-LEDG-234"


FOUR = (VALIDATOR, STRANGER, B, C)


@pytest.mark.parametrize("vote", [GUILTY, INNOCENT])
def test_more_than_two_thirds_of_the_jury_decide(vote: JuryVote):
    world = accused(answered=True, jury=FOUR)
    other = GUILTY if vote is INNOCENT else INNOCENT
    for key, said in ((B, vote), (STRANGER, other), (C, vote)):
        assert world.do(key, said) == "ok"
        assert world.dispute(A).state == DisputeState.ANSWERED
    assert world.do(VALIDATOR, vote) == "ok"
    assert world.dispute(A).state == (DisputeState.UPHELD if vote is GUILTY else DisputeState.OVERTURNED)


def test_two_of_three_are_not_more_than_two_thirds():
    world = accused(answered=True, jury=FOUR[:3])
    for key in (VALIDATOR, STRANGER):
        assert world.do(key, GUILTY) == "ok"
    assert world.dispute(A).state == DisputeState.ANSWERED
    assert world.do(B, GUILTY) == "ok"
    assert world.dispute(A).state == DisputeState.UPHELD


def test_a_juror_votes_once():
    world = accused(answered=True, jury=FOUR)
    world.do(B, GUILTY)
    assert world.do(B, GUILTY) == "FF-LEDG-235"
    assert world.do(B, INNOCENT) == "FF-LEDG-235"


def test_nobody_judges_its_own_case():
    world = accused(answered=True, jury=(A, V, REQUESTER, C))
    for key in (A, V, REQUESTER):
        assert world.do(key, GUILTY) == "FF-LEDG-234"
    assert world.do(C, INNOCENT) == "ok"
    assert world.dispute(A).state == DisputeState.OVERTURNED


def test_a_jury_of_parties_alone_decides_nothing():
    world = accused(answered=True, jury=(REQUESTER,))
    assert world.do(REQUESTER, GUILTY) == "FF-LEDG-234"
    assert wait(world).dispute(A).state == DisputeState.LAPSED


# What else happens meanwhile


def test_vouchers_count_while_a_dispute_is_open():
    world = accused(answered=True)
    assert world.do(A, world.settle_many((A, 60))) == "ok"
    world.do(VALIDATOR, INNOCENT)
    assert world.lease(A).paid == 300
    assert world.do(A, world.settle_many((A, 60))) == "FF-LEDG-227"


def test_a_job_is_settled_without_its_disputes():
    world = accused(answered=True)
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)) == "ok"
    job = world.job()
    assert (job.state, job.paid, job.refunded, job.escrow) == (JobState.SETTLED, 20, 680, 0)
    assert world.dispute(A).money == 400 + BOND
    assert world.do(VALIDATOR, INNOCENT) == "ok"
    assert (world.job().paid, world.job().refunded) == (70, 930)
    assert world.balance(A) == LENT + 100 + 50 + 50


def test_an_accuser_cannot_leave_before_its_disputes_end():
    world = accused(answered=True)
    world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB))
    assert (world.lease(V).is_open, world.lease(V).paid, world.node(V).locked) == (False, 20, 50)
    assert world.do(V, transactions.NodeLeave()) == "FF-LEDG-021"
    world.do(VALIDATOR, INNOCENT)
    assert (world.lease(V).slashed, world.lease(V).paid, world.node(V).burnt) == (50, 20, 25)
    assert (world.node(V).free, world.node(V).locked, world.node(V).leases) == (450, 0, 0)
    assert world.do(V, transactions.NodeLeave()) == "ok"


@pytest.mark.parametrize("vote", [GUILTY, None])
def test_an_accusers_stake_is_free_when_the_dispute_ends_otherwise(vote: JuryVote | None):
    world = accused(answered=True)
    world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB))
    world.do(VALIDATOR, vote) if vote else wait(world)
    assert (world.node(V).free, world.node(V).locked, world.node(V).leases) == (500, 0, 0)


def test_an_accuser_of_two_loses_its_stake_once():
    world = World(DISPUTED).watched()
    world.do(REQUESTER, world.progress(0, (A, 10), (B, 10)))
    for key in (A, B):
        world.do(REQUESTER, world.accuse(key))
        world.do(key, DENIAL)
    assert [world.lease(key).disputes for key in VERIFIERS] == [2, 2]
    world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB))
    assert world.do(VALIDATOR, INNOCENT) == "ok"
    assert [world.lease(key).disputes for key in VERIFIERS] == [1, 1]
    assert world.do(VALIDATOR, replace(INNOCENT, node=B.public)) == "ok"
    assert (world.node(V).free, world.node(V).burnt, world.lease(V).disputes) == (450, 25, 0)
    assert (world.balance(A), world.balance(B)) == (LENT + 200, LENT + 150)


def test_a_stake_stays_locked_until_the_last_of_two_disputes():
    world = World(DISPUTED).watched()
    for key in (A, B):
        world.do(REQUESTER, world.accuse(key))
    world.do(REQUESTER, transactions.JobCancel(JOB))
    world.do(B, DENIAL)
    wait(world)
    assert (world.lease(V).disputes, world.node(V).locked) == (1, 50)
    world.do(VALIDATOR, replace(GUILTY, node=B.public))
    assert (world.lease(V).disputes, world.node(V).locked, world.node(V).free) == (0, 0, 500)


def test_a_verifier_that_lied_has_no_say_any_more():
    world = accused(answered=True)
    world.do(REQUESTER, world.schedule(world.offer(C, units=1, role=transactions.LeaseRole.AUDIT)))
    world.do(VALIDATOR, INNOCENT)
    assert world.do(REQUESTER, world.accuse(B, V, W)) == "FF-LEDG-050"
    assert world.do(REQUESTER, world.progress(1, (V, 1))) == "FF-LEDG-057"


def test_who_is_accused_may_leave_meanwhile_and_is_paid():
    world = accused(answered=True)
    assert world.do(A, transactions.NodeLeave()) == "ok"
    world.do(VALIDATOR, INNOCENT)
    assert (world.node(A).state, world.node(A).money) == (NodeState.LEFT, 0)
    assert world.balance(A) == RICH + 50 + 50


def test_what_is_upheld_against_a_node_that_left_is_burnt_in_its_row():
    world = accused()
    world.do(A, transactions.NodeLeave())
    wait(world)
    assert (world.node(A).state, world.node(A).burnt, world.node(A).free) == (NodeState.LEFT, 50, 0)


def test_a_dispute_in_one_job_is_none_in_another():
    world = accused()
    world.do(REQUESTER, world.create(OTHER_JOB))
    world.do(REQUESTER, world.schedule(world.offer(A, OTHER_JOB), job=OTHER_JOB))
    assert world.do(A, replace(DENIAL, job=OTHER_JOB)) == "FF-LEDG-231"
    assert world.do(VALIDATOR, replace(GUILTY, job=OTHER_JOB)) == "FF-LEDG-233"


@pytest.mark.parametrize("answered", [False, True])
def test_the_clock_alone_returns_all_that_is_not_burnt_from_a_dispute(answered: bool):
    world = accused(answered)
    world.send(after=300_000)
    world.send()
    held = sum(row.balance for row in world.state.rows(AccountRow))
    assert total_money(world.state) - held == (0 if answered else 50)
    assert world.state.time > START + 300_000


def test_a_dispute_is_bounded_as_jobs_are():
    check_genesis(genesis(replace(DISPUTED, dispute_ms=PARAMS.job_ms_max)))
    with pytest.raises(VerificationError, match="FF-LEDG-060"):
        check_genesis(genesis(replace(DISPUTED, dispute_ms=PARAMS.job_ms_max + 1)))
