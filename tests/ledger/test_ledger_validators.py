"""Validators: who gets a seat, whose it is, how the stake comes back, and what two faces cost."""

from __future__ import annotations

import itertools

import pytest
from ledger_committee import (
    COUNCIL,
    OWNERS,
    SEATS,
    AdmitValidator,
    MotionVote,
    RemoveValidator,
    ValidatorLeave,
    ValidatorState,
    carry,
    council,
    join,
    move,
    name,
    of,
)
from ledger_world import REQUESTER, RICH, ROOTS, STRANGER, VALIDATOR, World
from msgspec.structs import replace

from farflung.core.crypto import NS_SEAT, SigningKey, is_signed
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId, Signature
from farflung.ledger import transactions
from farflung.ledger.block import Genesis, check_genesis
from farflung.ledger.state_transition import apply_block, total_money
from farflung.ledger.validators import ValidatorAccuse, join_parts
from farflung.ledger.votes import SignedVote, Vote, VoteKind, excludes, sign_vote

FIVE, OWNER = SEATS[4], OWNERS[4]


def wait(world: World, span: int) -> None:
    world.send(after=span)


def to_boundary(world: World) -> None:
    while (world.state.height - world.state.committee.first + 1) % world.state.params.epoch_blocks:
        wait(world, 1000)


def test_validators_of_genesis_are_admitted_without_a_stake_and_may_bond_one():
    world = council()
    assert [row.state for row in (of(world, key) for key in SEATS[:4])] == [ValidatorState.ADMITTED] * 4
    assert of(world, SEATS[0]).stake == 0
    assert world.do(SEATS[0], join(world.chain, SEATS[0], SEATS[0], 300)) == "ok"
    assert (of(world, SEATS[0]).stake, of(world, SEATS[0]).address) == (300, "seat.example:7000")
    assert world.do(SEATS[0], join(world.chain, SEATS[0], SEATS[0], 200)) == "ok"
    assert (of(world, SEATS[0]).stake, of(world, SEATS[0]).state) == (300, ValidatorState.ADMITTED)
    assert world.balance(SEATS[0]) == RICH - 300


def test_who_joins_bonds_a_stake_for_a_key_that_said_whose_it_is():
    world = council()
    good = join(world.chain, FIVE, OWNER)
    assert world.do(OWNER, replace(good, signature=Signature(bytes(64)))) == "FF-LEDG-255"
    assert world.do(OWNERS[5], good) == "FF-LEDG-255"
    assert world.do(OWNER, replace(good, validator=SEATS[5].public)) == "FF-LEDG-255"
    assert world.do(OWNER, join(ROOTS[0], FIVE, OWNER)) == "FF-LEDG-255"
    assert world.do(OWNER, join(world.chain, FIVE, OWNER, 99)) == "FF-LEDG-258"
    assert world.do(OWNER, join(world.chain, FIVE, OWNER, RICH + 1)) == "FF-LEDG-010"
    assert world.do(OWNER, good) == "ok"
    assert world.do(OWNERS[5], join(world.chain, FIVE, OWNERS[5])) == "FF-LEDG-256"
    assert (of(world, FIVE).state, of(world, FIVE).stake) == (ValidatorState.CANDIDATE, 500)


def test_a_key_that_anybody_signs_for_takes_no_seat():
    world = council()
    anybody = PeerId(bytes([1]) + bytes(31))
    signature = Signature(bytes([1]) + bytes(63))
    assert is_signed(anybody, signature, NS_SEAT, *join_parts(world.chain, OWNER.public))
    op = replace(join(world.chain, FIVE, OWNER), validator=anybody, signature=signature)
    assert world.do(OWNER, op) == "FF-LEDG-203"
    with pytest.raises(VerificationError, match="FF-LEDG-060"):
        check_genesis(Genesis("weak", 0, (), (FIVE.public, anybody)))


def test_an_address_is_bounded():
    world = council()
    good = join(world.chain, FIVE, OWNER)
    assert world.do(OWNER, replace(good, address="x" * 260)) == "FF-LEDG-001"
    assert world.do(OWNER, replace(good, address="x" * 259)) == "ok"


def test_a_candidate_that_nobody_admits_gets_its_stake_back_from_the_clock():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    wait(world, 49_999)
    assert of(world, FIVE).state == ValidatorState.CANDIDATE
    wait(world, 1)
    assert (of(world, FIVE).state, world.balance(OWNER)) == (ValidatorState.GONE, RICH)
    assert world.do(OWNER, join(world.chain, FIVE, OWNER)) == "ok"


def test_a_candidate_may_go_at_once():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    assert world.do(OWNERS[5], ValidatorLeave(FIVE.public)) == "FF-LEDG-259"
    assert world.do(OWNER, ValidatorLeave(FIVE.public)) == "ok"
    assert (of(world, FIVE).state, world.balance(OWNER)) == (ValidatorState.GONE, RICH)
    assert world.do(OWNER, ValidatorLeave(FIVE.public)) == "FF-LEDG-260"
    assert world.do(OWNER, ValidatorLeave(STRANGER.public)) == "FF-LEDG-259"


def seated() -> World:
    """A fifth validator that has had its seat for an epoch."""
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    assert carry(world, AdmitValidator(FIVE.public), SEATS[:3]) == "ok"
    to_boundary(world)
    assert world.state.committee.members == tuple(key.public for key in SEATS[:5])
    return world


@pytest.mark.parametrize("by_motion", [False, True])
def test_a_stake_outlives_its_seat_and_then_comes_back(by_motion: bool):
    world = seated()
    wait(world, 1000)
    if by_motion:
        assert carry(world, RemoveValidator(FIVE.public), SEATS[:4]) == "ok"
    else:
        assert world.do(OWNER, ValidatorLeave(FIVE.public)) == "ok"
    assert of(world, FIVE).state == ValidatorState.LEAVING
    assert FIVE.public in world.state.committee.members
    to_boundary(world)
    wait(world, 1000)
    to_boundary(world)
    assert FIVE.public not in world.state.committee.members
    ended = world.state.committee.opened
    assert of(world, FIVE).until == ended + 50_000
    assert world.do(OWNER, join(world.chain, FIVE, OWNER, 900)) == "FF-LEDG-257"
    wait(world, ended + 49_999 - world.state.time)
    assert world.balance(OWNER) == RICH - 500
    wait(world, 1)
    assert (of(world, FIVE).state, world.balance(OWNER)) == (ValidatorState.GONE, RICH)


def test_who_was_admitted_and_leaves_before_it_has_a_seat_is_bonded_from_then_on():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    assert carry(world, AdmitValidator(FIVE.public), SEATS[:2]) == "ok"
    world.do(SEATS[2], transactions.Transfer(OWNER.public, 1))
    world = council(1)
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    assert world.do(SEATS[0], move(world, AdmitValidator(FIVE.public))) == "ok"
    assert world.do(OWNER, ValidatorLeave(FIVE.public)) == "ok"
    assert of(world, FIVE).until == world.state.time + 50_000
    to_boundary(world)
    assert len(world.state.committee.members) == 1


def test_a_committee_never_becomes_empty_and_its_stake_is_free_all_the_same():
    world = council(1)
    world.do(SEATS[0], join(world.chain, SEATS[0], SEATS[0], 700))
    assert world.do(SEATS[0], ValidatorLeave(SEATS[0].public)) == "ok"
    for _ in range(8):
        wait(world, 1000)
    assert (world.state.committee.epoch, world.state.committee.members) == (0, (SEATS[0].public,))
    wait(world, 60_000)
    assert (of(world, SEATS[0]).state, world.balance(SEATS[0])) == (ValidatorState.GONE, RICH)


def test_a_large_committee_keeps_who_was_admitted_first():
    world = council(4, replace(COUNCIL, committee_max=4))
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    assert carry(world, AdmitValidator(FIVE.public), SEATS[:3]) == "ok"
    to_boundary(world)
    assert world.state.committee.epoch == 0
    assert world.do(SEATS[1], ValidatorLeave(SEATS[1].public)) == "ok"
    to_boundary(world)
    wanted = (SEATS[0], SEATS[2], SEATS[3], FIVE)
    assert world.state.committee.members == tuple(key.public for key in wanted)


def test_seats_are_in_the_order_of_admission_and_not_of_asking():
    world = council(1)
    for seat in SEATS[4:6]:
        world.do(OWNER, join(world.chain, seat, OWNER))
    for seat in (SEATS[5], SEATS[4]):
        assert world.do(SEATS[0], move(world, AdmitValidator(seat.public))) == "ok"
    to_boundary(world)
    wait(world, 1000)
    to_boundary(world)
    assert world.state.committee.members == tuple(key.public for key in (SEATS[0], SEATS[5], SEATS[4]))


def test_one_account_may_own_several_seats_and_has_as_many_votes():
    world = council(1)
    for seat in SEATS[4:6]:
        world.do(OWNER, join(world.chain, seat, OWNER))
    for seat in SEATS[4:6]:
        assert world.do(SEATS[0], move(world, AdmitValidator(seat.public))) == "ok"
    to_boundary(world)
    assert len(world.state.committee.members) in (2, 3)
    while len(world.state.committee.members) < 3:
        wait(world, 1000)
    motion = move(world, RemoveValidator(SEATS[4].public))
    assert world.do(OWNER, motion) == "ok"
    assert of(world, SEATS[4]).state == ValidatorState.ADMITTED
    assert world.do(SEATS[0], MotionVote(name(world.chain, OWNER, motion))) == "ok"
    assert of(world, SEATS[4]).state == ValidatorState.LEAVING


def test_fees_go_to_the_owner_of_the_seat_that_made_the_block():
    world = seated()
    paid = world.sign(REQUESTER, transactions.Transfer(SEATS[0].public, 1), fee=40)
    state, _ = apply_block(world.state, world.state.time + 1000, [paid], FIVE.public)
    world.state = state
    assert world.balance(OWNER) == RICH - 500 + 40
    assert total_money(state) == state.law.minted


# Accusing

BLOCKS = ROOTS[:2]


def vote(world: World, kind: VoteKind, block: Hash = BLOCKS[0], view: int = 3, epoch: int = 0) -> Vote:
    return Vote(world.chain, epoch, view, kind, ZERO_HASH if kind == VoteKind.NULLIFY else block)


def said(world: World, seat: int, kind: VoteKind, block: Hash = BLOCKS[0], **more: int) -> SignedVote:
    return sign_vote(SEATS[seat], seat, vote(world, kind, block, **more))


TWO_FACED = [
    ((VoteKind.NOTARIZE, BLOCKS[0]), (VoteKind.NOTARIZE, BLOCKS[1])),
    ((VoteKind.FINALIZE, BLOCKS[0]), (VoteKind.FINALIZE, BLOCKS[1])),
    ((VoteKind.FINALIZE, BLOCKS[0]), (VoteKind.NULLIFY, ZERO_HASH)),
    ((VoteKind.FINALIZE, BLOCKS[1]), (VoteKind.NULLIFY, ZERO_HASH)),
]
SAYINGS = [(kind, block) for kind in (VoteKind.NOTARIZE, VoteKind.FINALIZE) for block in BLOCKS] + [
    (VoteKind.NULLIFY, ZERO_HASH)
]


def test_what_an_honest_seat_may_sign_is_no_offence_and_the_rest_is(subtests):
    for first, second in list(itertools.product(SAYINGS, SAYINGS)):
        with subtests.test(first=first, second=second):
            world = council()
            world.do(SEATS[2], join(world.chain, SEATS[2], SEATS[2], 701))
            is_two_faced = (first, second) in TWO_FACED or (second, first) in TWO_FACED
            op = ValidatorAccuse(said(world, 2, *first), said(world, 2, *second))
            assert excludes(op.first.vote, op.second.vote) == is_two_faced
            assert world.do(REQUESTER, op) == ("ok" if is_two_faced else "FF-LEDG-261")
            row = of(world, SEATS[2])
            if is_two_faced:
                assert (row.state, row.stake, row.burnt) == (ValidatorState.JAILED, 0, 351)
                assert world.balance(REQUESTER) == RICH + 350
            else:
                assert (row.state, row.stake, row.burnt) == (ValidatorState.ADMITTED, 701, 0)


def test_an_accusation_needs_two_signatures_of_one_seat_in_one_view():
    world = council()
    first, second = said(world, 2, VoteKind.NOTARIZE), said(world, 2, VoteKind.NOTARIZE, BLOCKS[1])

    def accused(one: SignedVote, other: SignedVote) -> str:
        return world.do(REQUESTER, ValidatorAccuse(one, other))

    assert accused(first, said(world, 2, VoteKind.NOTARIZE, BLOCKS[1], view=4)) == "FF-LEDG-261"
    assert accused(first, said(world, 2, VoteKind.NOTARIZE, BLOCKS[1], epoch=1)) == "FF-LEDG-261"
    assert accused(first, said(world, 3, VoteKind.NOTARIZE, BLOCKS[1])) == "FF-LEDG-261"
    assert accused(first, first) == "FF-LEDG-261"
    assert accused(first, replace(second, signature=first.signature)) == "FF-LEDG-262"
    assert accused(replace(first, signature=second.signature), second) == "FF-LEDG-262"
    assert accused(replace(first, seat=9), replace(second, seat=9)) == "FF-LEDG-262"
    late = [said(world, 2, VoteKind.NOTARIZE, block, epoch=1) for block in BLOCKS]
    assert accused(*late) == "FF-LEDG-262"
    other = [replace(v.vote, chain=ROOTS[0]) for v in (first, second)]
    assert accused(*(sign_vote(SEATS[2], 2, v) for v in other)) == "FF-LEDG-261"
    assert accused(first, second) == "ok"
    assert accused(second, first) == "FF-LEDG-263"


def test_passing_over_a_view_twice_is_no_offence_whatever_it_names():
    world = council()
    votes = [Vote(world.chain, 0, 3, VoteKind.NULLIFY, block) for block in BLOCKS]
    accused = ValidatorAccuse(*(sign_vote(SEATS[2], 2, each) for each in votes))
    assert world.do(REQUESTER, accused) == "FF-LEDG-261"


def test_who_is_jailed_loses_its_seat_at_the_boundary_and_never_comes_back():
    world = council()
    op = ValidatorAccuse(said(world, 2, VoteKind.FINALIZE), said(world, 2, VoteKind.NULLIFY))
    assert world.do(STRANGER, transactions.Transfer(STRANGER.public, 1)) != "ok"
    assert world.do(REQUESTER, op) == "ok"
    assert world.do(SEATS[2], join(world.chain, SEATS[2], SEATS[2])) == "FF-LEDG-257"
    assert world.do(SEATS[2], ValidatorLeave(SEATS[2].public)) == "FF-LEDG-260"
    to_boundary(world)
    wanted = tuple(key.public for key in (SEATS[0], SEATS[1], SEATS[3]))
    assert (world.state.committee.epoch, world.state.committee.members) == (1, wanted)


def test_a_stake_is_lost_for_an_old_epoch_as_long_as_it_is_bonded():
    world = seated()
    world.do(OWNER, ValidatorLeave(FIVE.public))
    to_boundary(world)
    wait(world, 40_000)
    old = world.state.committee.epoch - 1
    votes = [sign_vote(FIVE, 4, vote(world, VoteKind.FINALIZE, block, epoch=old)) for block in BLOCKS]
    assert world.do(REQUESTER, ValidatorAccuse(votes[0], votes[1])) == "ok"
    assert (of(world, FIVE).state, of(world, FIVE).burnt) == (ValidatorState.JAILED, 250)
    wait(world, 90_000)
    assert (world.balance(OWNER), world.balance(REQUESTER)) == (RICH - 500, RICH + 250)


def key_names(keys: tuple[SigningKey, ...]) -> tuple[bytes, ...]:
    return tuple(key.public for key in keys)


def test_the_default_committee_of_one_needs_no_validator_operation():
    world = World()
    for _ in range(70):
        wait(world, 1000)
    assert (world.state.committee.epoch, world.state.committee.members) == (0, key_names((VALIDATOR,)))
    assert not world.state.closes
