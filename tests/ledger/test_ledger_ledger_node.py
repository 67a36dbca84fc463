"""Validators that agree: whatever is answered is final, nobody forks, and who was away catches up."""

from __future__ import annotations

import pytest
from ledger_network import DELAY, PAYERS, SEATS, Committee
from ledger_world import RICH

from farflung.core.crypto import NS_SPEC, digest
from farflung.core.ids import ZERO_HASH
from farflung.ledger import transactions
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import VoteMessage
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, RejectedResult
from farflung.ledger.validators import ValidatorAccuse, ValidatorRow, ValidatorState
from farflung.ledger.votes import Vote, VoteKind, sign_vote


def results(committee: Committee) -> dict[int, object]:
    return {ticket: type(result) for ticket, (_, result) in committee.replies.items()}


@pytest.mark.parametrize("seats", [1, 4, 7])
def test_a_transaction_handed_to_any_validator_becomes_final_for_all(seats: int):
    committee = Committee(seats)
    committee.run(500)
    for index in range(seats):
        committee.submit(index, committee.pay(index), ticket=index)
    committee.run(1000)
    assert results(committee) == dict.fromkeys(range(seats), AppliedResult)
    assert {committee.balance(index, SEATS[6]) for index in range(seats)} == {RICH + seats}
    assert max(committee.heights()) - min(committee.heights()) <= 1


def test_an_answer_comes_three_delays_after_the_leader_had_the_transaction():
    committee = Committee(4)
    committee.run(1000)
    node = committee.nodes[0]
    assert node is not None
    leader = (node.replica.view + 1) % 4
    committee.submit(leader, committee.pay(0))
    begun = committee.now
    committee.run(5000, until=lambda: bool(committee.replies))
    assert committee.now - begun <= 100 + 6 * DELAY  # the idle view's end, and the exchange


def test_the_same_transaction_handed_in_everywhere_counts_once_and_is_answered_everywhere():
    committee = Committee(4)
    for index in range(4):
        committee.submit(index, committee.pay(0), ticket=index)
    committee.run(1000)
    assert results(committee) == dict.fromkeys(range(4), AppliedResult)
    assert committee.balance(0, SEATS[6]) == RICH + 1
    committee.submit(2, committee.pay(0), ticket=9)
    assert results(committee)[9] == AlreadyAppliedResult


def test_of_two_transactions_with_one_nonce_one_is_final_and_the_other_is_told_why():
    committee = Committee(4)
    committee.submit(0, committee.pay(0, amount=5), ticket=0)
    committee.submit(2, committee.pay(0, amount=6), ticket=1)
    committee.run(2000)
    assert sorted(results(committee).values(), key=str) == sorted([AppliedResult, RejectedResult], key=str)
    assert committee.balance(1, SEATS[6]) - RICH in (5, 6)


def test_what_expires_before_it_enters_is_answered():
    committee = Committee(4)
    committee.run(300)
    time = committee.nodes[0].chain.state.time  # type: ignore[union-attr]
    committee.submit(0, committee.pay(3, expires=time + 200), ticket=5)  # nonces 0 to 2 never come
    committee.run(2000)
    assert results(committee) == {5: RejectedResult}


def test_a_committee_goes_on_without_one_of_four_and_not_without_two():
    committee = Committee(4)
    committee.run(300)
    committee.kill(3)
    committee.submit(0, committee.pay(0), ticket=0)
    committee.run(3000)
    assert results(committee) == {0: AppliedResult}
    committee.kill(2)
    committee.submit(0, committee.pay(1), ticket=1)
    committee.run(3000)
    assert results(committee) == {0: AppliedResult}


def test_who_comes_back_has_its_votes_and_catches_up_by_blocks():
    committee = Committee(4)
    committee.run(300)
    committee.kill(3)
    for nonce in range(5):
        committee.submit(nonce % 3, committee.pay(nonce), ticket=nonce)
        committee.run(1000)
    behind = len(committee.disks[3].blocks)
    committee.begin(3)
    committee.run(500)
    assert committee.heights()[3] >= behind + 5
    assert max(committee.heights()) - committee.heights()[3] <= 1
    assert committee.balance(3, SEATS[6]) == RICH + 5


def test_all_die_at_once_at_any_moment_and_go_on_from_their_disks():
    committee = Committee(4)
    committee.die_between(payments=6)
    assert committee.nodes[0] is not None
    assert not any(isinstance(each, RejectedResult) for _, each in committee.replies.values())


def test_a_part_without_a_quorum_stands_still_and_follows_after_the_healing():
    committee = Committee(4)
    committee.run(300)
    committee.cut = lambda sender, to: (sender < 2) != (to < 2)
    committee.submit(0, committee.pay(0), ticket=0)
    committee.run(3000)
    assert results(committee) == {}
    committee.cut = lambda sender, to: 3 in (sender, to)
    committee.run(6000)
    assert results(committee) == {0: AppliedResult}
    committee.cut = lambda _sender, _to: False
    committee.run(1500)
    assert max(committee.heights()) - min(committee.heights()) <= 1


def test_who_is_no_member_follows():
    committee = Committee(4, followers=1)
    committee.submit(1, committee.pay(0), ticket=0)
    committee.run(2000)
    assert committee.balance(4, SEATS[6]) == RICH + 1
    assert max(committee.heights()) - committee.heights()[4] <= 1


def test_many_transactions_of_several_senders_are_all_answered_in_few_blocks():
    committee = Committee(4)
    committee.run(300)
    for payer in range(len(PAYERS)):
        for nonce in range(20):
            committee.submit(nonce % 4, committee.pay(nonce, payer), ticket=100 * payer + nonce)
    committee.run(2000)
    assert set(results(committee).values()) == {AppliedResult}
    assert len(committee.replies) == 60


def accused(committee: Committee) -> list[transactions.SignedTx]:
    node = committee.nodes[0]
    assert node is not None
    ops = [(signed, op) for block in node.chain.blocks for signed in block.txs for op in signed.tx.ops]
    return [signed for signed, op in ops if isinstance(op, ValidatorAccuse)]


@pytest.mark.parametrize("witnesses", [(0, 1, 2), (2,), (1, 2)])
def test_a_validator_with_two_faces_is_brought_before_the_ledger_once_and_loses_its_seat(witnesses: tuple[int, ...]):
    committee = Committee(4, epoch_blocks=4)
    committee.run(300)
    committee.kill(3)
    term = committee.nodes[0].replica.committee  # type: ignore[union-attr]
    view = max(node.replica.view for node in committee.nodes if node is not None) + 1
    for index in witnesses:
        for block in (digest(NS_SPEC, b"one face"), digest(NS_SPEC, b"another")):
            vote = Vote(committee.chain, term.epoch, view, VoteKind.NOTARIZE, block)
            ballot = VoteMessage(sign_vote(SEATS[3], 3, vote))
            committee.feed(index, ev.ReplicaMessageEvent(SEATS[3].public, ballot))
    committee.run(4000)
    node = committee.nodes[0]
    assert node is not None
    row = node.chain.state.find(ValidatorRow, SEATS[3].public)
    assert row is not None
    assert row.state == ValidatorState.JAILED
    assert SEATS[3].public not in node.chain.state.committee.members
    first = min(witnesses)  # the fewest seats behind the accused one
    assert [signed.tx.sender for signed in accused(committee)] == [SEATS[first].public]


def test_one_vote_seen_twice_and_votes_that_an_honest_seat_may_sign_accuse_nobody():
    committee = Committee(4)
    committee.run(300)
    committee.kill(3)
    term = committee.nodes[0].replica.committee  # type: ignore[union-attr]
    view = max(node.replica.view for node in committee.nodes if node is not None) + 1
    block = digest(NS_SPEC, b"one face")
    for kind, about in ((VoteKind.NOTARIZE, block), (VoteKind.NOTARIZE, block), (VoteKind.NULLIFY, ZERO_HASH)):
        ballot = VoteMessage(sign_vote(SEATS[3], 3, Vote(committee.chain, term.epoch, view, kind, about)))
        committee.feed(0, ev.ReplicaMessageEvent(SEATS[3].public, ballot))
    committee.run(2000)
    assert accused(committee) == []
