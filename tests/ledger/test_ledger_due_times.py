"""A committee without work is quiet: few blocks a day, and whatever the clock decides is still decided on time."""

from __future__ import annotations

from unittest import mock

import pytest
from ledger_network import PAYERS, SEATS, Committee
from ledger_world import RICH, START

from farflung.core.codec import encode
from farflung.core.ids import ZERO_HASH
from farflung.ledger import transactions
from farflung.ledger.due_times import HEARTBEAT_MS, next_due
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.params import DAY_MS, HOUR_MS
from farflung.ledger.rules.relays import GRACE_MS
from farflung.ledger.table_rows import ChannelRow, NodeRow, NodeState, channel_key
from farflung.ledger.tx_results import RejectedResult
from farflung.ledger.validators import ValidatorLeave

IDLE_MS, MINUTE = 5_000, 60_000
LATE_MS = IDLE_MS + 1_000  # a block comes so long after its time at most: a view's pause, and the exchange


def idle(**params: int) -> Committee:
    """Four validators whose ledger began now, under the numbers of a new network."""
    return Committee(4, wall=START, **{"delta_ms": 1_000, "idle_ms": IDLE_MS, **params})


def state_of(committee: Committee, index: int = 0) -> LedgerState:
    node = committee.nodes[index]
    assert node is not None
    return node.chain.state


def pay_in(committee: Committee, op: transactions.Op, key=PAYERS[0]) -> None:
    made = transactions.make_tx(committee.chain, key.public, 0, op)
    committee.submit(0, transactions.sign_tx(key, made))
    committee.run(LATE_MS)


def test_four_idle_validators_write_less_than_a_megabyte_in_a_day():
    committee = idle()
    with mock.patch.object(committee, "check"):  # once is enough
        committee.run(DAY_MS)
    committee.check()
    for disk in committee.disks:
        assert 24 <= len(disk.blocks) <= 50
        assert disk.size + sum(len(encode(block)) for block in disk.blocks) < 200_000
    assert min(committee.heights()) == max(committee.heights())
    assert committee.wall + committee.now - state_of(committee).time <= HEARTBEAT_MS + LATE_MS


def test_a_transaction_in_an_idle_hour_is_final_at_once():
    committee = idle()
    committee.run(HOUR_MS + 11 * MINUTE)
    committee.submit(1, committee.pay(0), ticket=1)
    handed = committee.now
    committee.run(LATE_MS, until=lambda: bool(committee.replies))
    assert committee.replies[1][0] - handed < 1_000
    assert abs(state_of(committee, 1).time - committee.wall - handed) < 1_000


def test_a_registration_that_ends_in_an_idle_hour_ends_on_time():
    committee = idle()
    expires = START + 47 * MINUTE
    pay_in(committee, transactions.NodeRegister(ZERO_HASH, 1, 500, expires))
    before = committee.heights()[0]
    committee.run(47 * MINUTE - 2 * LATE_MS)
    row = state_of(committee).find(NodeRow, PAYERS[0].public)
    assert row is not None
    assert row.state is NodeState.ACTIVE
    assert committee.heights()[0] <= before + 2
    committee.run(3 * LATE_MS)
    row = state_of(committee).find(NodeRow, PAYERS[0].public)
    assert row is not None
    assert row.state is not NodeState.ACTIVE
    assert expires <= state_of(committee).time <= expires + LATE_MS
    assert committee.balance(0, PAYERS[0]) == RICH


def test_a_relay_sees_the_end_of_its_channel_before_the_rest_goes_back():
    committee = idle()
    expires = START + 7 * MINUTE
    pay_in(committee, transactions.ChannelOpen(SEATS[5].public, 1_000, 1 << 30, expires))
    name = channel_key(PAYERS[0].public, SEATS[5].public)
    times = []
    for _ in range(2):
        due = next_due(state_of(committee))
        committee.run(due + LATE_MS - START - committee.now)
        row = state_of(committee).find(ChannelRow, name)
        assert row is not None
        times.append((due, row.is_open))
    assert times == [(expires, True), (expires + GRACE_MS, False)]


def test_a_seat_that_leaves_is_gone_at_the_next_boundary_of_an_idle_ledger():
    committee = idle(epoch_blocks=8)
    pay_in(committee, ValidatorLeave(SEATS[3].public), SEATS[3])
    committee.run(8 * 2 * LATE_MS)
    assert len(state_of(committee).committee.members) == 3
    height = committee.heights()[0]
    committee.run(HOUR_MS)
    assert committee.heights()[0] <= height + 3


def test_a_waiting_transaction_that_ends_is_answered_in_an_idle_hour():
    committee = idle()
    committee.run(MINUTE)
    expires = committee.wall + committee.now + MINUTE
    committee.submit(0, committee.pay(3, expires=expires), ticket=5)  # nonces 0 to 2 never come
    committee.run(MINUTE - 1)
    assert committee.replies == {}
    committee.run(LATE_MS)
    assert isinstance(committee.replies[5][1], RejectedResult)


@pytest.mark.parametrize("gone", range(4))
def test_a_dead_leader_delays_a_due_block_by_one_time_out(gone: int):
    committee = idle()
    expires = START + 20 * MINUTE
    pay_in(committee, transactions.NodeRegister(ZERO_HASH, 1, 500, expires))
    committee.kill(gone)
    committee.run(expires + 2 * IDLE_MS + 3_000 + 1_000 - START - committee.now)
    row = state_of(committee, (gone + 1) % 4).find(NodeRow, PAYERS[0].public)
    assert row is not None
    assert row.state is not NodeState.ACTIVE


def test_after_a_day_without_power_the_clock_is_caught_up_with_in_steps():
    committee = idle()
    committee.run(MINUTE)
    for index in range(4):
        committee.kill(index)
    committee.run(DAY_MS)
    for index in range(4):
        committee.begin(index)
    committee.run(5 * MINUTE)
    assert committee.wall + committee.now - state_of(committee).time < HEARTBEAT_MS
    assert len(committee.disks[0].blocks) < 40
