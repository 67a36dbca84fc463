"""Tallies and vouchers: each rule has a test that fails when the rule is removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import CAPS, JOB, NODES, OTHER_JOB, REQUESTER, RICH, ROOTS, START, STRANGER, VERIFIERS, World, genesis
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash, PeerId
from farflung.ledger import transactions
from farflung.ledger.earnings_tally import EarningsVoucher, SettleMany, is_of, make_tally

A, B, C = NODES
V, W = VERIFIERS


def refused(world: World, op: SettleMany, sender: SigningKey = A) -> str:
    before = world.state
    code = world.do(sender, op)
    assert world.state.tables["leases"] == before.tables["leases"]
    return code


# What players keep


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=40))
def test_each_voucher_is_of_its_tally_and_of_no_other(earned: list[int]):
    said = [(PeerId(bytes([place] * 32)), units) for place, units in enumerate(earned)]
    tally, vouchers = make_tally(CAPS, JOB, 3, said)
    other, _ = make_tally(CAPS, JOB, 3, [(node, units ^ 1) for node, units in said])
    assert [(v.credit.node, v.credit.units) for v in vouchers] == said
    assert all(is_of(tally, voucher) for voucher in vouchers)
    assert not any(is_of(other, voucher) for voucher in vouchers)
    assert not any(is_of(replace(tally, count=tally.count + 1), voucher) for voucher in vouchers)
    assert not any(is_of(tally, replace(v, credit=replace(v.credit, node=CAPS))) for v in vouchers)


# What a claim does


def test_a_node_that_nobody_recorded_is_paid_by_its_voucher():
    world = World().running()
    world.do(REQUESTER, world.progress(0, (B, 20)))
    assert world.do(A, world.settle_many((A, 10), (B, 20), claimed=1)) == "ok"
    assert (world.lease(A).units, world.lease(A).vouched, world.lease(A).earned) == (0, 10, 10)
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)) == "ok"
    assert [world.lease(key).paid for key in (A, B)] == [50, 100]
    assert (world.job().paid, world.job().refunded) == (150, 850)


def test_the_clock_and_a_cancelled_job_pay_by_vouchers_too():
    for end in ("cancel", "clock"):
        world = World().running()
        world.do(A, world.settle_many((A, 10)))
        if end == "cancel":
            world.do(REQUESTER, transactions.JobCancel(JOB))
        else:
            world.send(after=START + 60_000 - world.state.time)
        assert world.balance(A) == RICH - 500 + 50


def test_one_operation_pays_many():
    world = World().watched()
    assert world.do(STRANGER, world.settle_many((A, 1), (B, 2), (V, 3), (W, 4))) == "ok"
    assert [world.lease(key).vouched for key in (A, B, V, W)] == [1, 2, 3, 4]


def test_one_operation_pays_thirty_two_and_more():
    """256 vouchers fit into one operation, as their number is bounded, and into one transaction."""
    crowd = tuple(SigningKey(bytes([1 + place] * 32)) for place in range(40))
    world = World(owners=(REQUESTER, *crowd))
    world.send(*(world.sign(key, world.register()) for key in crowd))
    world.do(REQUESTER, world.create())
    world.do(REQUESTER, world.schedule(*(world.offer(key, units=5) for key in crowd)))
    assert world.do(crowd[3], world.settle_many(*((key, 5) for key in crowd))) == "ok"
    assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
    assert world.job().paid == 40 * 25


def test_work_that_a_tally_holds_is_not_paid_again_when_it_is_recorded():
    world = World().running()
    world.do(REQUESTER, world.progress(0, (A, 10)))
    assert world.do(A, world.settle_many((A, 30))) == "ok"
    assert world.do(REQUESTER, world.progress(1, (A, 20))) == "ok"
    assert (world.lease(A).units, world.lease(A).vouched, world.lease(A).earned) == (30, 30, 30)


def test_only_the_largest_tally_counts():
    world = World().running()
    world.do(A, world.settle_many((A, 30)))
    before = world.lease(A)
    for units in (30, 29, 0):
        assert world.do(REQUESTER, world.settle_many((A, units))) == "ok"
        assert world.lease(A) == before
    assert world.do(B, world.settle_many((A, 31))) == "ok"
    assert world.lease(A).earned == 31


def test_what_is_recorded_beyond_the_tally_is_paid():
    world = World().running()
    world.do(A, world.settle_many((A, 5)))
    world.do(REQUESTER, world.progress(0, (A, 12)))
    assert world.lease(A).earned == 12


@pytest.mark.parametrize("units", [59, 60])
def test_a_claim_reaches_up_to_the_cap_of_the_lease(units: int):
    world = World().running()
    assert world.do(A, world.settle_many((A, units))) == "ok"
    assert refused(world, world.settle_many((A, 61))) == "FF-LEDG-228"


# When


def test_vouchers_count_while_the_job_runs_and_after_its_output():
    world = World().finished()
    assert world.do(A, world.settle_many((A, 60))) == "ok"
    world.do(REQUESTER, transactions.JobSettle(JOB))
    assert refused(world, world.settle_many((A, 60))) == "FF-LEDG-033"
    unscheduled = World()
    unscheduled.do(REQUESTER, unscheduled.create())
    assert refused(unscheduled, unscheduled.settle_many((A, 1))) == "FF-LEDG-033"
    assert refused(World(), World().settle_many((A, 1))) == "FF-LEDG-031"


def test_a_lease_that_slashing_ended_claims_nothing():
    world = World().watched()
    world.do(REQUESTER, world.accuse(A))
    assert refused(world, world.settle_many((A, 1))) == "FF-LEDG-227"


# Whose word


@pytest.mark.parametrize("by", [(A,), (STRANGER,), (A, B), (V, A), (V, REQUESTER), (C, V, W)])
def test_nobody_else_signs_a_tally(by: tuple[SigningKey, ...]):
    world = World().watched()
    assert refused(world, world.settle_many((A, 1), by=by)) in ("FF-LEDG-222", "FF-LEDG-223")


def test_two_verifiers_credit_who_trained():
    world = World().watched()
    assert world.do(A, world.settle_many((A, 7), by=(W, V))) == "ok"
    assert world.lease(A).earned == 7


@pytest.mark.parametrize("by", [(), (V,), (V, V), (V, W, W)])
def test_one_verifier_of_two_credits_nobody(by: tuple[SigningKey, ...]):
    world = World().watched()
    assert refused(world, world.settle_many((A, 1), by=by)) == "FF-LEDG-223"


def test_without_verifiers_nobody_signs_for_them():
    world = World().running()
    assert refused(world, world.settle_many((A, 1), by=())) == "FF-LEDG-223"


def test_the_only_verifier_of_a_job_credits_alone():
    world = World().running()
    world.do(V, world.register())
    world.do(REQUESTER, world.schedule(world.offer(V, units=1, role=transactions.LeaseRole.AUDIT)))
    assert world.do(A, world.settle_many((A, 60), by=(V,))) == "ok"


def test_verifiers_credit_nobody_that_audits():
    world = World().watched()
    assert refused(world, world.settle_many((V, 1), by=(V, W))) == "FF-LEDG-226"
    assert refused(world, world.settle_many((A, 1), (W, 1), by=(V, W))) == "FF-LEDG-226"
    assert world.do(V, world.settle_many((V, 1))) == "ok"


@pytest.mark.parametrize("by", [REQUESTER, V])
def test_a_mark_is_signed_by_whom_it_names(by: SigningKey):
    world = World().watched()
    op = world.settle_many((A, 1), by=(REQUESTER,) if by is REQUESTER else (V, W))
    forged = replace(op.signed.marks[0], signature=world.settle_many((A, 2), by=(by,)).signed.marks[0].signature)
    signed = replace(op.signed, marks=(forged, *op.signed.marks[1:]))
    expected = "FF-LEDG-223" if by is REQUESTER else "FF-LEDG-222"
    assert refused(world, replace(op, signed=signed)) == expected


def test_marks_are_bounded():
    crowd = tuple(SigningKey(bytes([1 + place] * 32)) for place in range(limits.AUDITORS + 1))
    world = World(owners=(REQUESTER, A, *crowd))
    world.send(*(world.sign(key, world.register()) for key in (A, *crowd)))
    world.do(REQUESTER, world.create())
    offers = [world.offer(key, units=1, role=transactions.LeaseRole.AUDIT) for key in crowd]
    assert world.do(REQUESTER, world.schedule(world.offer(A), *offers)) == "ok"
    assert refused(world, world.settle_many((A, 1), by=crowd)) == "FF-LEDG-223"
    assert refused(world, world.accuse(A, *crowd), REQUESTER) == "FF-LEDG-051"
    assert world.do(A, world.settle_many((A, 1), by=crowd[1:])) == "ok"
    assert world.do(REQUESTER, world.accuse(A, *crowd[1:])) == "ok"


# Of what


def test_a_tally_of_another_chain_or_job_pays_nothing_here():
    world = World().running()
    assert refused(world, world.settle_many((A, 1), chain=genesis(name="other").chain)) == "FF-LEDG-220"
    assert refused(world, world.settle_many((A, 1), job=OTHER_JOB)) == "FF-LEDG-031"
    world.do(REQUESTER, world.create(OTHER_JOB))
    op = world.settle_many((A, 1))
    tally = replace(op.signed.tally, job=OTHER_JOB)
    world.do(B, world.schedule(world.offer(B, OTHER_JOB), job=OTHER_JOB))
    other = replace(op, signed=replace(op.signed, tally=tally))
    assert refused(world, other) == "FF-LEDG-033"
    world.do(REQUESTER, world.schedule(world.offer(A, OTHER_JOB, units=1), job=OTHER_JOB))
    assert refused(world, other) == "FF-LEDG-222"


def _other_units(voucher: EarningsVoucher) -> EarningsVoucher:
    return replace(voucher, credit=replace(voucher.credit, units=60))


def _other_node(voucher: EarningsVoucher) -> EarningsVoucher:
    return replace(voucher, credit=replace(voucher.credit, node=C.public))


def _other_place(voucher: EarningsVoucher) -> EarningsVoucher:
    return replace(voucher, index=voucher.index ^ 1)


def _longer_path(voucher: EarningsVoucher) -> EarningsVoucher:
    return replace(voucher, path=(*voucher.path, Hash(bytes(32))))


@pytest.mark.parametrize("change", [_other_units, _other_node, _other_place, _longer_path])
def test_a_leaf_that_is_not_in_the_tally_pays_nothing(change: object):
    world = World().running()
    op = world.settle_many((A, 1), (B, 2))
    assert callable(change)
    forged = replace(op, vouchers=(op.vouchers[0], change(op.vouchers[1])))
    assert refused(world, forged) == "FF-LEDG-224"


def test_a_node_without_a_lease_claims_nothing():
    world = World().running()
    assert refused(world, world.settle_many((C, 1))) == "FF-LEDG-225"


def test_vouchers_of_one_operation_are_bounded():
    world = World().running()
    op = world.settle_many((A, 1))
    assert refused(world, replace(op, vouchers=())) == "FF-LEDG-221"
    assert refused(world, replace(op, vouchers=op.vouchers * (limits.VOUCHERS + 1))) == "FF-LEDG-221"
    assert world.do(A, replace(op, vouchers=op.vouchers * limits.VOUCHERS)) == "ok"
