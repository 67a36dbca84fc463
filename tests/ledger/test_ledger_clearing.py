"""A schedule pays what a standing ask says, one price a role, and nobody less than it asks."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_world import JOB, NODES, OTHER_JOB, REQUESTER, START, VERIFIERS, World

from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash
from farflung.core.tie_break import rank
from farflung.ledger import transactions

KEYS = (*NODES, *VERIFIERS)


def registered(*asks: int, keys: tuple[SigningKey, ...] = KEYS) -> World:
    world = World()
    for key, price in zip(keys, asks, strict=False):
        assert world.do(key, world.register(price=price)) == "ok"
    assert world.do(REQUESTER, world.create(price=9)) == "ok"
    return world


def hired(
    world: World,
    setter: SigningKey,
    *members: SigningKey,
    price: int,
    role: transactions.LeaseRole = transactions.LeaseRole.TRAIN,
) -> transactions.JobSchedule:
    offers = tuple(world.offer(key, price=price, units=1, stake=10, role=role) for key in members)
    return transactions.JobSchedule(JOB, offers, (transactions.ClearingPrice(role, setter.public),))


A, B, C, D, E = KEYS


def test_the_ask_that_is_left_over_sets_the_price_of_all() -> None:
    world = registered(3, 4, 5)
    assert world.do(REQUESTER, hired(world, C, A, B, price=5)) == "ok"
    assert [world.lease(key).unit_price for key in (A, B)] == [5, 5]


def test_a_dearer_setter_than_the_next_is_legal_because_the_law_seeks_no_optimum() -> None:
    world = registered(3, 4, 5, 7)
    assert world.do(REQUESTER, hired(world, D, A, B, price=7)) == "ok"


def test_where_nobody_is_left_over_the_last_of_the_hired_sets_the_price() -> None:
    world = registered(3, 4)
    assert world.do(REQUESTER, hired(world, A, A, B, price=3)) == "FF-LEDG-376"
    assert world.do(REQUESTER, hired(world, B, A, B, price=4)) == "ok"


@pytest.mark.guarantee
@pytest.mark.parametrize("price", [4, 6])
def test_a_price_that_its_setter_does_not_ask_is_refused(price: int) -> None:
    world = registered(3, 4, 5)
    assert world.do(REQUESTER, hired(world, C, A, B, price=price)) == "FF-LEDG-375"


def test_two_prices_in_one_role_are_refused() -> None:
    world = registered(3, 4, 5)
    offers = (world.offer(A, price=5, units=1), world.offer(B, price=4, units=1))
    cleared = (transactions.ClearingPrice(transactions.LeaseRole.TRAIN, C.public),)
    assert world.do(REQUESTER, transactions.JobSchedule(JOB, offers, cleared)) == "FF-LEDG-375"


def test_nobody_is_paid_less_than_it_asks_even_where_it_signed() -> None:
    world = registered(3, 8, 5)
    assert world.do(REQUESTER, hired(world, C, A, B, price=5)) == "FF-LEDG-376"


def test_each_role_has_a_price_of_its_own() -> None:
    world = registered(3, 4, 5, 1, 2)
    trains = tuple(world.offer(key, price=5, units=1, stake=10) for key in (A, B))
    audits = (world.offer(D, price=2, units=1, stake=10, role=transactions.LeaseRole.AUDIT),)
    train, audit = (
        transactions.ClearingPrice(transactions.LeaseRole.TRAIN, C.public),
        transactions.ClearingPrice(transactions.LeaseRole.AUDIT, E.public),
    )
    for wrong in ((), (train,), (audit, train), (train, train), (train, audit, audit)):
        assert world.do(REQUESTER, transactions.JobSchedule(JOB, (*trains, *audits), wrong)) == "FF-LEDG-374"
    assert world.do(REQUESTER, transactions.JobSchedule(JOB, (*trains, *audits), (train, audit))) == "ok"


def test_a_setter_lends_now() -> None:
    world = registered(3, 4)
    assert world.do(REQUESTER, hired(world, C, A, price=4)) == "FF-LEDG-020"  # never registered
    assert world.do(C, world.register(expires=world.state.time + 2000, price=6)) == "ok"
    world.send(after=3000)
    assert world.do(REQUESTER, hired(world, C, A, price=6)) == "FF-LEDG-020"  # its registration has run out
    assert world.do(REQUESTER, hired(world, B, A, price=4)) == "ok"


def test_a_setter_that_raises_its_ask_before_the_block_sets_the_new_one_only() -> None:
    world = registered(3, 5)
    assert world.do(B, world.register(price=8)) == "ok"
    assert world.do(REQUESTER, hired(world, B, A, price=5)) == "FF-LEDG-375"
    assert world.do(REQUESTER, hired(world, B, A, price=8)) == "ok"


def test_equal_asks_stand_in_an_order_that_each_job_draws() -> None:
    first, second = (tuple(sorted(KEYS, key=lambda key: rank(job, key.public))) for job in (JOB, OTHER_JOB))
    assert first != second
    for member, setter in permutations(first, 2):
        world = registered(5, 5, 5, 5, 5)
        is_behind = first.index(setter) > first.index(member)
        found = world.do(REQUESTER, hired(world, setter, member, price=5))
        assert found == ("ok" if is_behind else "FF-LEDG-376")


def test_a_refused_schedule_locks_nothing() -> None:
    world = registered(3, 8, 5)
    before = [world.node(key) for key in (A, B, C)]
    assert world.do(REQUESTER, hired(world, C, A, B, price=5)) == "FF-LEDG-376"
    assert [world.node(key) for key in (A, B, C)] == before


def test_a_replacement_is_cleared_anew_at_what_is_asked_then() -> None:
    world = registered(3, 4, 5)
    assert world.do(REQUESTER, hired(world, B, A, price=4)) == "ok"
    assert world.do(REQUESTER, hired(world, C, B, price=5)) == "ok"
    assert [world.lease(key).unit_price for key in (A, B)] == [4, 5]


@given(
    asks=st.lists(st.integers(0, 6), min_size=3, max_size=5),
    members=st.integers(1, 3),
    who=st.integers(0, 4),
    price=st.integers(0, 6),
    job_end=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_what_is_accepted_is_a_price_that_the_asks_may_have_set(
    asks: list[int], members: int, who: int, price: int, job_end: int
) -> None:
    world = registered(*asks)
    crew, setter = KEYS[: min(members, len(asks))], KEYS[min(who, len(asks) - 1)]
    offers = tuple(world.offer(key, price=price, units=1, stake=10, expires=START + 40_000 + job_end) for key in crew)
    found = world.do(
        REQUESTER,
        transactions.JobSchedule(
            JOB, offers, (transactions.ClearingPrice(transactions.LeaseRole.TRAIN, setter.public),)
        ),
    )
    place = {key.public: (ask, bytes(rank(Hash(JOB), key.public))) for key, ask in zip(KEYS, asks, strict=False)}
    last = place[setter.public]
    is_legal = last[0] == price and all(place[key.public] <= last for key in crew)
    assert (found == "ok") == is_legal
