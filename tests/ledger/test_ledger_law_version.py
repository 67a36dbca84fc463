"""A new law holds for all seats from one block on; whose program does not know it stops there, and forks nothing."""

from __future__ import annotations

import pytest
from ledger_committee import COUNCIL, SEATS, AdoptLaw, AmendParams, Reign, carry, council, move
from ledger_network import SEATS as MEMBERS
from ledger_network import Committee
from msgspec.structs import replace

from farflung.core.errors import RunError
from farflung.ledger.block_execution import make
from farflung.ledger.law_version import check_law, law_at, law_name, next_law
from farflung.ledger.light_client import check, follow_steps, trust_in
from farflung.ledger.motions import Motion, MotionRow, MotionVote, motion_id
from farflung.ledger.queries import GetReceipt, ReceiptReply, reply
from farflung.ledger.transactions import make_tx, sign_tx

AMENDED = replace(COUNCIL, fee_min=3)


def test_a_law_is_followed_by_the_next_one_alone_from_the_boundary_on():
    world = council()
    for law in (0, 1, 3):
        assert world.do(SEATS[0], move(world, AdoptLaw(law))) == "FF-LEDG-267", law
    first = world.state.committee.first
    assert carry(world, AdoptLaw(2), SEATS[:3]) == "ok"
    assert (law_at(world.state, world.state.committee.params), next_law(world.state)) == (1, 2)
    while world.state.committee.first == first:
        world.send()
    assert (world.state.committee.params, world.state.params) == (1, COUNCIL)
    assert (law_at(world.state, 1), next_law(world.state)) == (2, 2)
    assert carry(world, AmendParams(AMENDED), SEATS[:3]) == "ok"  # a law outlasts other parameters
    assert world.do(SEATS[0], MotionVote(law_name(1))) == "FF-LEDG-268"  # the row is no motion that anybody votes for
    while world.state.committee.params == 1:
        world.send()
    assert (world.state.params, law_at(world.state, 2)) == (AMENDED, 2)


@pytest.mark.parametrize("order", [0, 1])
def test_parameters_and_law_that_pass_in_one_epoch_hold_together(order: int):
    world = council(params=replace(COUNCIL, epoch_blocks=32))
    whats = (AmendParams(replace(AMENDED, epoch_blocks=32)), AdoptLaw(2))
    for what in whats[:: 1 - 2 * order]:
        assert carry(world, what, SEATS[:3]) == "ok"
    while not world.state.committee.params:
        world.send()
    assert (world.state.params.fee_min, law_at(world.state, 1)) == (3, 2)


def test_whoever_follows_the_committees_has_the_law_proved():
    reign = Reign(4)
    reign.carry(AdoptLaw(2))
    reign.to_boundary()
    with pytest.raises(RunError, match="FF-LEDG-270") as refused:
        reign.step()  # made by the program that this is, which knows law 1
    assert "law 2 holds from block 33 on" in refused.value.cause
    assert "pip install" in refused.value.hint
    made, _ = make(reign.chain.tip, (), reign.chain.head.time + 1000, SEATS[0].public, law=2)
    with pytest.raises(RunError, match="FF-LEDG-270"):
        reign.chain.adopt(reign.certified(made))
    reign.chain.law = 2
    reign.chain.adopt(reign.certified(made))
    trust = follow_steps(trust_in(reign.chain.genesis), reign.chain.steps, 1)
    said = reply(reign.chain, GetReceipt(MotionRow.TABLE, law_name(1)))
    assert isinstance(said, ReceiptReply)
    assert said.receipt is not None
    row = check(trust, said.receipt)
    assert isinstance(row, MotionRow)
    assert row.what == AdoptLaw(2)
    check_law(reign.chain.state, 2)
    with pytest.raises(RunError, match="FF-LEDG-270"):
        check_law(reign.chain.state, 1)


def moved(committee: Committee) -> None:
    """Seats 0 to 2, or those that are up, pass law 2."""
    up = [index for index, node in enumerate(committee.nodes) if node is not None][:3]
    node = committee.nodes[up[0]]
    assert node is not None
    motion = Motion(AdoptLaw(2), node.chain.state.time + 10**9)
    name = motion_id(committee.chain, MEMBERS[up[0]].public, motion)
    for index in up:
        key, op = MEMBERS[index], motion if index == up[0] else MotionVote(name)
        committee.submit(index, sign_tx(key, make_tx(committee.chain, key.public, 0, op)), ticket=1000 + index)
        committee.run(600)


@pytest.mark.guarantee
@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("old", range(4))
def test_one_seat_of_an_older_program_stops_at_the_block_and_goes_on_when_it_is_upgraded(old: int, is_away: bool):
    """`is_away`: it learns of the motion and the boundary from the others' blocks, when they are long past."""
    committee = Committee(4, laws=[1 if index == old else 2 for index in range(4)], epoch_blocks=8, motion_ms=10**10)
    committee.run(300)
    if is_away:
        committee.kill(old)
    moved(committee)
    for nonce in range(6):
        committee.submit((old + 1) % 4, committee.pay(nonce), ticket=nonce)
        committee.run(600)
    if is_away:
        committee.begin(old)
        committee.run(1500)
    others = [node for index, node in enumerate(committee.nodes) if index != old and node is not None]
    (first,) = {node.chain.state.committee.first for node in others}
    assert all(node.chain.head.height > first for node in others)  # the other three go on
    assert {law_at(node.chain.state, 1) for node in others} == {2}
    assert {index: error.code for index, error in committee.failures.items()} == {old: "FF-LEDG-270"}
    assert f"law 2 holds from block {first} on" in committee.failures[old].cause
    assert committee.nodes[old] is None
    assert committee.disks[old].blocks[-1].header.height == first - 1  # nothing of its own law behind the boundary
    with pytest.raises(RunError, match="FF-LEDG-270"):
        committee.begin(old)
    committee.laws[old] = 2
    committee.begin(old)
    committee.submit(old, committee.pay(6), ticket=6)
    committee.run(4000)
    committee.check()
    heads = [node.chain.head.height for node in committee.nodes if node is not None]
    assert len(heads) == 4
    assert max(heads) - min(heads) <= 1
    assert 6 in committee.replies


def test_too_few_seats_that_know_the_law_make_no_block_and_no_fork():
    committee = Committee(4, laws=[2, 2, 1, 1], epoch_blocks=8, motion_ms=10**10)
    committee.run(300)
    moved(committee)
    committee.run(3000)
    assert sorted(committee.failures) == [2, 3]
    committee.check()
    (height,) = {len(disk.blocks) for disk in committee.disks}
    committee.laws = [2] * 4
    for index in (2, 3):
        committee.begin(index)
    committee.run(4000)
    committee.check()
    assert min(committee.heights()) > height
