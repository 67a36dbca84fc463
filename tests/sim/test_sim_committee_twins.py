"""A seat that lives twice, and every way to cut the committee round by round: exhaustively for four seats."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from sim_committee_mutants import finalize_after_nullify, quorum_minus_one
from sim_committee_twins import Cut, cuts, play, scenarios

ROUNDS = 4
QUICK = 100


def test_cuts_are_counted_once_under_symmetry() -> None:
    assert len(list(cuts(5, ((1, 4),)))) == 12
    assert len(list(scenarios(4, (1,), 2))) == 144


def test_a_sample_of_four_rounds_with_a_twin_is_safe_and_live() -> None:
    sample(QUICK)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_cuts_of_three_rounds_with_a_twin_are_safe_and_live() -> None:
    for script in scenarios(4, (1,), ROUNDS - 1):
        play(4, (1,), script)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sixth_of_all_cuts_of_four_rounds_is_safe_and_live() -> None:
    for script in list(scenarios(4, (1,), ROUNDS))[::6]:
        play(4, (1,), script)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_all_cuts_of_four_rounds_with_a_twin_are_safe_and_live() -> None:
    for script in scenarios(4, (1,), ROUNDS):
        play(4, (1,), script)


@pytest.mark.slow
@pytest.mark.parametrize("twin", [0, 2, 3])
def test_it_does_not_matter_which_seat_lives_twice(twin: int) -> None:
    for script in random.Random(twin).sample(list(scenarios(4, (twin,), ROUNDS)), QUICK):
        play(4, (twin,), script)


@pytest.mark.slow
def test_seven_seats_with_two_twins_and_eight_rounds_from_seeds_are_safe_and_live() -> None:
    found: list[Cut] = list(cuts(9, ((1, 7), (2, 8))))
    for seed in range(40):
        source = random.Random(seed)
        play(7, (1, 2), tuple(source.choice(found) for _ in range(8)), seed)


def sample(count: int) -> None:
    for script in random.Random(4).sample(list(scenarios(4, (1,), ROUNDS)), count):
        play(4, (1,), script)


@pytest.mark.parametrize("mutant", [quorum_minus_one, finalize_after_nullify])
def test_twins_notice_a_missing_rule(mutant: Callable[[], AbstractContextManager[None]]) -> None:
    with mutant(), pytest.raises(AssertionError):
        sample(QUICK)
