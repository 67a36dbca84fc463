"""The core of the market: the right window, found fast, and a price that nobody with one slot can move."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market_play import SPEEDS, Slot, by_hand, crowd, played, with_ask

from farflung.market.clearing import FASTEST, SimilarityRule, best, reach, widest, within

SLOTS = st.lists(
    st.builds(Slot, st.integers(0, 12), st.sampled_from(SPEEDS), st.integers(0, 5)), min_size=1, max_size=10
)


@given(slots=SLOTS, winners=st.integers(1, 4), cap=st.integers(0, 3), reserve=st.integers(0, 13))
@settings(max_examples=250)
def test_the_core_finds_what_trying_every_window_finds(slots: list[Slot], winners: int, cap: int, reserve: int) -> None:
    assert played(slots, winners, cap, reserve) == by_hand(slots, winners, cap, reserve)


def test_the_core_finds_it_among_many_asks_too() -> None:
    draws = np.random.Generator(np.random.Philox(3))
    for winners, cap in ((3, 1), (12, 4), (40, 0), (40, 2)):
        columns = (draws.integers(0, 500, 300), draws.integers(100, 400, 300), draws.integers(0, 60, 300))
        slots = [Slot(*(int(v) for v in row)) for row in zip(*columns, strict=True)]
        found = played(slots, winners, cap)
        assert found == by_hand(slots, winners, cap)
        assert found is not None


def deviations(seed: int, count: int) -> Iterator[tuple[int, int]]:
    """(honest gain, gain by another ask) of sellers with one slot, in markets with and without larger owners."""
    draws, tried = np.random.Generator(np.random.Philox(seed)), 0
    while tried < count:
        slots = crowd(draws, owners=int(draws.choice((0, 0, 4, 6))))
        winners = int(draws.integers(1, 7))
        cap = max(1, winners // 3)
        honest = played(slots, winners, cap, reserve=12)
        for i, slot in enumerate(slots):
            if sum(other.owner == slot.owner for other in slots) > 1:
                continue
            truth = honest.gain(slot.ask, i) if honest else 0
            for ask in (ask for ask in range(14) if ask != slot.ask):
                lied = played(with_ask(slots, i, ask), winners, cap, reserve=12)
                tried += 1
                yield truth, lied.gain(slot.ask, i) if lied else 0


@pytest.mark.slow
def test_no_deviation_of_a_seller_with_one_slot_pays() -> None:
    found = list(deviations(seed=1, count=12_000))
    assert [pair for pair in found if pair[1] > pair[0]] == []
    assert sum(truth > 0 for truth, _ in found) > 1000  # there was something to lose
    assert sum(lied < truth for truth, lied in found) > 1000  # and lying moved it


@pytest.mark.soak
def test_none_of_100_000_deviations_of_a_seller_with_one_slot_pays() -> None:
    assert sum(lied > truth for truth, lied in deviations(seed=2, count=100_000)) == 0


def test_the_next_ask_sets_the_price_and_a_winner_cannot_move_it() -> None:
    slots = [Slot(1, 100, 0), Slot(2, 100, 1), Slot(7, 100, 2), Slot(9, 100, 3)]
    for ask in range(7):
        result = played(with_ask(slots, 0, ask), winners=2)
        assert result is not None
        assert (result.winners, result.price) == ({0, 1}, 7)


def test_an_owners_asks_beyond_its_cap_neither_win_nor_set_the_price() -> None:
    slots = [Slot(1, 100, 0), Slot(1, 100, 0), Slot(1, 100, 0), Slot(3, 100, 1), Slot(10, 100, 2)]
    result = played(slots, winners=2, cap=1)
    assert result is not None
    assert (result.winners, result.price) == ({0, 3}, 10)
    uncapped = played(slots, winners=2)
    assert uncapped is not None
    assert (uncapped.winners, uncapped.price) == ({0, 1}, 1)


def test_where_asks_beyond_the_cap_could_set_the_price_one_slot_would_bend_it() -> None:
    def naive(slots: list[Slot], winners: int) -> tuple[set[int], int]:
        """Winners are capped at one an owner, and the very next ask sets the price, whosever it is."""
        order = sorted((slot.ask, i) for i, slot in enumerate(slots))
        won: list[int] = []
        for place, (_, i) in enumerate(order):
            if slots[i].owner not in {slots[j].owner for j in won}:
                won.append(i)
            if len(won) == winners:
                return set(won), order[place + 1][0]
        raise AssertionError

    slots = [Slot(0, 100, 9), Slot(1, 100, 0), Slot(1, 100, 0), Slot(10, 100, 2)]
    assert naive(slots, 2) == ({0, 1}, 1)
    assert naive(with_ask(slots, 0, 2), 2) == ({0, 1}, 10)  # by asking more it is paid more
    for ask in (0, 2):
        result = played(with_ask(slots, 0, ask), winners=2, cap=1)
        assert result is not None
        assert (result.winners, result.price) == ({0, 1}, 10)


def test_where_the_setter_must_win_nothing_one_slot_would_bend_the_price() -> None:
    def naive(slots: list[Slot], winners: int) -> tuple[set[int], int]:
        """The first ask of an owner without a winner sets the price, so that nobody sets his own."""
        order = sorted((slot.ask, i) for i, slot in enumerate(slots))
        won = {i for _, i in order[:winners]}
        owners = {slots[i].owner for i in won}
        return won, min(slot.ask for slot in slots if slot.owner not in owners)

    slots = [Slot(1, 100, 0), Slot(1, 100, 0), Slot(3, 100, 1), Slot(10, 100, 2)]
    assert naive(slots, 2) == ({0, 1}, 3)
    assert naive(with_ask(slots, 2, 0), 2) == ({2, 0}, 10)  # who lost at 3 undercuts and is paid 10
    result = played(with_ask(slots, 2, 0), winners=2, cap=2)
    assert result is not None
    assert result.price == 1


def test_of_several_windows_with_one_setter_the_fastest_is_taken() -> None:
    slots = [Slot(1, 100, 0), Slot(1, 150, 1), Slot(5, 125, 2)]
    result = played(slots, winners=1)
    assert result is not None
    assert (result.winners, result.price) == ({1}, 5)


@given(speed=st.integers(0, FASTEST), percent=st.integers(100, 10_000))
def test_what_a_speed_reaches_is_the_whole_part_of_its_percentage(speed: int, percent: int) -> None:
    assert reach(speed, percent) == speed * percent // 100


@given(slots=SLOTS, cap=st.integers(0, 3))
@settings(max_examples=60)
def test_the_widest_window_and_its_members_are_counted_alike(slots: list[Slot], cap: int) -> None:
    speeds = np.array(sorted(slot.speed for slot in slots), np.int64)
    owners = np.array([slot.owner for slot in sorted(slots, key=lambda slot: slot.speed)], np.int64)
    rule = SimilarityRule(125, cap)
    sizes = [within(speeds, owners, int(low), rule).size for low in speeds]
    assert widest(speeds, owners, rule) == max(sizes)
    for needed in range(1, len(slots) + 2):
        assert (best(speeds, owners, needed, rule) is not None) == (needed <= max(sizes))


def test_nothing_is_found_among_nothing() -> None:
    none = np.array([], np.int64)
    assert best(none, none, 1, SimilarityRule(125)) is None
    assert widest(none, none, SimilarityRule(125, 1)) == 0
    assert best(np.array([5], np.int64), np.array([0], np.int64), 0, SimilarityRule(125)) is None
