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
from farflung.ledger.receipt_file import (
    check_receipt_file,
    committee_of,
    read_receipt_file,
    write_receipt_file,
)
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.stateless_checks import TRUSTED, UNJUDGED
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.validators import CommitteeRow, count_key
from farflung.ledger.votes import NO_CERTIFICATE, VoteKind

SIZES = (1, 4, 7, 2)


@pytest.fixture(scope="module")
def grown() -> tuple[Reign, list[LedgerReceipt]]:
    """1 -> 4 -> 7 -> 2 seats, and a receipt of one account under each committee."""
    reign, receipts = Reign(), list[LedgerReceipt]()
    for size in SIZES:
        reign.grow(size)
        reign.do(REQUESTER, transactions.Transfer(SEATS[0].public, 1))
        receipts.append(prove(reign.chain, "accounts", REQUESTER.public))
    return reign, receipts


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
    reign, receipts = grown
    chain = reign.chain
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
    reign, receipts = grown
    chain = reign.chain
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
    reign, _ = grown
    trust = light_client.walk(light_client.trust_in(reign.chain.genesis), reign.chain.steps, 3)
    now = reign.chain
    for key in (0, 1, 2, 3):
        with pytest.raises(VerificationError, match="FF-LEDG-253"):
            light_client.follow(trust, prove(now, "committees", count_key(key)))


def test_the_epoch_of_a_header_and_the_row_of_a_step_cannot_be_changed(
    grown: tuple[Reign, list[LedgerReceipt]],
):
    reign, _ = grown
    step, trust = reign.chain.steps[0], light_client.trust_in(reign.chain.genesis)
    row = reign.chain.state.rows(CommitteeRow)[1]
    usurped = replace(row, members=(SEATS[7].public,))
    with pytest.raises(VerificationError, match="FF-LEDG-075"):
        light_client.follow(trust, replace(step, row=encode(usurped)))
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        light_client.follow(trust, replace(step, header=replace(step.header, epoch=1)))


def test_a_receipt_file_walks_from_the_genesis(grown: tuple[Reign, list[LedgerReceipt]]):
    reign, _ = grown
    chain = reign.chain
    job = transactions.JobCreate(ROOTS[0], 100, 1, 1, chain.head.time + 50_000)
    reign.do(REQUESTER, job)
    receipts = party_receipts(chain, REQUESTER.public)
    data = write_receipt_file(chain.genesis, REQUESTER.public, receipts, chain.steps[: chain.head.epoch])
    file = read_receipt_file(data)
    assert [row.TABLE for row in check_receipt_file(file, chain.id)] == ["accounts", "jobs"]
    assert committee_of(file) == chain.state.committee.members
    for steps in (file.steps[:2], file.steps[1:], file.steps[::-1], (), (*file.steps, file.steps[0])):
        with pytest.raises(VerificationError, match=r"FF-LEDG-(072|085|253)"):
            check_receipt_file(replace(file, steps=steps), chain.id)


def test_an_old_committee_cannot_certify_a_block_of_a_later_epoch():
    reign = Reign(4)
    old = reign.chain.state.committee.members
    reign.do(SEATS[4], join(reign.chain.id, SEATS[4], SEATS[4]))
    reign.carry(AdmitValidator(SEATS[4].public))
    reign.to_boundary()
    made, _ = reign.made()
    stale = Block(made.header, made.txs, reign.certificate(made.header, old))
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        reign.chain.adopt(stale)
    posed = replace(made.header, epoch=0)
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        reign.chain.adopt(Block(posed, made.txs, reign.certificate(posed, old)))
    reign.chain.adopt(reign.certified(made))


def test_one_seat_less_than_a_quorum_certifies_nothing():
    for seats in (1, 4, 7):
        reign = Reign(seats)
        made, _ = reign.made()
        members = reign.chain.state.committee.members
        if seats > 1:
            weak = Block(made.header, made.txs, reign.certificate(made.header, members, less=1))
            with pytest.raises(VerificationError, match="FF-LEDG-066"):
                reign.chain.adopt(weak)
        reign.chain.adopt(reign.certified(made))


def test_a_closing_block_needs_a_finalize_of_its_own():
    reign = Reign(1, COUNCIL)
    assert reign.do(SEATS[0], transactions.Transfer(REQUESTER.public, 1))
    reign.do(SEATS[1], join(reign.chain.id, SEATS[1], SEATS[1]))
    reign.carry(AdmitValidator(SEATS[1].public))
    closing, _ = reign.made()
    assert closing.state.closes
    weak = reign.certified(closing, VoteKind.NOTARIZE)
    strong = reign.certified(closing)
    after, _ = make(closing, (), closing.header.time + 1000, closing.state.committee.members[0])
    certificate = reign.certificate(after.header, closing.state.committee.members)
    first = Block(after.header, after.txs, certificate)
    with pytest.raises(VerificationError, match="FF-LEDG-252"):
        reign.chain.adopt_many([weak, first])
    reign.chain.adopt_many([strong, first])
    assert reign.chain.head.epoch == 1


def test_a_block_that_names_another_epoch_or_a_stranger_is_refused_although_it_is_certified():
    reign = Reign(4)
    made, _ = reign.made()
    members = reign.chain.state.committee.members
    for change in ({"epoch": 1}, {"proposer": SEATS[5].public}):
        header = replace(made.header, **change)
        with pytest.raises(VerificationError, match="FF-LEDG-251"):
            reign.chain.adopt(Block(header, made.txs, reign.certificate(header, members)))


def test_what_is_not_final_is_judged_to_the_last_signature():
    reign = Reign(4)
    sender = transactions.make_tx(
        reign.chain.id, REQUESTER.public, 0, transactions.Transfer(SEATS[0].public, 1)
    )
    good = transactions.sign_tx(REQUESTER, sender)
    made, _ = reign.made(good)
    wrong = (transactions.SignedTx(good.tx, transactions.sign_tx(SEATS[0], good.tx).signature),)
    assert execute(reign.chain.tip, made.header, made.txs, judged=UNJUDGED).state.root == made.state.root
    header = replace(made.header, txs=txs_root(wrong))
    with pytest.raises(VerificationError, match="FF-LEDG-064"):
        execute(reign.chain.tip, header, wrong, judged=UNJUDGED)
    assert execute(reign.chain.tip, header, wrong, judged=TRUSTED).state.root == made.state.root


def test_parameters_of_the_next_epoch_hold_from_its_first_block_on():
    reign = Reign(1)
    slow = replace(LONG, step_ms_max=500)
    reign.carry(AmendParams(slow))
    reign.to_boundary()
    made, _ = reign.made()
    assert made.header.time == reign.chain.head.time + 500
    header = replace(made.header, time=made.header.time + 1)
    members = reign.chain.state.committee.members
    with pytest.raises(VerificationError, match="FF-LEDG-062"):
        reign.chain.adopt(Block(header, (), reign.certificate(header, members)))


def test_what_is_notarized_is_proof_of_nothing_to_a_stranger():
    reign = Reign(4)
    block = reign.step()
    receipt = prove(reign.chain, "accounts", REQUESTER.public)
    trust = light_client.trust_in(reign.chain.genesis)
    assert light_client.check(trust, receipt)
    for kind in (VoteKind.NOTARIZE, VoteKind.NULLIFY):
        weak = reign.certificate(block.header, reign.chain.state.committee.members, kind=kind)
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, replace(receipt, certificate=weak))


def test_votes_to_pass_over_a_view_certify_no_block():
    reign = Reign(4)
    made, _ = reign.made()
    with pytest.raises(VerificationError, match="FF-LEDG-066"):
        reign.chain.adopt(reign.certified(made, VoteKind.NULLIFY))


def test_the_same_members_under_another_version_are_another_committee():
    """One committee reigns twice: what it signed in one epoch is no proof to who trusts it in the other."""
    reign = Reign(4)
    reign.step()
    early = prove(reign.chain, "accounts", REQUESTER.public)
    reign.carry(AmendParams(replace(LONG, withheld_permille=5)))
    reign.to_boundary()
    reign.step()
    late = prove(reign.chain, "accounts", REQUESTER.public)
    before = light_client.trust_in(reign.chain.genesis)
    after = light_client.follow(before, reign.chain.steps[0])
    assert before.committee == after.committee
    assert light_client.check(before, early)
    assert light_client.check(after, late)
    for trust, receipt in ((before, late), (after, early)):
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, receipt)


def test_only_the_header_of_genesis_needs_no_certificate_and_it_takes_none():
    reign = Reign(4)
    first = prove(reign.chain, "accounts", REQUESTER.public)
    trust = light_client.trust_in(reign.chain.genesis)
    assert light_client.check(trust, first)
    strange = replace(NO_CERTIFICATE, view=3)
    for receipt in (
        replace(first, certificate=strange),
        replace(first, header=replace(first.header, time=0)),
    ):
        with pytest.raises(VerificationError, match="FF-LEDG-072"):
            light_client.check(trust, receipt)
    reign.carry(AmendParams(replace(LONG, withheld_permille=5)))
    reign.to_boundary()
    step = reign.chain.steps[0]
    with pytest.raises(VerificationError, match="FF-LEDG-072"):
        light_client.check(light_client.follow(trust, step), replace(step, certificate=NO_CERTIFICATE))


def test_what_was_executed_before_is_not_taken_for_another_block():
    reign = Reign(4)
    payment = transactions.make_tx(
        reign.chain.id, REQUESTER.public, 0, transactions.Transfer(SEATS[0].public, 1)
    )
    made, _ = reign.made(transactions.sign_tx(REQUESTER, payment))
    reign.chain.hold(made)
    certified = reign.certified(made)
    with pytest.raises(VerificationError, match="FF-LEDG-063"):
        reign.chain.adopt(replace(certified, txs=()))
    other, _ = reign.made()
    reign.chain.adopt(reign.certified(other))
    reign.chain.hold(made)
    with pytest.raises(VerificationError, match="FF-LEDG-061"):
        reign.chain.adopt(certified)
