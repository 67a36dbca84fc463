"""One chain under growing and shrinking committees: the old ones cannot speak for it, and a stranger can follow it."""

from __future__ import annotations

import itertools

import pytest
from ledger_committee import COUNCIL, LONG, SEATS, AdmitValidator, AmendParams, Reign, join
from ledger_parties import party_receipts
from ledger_world import REQUESTER, ROOTS
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import VerificationError
from farflung.ledger import light_client, transactions
from farflung.ledger.block import Block, read_block, txs_root
from farflung.ledger.block_execution import execute, make
from farflung.ledger.chain import Chain
from farflung.ledger.receipt_checks import check_receipt, prove
from farflung.ledger.receipt_file import check_receipt_file, committee_of, read_receipt_file, write_receipt_file
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.stateless_checks import TRUSTED, UNJUDGED
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.validators import CommitteeRow, count_key
from farflung.ledger.votes import NO_CERTIFICATE, VoteKind

SIZES = (1, 4, 7, 2)


@pytest.fixture(scope="module")
def grown() -> tuple[Reign, list[LedgerReceipt]]:
    """1 -> 4 -> 7 -> 2 seats, and a receipt of one account under each committee."""
    committee, receipts = Reign(), list[LedgerReceipt]()
    for size in SIZES:
        committee.grow(size)
        committee.do(REQUESTER, transactions.Transfer(SEATS[0].public, 1))
        receipts.append(prove(committee.chain, "accounts", REQUESTER.public))
    return committee, receipts


def test_one_chain_goes_on_while_its_committee_grows_and_shrinks(grown: tuple[Reign, list[LedgerReceipt]]):
    chain = grown[0].chain
    rows = chain.state.rows(CommitteeRow)
    assert [len(row.members) for row in rows] == list(SIZES)
    assert [row.epoch for row in rows] == [0, 1, 2, 3]
    heights = [block.header.height for block in chain.blocks]
    assert heights == list(range(1, len(heights) + 1))
    for before, row in itertools.pairwise(rows):
        assert (row.first - before.first) % LONG.epoch_blocks == 0
        assert chain.blocks[row.first - 2].header.epoch == before.epoch
        assert chain.blocks[row.first - 1].header.epoch == row.epoch
    reader = Chain(chain.genesis)
    reader.adopt_many([read_block(encode(block)) for block in chain.blocks])
    assert (reader.head, reader.state.root) == (chain.head, chain.state.root)
    assert reader.steps == chain.steps


def test_a_stranger_follows_every_committee_from_the_genesis(grown: tuple[Reign, list[LedgerReceipt]]):
    committee, receipts = grown
    chain = committee.chain
    trust = light_client.trust_in(chain.genesis)
    for epoch, receipt in enumerate(receipts):
        if epoch:
            trust = light_client.follow(
                trust, decode(encode(chain.steps[epoch - 1]), LedgerReceipt, limits.CONTROL_BYTES)
            )
        row = light_client.check(trust, receipt)
        assert isinstance(row, AccountRow)
        assert row == check_receipt(receipt, chain.genesis, chain.steps)
        assert trust.committee == chain.state.rows(CommitteeRow)[epoch].members
    assert len(chain.steps) == 3


def test_no_epoch_is_skipped_and_none_speaks_for_another(grown: tuple[Reign, list[LedgerReceipt]]):
    committee, receipts = grown
    chain = committee.chain
    trust = light_client.trust_in(chain.genesis)
    for receipt in receipts[1:]:
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, receipt)
    for step in chain.steps[1:]:
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.follow(trust, step)
    again = light_client.follow(trust, chain.steps[0])
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        light_client.follow(again, chain.steps[0])
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        check_receipt(receipts[3], chain.genesis, chain.steps[:2])


def test_the_step_of_another_epoch_is_no_step(grown: tuple[Reign, list[LedgerReceipt]]):
    committee, _ = grown
    trust = light_client.follow_steps(light_client.trust_in(committee.chain.genesis), committee.chain.steps, 3)
    now = committee.chain
    for key in (0, 1, 2, 3):
        with pytest.raises(VerificationError, match="FF-LEDG-253"):
            light_client.follow(trust, prove(now, "committees", count_key(key)))


def test_the_epoch_of_a_header_and_the_row_of_a_step_cannot_be_changed(grown: tuple[Reign, list[LedgerReceipt]]):
    committee, _ = grown
    step, trust = committee.chain.steps[0], light_client.trust_in(committee.chain.genesis)
    row = committee.chain.state.rows(CommitteeRow)[1]
    usurped = replace(row, members=(SEATS[7].public,))
    with pytest.raises(VerificationError, match="FF-LEDG-075"):
        light_client.follow(trust, replace(step, row=encode(usurped)))
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        light_client.follow(trust, replace(step, header=replace(step.header, epoch=1)))


def test_a_receipt_file_walks_from_the_genesis(grown: tuple[Reign, list[LedgerReceipt]]):
    committee, _ = grown
    chain = committee.chain
    job = transactions.JobCreate(ROOTS[0], 100, 1, 1, chain.head.time + 50_000)
    committee.do(REQUESTER, job)
    receipts = party_receipts(chain, REQUESTER.public)
    data = write_receipt_file(chain.genesis, REQUESTER.public, receipts, chain.steps[: chain.head.epoch])
    file = read_receipt_file(data)
    assert [row.TABLE for row in check_receipt_file(file, chain.id)] == ["accounts", "jobs"]
    assert committee_of(file) == chain.state.committee.members
    for steps in (file.steps[:2], file.steps[1:], file.steps[::-1], (), (*file.steps, file.steps[0])):
        with pytest.raises(VerificationError, match=r"FF-LEDG-(072|085|253)"):
            check_receipt_file(replace(file, steps=steps), chain.id)


def test_an_old_committee_cannot_certify_a_block_of_a_later_epoch():
    committee = Reign(4)
    old = committee.chain.state.committee.members
    committee.do(SEATS[4], join(committee.chain.id, SEATS[4], SEATS[4]))
    committee.carry(AdmitValidator(SEATS[4].public))
    committee.to_boundary()
    made, _ = committee.made()
    stale = Block(made.header, made.txs, committee.certificate(made.header, old))
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        committee.chain.adopt(stale)
    posed = replace(made.header, epoch=0)
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        committee.chain.adopt(Block(posed, made.txs, committee.certificate(posed, old)))
    committee.chain.adopt(committee.certified(made))


def test_one_seat_less_than_a_quorum_certifies_nothing():
    for seats in (1, 4, 7):
        committee = Reign(seats)
        made, _ = committee.made()
        members = committee.chain.state.committee.members
        if seats > 1:
            weak = Block(made.header, made.txs, committee.certificate(made.header, members, less=1))
            with pytest.raises(VerificationError, match="FF-LEDG-066"):
                committee.chain.adopt(weak)
        committee.chain.adopt(committee.certified(made))


def test_a_closing_block_needs_a_finalize_of_its_own():
    committee = Reign(1, COUNCIL)
    assert committee.do(SEATS[0], transactions.Transfer(REQUESTER.public, 1))
    committee.do(SEATS[1], join(committee.chain.id, SEATS[1], SEATS[1]))
    committee.carry(AdmitValidator(SEATS[1].public))
    closing, _ = committee.made()
    assert closing.state.closes
    weak = committee.certified(closing, VoteKind.NOTARIZE)
    strong = committee.certified(closing)
    after, _ = make(closing, (), closing.header.time + 1000, closing.state.committee.members[0])
    certificate = committee.certificate(after.header, closing.state.committee.members)
    first = Block(after.header, after.txs, certificate)
    with pytest.raises(VerificationError, match="FF-LEDG-252"):
        committee.chain.adopt_many([weak, first])
    committee.chain.adopt_many([strong, first])
    assert committee.chain.head.epoch == 1


def test_a_block_that_names_another_epoch_or_a_stranger_is_refused_although_it_is_certified():
    committee = Reign(4)
    made, _ = committee.made()
    members = committee.chain.state.committee.members
    for change in ({"epoch": 1}, {"proposer": SEATS[5].public}):
        header = replace(made.header, **change)
        with pytest.raises(VerificationError, match="FF-LEDG-251"):
            committee.chain.adopt(Block(header, made.txs, committee.certificate(header, members)))


def test_what_is_not_final_is_judged_to_the_last_signature():
    committee = Reign(4)
    sender = transactions.make_tx(committee.chain.id, REQUESTER.public, 0, transactions.Transfer(SEATS[0].public, 1))
    good = transactions.sign_tx(REQUESTER, sender)
    made, _ = committee.made(good)
    wrong = (transactions.SignedTx(good.tx, transactions.sign_tx(SEATS[0], good.tx).signature),)
    assert execute(committee.chain.tip, made.header, made.txs, judged=UNJUDGED).state.root == made.state.root
    header = replace(made.header, txs=txs_root(wrong))
    with pytest.raises(VerificationError, match="FF-LEDG-064"):
        execute(committee.chain.tip, header, wrong, judged=UNJUDGED)
    assert execute(committee.chain.tip, header, wrong, judged=TRUSTED).state.root == made.state.root


def test_parameters_of_the_next_epoch_hold_from_its_first_block_on():
    committee = Reign(1)
    slow = replace(LONG, step_ms_max=500)
    committee.carry(AmendParams(slow))
    committee.to_boundary()
    made, _ = committee.made()
    assert made.header.time == committee.chain.head.time + 500
    header = replace(made.header, time=made.header.time + 1)
    members = committee.chain.state.committee.members
    with pytest.raises(VerificationError, match="FF-LEDG-062"):
        committee.chain.adopt(Block(header, (), committee.certificate(header, members)))


def test_what_is_notarized_is_proof_of_nothing_to_a_stranger():
    committee = Reign(4)
    block = committee.step()
    receipt = prove(committee.chain, "accounts", REQUESTER.public)
    trust = light_client.trust_in(committee.chain.genesis)
    assert light_client.check(trust, receipt)
    for kind in (VoteKind.NOTARIZE, VoteKind.NULLIFY):
        weak = committee.certificate(block.header, committee.chain.state.committee.members, kind=kind)
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, replace(receipt, certificate=weak))


def test_votes_to_pass_over_a_view_certify_no_block():
    committee = Reign(4)
    made, _ = committee.made()
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        committee.chain.adopt(committee.certified(made, VoteKind.NULLIFY))


def test_the_same_members_under_another_version_are_another_committee():
    """One committee reigns twice: what it signed in one epoch is no proof to who trusts it in the other."""
    committee = Reign(4)
    committee.step()
    early = prove(committee.chain, "accounts", REQUESTER.public)
    committee.carry(AmendParams(replace(LONG, withheld_permille=5)))
    committee.to_boundary()
    committee.step()
    late = prove(committee.chain, "accounts", REQUESTER.public)
    before = light_client.trust_in(committee.chain.genesis)
    after = light_client.follow(before, committee.chain.steps[0])
    assert before.committee == after.committee
    assert light_client.check(before, early)
    assert light_client.check(after, late)
    for trust, receipt in ((before, late), (after, early)):
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, receipt)


def test_only_the_header_of_genesis_needs_no_certificate_and_it_takes_none():
    committee = Reign(4)
    first = prove(committee.chain, "accounts", REQUESTER.public)
    trust = light_client.trust_in(committee.chain.genesis)
    assert light_client.check(trust, first)
    strange = replace(NO_CERTIFICATE, view=3)
    for receipt in (replace(first, certificate=strange), replace(first, header=replace(first.header, time=0))):
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, receipt)
    committee.carry(AmendParams(replace(LONG, withheld_permille=5)))
    committee.to_boundary()
    step = committee.chain.steps[0]
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        light_client.check(light_client.follow(trust, step), replace(step, certificate=NO_CERTIFICATE))


def test_what_was_executed_before_is_not_taken_for_another_block():
    committee = Reign(4)
    payment = transactions.make_tx(committee.chain.id, REQUESTER.public, 0, transactions.Transfer(SEATS[0].public, 1))
    made, _ = committee.made(transactions.sign_tx(REQUESTER, payment))
    committee.chain.hold(made)
    certified = committee.certified(made)
    with pytest.raises(VerificationError, match="FF-LEDG-063"):
        committee.chain.adopt(replace(certified, txs=()))
    other, _ = committee.made()
    committee.chain.adopt(committee.certified(other))
    committee.chain.hold(made)
    with pytest.raises(VerificationError, match="FF-LEDG-061"):
        committee.chain.adopt(certified)
