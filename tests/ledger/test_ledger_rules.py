"""Each rule of the law: one test that fails when the rule is removed."""

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
    VALIDATOR,
    World,
)
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.money import MAX_CREDITS
from farflung.ledger import tx
from farflung.ledger.results import Applied, Failed, Rejected
from farflung.ledger.rows import AccountRow, EpochRow, JobState, NodeRow, NodeState, epoch_key
from farflung.ledger.rules import accounts
from farflung.ledger.state import apply_block, changed_rows, total_money

A, B, C = NODES


def verdict(world: World, signed: tx.SignedTx) -> str:
    before = world.state
    outcome = world.send(signed)[0]
    assert isinstance(outcome, Rejected)
    assert world.state.tables == before.tables, "a rejected transaction changed something"
    return outcome.code


# Entry into a block


def test_transfer_moves_money_and_opens_the_account():
    world = World()
    assert world.do(A, tx.Transfer(STRANGER.public, 70)) == "ok"
    assert (world.balance(A), world.balance(STRANGER)) == (RICH - 70, 70)


def test_transfer_to_oneself_changes_only_the_nonce():
    world = World()
    assert world.do(A, tx.Transfer(A.public, RICH)) == "ok"
    assert (world.balance(A), world.account(A).nonce) == (RICH, 1)


def test_wrong_signature_is_not_included():
    world = World()
    tx_ = tx.make_tx(world.chain, A.public, 0, tx.Transfer(B.public, 1))
    assert verdict(world, tx.sign_tx(B, tx_)) == "FF-LEDG-002"
    assert verdict(world, tx.SignedTx(tx_, tx.sign_tx(A, replace(tx_, fee=1)).signature)) == "FF-LEDG-002"


def test_transaction_for_another_chain_is_not_included():
    world = World()
    assert verdict(world, tx.sign_tx(A, tx.make_tx(ROOTS[0], A.public, 0, tx.NodeLeave()))) == "FF-LEDG-003"


def test_replayed_transaction_is_not_included():
    world = World()
    signed = world.sign(A, tx.Transfer(B.public, 5))
    assert isinstance(world.send(signed)[0], Applied)
    assert verdict(world, signed) == "FF-LEDG-004"


def test_transaction_of_a_later_nonce_is_not_included():
    world = World()
    assert (
        verdict(world, tx.sign_tx(A, tx.make_tx(world.chain, A.public, 1, tx.NodeLeave()))) == "FF-LEDG-004"
    )


def test_transaction_is_void_from_its_expiry_on():
    world = World()
    due = world.state.time + 1000
    assert verdict(world, world.sign(A, tx.Transfer(B.public, 1), expires=due)) == "FF-LEDG-005"
    later = world.state.time + 1001
    assert isinstance(world.send(world.sign(A, tx.Transfer(B.public, 1), expires=later))[0], Applied)


def test_fee_above_the_balance_is_not_included():
    world = World()
    assert verdict(world, world.sign(A, tx.Transfer(B.public, 1), fee=RICH + 1)) == "FF-LEDG-006"
    assert world.do(A, tx.Transfer(B.public, 1), fee=RICH) == "FF-LEDG-010"


def test_fee_below_the_minimum_is_not_included():
    world = World(replace(PARAMS, fee_min=3))
    assert verdict(world, world.sign(A, tx.Transfer(B.public, 1), fee=2)) == "FF-LEDG-006"
    assert world.do(A, tx.Transfer(B.public, 1), fee=3) == "ok"
    assert world.balance(VALIDATOR) == RICH + 3


@pytest.mark.parametrize("amount", [-1, MAX_CREDITS + 1, 1 << 64, 1 << 70, 1.0, True, None])
def test_amounts_outside_the_range_are_malformed(amount: int):
    world = World()
    op = tx.Transfer(B.public, amount)
    blank = tx.SignedTx(tx.make_tx(world.chain, A.public, 0, op), tx.Signature(bytes(64)))
    assert verdict(world, blank) == "FF-LEDG-001"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"nonce": -1},
        {"fee": -5},
        {"expires": -1},
        {"ops": ()},
        {"ops": (tx.NodeLeave(),) * (limits.TX_OPS + 1)},
        {"ops": (tx.Transfer(PeerId(bytes(31)), 1),)},
        {"ops": (tx.JobSettle(Hash(bytes(33))),)},
        {"ops": (tx.JobSchedule(JOB, (tx.SignedOffer(tx.Offer(JOB, JOB, A.public, 1, 1, 1, 1), b"x"),)),)},
        {"ops": (tx.Progress(JOB, 0, JOB, JOB, ((A.public, 0),) * 8000),)},
        {"ops": [tx.NodeLeave()]},
    ],
)
def test_malformed_transactions_are_not_included(change: dict[str, object]):
    world = World()
    good = tx.make_tx(world.chain, A.public, 0, tx.NodeLeave())
    changed = replace(good, **change)
    assert verdict(world, tx.sign_tx(A, changed)) == "FF-LEDG-001"


def test_failed_transaction_costs_its_fee_and_nonce_and_nothing_else():
    world = World()
    ops = (tx.Transfer(B.public, 50), tx.NodeRegister(CAPS, 1, 10, START + 9000), tx.Transfer(B.public, RICH))
    outcome = world.send(world.sign(A, *ops, fee=7))[0]
    assert isinstance(outcome, Failed)
    assert (outcome.op, outcome.code) == (2, "FF-LEDG-010")
    assert (world.balance(A), world.account(A).nonce) == (RICH - 7, 1)
    assert (world.balance(B), world.balance(VALIDATOR)) == (RICH, RICH + 7)
    assert not world.state.rows(NodeRow)


def test_a_fee_of_nothing_opens_no_account():
    world = World(owners=(A, B))
    world.do(A, tx.Transfer(B.public, 1))
    assert world.state.find(AccountRow, VALIDATOR.public) is None
    world.do(A, tx.Transfer(B.public, 1), fee=1)
    assert world.balance(VALIDATOR) == 1


def test_transfer_of_nothing_fails():
    assert World().do(A, tx.Transfer(B.public, 0)) == "FF-LEDG-011"


def test_money_made_by_a_broken_rule_stops_the_ledger(monkeypatch: pytest.MonkeyPatch):
    world = World()
    monkeypatch.setattr(accounts, "withdraw", lambda draft, owner, amount: None)
    with pytest.raises(RunError, match="FF-LEDG-099"):
        apply_block(world.state, START + 1, [world.sign(A, tx.Transfer(B.public, 5))])


def test_apply_leaves_its_input_as_it_was():
    world = World()
    before, root = world.state, world.state.root
    world.running()
    assert before.root == root
    assert before.height == 0
    assert len(before.tables["nodes"].rows) == 0


def test_changed_rows_are_those_that_a_block_touched():
    world = World()
    before = world.state
    world.do(A, tx.Transfer(STRANGER.public, 5))
    assert [(name, place) for name, place, _ in changed_rows(before, world.state)] == [
        ("accounts", 2),
        ("accounts", 5),
    ]


# Nodes


def test_registering_again_raises_the_stake_to_the_new_amount_only():
    world = World()
    world.do(A, world.register(500))
    world.do(A, world.register(500))
    assert (world.node(A).free, world.balance(A)) == (500, RICH - 500)
    world.do(A, world.register(800))
    world.do(A, world.register(10))
    assert (world.node(A).free, world.balance(A)) == (800, RICH - 800)


@pytest.mark.parametrize("expires", [START + 1000, 0, START + 1001 + PARAMS.node_ms_max])
def test_registration_must_end_in_a_near_future(expires: int):
    world = World()
    assert world.do(A, world.register(expires=expires)) == "FF-LEDG-022"


def test_registration_may_last_as_long_as_the_law_says():
    assert World().do(A, World().register(expires=START + 1000 + PARAMS.node_ms_max)) == "ok"


def test_stake_below_the_minimum_is_refused():
    world = World(replace(PARAMS, stake_min=100))
    assert world.do(A, world.register(99)) == "FF-LEDG-023"
    assert world.do(A, world.register(100)) == "ok"


def test_stake_needs_money():
    world = World()
    assert world.do(A, world.register(RICH + 1)) == "FF-LEDG-010"


def test_leaving_returns_the_stake_once():
    world = World()
    world.do(A, world.register())
    assert world.do(A, tx.NodeLeave()) == "ok"
    assert (world.balance(A), world.node(A).state) == (RICH, NodeState.LEFT)
    assert world.do(A, tx.NodeLeave()) == "FF-LEDG-020"
    assert world.do(B, tx.NodeLeave()) == "FF-LEDG-020"


def test_a_node_that_left_comes_back_under_its_old_index():
    world = World()
    world.do(A, world.register())
    world.do(A, tx.NodeLeave())
    assert world.do(A, world.register(40)) == "ok"
    assert len(world.state.tables["nodes"].rows) == 1
    assert (world.node(A).state, world.node(A).free) == (NodeState.ACTIVE, 40)


def test_leaving_is_refused_while_a_lease_is_open():
    world = World().running()
    assert world.do(A, tx.NodeLeave()) == "FF-LEDG-021"
    assert world.do(C, tx.NodeLeave()) == "ok"


def test_registration_that_runs_out_returns_the_stake():
    world = World()
    world.do(A, world.register(expires=START + 3000))
    world.send(after=1999)
    assert world.node(A).free == 500
    world.send(after=1)
    assert (world.node(A).state, world.balance(A)) == (NodeState.LEFT, RICH)


def test_registration_that_runs_out_with_a_lease_waits_for_the_job():
    world = World().running()
    world.do(A, world.register(expires=world.state.time + 1500))
    world.send(after=1000)
    assert (world.node(A).state, world.node(A).locked) == (NodeState.ACTIVE, 100)
    world.do(REQUESTER, tx.JobCancel(JOB))
    world.send()
    assert (world.node(A).state, world.balance(A)) == (NodeState.LEFT, RICH)


# Jobs


def test_job_id_is_used_once():
    world = World()
    assert world.do(REQUESTER, world.create()) == "ok"
    assert world.do(A, world.create()) == "FF-LEDG-030"
    world.do(REQUESTER, tx.JobCancel(JOB))
    assert world.do(REQUESTER, world.create()) == "FF-LEDG-030"


@pytest.mark.parametrize(
    "terms",
    [
        {"escrow": 0},
        {"rounds": 0},
        {"rounds": limits.ROUNDS + 1},
        {"deadline": START + 1000},
        {"deadline": START + 1001 + PARAMS.job_ms_max},
    ],
)
def test_job_terms_have_bounds(terms: dict[str, int]):
    world = World()
    assert world.do(REQUESTER, world.create(**terms)) == "FF-LEDG-034"


@pytest.mark.parametrize(
    "terms",
    [
        {"escrow": RICH},
        {"rounds": 1},
        {"rounds": limits.ROUNDS},
        {"deadline": START + 1001},
        {"deadline": START + 1000 + PARAMS.job_ms_max},
    ],
)
def test_job_terms_reach_their_bounds(terms: dict[str, int]):
    world = World()
    assert world.do(REQUESTER, world.create(**terms)) == "ok"


def test_escrow_needs_money():
    world = World()
    assert world.do(REQUESTER, world.create(escrow=RICH + 1)) == "FF-LEDG-010"


def job_ops(world: World) -> list[tx.Op]:
    return [
        world.schedule(world.offer(C)),
        world.progress(1, (A, 1)),
        tx.JobFinish(JOB, ROOTS[0], CAPS),
        tx.JobSettle(JOB),
        tx.JobCancel(JOB),
    ]


@pytest.mark.parametrize("number", range(5))
def test_only_the_requester_moves_its_job(number: int):
    world = World().running()
    world.do(REQUESTER, world.progress(0))
    assert world.do(A, job_ops(world)[number]) == "FF-LEDG-032"


@pytest.mark.parametrize("number", range(5))
def test_an_unknown_job_does_not_move(number: int):
    world = World()
    assert world.do(REQUESTER, job_ops(world)[number]) == "FF-LEDG-031"


SCHEDULE, PROGRESS, FINISH, SETTLE, CANCEL = range(5)
ALLOWED = {
    JobState.CREATED: {SCHEDULE, CANCEL},
    JobState.RUNNING: {SCHEDULE, PROGRESS, FINISH, CANCEL},
    JobState.OUTPUT: {SETTLE},
    JobState.SETTLED: set(),
    JobState.CANCELLED: set(),
    JobState.EXPIRED: set(),
}


def in_state(target: JobState) -> World:
    world = World().running() if target != JobState.CREATED else World()
    if target == JobState.CREATED:
        world.do(C, world.register())
        world.do(REQUESTER, world.create())
        return world
    world.do(REQUESTER, world.progress(0, (A, 1)))
    if target in (JobState.OUTPUT, JobState.SETTLED):
        world.do(REQUESTER, tx.JobFinish(JOB, ROOTS[0], CAPS))
    if target in (JobState.SETTLED, JobState.CANCELLED):
        world.do(REQUESTER, tx.JobSettle(JOB) if target == JobState.SETTLED else tx.JobCancel(JOB))
    if target == JobState.EXPIRED:
        world.send(after=START + 60_000 - world.state.time)
    return world


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("state", JobState)
def test_a_job_moves_along_its_edges_only(state: JobState, number: int):
    world = in_state(state)
    assert world.job().state == state
    op = job_ops(world)[number]
    if number == SCHEDULE:
        op = world.schedule(world.offer(C, expires=START + 99_000))
    assert world.do(REQUESTER, op) == ("ok" if number in ALLOWED[state] else "FF-LEDG-033")


def test_scheduling_locks_stake_and_reserves_escrow():
    world = World().running()
    assert (world.node(A).free, world.node(A).locked, world.node(A).leases) == (400, 100, 1)
    assert (world.job().reserved, world.job().state, world.job().escrow) == (600, JobState.RUNNING, 1000)


def test_a_replacement_is_added_while_the_job_runs():
    world = World().running()
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=80))) == "ok"
    assert world.do(REQUESTER, world.progress(0, (C, 80))) == "ok"
    assert world.lease(C).units == 80


def test_an_offer_may_use_all_that_is_left(monkeypatch: pytest.MonkeyPatch):
    world = World().running()
    monkeypatch.setattr(limits, "LEASES_PER_JOB", 3)
    assert world.do(REQUESTER, world.schedule(world.offer(C, stake=500, units=80))) == "ok"
    assert (world.node(C).free, world.job().reserved) == (0, world.job().escrow)


def refused_offer(world: World, **terms: object) -> str:
    before = world.state
    code = world.do(REQUESTER, world.schedule(world.offer(C, **terms)))
    assert world.state.tables["leases"] == before.tables["leases"]
    assert world.state.tables["nodes"] == before.tables["nodes"]
    return code


def test_offer_must_be_signed_by_its_node():
    assert refused_offer(World().running(), signer=A) == "FF-LEDG-035"


def test_offer_of_another_job_is_refused():
    assert refused_offer(World().running(), job=OTHER_JOB) == "FF-LEDG-036"


def test_offer_of_another_chain_is_refused():
    assert refused_offer(World().running(), chain=ROOTS[1]) == "FF-LEDG-036"


def test_expired_offer_is_refused():
    world = World().running()
    assert refused_offer(world, expires=world.state.time + 1000) == "FF-LEDG-037"
    assert world.do(REQUESTER, world.schedule(world.offer(C, expires=world.state.time + 1001))) == "ok"


def test_offer_above_the_price_cap_is_refused():
    assert refused_offer(World().running(), price=6) == "FF-LEDG-038"


def test_offer_above_the_free_stake_is_refused():
    assert refused_offer(World().running(), stake=501) == "FF-LEDG-039"


def test_a_node_has_one_lease_in_a_job():
    world = World().running()
    assert world.do(REQUESTER, world.schedule(world.offer(A, units=1))) == "FF-LEDG-040"
    twice = world.schedule(world.offer(C, units=1), world.offer(C, units=2))
    assert world.do(REQUESTER, twice) == "FF-LEDG-040"


def test_leases_together_stay_within_the_escrow():
    assert refused_offer(World().running(), units=81) == "FF-LEDG-041"
    assert refused_offer(World().running(), units=0) == "FF-LEDG-041"
    assert refused_offer(World().running(), units=MAX_CREDITS) == "FF-LEDG-041"


def test_schedule_needs_an_offer_and_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    world = World().running()
    assert world.do(REQUESTER, world.schedule()) == "FF-LEDG-042"
    monkeypatch.setattr(limits, "LEASES_PER_JOB", 2)
    assert world.do(REQUESTER, world.schedule(world.offer(C))) == "FF-LEDG-042"


def test_offer_of_a_node_that_is_not_active_is_refused():
    world = World()
    world.do(REQUESTER, world.create())
    assert world.do(REQUESTER, world.schedule(world.offer(A))) == "FF-LEDG-020"
    world.do(A, world.register())
    world.do(A, tx.NodeLeave())
    assert world.do(REQUESTER, world.schedule(world.offer(A, stake=0))) == "FF-LEDG-020"


def test_a_node_past_its_expiry_gets_no_new_lease():
    world = World().running()
    world.do(REQUESTER, world.create(OTHER_JOB))
    world.do(A, world.register(expires=world.state.time + 2000))
    offer = world.offer(A, OTHER_JOB)
    assert world.node(A).expires == world.state.time + 1000
    assert world.do(REQUESTER, world.schedule(offer, job=OTHER_JOB)) == "FF-LEDG-020"


# Progress


def test_progress_is_recorded_and_credited():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (B, 7), (A, 3))) == "ok"
    assert (world.lease(A).units, world.lease(B).units) == (3, 7)
    assert (world.job().round, world.job().root) == (1, ROOTS[0])
    row = world.state.find(EpochRow, epoch_key(JOB, 0))
    assert row == EpochRow(JOB, 0, ROOTS[0], CAPS)


@pytest.mark.parametrize("number", [0, 2])
def test_rounds_are_recorded_in_sequence(number: int):
    world = World().running()
    world.do(REQUESTER, world.progress(0))
    assert world.do(REQUESTER, world.progress(number)) == "FF-LEDG-043"


def test_no_round_is_recorded_after_the_last():
    world = World().running()
    assert [world.do(REQUESTER, world.progress(number)) for number in range(4)] == ["ok"] * 3 + [
        "FF-LEDG-043"
    ]


@pytest.mark.parametrize("key", [C, STRANGER])
def test_progress_of_a_node_without_lease_is_refused(key: SigningKey):
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (A, 1), (key, 1))) == "FF-LEDG-044"
    assert world.lease(A).units == 0


def test_units_stay_within_the_cap_over_all_rounds():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (A, 61))) == "FF-LEDG-045"
    assert world.do(REQUESTER, world.progress(0, (A, 40))) == "ok"
    assert world.do(REQUESTER, world.progress(1, (A, 21))) == "FF-LEDG-045"
    assert world.do(REQUESTER, world.progress(1, (A, 20))) == "ok"


def test_a_node_is_named_once_in_a_round():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (A, 1), (A, 1))) == "FF-LEDG-046"


def test_finish_names_the_root_of_the_last_round():
    world = World().running()
    assert world.do(REQUESTER, tx.JobFinish(JOB, Hash(bytes(32)), CAPS)) == "FF-LEDG-047"
    world.do(REQUESTER, world.progress(0))
    assert world.do(REQUESTER, tx.JobFinish(JOB, ROOTS[1], CAPS)) == "FF-LEDG-047"
    assert world.do(REQUESTER, tx.JobFinish(JOB, ROOTS[0], ROOTS[5])) == "ok"
    assert (world.job().state, world.job().output) == (JobState.OUTPUT, ROOTS[5])


# Ends


def assert_paid(world: World, state: JobState, *, units: tuple[int, int]) -> None:
    paid = 5 * sum(units)
    row = world.job()
    assert (row.state, row.escrow, row.paid, row.refunded) == (state, 0, paid, 1000 - paid)
    assert world.balance(REQUESTER) == RICH - paid
    for key, count in zip((A, B), units, strict=True):
        assert world.balance(key) == RICH - 500 + 5 * count
        assert (world.node(key).free, world.node(key).locked, world.node(key).leases) == (500, 0, 0)
        assert (world.lease(key).paid, world.lease(key).is_open) == (5 * count, False)


def test_settlement_pays_units_refunds_the_rest_and_unlocks():
    world = World().finished()
    assert world.do(REQUESTER, tx.JobSettle(JOB)) == "ok"
    assert_paid(world, JobState.SETTLED, units=(10, 20))


def test_a_job_is_settled_once():
    world = World().finished()
    world.do(REQUESTER, tx.JobSettle(JOB))
    tables = world.state.tables
    assert world.do(REQUESTER, tx.JobSettle(JOB)) == "FF-LEDG-033"
    assert world.do(REQUESTER, tx.JobSettle(JOB), tx.JobSettle(JOB)) == "FF-LEDG-033"
    assert all(world.state.tables[name] == tables[name] for name in ("nodes", "jobs", "leases"))


def test_cancelling_pays_what_was_recorded():
    world = World().running()
    world.do(REQUESTER, world.progress(0, (A, 4)))
    assert world.do(REQUESTER, tx.JobCancel(JOB)) == "ok"
    assert_paid(world, JobState.CANCELLED, units=(4, 0))


def test_the_deadline_pays_what_was_recorded():
    world = World().running()
    world.do(REQUESTER, world.progress(0, (B, 9)))
    world.send(after=START + 60_000 - world.state.time - 1)
    assert world.job().state == JobState.RUNNING
    world.send(after=1)
    assert_paid(world, JobState.EXPIRED, units=(0, 9))


def test_the_deadline_pays_an_output_that_nobody_settles():
    world = World().finished()
    world.send(after=START + 60_000 - world.state.time)
    assert_paid(world, JobState.EXPIRED, units=(10, 20))


def test_time_outs_come_before_the_transactions_of_the_block():
    world = World().finished()
    signed = world.sign(REQUESTER, tx.JobSettle(JOB))
    outcome = world.send(signed, after=START + 60_000 - world.state.time)[0]
    assert isinstance(outcome, Failed)
    assert outcome.code == "FF-LEDG-033"


def test_the_clock_alone_returns_everything():
    world = World().running()
    world.send(after=300_000)
    world.send()
    assert sum(row.balance for row in world.state.rows(AccountRow)) == total_money(world.state)
    assert all(world.balance(key) == RICH for key in (REQUESTER, *NODES))
