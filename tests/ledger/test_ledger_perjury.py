"""A verifier that says that planted work holds: what it costs, whom it pays, and when it is too late."""

from __future__ import annotations

from collections import Counter

import pytest
from ledger_canary import perjury, plant
from ledger_world import (
    BOND,
    CAPS,
    DISPUTE,
    JOB,
    NODES,
    OTHER_JOB,
    PARAMS,
    REQUESTER,
    RICH,
    ROOTS,
    SLOW_PARAMS,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
)
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.ledger import canaries, transactions
from farflung.ledger.account_statement import StatementEntryKind, explained
from farflung.ledger.disputes import DisputeAnswer, DisputeState, JuryVote
from farflung.ledger.exclusions import Appeal, AppealVote, ExclusionFault, ExclusionRow
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import JobState

A, B, C = NODES
V, W = VERIFIERS
LENT = RICH - 500  # what a node has besides its stake
DISPUTED = replace(PARAMS, dispute_ms=DISPUTE, bond_min=BOND)
DENIAL = DisputeAnswer(JOB, BOND, ROOTS[1])


class Long(World):
    """Whose job has more rounds than anybody has to look back."""

    def create(self, *_: object, **__: object) -> transactions.JobCreate:
        return transactions.JobCreate(JOB, 1000, 5, 2 * limits.ACCUSABLE_ROUNDS, 60_000)


def audited(params: LedgerParams = PARAMS, stake: int = 50, jury: tuple[SigningKey, ...] = (VALIDATOR,)) -> World:
    """A (100 at stake) has earned 10 units at 5, the verifier V 4 of 20 at 5; V's stake is `stake`."""
    world = World(params, validators=jury).watched(stake=stake)
    assert world.do(REQUESTER, world.progress(0, (A, 10), (V, 4))) == "ok"
    return world


def settled(world: World) -> World:
    for op in (transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)):
        assert world.do(REQUESTER, op) == "ok"
    return world


# What it costs


@pytest.mark.parametrize(("stake", "bounty"), [(50, 25), (51, 25), (1, 0)])
def test_a_perjury_costs_the_whole_stake_and_half_of_it_is_whose_plant_it_was(stake: int, bounty: int) -> None:
    world = audited(stake=stake)
    assert world.do(REQUESTER, perjury(world, V, A)) == "ok"
    node, lease, job = world.node(V), world.lease(V), world.job()
    assert (node.free, node.locked, node.leases, node.burnt) == (500 - stake, 0, 0, stake - bounty)
    assert (lease.is_open, lease.slashed) == (False, stake)
    assert lease.evidence == canaries.planted_root(plant(A))
    assert [world.balance(key) for key in (A, V, W)] == [LENT + bounty, LENT, LENT]
    assert (job.reserved, job.slashed, job.escrow) == (700, stake, 1000)
    assert world.node(A).burnt == 0


def test_a_verifier_with_nothing_at_stake_is_not_excluded_for_it() -> None:
    world = audited(stake=0)
    assert world.do(REQUESTER, perjury(world, V, A)) == "FF-LEDG-420"
    assert world.lease(V).is_open


def test_its_pay_is_forfeited_and_falls_back_to_the_requester() -> None:
    """A is paid its 10 units at 5; the 4 units of the verifier are not."""
    world = audited()
    world.do(REQUESTER, perjury(world, V, A))
    assert world.do(REQUESTER, world.progress(1, (V, 1))) == "FF-LEDG-057"
    settled(world)
    assert (world.lease(V).paid, world.balance(V)) == (0, LENT)
    assert (world.job().paid, world.balance(REQUESTER)) == (50, RICH - 50)


def test_what_the_lease_might_have_cost_can_be_spent_on_another_verifier() -> None:
    world = audited()
    hired = world.schedule(world.offer(C, units=60, role=transactions.LeaseRole.AUDIT))
    assert world.do(REQUESTER, hired) == "FF-LEDG-041"
    assert world.do(REQUESTER, perjury(world, V, A), hired) == "ok"


def test_its_word_counts_no_more_and_it_is_no_part_of_the_quorum() -> None:
    world = audited()
    world.do(REQUESTER, perjury(world, V, A))
    assert world.do(REQUESTER, world.accuse(B)) == "FF-LEDG-050"
    assert world.do(W, world.accuse(B, W)) == "ok"


def test_it_is_excluded_as_for_a_lie_and_a_jury_may_look_again() -> None:
    world = audited(replace(PARAMS, exclusion_ms=50_000, appeal_ms=9000, bond_min=BOND))
    world.do(REQUESTER, perjury(world, V, A), world.create(OTHER_JOB))
    row = world.state.find(ExclusionRow, V.public)
    assert row is not None
    assert (row.job, row.fault, row.evidence, row.is_final) == (
        JOB,
        ExclusionFault.FALSE,
        world.lease(V).evidence,
        False,
    )
    hired = world.schedule(world.offer(V, OTHER_JOB, role=transactions.LeaseRole.AUDIT), job=OTHER_JOB)
    assert world.do(REQUESTER, hired) == "FF-LEDG-365"
    assert world.do(V, Appeal(BOND, ROOTS[1])) == "ok"
    assert world.do(VALIDATOR, AppealVote(V.public, False)) == "ok"
    assert world.do(REQUESTER, hired) == "ok"


@pytest.mark.parametrize("params", [PARAMS, DISPUTED])
def test_statements_explain_where_the_stake_went(params: LedgerParams) -> None:
    world = audited(params)
    signed = world.sign(REQUESTER, perjury(world, V, A))
    state, entries = explained(world.state, world.state.time + 1000, [signed], VALIDATOR.public)
    if params.dispute_ms:
        _, entries = explained(state, state.time + DISPUTE, [], VALIDATOR.public)
    told = {(e.account, e.what): (e.amount, e.held, e.about) for e in entries}
    assert told[V.public, StatementEntryKind.SLASHED] == (0, -50, JOB)
    assert told[A.public, StatementEntryKind.BOUNTY] == (25, 0, JOB)
    assert not {StatementEntryKind.UNEXPLAINED, StatementEntryKind.BONDED, StatementEntryKind.FREED} & {
        e.what for e in entries
    }


def test_a_node_that_is_accused_and_an_accuser_when_the_clock_ends_both_is_told_of_once() -> None:
    world = audited(DISPUTED)
    said = world.sign(REQUESTER, perjury(world, V, A), world.accuse(A))
    assert type(world.send(said)[0]).__name__ == "FailedResult"  # V accuses no more
    assert world.do(REQUESTER, perjury(world, V, A), world.accuse(A, W)) == "ok"
    _, entries = explained(world.state, world.state.time + DISPUTE, [], VALIDATOR.public)
    told = Counter((e.account, e.what, e.amount, e.held) for e in entries)
    assert (
        told[A.public, StatementEntryKind.SLASHED, 0, -100] == told[V.public, StatementEntryKind.SLASHED, 0, -50] == 1
    )
    assert told[A.public, StatementEntryKind.BOUNTY, 25, 0] == told[W.public, StatementEntryKind.BOUNTY, 50, 0] == 1
    assert not {StatementEntryKind.UNEXPLAINED, StatementEntryKind.BONDED} & {e.what for e in entries}


# Who, whom, when


@pytest.mark.parametrize("sender", [REQUESTER, A])
def test_the_requester_or_the_node_that_planted_brings_it(sender: SigningKey) -> None:
    world = audited()
    assert world.do(sender, perjury(world, V, A)) == "ok"


@pytest.mark.parametrize("sender", [B, V, W, STRANGER, VALIDATOR])
def test_nobody_else_does(sender: SigningKey) -> None:
    world = audited()
    world.do(REQUESTER, transactions.Transfer(STRANGER.public, 9))
    assert world.do(sender, perjury(world, V, A)) == "FF-LEDG-385"


def test_each_verifier_is_punished_once_for_whatever_it_said() -> None:
    world = audited()
    again = perjury(world, V, A, plant(A, round=1), round=1), perjury(world, V, B, plant(B))
    assert world.do(REQUESTER, perjury(world, V, A)) == "ok"
    for op in (perjury(world, V, A), *again):
        assert world.do(REQUESTER, op) == "FF-LEDG-387"
    assert (world.job().slashed, world.node(V).burnt) == (50, 25)
    assert world.do(REQUESTER, perjury(world, W, A)) == "ok"


@pytest.mark.parametrize("who", [B, C, A])
def test_only_who_audits_in_this_job_can_perjure_itself_there(who: SigningKey) -> None:
    world = audited()
    assert world.do(REQUESTER, perjury(world, who, A)) == "FF-LEDG-387"


def test_a_node_whose_lease_has_ended_accuses_nobody_nor_does_one_that_never_trained() -> None:
    world = audited()
    assert world.do(REQUESTER, world.accuse(A)) == "ok"
    for node in (A, W, C):
        assert world.do(REQUESTER, perjury(world, V, node, plant(node))) == "FF-LEDG-386"
    assert world.lease(V).is_open


@pytest.mark.parametrize("finding", [f for f in transactions.VerdictFinding if f != transactions.VerdictFinding.HOLDS])
def test_whoever_says_less_than_that_it_holds_loses_nothing(finding: transactions.VerdictFinding) -> None:
    world = audited()
    assert world.do(REQUESTER, perjury(world, V, A, finding=finding, excess=9000)) == "FF-LEDG-390"
    assert world.lease(V).is_open


def test_it_can_be_brought_until_the_window_closes_and_not_after() -> None:
    slow = audited(replace(SLOW_PARAMS, dispute_ms=0))
    said = perjury(slow, V, A)
    slow.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS))
    early = World(replace(SLOW_PARAMS, dispute_ms=0))
    early.state = slow.state
    assert early.do(REQUESTER, said) == "ok"
    slow.send(after=slow.job().until - slow.state.time)
    assert slow.do(REQUESTER, said) == "FF-LEDG-033"


def test_a_job_that_is_settled_punishes_nobody_any_more() -> None:
    world = settled(audited())
    assert world.do(REQUESTER, perjury(world, V, A)) == "FF-LEDG-033"
    assert (world.job().state, world.node(V).free, world.balance(V)) == (JobState.SETTLED, 500, LENT + 20)
    assert world.do(REQUESTER, replace(perjury(world, V, A), job=OTHER_JOB)) == "FF-LEDG-031"


def test_nobody_keeps_for_ever_what_a_verdict_was_made_of() -> None:
    world = Long().watched()
    for number in range(limits.ACCUSABLE_ROUNDS):
        assert world.do(REQUESTER, transactions.Progress(JOB, number, ROOTS[0], CAPS, ())) == "ok"
    last = World()
    last.state = world.state
    assert last.do(REQUESTER, perjury(world, V, A)) == "ok"
    assert world.do(REQUESTER, transactions.Progress(JOB, limits.ACCUSABLE_ROUNDS, ROOTS[0], CAPS, ())) == "ok"
    assert world.do(REQUESTER, perjury(world, V, A)) == "FF-LEDG-356"


# Where whoever is accused may answer


def test_a_dispute_holds_the_verifiers_stake_and_binds_that_of_the_node() -> None:
    world = audited(DISPUTED)
    assert world.do(REQUESTER, perjury(world, V, A)) == "ok"
    row, job = world.dispute(V), world.job()
    assert (row.accusers, row.taken, row.pay, row.state) == ((A.public,), 50, 100, DisputeState.OPEN)
    assert row.evidence == canaries.planted_root(plant(A))
    assert (job.escrow, job.reserved, job.slashed) == (900, 700, 0)
    assert (world.lease(V).is_open, world.lease(V).slashed, world.lease(A).disputes) == (False, 0, 1)
    assert world.do(REQUESTER, perjury(world, V, A)) == "FF-LEDG-387"
    settled(world)
    assert (world.node(A).locked, world.node(B).locked) == (100, 0)
    world.send(after=DISPUTE)
    assert (world.dispute(V).state, world.lease(V).slashed) == (DisputeState.UPHELD, 50)
    assert (world.node(A).locked, world.node(A).free, world.node(V).burnt) == (0, 500, 25)
    assert world.balance(A) == LENT + 50 + 25


def test_a_jury_that_finds_for_the_verifier_gives_it_half_of_the_nodes_stake() -> None:
    world = audited(replace(DISPUTED, exclusion_ms=50_000))
    world.do(A, perjury(world, V, A))
    assert world.do(V, DENIAL) == "ok"
    assert world.do(VALIDATOR, JuryVote(JOB, V.public, False)) == "ok"
    assert (world.dispute(V).state, world.balance(V)) == (DisputeState.OVERTURNED, LENT + 50 + 20 + 50)
    lease = world.lease(A)
    assert (lease.is_open, lease.slashed, lease.evidence) == (False, 100, ROOTS[1])
    assert (world.node(A).free, world.node(A).locked, world.node(A).burnt) == (400, 0, 50)
    out = world.state.find(ExclusionRow, A.public)
    assert out is not None
    assert (out.fault, out.is_final) == (ExclusionFault.FALSE, True)
    assert world.state.find(ExclusionRow, V.public) is None


def test_a_jury_that_finds_against_it_takes_its_bond_as_well() -> None:
    world = audited(DISPUTED)
    world.do(A, perjury(world, V, A))
    world.do(V, DENIAL)
    assert world.do(VALIDATOR, JuryVote(JOB, V.public, True)) == "ok"
    assert (world.balance(A), world.balance(V)) == (LENT + (50 + BOND) // 2, LENT - BOND)
    assert world.lease(A).is_open
    assert (world.node(V).burnt, world.job().slashed) == (50 + BOND - (50 + BOND) // 2, 50)


def test_the_node_that_planted_judges_nothing_of_it() -> None:
    world = audited(DISPUTED, jury=(VALIDATOR, A, V, W))
    world.do(A, perjury(world, V, A))
    world.do(V, DENIAL)
    assert world.do(A, JuryVote(JOB, V.public, True)) == "FF-LEDG-234"


def test_a_verifier_that_accuses_owes_its_stake_to_that_dispute_first() -> None:
    """Else a friend's canary would leave nothing for whom it accused wrongly."""
    world = audited(DISPUTED)
    assert world.do(REQUESTER, world.accuse(B)) == "ok"
    assert world.do(REQUESTER, perjury(world, V, A)) == "FF-LEDG-388"
    world.do(B, DENIAL)
    assert world.do(VALIDATOR, JuryVote(JOB, B.public, True)) == "ok"
    assert world.do(REQUESTER, perjury(world, V, A)) == "ok"


@pytest.mark.parametrize("first", ["verifier", "node"])
@pytest.mark.parametrize("innocent", [False, True])
def test_the_stake_of_a_node_that_is_accused_itself_is_taken_once(first: str, innocent: bool) -> None:
    """What W says of A takes A's stake into that dispute; V's dispute, whichever ends first, finds none to take."""
    world = audited(DISPUTED)
    assert world.do(REQUESTER, perjury(world, V, A)) == "ok"
    assert world.do(W, world.accuse(A, W)) == "ok"
    assert (world.node(A).locked, world.node(A).leases, world.node(A).free) == (0, 0, 400)
    for key in (V, A):
        assert world.do(key, DENIAL) == "ok"
    votes = {"verifier": JuryVote(JOB, V.public, False), "node": JuryVote(JOB, A.public, not innocent)}
    for who in (first, *({"verifier", "node"} - {first})):
        assert world.do(VALIDATOR, votes[who]) == "ok"
    node, lease = world.node(A), world.lease(A)
    assert (node.locked, node.leases, node.free, lease.disputes) == (0, 0, 400, 0)
    assert (lease.slashed, node.burnt) == ((0, 0) if innocent else (100, 100 + BOND - (100 + BOND) // 2))
    kept = 100 + 50 + 25 if innocent else -BOND  # stake and pay, and half of what W had at stake
    assert (world.balance(A), world.balance(V)) == (LENT + kept, LENT + 50 + 20)
