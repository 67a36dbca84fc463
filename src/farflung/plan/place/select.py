"""Which nodes are used, in how many stages and pipelines, for time or money: some cost more than they do.

For each number of stages, pipelines are tried from as many as there are nodes for down to one: with fewer, nodes are
spares. Who is taken first is the fastest, or where money counts the cheapest for its rate. Those begin in one of three
grids: sorted by rate, so that a stage's cards are similar; along one line of neighbours (plan.place.clusters), whose
pieces are stages, so that exchanges stay near; and with its pieces as pipelines, so that hops do. The best of a few
shapes are annealed: nodes are swapped with each other and with the spares. A move looks at the whole grid, so large
fleets get fewer moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.plan.place.clusters import line
from farflung.plan.place.compiled import loop
from farflung.plan.place.mesh import Indices
from farflung.plan.place.objective import Fleet, Verdict, Wish, Work, arguments, judge

MOVES: Final = 30_000
PLACES: Final = 64  # of a grid that gets so many moves; a larger one gets as many fewer
HOT: Final = 0.1
COLD: Final = 0.0005
ANNEALED: Final = 3  # numbers of pipelines, for each number of stages: those whose best beginning is best
STAGES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Choice(msgspec.Struct, frozen=True):
    """A grid [W, P] of nodes, what it does, and the nodes that are left as spares."""

    grid: Indices
    verdict: Verdict
    spares: tuple[int, ...]


def choose(
    fleet: Fleet, work: Work, wish: Wish | None = None, *, seed: int = 0, stages: Sequence[int] = STAGES,
    moves: int = MOVES,
) -> tuple[Choice, ...]:  # fmt: skip
    """The best grid of each number of stages, best first: by verified tokens a second, or by their price.

    Raises PolicyError FF-PLAN-047 where no number of stages holds the model; UsageError as `judge`.
    """
    asked = wish or Wish()
    found = []
    for count in stages:
        if count <= min(len(fleet), limits.PLACED_STAGES):
            begun = [begin(fleet, work, asked, count, ways) for ways in _pipelines(len(fleet) // count)]
            begun = sorted(begun, key=lambda one: worth(one, asked))[:ANNEALED]
            tried = [
                improved(fleet, work, asked, one.grid, np.array(one.spares, np.int64), seed, moves)
                for one in begun
            ]
            held = [one for one in tried if one.verdict.infeasible == 0]
            found += sorted(held, key=lambda one: worth(one, asked))[:1]
    if not found:
        raise _nothing_fits(fleet, work)
    return tuple(sorted(found, key=lambda one: worth(one, asked)))


def place(
    fleet: Fleet, work: Work, wish: Wish, stages: int, ways: int, seed: int, moves: int = MOVES
) -> Choice:
    """The best grid found of this shape. Same arguments, same grid, with numba or without."""
    begun = begin(fleet, work, wish, stages, ways)
    return improved(fleet, work, wish, begun.grid, np.array(begun.spares, np.int64), seed, moves)


def begin(fleet: Fleet, work: Work, wish: Wish, stages: int, ways: int) -> Choice:
    """The best of the grids that are not searched for."""
    count = stages * ways
    by_rate = np.lexsort((np.arange(len(fleet)), -fleet.memory, -fleet.rate))
    orders = [by_rate]
    if wish.by_money:
        orders.append(np.lexsort((np.arange(len(fleet)), -fleet.memory, fleet.price / fleet.rate)))
    along = line(fleet.mesh, work.handed)
    found = []
    for order in orders:
        taken = order[:count]
        near = along[np.isin(along, taken)]
        grids = (
            np.sort(taken)[np.argsort(-fleet.rate[np.sort(taken)], kind="stable")].reshape(stages, ways),
            near.reshape(stages, ways),
            near.reshape(ways, stages).T,
        )
        spares = tuple(int(i) for i in np.sort(order[count:]))
        found += [
            Choice(held := np.ascontiguousarray(grid), judge(fleet, work, held, wish), spares)
            for grid in grids
        ]
    return min(found, key=lambda one: worth(one, wish))


def improved(
    fleet: Fleet, work: Work, wish: Wish, grid: Indices, spare: Indices, seed: int, moves: int = MOVES
) -> Choice:
    """The best that annealing finds from a grid [W, P] by swaps in it and with spares [S]; neither is changed."""
    grid, spare = grid.copy(), spare.copy()
    moves = min(moves, max(1, moves * PLACES // grid.size)) if moves else 0
    if moves and len(fleet) > 1:
        draws = np.random.default_rng([seed, *grid.shape]).random((moves, 3))
        loop("pipeline_loops", "anneal_grid")(
            grid, spare, *arguments(fleet, work, wish), wish.by_money, draws, HOT, COLD
        )
    return Choice(grid, judge(fleet, work, grid, wish), tuple(int(i) for i in np.sort(spare)))


def worth(choice: Choice, wish: Wish) -> float:
    """What is lowered: seconds a token or money for it, and more by as much as the wish is broken."""
    verdict = choice.verdict
    if verdict.infeasible:
        return 1e30 * (1.0 + verdict.infeasible)
    value = verdict.price if wish.by_money else 1.0 / verdict.tokens
    return value * (1.0 + 10.0 * verdict.breach)


def _pipelines(most: int) -> list[int]:
    """Numbers of pipelines to try, from all nodes down to one: each about seven tenths of the one before."""
    found = [most]
    while found[-1] > 1:
        found.append(max(1, min(found[-1] - 1, round(found[-1] * 0.7))))
    return found


def _nothing_fits(fleet: Fleet, work: Work) -> PolicyError:
    sums = work.chain.sums
    starts = np.zeros(len(fleet), np.int64)
    order = np.argsort(-fleet.memory, kind="stable")
    left = int(
        loop("pipeline_loops", "cut")(
            sums[0],
            sums[1],
            sums[2],
            fleet.rate[order],
            fleet.memory[order],
            work.micro_batches,
            np.inf,
            starts,
        )
    )
    return PolicyError(
        "FF-PLAN-047",
        f"memory binds: these cards hold {len(work.chain) - left} of {len(work.chain)} units",
        cause=f"one pipeline of all {len(fleet)} nodes, or no number of stages that was allowed holds the model",
        hint="fewer bytes a parameter (8-bit moments, LoRA), smaller units, or more cards",
    )
