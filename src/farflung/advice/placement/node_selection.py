"""Selects nodes and the numbers of stages and pipelines, for time or money.

Some nodes cost more than they contribute.

For each number of stages, numbers of pipelines are tried from as many as there are nodes for, geometrically down to
one, and then between the best and its neighbours: each by the best of many grids to begin with
(advice.placement.grid_starts). The few best are annealed, by swaps with each other and with the nodes that are
left. Effort is a number of swaps that falls with what one takes, so that more nodes take hardly longer, and
nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Final

import msgspec
import numpy as np

from farflung.advice.placement.grid_objective import Fleet, GridEvaluation, PlacementGoal, StepWork, arguments, judge
from farflung.advice.placement.grid_starts import GridStarts
from farflung.advice.placement.link_matrices import Indices
from farflung.advice.placement.loop_loader import loop
from farflung.core import limits
from farflung.core.errors import PolicyError

MOVES: Final = 30_000  # of a grid, at most
WORK: Final = 5e9  # of all moves of one choice: about a nanosecond each, compiled
TIE: Final = 0.01  # weight of the means of pipelines and stages: they tell apart what the slowest hide
HOT: Final = 0.1  # temperature of the first half of the moves, as a share of what is lowered
AGAIN: Final = 0.01  # of the second half, from the best
COLD: Final = 0.0005
ENOUGH: Final = 20  # moves a node: with fewer what was lost in the heat is not found again, and they stay cold
TRIED: Final = 12  # numbers of pipelines, for each number of stages
ANNEALED: Final = 5  # of them, the best to begin with
ALL: Final = 720  # grids of so few nodes that all of them are looked at
STAGES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class GridChoice(msgspec.Struct, frozen=True):
    """A grid [W, P] of nodes, what it does, and the nodes that are left as spares."""

    grid: Indices
    verdict: GridEvaluation
    spares: tuple[int, ...]


def choose(
    fleet: Fleet, work: StepWork, wish: PlacementGoal | None = None, *, seed: int = 0, stages: Sequence[int] = STAGES,
    moves: int = MOVES,
) -> tuple[GridChoice, ...]:  # fmt: skip
    """The best grid of each number of stages, best first: by verified tokens a second, or by their price.

    `moves`: swaps of one grid, at most. Raises PolicyError FF-PLAN-047 where no number of stages holds the model;
    UsageError as `judge`.
    """
    asked = wish or PlacementGoal()
    search = _GridSearch(fleet, work, asked)
    begun: list[Indices] = []
    for count in stages:
        if count <= min(len(fleet), limits.PLACED_STAGES):
            begun += search.shapes(count)[:ANNEALED]
    share = WORK / max(1, len(begun))
    best: dict[int, GridChoice] = {}
    for grid in begun:
        afforded = min(moves, int(share / _effort(work, *grid.shape)))
        found = improved(fleet, work, asked, grid, _left(fleet, grid), seed, afforded)
        other = best.get(len(grid))
        if not found.verdict.infeasible and (other is None or worth(found, asked) < worth(other, asked)):
            best[len(grid)] = found
    if not best:
        raise _nothing_fits(fleet, work)
    return tuple(sorted(best.values(), key=lambda one: worth(one, asked)))


def place(
    fleet: Fleet, work: StepWork, wish: PlacementGoal, stages: int, ways: int, seed: int, moves: int = MOVES
) -> GridChoice:
    """The best grid found of this shape. Same arguments, same grid, with numba or without."""
    grid = _GridSearch(fleet, work, wish).best(stages, ways)[1]
    return improved(fleet, work, wish, grid, _left(fleet, grid), seed, moves)


def improved(
    fleet: Fleet, work: StepWork, wish: PlacementGoal, grid: Indices, spare: Indices, seed: int, moves: int = MOVES
) -> GridChoice:
    """The best that annealing finds from a grid [W, P] by swaps in it and with spares [S]; neither is changed.

    Of nodes that make no more than ALL grids, and no more than `moves`, the best of all.
    """
    grid, spare = grid.copy(), spare.copy()
    nodes, given = np.concatenate([grid.reshape(-1), spare]), (*arguments(fleet, work, wish), wish.by_money)
    if math.perm(len(nodes), grid.size) <= min(moves, ALL):
        grid = _best_of_all(nodes, grid.shape, given)
        spare = np.setdiff1d(nodes, grid)
    else:
        draws = np.random.default_rng([seed, *grid.shape]).random((moves, 4))
        half = moves // 2 if moves >= ENOUGH * len(nodes) else moves
        for part, hot in ((draws[:half], HOT if half < moves else COLD), (draws[half:], AGAIN)):
            loop("grid_loops", "anneal_grid")(grid, spare, *given, part, hot, COLD, TIE)
    return GridChoice(grid, judge(fleet, work, grid, wish), tuple(int(i) for i in np.sort(spare)))


def _best_of_all(nodes: Indices, shape: tuple[int, ...], given: tuple[Any, ...]) -> Indices:
    weigh = loop("grid_loops", "weigh_grid")
    every = (np.array(each).reshape(shape) for each in permutations(nodes, math.prod(shape)))
    return min(every, key=lambda grid: float(weigh(grid, *given, 0.0)))


def worth(choice: GridChoice, wish: PlacementGoal) -> float:
    """What is lowered: seconds a token or money for it, and more by as much as the wish is broken."""
    verdict = choice.verdict
    value = verdict.price if wish.by_money else 1.0 / verdict.tokens
    return value * (1.0 + 10.0 * verdict.breach)


def _left(fleet: Fleet, grid: Indices) -> Indices:
    """The nodes that a grid does not use."""
    is_left = np.ones(len(fleet), np.bool_)
    is_left[grid] = False
    return np.flatnonzero(is_left)


class _GridSearch:
    """Grids to begin with, and what they come to."""

    def __init__(self, fleet: Fleet, work: StepWork, wish: PlacementGoal) -> None:
        self.ground = GridStarts(fleet, work, wish)
        self.given = (*arguments(fleet, work, wish), wish.by_money, TIE)
        self.count = len(fleet)

    def best(self, stages: int, ways: int) -> tuple[float, Indices]:
        """The best of all grids of a shape to begin with, and what is lowered of it."""
        weigh = loop("grid_loops", "weigh_grid")
        every = self.ground.grids(stages, ways)
        return min(((float(weigh(each, *self.given)), each) for each in every), key=lambda one: one[0])

    def shapes(self, stages: int) -> list[Indices]:
        """Of numbers of pipelines that are tried, the best first."""
        most = self.count // stages
        tried = {ways: self.best(stages, ways) for ways in _pipelines(most)}
        while True:
            ways = min(tried, key=lambda each: tried[each][0])
            below = max((each for each in tried if each < ways), default=ways)
            above = min((each for each in tried if each > ways), default=ways)
            between = {(below + ways) // 2, (ways + above + 1) // 2} - tried.keys()
            if not between or above - below <= max(2, ways // 8):
                break
            tried.update({each: self.best(stages, each) for each in between})
        return [grid for _, grid in sorted(tried.values(), key=lambda one: one[0])]


def _pipelines(most: int) -> list[int]:
    """Numbers of pipelines to try, geometrically from all nodes down to one."""
    return sorted({round(most ** (at / (TRIED - 1))) for at in range(TRIED)}, reverse=True)


def _effort(work: StepWork, stages: int, ways: int) -> float:
    """About how many nanoseconds one move takes, compiled."""
    return 200.0 + 20.0 * stages**2 + 15.0 * ways + 100.0 * stages * math.log2(len(work.chain) + 1)


def _nothing_fits(fleet: Fleet, work: StepWork) -> PolicyError:
    sums = work.chain.sums
    starts = np.zeros(len(fleet), np.int64)
    order = np.argsort(-fleet.memory, kind="stable")
    left = int(
        loop("pipeline_loops", "cut")(
            sums[0], sums[1], sums[2], fleet.rate[order], fleet.memory[order], work.micro_batches, np.inf, starts
        )
    )
    return PolicyError(
        "FF-PLAN-047",
        f"memory binds: these cards hold {len(work.chain) - left} of {len(work.chain)} units",
        cause=f"one pipeline of all {len(fleet)} nodes, or no number of stages that was allowed holds the model",
        hint="fewer bytes a parameter (8-bit moments, LoRA), smaller units, or more cards",
    )
