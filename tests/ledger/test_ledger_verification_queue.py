"""Signatures judged beside the validator: no vote before verdicts, no verdict on what is final, nothing unbounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ledger_network import PAYERS, SEATS, Committee, soundly
from ledger_world import RICH
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.ids import ZERO_HASH, Hash, Signature
from farflung.ledger import transactions
from farflung.ledger.block import BlockHeader
from farflung.ledger.mempool import CheckedTxCache
from farflung.ledger.rules import accounts
from farflung.ledger.rules.accounts import unsound
from farflung.ledger.sdbft import replica_events as ev
from farflung.ledger.sdbft.replica_messages import VoteMessage
from farflung.ledger.sdbft.votelog_records import read_record
from farflung.ledger.tx_results import AppliedResult, RejectedResult
from farflung.ledger.verification_queue import VerificationQueue, VerifyJob
from farflung.ledger.votes import VoteKind

FORGED = Signature(bytes(64))


def results(committee: Committee) -> dict[int, object]:
    return {ticket: type(result) for ticket, (_, result) in committee.replies.items()}


def working(committee: Committee) -> set[Hash]:
    """Final blocks that hold transactions."""
    return {block.header.id for disk in committee.disks for block in disk.blocks if block.txs}


def notarized(committee: Committee, index: int) -> set[Hash]:
    """What this seat voted for."""
    said = [read_record(each) for each in committee.disks[index].votes]
    ballots = [each.signed.vote for each in said if isinstance(each, VoteMessage)]
    return {vote.block for vote in ballots if vote.kind == VoteKind.NOTARIZE}


def fail(*_: object) -> bool:
    raise AssertionError("judged by the validator's own process")


@pytest.mark.parametrize("seats", [1, 4, 7])
def test_other_processes_judge_all_signatures_once(seats: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounts, "is_signed", fail)
    committee = Committee(seats, parts=2)
    committee.run(500)
    asked = {index: list[bytes]() for index in range(seats)}

    def judged(index: int, part: VerifyJob) -> Sequence[bool]:
        asked[index] += [encode(signed) for signed in part.txs]
        return soundly(index, part)

    committee.judged = judged
    for place in range(20):
        committee.submit(place % seats, committee.pay(place // 2, place % 2), ticket=place)
    committee.run(2000)
    assert results(committee) == dict.fromkeys(range(20), AppliedResult)
    assert {committee.balance(index, SEATS[6]) for index in range(seats)} == {RICH + 20}
    assert all(len(each) == len(set(each)) <= 20 for each in asked.values())


def test_who_has_no_verdicts_votes_for_no_transaction_and_follows_what_is_final(monkeypatch: pytest.MonkeyPatch):
    committee = Committee(4, parts=2)

    def judged(index: int, part: VerifyJob) -> Sequence[bool]:
        if index == 0:
            raise TimeoutError
        return soundly(index, part)

    committee.judged = judged
    monkeypatch.setattr(accounts, "is_signed", fail)  # also when it replays what the others finalized
    committee.run(300)
    for nonce in range(4):
        committee.submit(2, committee.pay(nonce), ticket=nonce)
        committee.run(400)
    assert results(committee) == dict.fromkeys(range(4), AppliedResult)
    assert committee.balance(0, SEATS[6]) == RICH + 4
    assert working(committee)
    assert not notarized(committee, 0) & working(committee)
    assert notarized(committee, 1) & working(committee)


def test_no_block_is_final_before_a_quorum_has_its_verdicts():
    committee = Committee(4, parts=2)

    def judged(index: int, part: VerifyJob) -> Sequence[bool]:
        if index < 2:
            raise TimeoutError
        return soundly(index, part)

    committee.judged = judged
    committee.submit(2, committee.pay(0), ticket=0)
    committee.run(3000)
    assert results(committee) == {}
    assert not working(committee)
    assert committee.shelf
    committee.judged = soundly
    committee.release()
    committee.run(3000)
    assert results(committee) == {0: AppliedResult}
    assert {committee.balance(index, SEATS[6]) for index in range(4)} == {RICH + 1}


def test_a_leader_whose_processes_lie_gets_no_vote():
    committee = Committee(4, parts=2)

    def judged(index: int, part: VerifyJob) -> Sequence[bool]:
        return [True] * len(part.txs) if index == 1 else soundly(index, part)

    committee.judged = judged
    committee.submit(1, replace(committee.pay(0, 0), signature=FORGED), ticket=0)
    committee.submit(2, committee.pay(0, 1), ticket=1)
    committee.run(6000)
    assert results(committee) == {1: AppliedResult}
    assert {committee.balance(index, SEATS[6]) for index in (0, 2, 3)} == {RICH + 1}


def test_a_client_is_told_what_other_processes_found():
    committee = Committee(4, parts=1)
    good = committee.pay(0)
    other = committee.pay(0, 1)
    strange = transactions.sign_tx(PAYERS[1], replace(other.tx, chain=ZERO_HASH))
    empty = transactions.sign_tx(PAYERS[1], replace(other.tx, ops=()))
    committee.submit(0, good, replace(good, signature=FORGED), strange, empty, good, ticket=0)
    committee.run(1000)
    said = {ticket: getattr(result, "code", "") for ticket, (_, result) in committee.replies.items()}
    assert said == {0: "", 1: "FF-LEDG-002", 2: "FF-LEDG-003", 3: "FF-LEDG-001", 4: ""}


def test_where_no_process_answers_the_validator_judges_itself():
    committee = Committee(4, parts=2)
    committee.judged = lambda _index, _part: None
    committee.submit(0, committee.pay(0), replace(committee.pay(0, 1), signature=FORGED), ticket=0)
    committee.run(1000)
    assert results(committee) == {0: AppliedResult, 1: RejectedResult}


def test_validators_that_die_with_questions_open_ask_again():
    committee = Committee(4, parts=1)
    committee.die_between(payments=5)


# The docket by itself


def transfers(count: int) -> list[transactions.SignedTx]:
    sender = PAYERS[0].public
    to = transactions.Transfer(SEATS[0].public, 1)
    return [transactions.SignedTx(transactions.make_tx(ZERO_HASH, sender, nonce, to), FORGED) for nonce in range(count)]


def queue(parts: int = 1) -> tuple[VerificationQueue, CheckedTxCache]:
    verdicts = CheckedTxCache(lambda signed: unsound(ZERO_HASH, signed))
    return VerificationQueue(verdicts, lambda signed, holds: unsound(ZERO_HASH, signed, holds=holds), parts), verdicts


def draft(txs: Sequence[transactions.SignedTx], height: int = 1) -> ev.DraftBlock:
    header = BlockHeader(ZERO_HASH, height, 1, 0, SEATS[0].public, ZERO_HASH, ZERO_HASH, ZERO_HASH)
    return ev.DraftBlock(header, tuple(txs))


def test_without_parts_nothing_waits():
    made, _ = queue(parts=0)
    (signed,) = transfers(1)
    assert not made.defer(signed)
    assert not made.hold(draft([signed]))
    assert made.hand_out() == []


def test_what_waits_is_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "VERIFICATION_QUEUE_TXS", 5)
    made, _ = queue()
    txs = transfers(8)
    assert [made.defer(each) for each in txs] == [True] * 5 + [False] * 3
    assert made.defer(txs[0], [7])  # it waits already
    made.settle(made.hand_out()[0].number, [True] * 5)
    assert (len(made), made.size) == (0, 0)
    monkeypatch.setattr(limits, "VERIFICATION_QUEUE_BYTES", 3 * len(encode(txs[0])))
    assert [made.defer(each) for each in txs[5:]] == [True, True, False]


def test_parts_are_bounded_and_a_block_goes_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "JUDGE_TXS", 4)
    made, verdicts = queue(parts=2)
    txs = transfers(14)
    for each in txs[:6]:
        made.defer(each)
    first, second = made.hand_out()
    assert (first.txs, second.txs) == (tuple(txs[:4]), tuple(txs[4:6]))
    for each in txs[6:12]:
        made.defer(each)
    assert made.hand_out() == []
    assert made.hold(draft(txs[4:10]))  # two are out, four wait
    assert made.settle(first.number, [True] * 4) == ([(each, []) for each in txs[:4]], [])
    (third,) = made.hand_out()
    assert third.txs == tuple(txs[6:10])
    assert made.settle(second.number, [True, False])[1] == []
    assert made.settle(third.number, None)[1] == [draft(txs[4:10])]
    assert [verdicts.has((transactions.tx_id(each), FORGED)) for each in txs[9:11]] == [True, False]
    monkeypatch.setattr(limits, "JUDGE_BYTES", 2 * len(encode(txs[0])) + 47)
    assert [part.txs for part in made.hand_out()] == [(txs[10],), (txs[11],)]


def test_what_a_final_block_needed_is_not_asked_any_more():
    made, _ = queue()
    txs = transfers(6)
    made.defer(txs[0])
    made.hand_out()
    made.defer(txs[3])
    made.hold(draft(txs[:4]))
    made.hold(draft(txs[4:], 2))
    made.drop(1)
    (part,) = made.settle(0, [True])[1] or made.hand_out()
    assert part.txs == (txs[4], txs[5], txs[3])
    assert made.settle(part.number, [True] * 3) == ([(txs[3], [])], [draft(txs[4:], 2)])


def test_tickets_gather_and_are_forgotten():
    made, _ = queue()
    (signed,) = transfers(1)
    made.defer(signed, [1])
    made.defer(decode(encode(signed), transactions.SignedTx, limits.TX_BYTES), [2])
    made.defer(signed, [3])
    made.forget({2})
    (part,) = made.hand_out()
    assert made.settle(part.number, [False]) == ([(signed, [1, 3])], [])
