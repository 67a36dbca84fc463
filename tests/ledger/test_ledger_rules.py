"""Entry into a block, and nodes: each rule has a test that fails when the rule is removed."""

from __future__ import annotations

import pytest
from ledger_world import CAPS, JOB, NODES, PARAMS, REQUESTER, RICH, ROOTS, START, STRANGER, VALIDATOR, World
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.errors import RunError
from farflung.core.ids import Hash, PeerId
from farflung.core.money import MAX_CREDITS
from farflung.ledger import transactions
from farflung.ledger.rules import accounts
from farflung.ledger.state_transition import apply_block, changed_rows
from farflung.ledger.table_rows import AccountRow, NodeRow, NodeState
from farflung.ledger.tx_results import AppliedResult, FailedResult, RejectedResult

A, B, C = NODES


def verdict(world: World, signed: transactions.SignedTx) -> str:
    before = world.state
    outcome = world.send(signed)[0]
    assert isinstance(outcome, RejectedResult)
    assert world.state.tables == before.tables, "a rejected transaction changed something"
    return outcome.code


# Entry into a block


def test_transfer_moves_money_and_opens_the_account():
    world = World()
    assert world.do(A, transactions.Transfer(STRANGER.public, 70)) == "ok"
    assert (world.balance(A), world.balance(STRANGER)) == (RICH - 70, 70)


def test_transfer_to_oneself_changes_only_the_nonce():
    world = World()
    assert world.do(A, transactions.Transfer(A.public, RICH)) == "ok"
    assert (world.balance(A), world.account(A).nonce) == (RICH, 1)


def test_wrong_signature_is_not_included():
    world = World()
    tx_ = transactions.make_tx(world.chain, A.public, 0, transactions.Transfer(B.public, 1))
    assert verdict(world, transactions.sign_tx(B, tx_)) == "FF-LEDG-002"
    assert (
        verdict(world, transactions.SignedTx(tx_, transactions.sign_tx(A, replace(tx_, fee=1)).signature))
        == "FF-LEDG-002"
    )


def test_transaction_for_another_chain_is_not_included():
    world = World()
    assert (
        verdict(world, transactions.sign_tx(A, transactions.make_tx(ROOTS[0], A.public, 0, transactions.NodeLeave())))
        == "FF-LEDG-003"
    )


def test_replayed_transaction_is_not_included():
    world = World()
    signed = world.sign(A, transactions.Transfer(B.public, 5))
    assert isinstance(world.send(signed)[0], AppliedResult)
    assert verdict(world, signed) == "FF-LEDG-004"


def test_transaction_of_a_later_nonce_is_not_included():
    world = World()
    assert (
        verdict(
            world, transactions.sign_tx(A, transactions.make_tx(world.chain, A.public, 1, transactions.NodeLeave()))
        )
        == "FF-LEDG-004"
    )


def test_transaction_is_void_from_its_expiry_on():
    world = World()
    due = world.state.time + 1000
    assert verdict(world, world.sign(A, transactions.Transfer(B.public, 1), expires=due)) == "FF-LEDG-005"
    later = world.state.time + 1001
    assert isinstance(world.send(world.sign(A, transactions.Transfer(B.public, 1), expires=later))[0], AppliedResult)


def test_fee_above_the_balance_is_not_included():
    world = World()
    assert verdict(world, world.sign(A, transactions.Transfer(B.public, 1), fee=RICH + 1)) == "FF-LEDG-006"
    assert world.do(A, transactions.Transfer(B.public, 1), fee=RICH) == "FF-LEDG-010"


def test_fee_below_the_minimum_is_not_included():
    world = World(replace(PARAMS, fee_min=3))
    assert verdict(world, world.sign(A, transactions.Transfer(B.public, 1), fee=2)) == "FF-LEDG-006"
    assert world.do(A, transactions.Transfer(B.public, 1), fee=3) == "ok"
    assert world.balance(VALIDATOR) == RICH + 3


@pytest.mark.parametrize("amount", [-1, MAX_CREDITS + 1, 1 << 64, 1 << 70, 1.0, True, None])
def test_amounts_outside_the_range_are_malformed(amount: int):
    world = World()
    op = transactions.Transfer(B.public, amount)
    blank = transactions.SignedTx(transactions.make_tx(world.chain, A.public, 0, op), transactions.Signature(bytes(64)))
    assert verdict(world, blank) == "FF-LEDG-001"


def test_malformed_transactions_are_not_included(subtests):
    for change in [
        {"version": 2},
        {"nonce": -1},
        {"fee": -5},
        {"expires": -1},
        {"ops": ()},
        {"ops": (transactions.NodeLeave(),) * (limits.TX_OPS + 1)},
        {"ops": (transactions.Transfer(PeerId(bytes(31)), 1),)},
        {"ops": (transactions.JobSettle(Hash(bytes(33))),)},
        {
            "ops": (
                transactions.JobSchedule(
                    JOB,
                    (transactions.SignedLeaseOffer(transactions.LeaseOffer(JOB, JOB, A.public, 1, 1, 1, 1), b"x"),),
                    (),
                ),
            )
        },
        {"ops": (transactions.Progress(JOB, 0, JOB, JOB, ((A.public, 0),) * 8000),)},
        {"ops": [transactions.NodeLeave()]},
    ]:
        with subtests.test(change=change):
            world = World()
            good = transactions.make_tx(world.chain, A.public, 0, transactions.NodeLeave())
            changed = replace(good, **change)
            assert verdict(world, transactions.sign_tx(A, changed)) == "FF-LEDG-001"


def test_failed_transaction_costs_its_fee_and_nonce_and_nothing_else():
    world = World()
    ops = (
        transactions.Transfer(B.public, 50),
        transactions.NodeRegister(CAPS, 1, 10, START + 9000),
        transactions.Transfer(B.public, RICH),
    )
    outcome = world.send(world.sign(A, *ops, fee=7))[0]
    assert isinstance(outcome, FailedResult)
    assert (outcome.op, outcome.code) == (2, "FF-LEDG-010")
    assert (world.balance(A), world.account(A).nonce) == (RICH - 7, 1)
    assert (world.balance(B), world.balance(VALIDATOR)) == (RICH, RICH + 7)
    assert not world.state.rows(NodeRow)


def test_a_fee_of_nothing_opens_no_account():
    world = World(owners=(A, B))
    world.do(A, transactions.Transfer(B.public, 1))
    assert world.state.find(AccountRow, VALIDATOR.public) is None
    world.do(A, transactions.Transfer(B.public, 1), fee=1)
    assert world.balance(VALIDATOR) == 1


def test_transfer_of_nothing_fails():
    assert World().do(A, transactions.Transfer(B.public, 0)) == "FF-LEDG-011"


def test_money_made_by_a_broken_rule_stops_the_ledger(monkeypatch: pytest.MonkeyPatch):
    world = World()
    monkeypatch.setattr(accounts, "withdraw", lambda draft, owner, amount: None)
    with pytest.raises(RunError, match="FF-LEDG-099"):
        apply_block(world.state, START + 1, [world.sign(A, transactions.Transfer(B.public, 5))], VALIDATOR.public)


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
    world.do(A, transactions.Transfer(STRANGER.public, 5))
    assert [(name, place) for name, place, _ in changed_rows(before, world.state)] == [("accounts", 2), ("accounts", 7)]


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
    assert world.do(A, transactions.NodeLeave()) == "ok"
    assert (world.balance(A), world.node(A).state) == (RICH, NodeState.LEFT)
    assert world.do(A, transactions.NodeLeave()) == "FF-LEDG-020"
    assert world.do(B, transactions.NodeLeave()) == "FF-LEDG-020"


def test_a_node_that_left_comes_back_under_its_old_index():
    world = World()
    world.do(A, world.register())
    world.do(A, transactions.NodeLeave())
    assert world.do(A, world.register(40)) == "ok"
    assert len(world.state.tables["nodes"].rows) == 1
    assert (world.node(A).state, world.node(A).free) == (NodeState.ACTIVE, 40)


def test_leaving_is_refused_while_a_lease_is_open():
    world = World().running()
    assert world.do(A, transactions.NodeLeave()) == "FF-LEDG-021"
    assert world.do(C, transactions.NodeLeave()) == "ok"


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
    world.do(REQUESTER, transactions.JobCancel(JOB))
    world.send()
    assert (world.node(A).state, world.balance(A)) == (NodeState.LEFT, RICH)
