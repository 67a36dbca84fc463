"""Replans when nodes are lost: fewer pipelines of the nodes that are left, moving as little state as possible.

Every node holds the state of its stage, so a node that stays in its stage fetches nothing, whatever pipeline it joins.
Layers stay where they are: dealing them anew would move state on every node. A stage that lost more than others gets
a spare, or a node of a stage that has more than it needs; that is what is needed. What remains goes into changing
partners inside stages, which costs nothing, and into swaps for which there is room and that pay for themselves: within
HORIZON they save more time than who comes to another stage takes to fetch its state over its own line.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np

from farflung.advice.placement.grid_objective import (
    Fleet,
    GridEvaluation,
    PlacementGoal,
    StepWork,
    arguments,
    judge,
    wrong,
)
from farflung.advice.placement.layer_chain import LayerChain
from farflung.advice.placement.link_matrices import Indices
from farflung.advice.placement.loop_loader import loop
from farflung.core.errors import PolicyError

ROOM: Final = 0.15  # of the state that the new grid holds, that may be fetched
HORIZON: Final = 3600.0  # seconds in which a swap must have paid for the state that it moves (chosen)
MOVES: Final = 20_000


class Replan(msgspec.Struct, frozen=True):
    """A grid [W, P'] without the lost nodes; bytes of state that nodes of it fetch, of the bytes that it holds.

    `needed`: of `moved`, what fills its places; the rest is for swaps that pay.
    """

    grid: Indices
    spares: tuple[int, ...]
    verdict: GridEvaluation
    moved: float
    needed: float
    held: float
    fetching: tuple[int, ...]  # nodes that come to a stage whose state they do not hold

    @property
    def share(self) -> float:
        """Of all state, what is moved."""
        return self.moved / self.held if self.held else 0.0


def replan(
    fleet: Fleet, work: StepWork, grid: Indices, begun: Indices, lost: Collection[int],
    wish: PlacementGoal | None = None, *, spares: Collection[int] = (), room: float = ROOM, horizon: float = HORIZON,
    seed: int = 0, moves: int = MOVES,
) -> Replan:  # fmt: skip
    """Goes on without the nodes `lost`: the most pipelines for which at most `room` of the state has to be fetched.

    `begun` [W]: first unit of each stage, as it is held now. `spares`: nodes that hold nothing. `horizon`: seconds, 0:
    no state is moved but what is needed. Raises PolicyError FF-PLAN-043 where no pipeline can be made, UsageError
    FF-PLAN-049.
    """
    asked = wish or PlacementGoal()
    if not 0 <= room <= 1:
        raise wrong("room", f"{room:g}: a share of the state")
    if not horizon >= 0:
        raise wrong("horizon", f"{horizon:g} seconds")
    judge(fleet, work, grid, asked, begun)
    gone = set(lost)
    rows = [[int(i) for i in row if int(i) not in gone] for row in grid]
    idle = sorted({int(i) for i in spares} - gone - {i for row in rows for i in row})
    home = np.full(len(fleet), -1, np.int64)
    for stage, row in enumerate(rows):
        home[row] = stage
    for ways in range(min(grid.shape[1], (sum(map(len, rows)) + len(idle)) // len(grid)), 0, -1):
        filled = _filled(fleet, work, begun, rows, idle, ways)
        if filled is None:
            continue
        new, rest = filled
        moved, held = _moved(work.chain, begun, new, home)
        if moved <= room * held:
            return _settled(fleet, work, asked, begun, new, rest, home, (moved, room * held, horizon), seed, moves)
    raise PolicyError(
        "FF-PLAN-043",
        "the nodes that are left cannot go on by themselves",
        cause=f"{sum(map(len, rows))} of {grid.size} nodes, and no way to fill {len(grid)} stages by moving at most"
        f" {room:.0%} of the state",
        hint="more spares, or a new placement from a snapshot",
    )


def _filled(
    fleet: Fleet, work: StepWork, begun: Indices, rows: list[list[int]], idle: list[int], ways: int
) -> tuple[Indices, Indices] | None:
    """A grid of `ways` pipelines: of every stage its fastest, and where there are too few, whoever can be spared."""
    kept, free = [], list(idle)
    for row in rows:
        ordered = sorted(row, key=lambda i: (-fleet.rate[i], i))
        kept.append(ordered[:ways])
        free += ordered[ways:]
    sums, table, fits = work.chain.sums, fleet.table, loop("pipeline_loops", "holds")
    for stage in sorted(range(len(rows)), key=lambda stage: len(kept[stage])):
        while len(kept[stage]) < ways:
            can = [i for i in free if fits(sums, table, work.micro_batches, begun, stage, i)]
            if not can:
                return None
            best = max(can, key=lambda i: (fleet.rate[i], -i))
            kept[stage].append(best)
            free.remove(best)
    return np.array(kept, np.int64), np.array(sorted(free), np.int64)


def _moved(chain: LayerChain, begun: Indices, grid: Indices, home: Indices) -> tuple[float, float]:
    """Bytes of state that members fetch, and bytes that all of them hold."""
    each = np.diff(chain.sums[1][[*begun, len(chain)]])
    lacking = (home[grid] != np.arange(len(grid))[:, None]).sum(1)
    return float((lacking * each).sum()), float(each.sum() * grid.shape[1])


def _settled(
    fleet: Fleet, work: StepWork, wish: PlacementGoal, begun: Indices, grid: Indices, rest: Indices, home: Indices,
    budget: tuple[float, float, float], seed: int, moves: int,
) -> Replan:  # fmt: skip
    """The same after swaps that pay."""
    needed, most, horizon = budget
    draws = np.random.default_rng(seed).random((moves, 4))
    loop("grid_loops", "settle_grid")(
        grid, rest, home, most - needed, horizon, *arguments(fleet, work, wish), wish.by_money, begun, draws
    )
    moved, held = _moved(work.chain, begun, grid, home)
    fetching = [int(i) for stage, row in enumerate(grid) for i in row if home[i] != stage]
    verdict, idle = judge(fleet, work, grid, wish, begun), tuple(int(i) for i in np.sort(rest))
    return Replan(grid, idle, verdict, moved, min(needed, moved), held, tuple(sorted(fetching)))
