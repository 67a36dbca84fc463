"""Those who act together: sellers that agree on a price, and a clearer that works for them."""

from __future__ import annotations

from ledger_world import JOB, NODES, REQUESTER, VERIFIERS, World
from market_play import Slot, played, with_ask

from farflung.core.crypto import SigningKey
from farflung.ledger import transactions

KEYS = (*NODES, *VERIFIERS)

SLOTS = [Slot(1, 100, 0), Slot(2, 100, 1), Slot(3, 100, 2), Slot(7, 100, 3), Slot(8, 100, 4)]


def test_not_stopped_the_first_loser_can_raise_the_winners_price_to_the_next_ask_and_no_further() -> None:
    assert played(SLOTS, winners=2) == (frozenset({0, 1}), 3)
    for ask, price in ((6, 6), (7, 7), (9, 7), (999, 7)):
        result = played(with_ask(SLOTS, 2, ask), winners=2)
        assert result is not None
        assert (result.winners, result.price) == ({0, 1}, price)


def test_a_ring_that_asks_too_much_loses_to_whoever_is_outside_it() -> None:
    ring = [slot._replace(ask=50) for slot in SLOTS[:3]] + SLOTS[3:]
    result = played([*ring, Slot(9, 100, 5)], winners=2)
    assert result is not None
    assert (result.winners, result.price) == ({3, 4}, 9)


def test_a_ring_of_all_sellers_is_bounded_by_the_reserve_alone() -> None:
    assert played([slot._replace(ask=13) for slot in SLOTS], winners=2, reserve=12) is None
    result = played([slot._replace(ask=12) for slot in SLOTS], winners=2, reserve=12)
    assert result is not None
    assert result.price == 12


def hired(world: World, setter: SigningKey, price: int) -> str:
    """The ledger's word on a schedule that pays the first two nodes a price that `setter` is said to set."""
    offers = tuple(world.offer(key, price=price, units=1, stake=10) for key in KEYS[:2])
    clearing = transactions.ClearingPrice(transactions.LeaseRole.TRAIN, setter.public)
    return world.do(REQUESTER, transactions.JobSchedule(JOB, offers, (clearing,)))


def test_a_clearer_cannot_invent_a_price_and_may_pass_cheaper_asks_by() -> None:
    world = World()
    for ask, key in enumerate(KEYS, 1):
        assert world.do(key, world.register(price=ask)) == "ok"
    assert world.do(REQUESTER, world.create(price=9)) == "ok"
    assert hired(world, KEYS[3], 5) == "FF-LEDG-375"  # nobody's ask
    assert hired(world, REQUESTER, 9) == "FF-LEDG-020"  # a friend who lends nothing
    assert hired(world, KEYS[0], 1) == "FF-LEDG-376"  # less than a winner asks
    assert hired(world, KEYS[4], 5) == "ok"  # not stopped: a dearer setter than the next
