"""A seat that lives twice, and every way to cut the committee round by round: exhaustively for four seats.

Three rounds are walked through from every third first cut by .ci/run, and whole by `make soak`, as are four, sixteen
times as many scripts; of four rounds a sample is played each time. What the walk would notice (the mutants) it notices
within three.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sim_committee_mutants import finalize_after_nullify, quorum_minus_one
from sim_committee_twins import Cut, Cuts, TwinWorld, cuts, explore, pairs, play, scripts

SEATS, TWIN = 4, (1,)
ROUNDS, FEWER = 4, 3
ALL = 34_816  # (16^4 + 8^4) / 2: 16 cuts a round, of which 8 leave the twin whole; its halves have no names
QUICK = 60


def test_scripts_are_counted_once_under_symmetry() -> None:
    assert len(cuts(5)) == 16
    assert sum(1 for _ in scripts(SEATS, TWIN, 2)) == (16**2 + 8**2) // 2
    assert sum(1 for _ in scripts(SEATS, TWIN, ROUNDS)) == ALL


def test_every_script_is_there_under_one_of_its_names() -> None:
    found = set(scripts(SEATS, TWIN, 2))
    for first in cuts(5):
        for second in cuts(5):
            script = (first, second)
            assert len({script, tuple((a, e, c, d, b) for a, b, c, d, e in script)} & found) == 1


@pytest.mark.slow
def test_a_sample_of_four_rounds_with_a_twin_is_safe_and_live() -> None:
    for script in sample(4, TWIN):
        play(SEATS, TWIN, script)


@pytest.mark.whole
def test_the_walk_over_the_tree_of_scripts_visits_all_and_each_as_if_it_were_played_alone() -> None:
    assert [script for script, _ in explore(SEATS, TWIN, 2)] == list(scripts(SEATS, TWIN, 2))
    for begun in random.Random(5).sample(list(scripts(SEATS, TWIN, ROUNDS - 1)), 3):
        for script, world in explore(SEATS, TWIN, ROUNDS, begun):
            assert story(world) == story(play(SEATS, TWIN, script))


def story(world: TwinWorld) -> dict[str, Any]:
    """All that a world recorded: what became final where and when, all honest votes, all that was sent."""
    told = ("now", "final_at", "final_times", "proposed", "statements", "accusations", "sent", "_order")
    blocks = [[block.header.id for block in node.disk.blocks] for node in world.nodes]
    views = [node.replica.status() for node in world.nodes]
    return {"blocks": blocks, "views": views, **{name: getattr(world, name) for name in told}}


@pytest.mark.parametrize(
    ("first", "rounds"),
    [
        *(
            pytest.param(first, FEWER, marks=pytest.mark.soak if at % 3 else pytest.mark.slow)
            for at, first in enumerate(scripts(SEATS, TWIN, 1))
        ),
        *(
            pytest.param(first, ROUNDS, marks=[pytest.mark.soak, pytest.mark.timeout(600)])
            for first in scripts(SEATS, TWIN, 1)
        ),
    ],
    ids=str,
)
def test_all_cuts_of_so_many_rounds_with_a_twin_are_safe_and_live(first: Cuts, rounds: int) -> None:
    visited = sum(1 for _ in explore(SEATS, TWIN, rounds, first))
    rest = rounds - 1
    is_whole = all(first[0][a] == first[0][b] for a, b in pairs(SEATS, TWIN))
    assert visited == ((16**rest + 8**rest) // 2 if is_whole else 16**rest)  # of four rounds, 8 and 4 of these: ALL


@pytest.mark.slow
@pytest.mark.parametrize("twin", [0, *(pytest.param(seat, marks=pytest.mark.soak) for seat in (2, 3))])
def test_it_does_not_matter_which_seat_lives_twice(twin: int) -> None:
    for script in sample(twin, (twin,)):
        play(SEATS, (twin,), script)


@pytest.mark.slow
def test_seven_seats_with_two_twins_and_eight_rounds_from_seeds_are_safe_and_live() -> None:
    found: tuple[Cut, ...] = cuts(9)
    for seed in range(20):
        source = random.Random(seed)
        play(7, (1, 2), tuple(source.choice(found) for _ in range(8)), seed)


def sample(seed: int, twins: tuple[int, ...]) -> list[Cuts]:
    return random.Random(seed).sample(list(scripts(SEATS, twins, ROUNDS)), QUICK)


@pytest.mark.parametrize("mutant", [quorum_minus_one, finalize_after_nullify])
def test_twins_notice_a_missing_rule(mutant: Callable[[], AbstractContextManager[None]]) -> None:
    with mutant(), pytest.raises(AssertionError):
        for _ in explore(SEATS, TWIN, FEWER):
            pass
