"""The judge of histories of registers: as strict as trying every order, and no stricter."""

from __future__ import annotations

import random
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_linear import Operation, contradiction


def write(value: int, began: float, ended: float | None = None) -> Operation:
    return Operation(value, True, began, ended)


def read(value: int, began: float, ended: float) -> Operation:
    return Operation(value, False, began, ended)


def by_every_order(history: list[Operation], initial: int) -> bool:
    """What linearizable means, word by word."""
    certain = [each for each in history if each.ended is not None]
    doubtful = [each for each in history if each.ended is None and each.is_write]
    for count in range(len(doubtful) + 1):
        for effective in combinations(doubtful, count):
            if any(is_right(order, initial) for order in permutations([*certain, *effective])):
                return True
    return False


def is_right(order: tuple[Operation, ...], initial: int) -> bool:
    value = initial
    for place, each in enumerate(order):
        if any(later.ended is not None and later.ended < each.began for later in order[place:]):
            return False
        if not each.is_write and each.value != value:
            return False
        value = each.value
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    found = []
    for _ in range(draw(st.integers(0, 5))):
        began, length = draw(st.integers(0, 8)), draw(st.integers(0, 6))
        ended = None if draw(st.integers(0, 3)) == 0 else began + length
        found.append(Operation(draw(st.integers(0, 2)), draw(st.booleans()), began, ended))
    return found


@given(histories())
def test_it_judges_as_every_order_does(history: list[Operation]):
    assert (contradiction(history, 0) is None) == by_every_order(history, 0)


def told(source: random.Random, count: int) -> list[Operation]:
    """What `count` operations on a real register look like to clients: each one's moment lies within its time."""
    value, found = 0, []
    for moment in range(count):
        is_write = source.random() < 0.5
        began, ended = moment - source.random() * 6, moment + source.random() * 6
        if is_write and source.random() < 0.2:  # nobody hears of it
            found.append(write(moment + 1, began))
            value = moment + 1 if source.random() < 0.5 else value
            continue
        value = moment + 1 if is_write else value
        found.append(Operation(value, is_write, began, ended))
    source.shuffle(found)
    return found


@given(st.integers(0, 2**32))
def test_what_a_register_did_is_accepted(seed: int):
    assert contradiction(told(random.Random(seed), 40), 0) is None


@given(st.integers(0, 2**32))
def test_what_a_register_did_is_refused_with_one_stale_read_in_it(seed: int):
    history = told(random.Random(seed), 40)
    end = max(each.ended or 0.0 for each in history)
    stale = [write(900, end + 1, end + 2), write(901, end + 3, end + 4), read(900, end + 5, end + 6)]
    assert contradiction([*history, *stale], 0) == stale[-1]


@pytest.mark.parametrize(
    ("history", "culprit"),
    [
        ([write(1, 0, 1), read(0, 2, 3)], 1),  # stale
        ([write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)], 2),  # a lost write
        ([read(1, 0, 1), write(1, 2, 3)], 0),  # from the future
        ([write(1, 0, 9), read(1, 1, 2), read(0, 3, 4)], 2),  # there, then gone
        ([write(1, 0, 9), write(2, 0, 9), read(1, 1, 2), read(2, 3, 4), read(1, 5, 6)], 4),  # a split
        ([write(1, 0), read(1, 5, 6), read(0, 7, 8)], 2),  # what nobody knew of was there, then gone
        ([read(7, 0, 1)], 0),  # nobody wrote it
    ],
)
def test_what_no_register_does_is_refused(history: list[Operation], culprit: int):
    assert contradiction(history, 0) == history[culprit]


@pytest.mark.parametrize(
    "history",
    [
        [write(1, 0, 5), read(0, 1, 2), read(1, 3, 4)],  # it takes effect between
        [write(1, 0), read(0, 5, 6), read(1, 7, 8)],  # late, though nobody waits any more
        [write(1, 0), read(0, 5, 6)],  # never
        [write(1, 0, 1), read(1, 1, 2)],  # what touches is concurrent
    ],
)
def test_what_a_register_may_do_is_accepted(history: list[Operation]):
    assert contradiction(history, 0) is None


def test_a_long_history_is_judged_without_trying_every_order():
    source = random.Random(5)
    history = told(source, 3000) + [write(-number, 10.0 * number) for number in range(1, 300)]
    assert contradiction(history, 0) is None
