"""Who tries to stop, change or invent pay on the ledger: requesters, verifiers, nodes, jurors and strangers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    WINDOW,
    World,
    genesis,
)
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import ProtocolError
from farflung.core.money import MAX_CREDITS
from farflung.ledger import transactions
from farflung.ledger.disputes import DisputeAnswer, DisputeState, JuryVote
from farflung.ledger.earnings_tally import SettleMany
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import JobState

A, B, C = NODES
V, W = VERIFIERS
FINISH, SETTLE = transactions.JobFinish(JOB, ROOTS[0], CAPS), transactions.JobSettle(JOB)
DENIAL = DisputeAnswer(JOB, BOND, ROOTS[1])
PRICE = 5
WINDOWED = replace(PARAMS, window_ms=WINDOW)


def wealth(world: World, *owned: SigningKey) -> int:
    """What these keys have in accounts, as stake, and in the job and the disputes that hold it for them."""
    held = 0
    for key in owned:
        node = world.state.tables["nodes"].row(key.public)
        held += world.balance(key) + (node.stake if node else 0)  # type: ignore[union-attr]
    return held


# A requester that does not record


def withheld(world: World, epochs: int, claims: bool) -> World:
    """A earns 10 units an epoch and is given a voucher for each; the requester records B alone."""
    for number in range(epochs):
        world.do(REQUESTER, world.progress(min(number, 2), (B, 5)))
        if claims:
            assert world.do(A, world.settle_many((A, 10 * (number + 1)), (B, 5))) == "ok"
    return world


def test_a_node_that_claims_each_epoch_loses_the_last_one_at_most():
    world = withheld(World().watched(), 3, claims=True)
    last = world.settle_many((A, 40))
    assert world.do(REQUESTER, replace(FINISH, root=ROOTS[2]), SETTLE) == "ok"  # before A can claim
    assert world.do(A, last) == "FF-LEDG-033"
    assert world.lease(A).paid == 30 * PRICE


@pytest.mark.parametrize("end", ["output", "cancel"])
def test_with_a_window_a_node_that_never_claimed_loses_nothing(end: str):
    world = withheld(World(WINDOWED).watched(), 3, claims=False)
    ending, closing = (
        (replace(FINISH, root=ROOTS[2]), SETTLE) if end == "output" else (transactions.JobCancel(JOB),) * 2
    )
    assert world.do(REQUESTER, ending, closing) == "FF-LEDG-229"
    assert world.do(REQUESTER, ending) == "ok"
    assert world.do(A, world.settle_many((A, 40))) == "ok"
    world.send(after=WINDOW)
    assert world.do(REQUESTER, closing) == "ok"
    assert world.lease(A).paid == 40 * PRICE


@pytest.mark.guarantee
def test_a_requester_that_vanishes_stops_no_pay():
    world = withheld(World().watched(), 2, claims=True)
    world.send(after=world.job().deadline - world.state.time)
    assert (world.job().state, world.lease(A).paid) == (JobState.EXPIRED, 20 * PRICE)


@pytest.mark.guarantee
def test_a_requester_that_signs_nothing_is_outvoted_by_those_who_checked():
    world = World().watched()
    assert world.do(A, world.settle_many((A, 25), by=VERIFIERS)) == "ok"
    for units in (0, 24):
        assert world.do(REQUESTER, world.settle_many((A, units))) == "ok"
    world.do(REQUESTER, transactions.JobCancel(JOB))
    assert world.lease(A).paid == 25 * PRICE


def test_a_requester_and_its_own_verifiers_take_one_epoch_and_no_more():
    """They attest at once: what was claimed before stays claimed."""
    world = withheld(World(WINDOWED).watched(), 3, claims=True)
    world.do(REQUESTER, replace(FINISH, root=ROOTS[2]))
    assert world.do(REQUESTER, world.attest(), SETTLE) == "ok"
    assert world.lease(A).paid == 30 * PRICE


# Verifiers that invent


def test_what_a_lone_verifier_invents_is_bounded_by_the_offers_that_the_requester_took():
    world = World().running()
    world.do(V, world.register())
    world.do(REQUESTER, world.schedule(world.offer(V, units=10, role=transactions.LeaseRole.AUDIT)))
    assert world.do(V, world.settle_many((A, 61), by=(V,))) == "FF-LEDG-228"
    assert world.do(V, world.settle_many((A, 60), by=(V,))) == "ok"
    assert world.do(V, world.settle_many((V, 10), by=(V,))) == "FF-LEDG-226"
    world.do(REQUESTER, transactions.JobCancel(JOB))
    assert world.job().paid == 60 * PRICE
    assert world.balance(REQUESTER) == RICH - 60 * PRICE


def test_one_of_two_verifiers_invents_nothing():
    world = World().watched()
    for by in ((V,), (V, V), (V, A), (V, STRANGER), (V, REQUESTER)):
        assert world.do(V, world.settle_many((A, 60), by=by)) != "ok"
    assert world.lease(A).earned == 0


def test_verifiers_of_another_job_have_no_word_here():
    world = World().running()
    for key in VERIFIERS:
        world.do(key, world.register())
    world.do(REQUESTER, world.create(OTHER_JOB))
    offers = [world.offer(key, OTHER_JOB, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
    assert world.do(REQUESTER, world.schedule(*offers, job=OTHER_JOB)) == "ok"
    assert world.do(A, world.settle_many((A, 60), by=VERIFIERS)) == "FF-LEDG-222"


# Replays, forgeries, numbers


def test_old_vouchers_and_repeated_ones_change_nothing():
    world = World().watched()
    tallies = [world.settle_many((A, units), (B, 1)) for units in (10, 20, 30)]
    assert world.do(A, tallies[2]) == "ok"
    before = tuple(world.state.tables["leases"].rows)
    for op in (*tallies, *tallies):
        assert world.do(STRANGER, op, op) == "ok"
    assert tuple(world.state.tables["leases"].rows) == before


def test_a_tally_counts_on_its_own_chain_and_in_its_own_job():
    world = World().watched()
    world.do(REQUESTER, world.create(OTHER_JOB))
    world.do(REQUESTER, world.schedule(world.offer(A, OTHER_JOB, units=20), job=OTHER_JOB))
    foreign = world.settle_many((A, 60), chain=genesis(name="another").chain)
    assert world.do(A, foreign) == "FF-LEDG-220"
    here = world.settle_many((A, 10), job=OTHER_JOB)
    moved = replace(here, signed=replace(here.signed, tally=replace(here.signed.tally, job=JOB)))
    assert world.do(A, moved) == "FF-LEDG-223"
    assert world.do(A, here) == "ok"
    assert (world.lease(A).earned, world.lease(A, OTHER_JOB).earned) == (0, 10)


@settings(max_examples=150)
@given(data=st.data())
def test_no_changed_byte_of_a_claim_pays_another_sum(data: st.DataObject):
    """Whatever byte is another one: it cannot be read, is refused, or says what was signed."""
    world = CLAIMED
    said = bytearray(encode(world.settle_many((A, 11), (B, 22))))
    place = data.draw(st.integers(0, len(said) - 1))
    said[place] ^= data.draw(st.integers(1, 255))
    try:
        op = decode(bytes(said), SettleMany, limits.TX_BYTES)
    except ProtocolError:
        return
    before = world.state
    try:
        world.do(A, op)
        assert (world.lease(A).earned, world.lease(B).earned) in ((0, 0), (11, 22))
    finally:
        world.state = before


CLAIMED = World().watched()


@pytest.mark.parametrize("units", [61, 2**32, MAX_CREDITS, MAX_CREDITS + 1])
def test_no_number_is_above_what_was_offered(units: int):
    world = World().watched()
    assert world.do(A, world.settle_many((A, units))) in ("FF-LEDG-228", "FF-LEDG-001")
    assert world.lease(A).earned == 0


def test_a_tree_of_many_leaves_pays_each_node_once():
    """The same node in a hundred leaves, all claimed at once, gets the largest of them."""
    world = World().watched()
    assert world.do(A, world.settle_many(*((A, place % 61) for place in range(100)))) == "ok"
    assert world.lease(A).earned == 60


# Disputes as a weapon


def test_accusing_everybody_stops_nobody_elses_pay_and_costs_the_accusers():
    world = World(replace(SLOW_PARAMS, window_ms=0)).watched()
    world.do(REQUESTER, world.schedule(world.offer(C, units=20)))
    world.do(REQUESTER, world.progress(0, (A, 10), (B, 20), (C, 5)))
    accusers = wealth(world, V, W)
    for key in (A, B):
        assert world.do(V, world.accuse(key)) == "ok"
        assert world.do(key, replace(DENIAL)) == "ok"
    assert world.do(REQUESTER, FINISH, SETTLE) == "ok"
    assert world.lease(C).paid == 5 * PRICE
    for key in (A, B):
        assert world.do(VALIDATOR, JuryVote(JOB, key.public, False)) == "ok"
    assert [world.lease(key).paid for key in (A, B)] == [50, 100]
    assert wealth(world, V, W) == accusers - 2 * 50
    assert [wealth(world, key) for key in (A, B)] == [RICH + 50 + 50, RICH + 100]


def test_an_honest_node_that_answers_loses_nothing_whatever_jury_there_is():
    """All of the requester, its verifiers and a jury that says nothing against it."""
    world = World(SLOW_PARAMS, validators=(REQUESTER, V, W)).watched()
    world.do(REQUESTER, world.progress(0, (A, 10)))
    world.do(V, world.accuse(A))
    world.do(A, DENIAL)
    for key in (REQUESTER, V, W):
        assert world.do(key, JuryVote(JOB, A.public, True)) == "FF-LEDG-234"
    world.send(after=DISPUTE)
    assert world.dispute(A).state == DisputeState.LAPSED
    assert wealth(world, A) == RICH + 50


def test_one_owner_of_all_sides_gains_nothing_by_a_dispute():
    for guilty in (True, False, None):
        world = World(SLOW_PARAMS).watched()
        owned = (REQUESTER, *NODES, *VERIFIERS)
        world.do(REQUESTER, world.accuse(A))
        world.do(A, DENIAL)
        if guilty is not None:
            world.do(VALIDATOR, JuryVote(JOB, A.public, guilty))
        world.send(after=400_000)
        world.send()
        lost = len(owned) * RICH - wealth(world, *owned)
        assert lost == {True: 54, False: 50, None: 0}[guilty]
        assert total_money(world.state) == world.state.law.minted


def test_a_node_that_hides_behind_a_dispute_cannot_take_its_stake_away():
    world = World(SLOW_PARAMS).watched()
    world.do(REQUESTER, world.accuse(A))
    world.do(A, transactions.NodeLeave())
    assert wealth(world, A) == RICH - 100
    world.send(after=DISPUTE)
    assert (world.dispute(A).state, world.node(A).burnt) == (DisputeState.UPHELD, 50)
    assert wealth(world, A) == RICH - 100


# Nobody


def test_a_sender_that_is_nobody_claims_for_others_and_decides_nothing():
    world = World(SLOW_PARAMS).watched()
    nobody = SigningKey(bytes(31) + b"\x07")
    assert world.do(nobody, world.settle_many((A, 10), (B, 20))) == "ok"
    assert (world.lease(A).earned, world.balance(nobody)) == (10, 0)
    assert world.do(nobody, world.settle_many((A, 60), by=(nobody,))) != "ok"
    assert world.do(nobody, world.settle_many((nobody, 1))) == "FF-LEDG-225"
    world.do(REQUESTER, world.accuse(A))
    assert world.do(nobody, DENIAL) == "FF-LEDG-231"
    world.do(A, DENIAL)
    assert world.do(nobody, JuryVote(JOB, A.public, True)) == "FF-LEDG-234"
    assert world.do(nobody, world.accuse(B)) == "FF-LEDG-048"
