"""Node keys on the ledger: epochs and revocations only grow, and each rule has a test that fails without it."""

from __future__ import annotations

import pytest
from ledger_world import NODES, REQUESTER, RICH, STRANGER, World
from msgspec.structs import replace

from farflung.core.ids import PeerId, Signature
from farflung.ledger import transactions
from farflung.ledger.table_rows import KeyRow, NodeRow

A, B, C = NODES
FIRST = transactions.KeyCertify(B.public, 1, 2_000_000_000, 1_900_000_000)
SECOND = transactions.KeyCertify(C.public, 2, 2_100_000_000, 2_000_000_000)


def row(world: World) -> KeyRow | None:
    return world.state.find(KeyRow, A.public)


def test_the_first_node_key_follows_the_accounts_own():
    world = World()
    assert world.do(A, FIRST) == "ok"
    assert row(world) == KeyRow(A.public, B.public, A.public, 1, 2_000_000_000, 0, 1_900_000_000, 0)


def test_the_next_key_keeps_the_one_before_for_the_overlap_and_forgets_what_was_before_that():
    world = World()
    for op in (FIRST, SECOND):
        assert world.do(A, op) == "ok"
    assert row(world) == KeyRow(A.public, C.public, B.public, 2, 2_100_000_000, 1, 2_000_000_000, 0)


@pytest.mark.parametrize("key", [bytes([1, *bytes(31)]), bytes([1, *bytes(30), 128]), b"\xed" + b"\xff" * 30 + b"\x7f"])
def test_no_node_key_is_one_that_anybody_signs_for(key: bytes):
    world = World()
    assert world.do(A, replace(FIRST, node=PeerId(key))) == "FF-LEDG-203"
    assert row(world) is None


def test_an_account_that_anybody_signs_for_may_pay_but_never_lend():
    world, anybody = World(), PeerId(bytes([1, *bytes(31)]))
    signature = Signature(anybody + bytes(32))  # fits whatever is said
    paid, lends = (
        transactions.SignedTx(transactions.make_tx(world.chain, anybody, nonce, op), signature)
        for nonce, op in enumerate((transactions.Transfer(STRANGER.public, 1), world.register()))
    )
    assert world.do(A, transactions.Transfer(anybody, 1000)) == "ok"
    assert [getattr(said, "code", "ok") for said in world.send(paid, lends)] == ["ok", "FF-LEDG-203"]
    assert world.balance(STRANGER) == 1
    assert not world.state.rows(NodeRow)


def test_epochs_may_leave_numbers_out():
    world = World()
    for op in (FIRST, replace(SECOND, epoch=(1 << 32) - 1)):
        assert world.do(A, op) == "ok"


@pytest.mark.parametrize("epoch", [0, 1, 1 << 32])
def test_an_epoch_never_comes_back_or_leaves_its_range(epoch: int):
    world = World()
    assert world.do(A, FIRST) == "ok"
    assert world.do(A, replace(SECOND, epoch=epoch)) == "FF-LEDG-086"


def test_a_revoked_epoch_cannot_be_certified():
    world = World()
    assert world.do(A, FIRST, transactions.KeyRevoke(5)) == "ok"
    assert world.do(A, replace(SECOND, epoch=5)) == "FF-LEDG-086"
    assert world.do(A, replace(SECOND, epoch=6)) == "ok"
    after = row(world)
    assert after is not None
    assert (after.void, after.previous_epoch) == (6, 1)


@pytest.mark.parametrize("node", [A.public, B.public, PeerId(bytes(32))])
def test_a_new_epoch_needs_a_new_key(node: PeerId):
    world = World()
    assert world.do(A, FIRST) == "ok"
    assert world.do(A, replace(SECOND, node=node)) == "FF-LEDG-087"


@pytest.mark.parametrize("times", [{"expires": 0}, {"expires": 253_402_300_800}, {"until": 253_402_300_800}])
def test_a_key_ends_at_a_time_that_there_is(times: dict[str, int]):
    assert World().do(A, replace(FIRST, **times)) == "FF-LEDG-088"


def test_the_accounts_own_key_can_be_revoked_before_any_other_is_certified():
    world = World()
    assert world.do(A, transactions.KeyRevoke(0)) == "ok"
    assert row(world) == KeyRow(A.public, A.public, A.public, void=1)
    assert world.do(A, FIRST) == "ok"


@pytest.mark.parametrize("epoch", [0, 1, (1 << 32) - 1])
def test_what_is_revoked_is_revoked_once_and_leaves_room_for_another_epoch(epoch: int):
    world = World()
    assert world.do(A, FIRST, transactions.KeyRevoke(1)) == "ok"
    assert world.do(A, transactions.KeyRevoke(epoch)) == "FF-LEDG-089"


def test_a_key_is_certified_and_revoked_by_its_own_account_alone():
    world = World()
    assert world.do(A, FIRST) == "ok"
    before = row(world)
    assert world.do(REQUESTER, transactions.KeyRevoke(9)) == "ok"
    assert world.do(B, transactions.KeyCertify(STRANGER.public, 7, 9, 9)) == "ok"
    assert row(world) == before


def test_keys_move_no_money_but_the_fee():
    world = World()
    assert world.do(A, FIRST, fee=3) == "ok"
    assert world.do(A, transactions.KeyRevoke(0), fee=3) == "ok"
    assert world.balance(A) == RICH - 6
