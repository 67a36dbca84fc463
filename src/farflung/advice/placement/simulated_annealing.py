"""Searches the groups that cost least under DT-FM's objective: constructive starts, then annealing from the
best.

Swaps of two devices, each judged by what it changes; temperatures fall geometrically (Kirkpatrick, Gelatt & Vecchi
1983); several runs from one seed, the last ones from the best that was found. Nothing here reads a clock: effort is a
number of swaps, so the same seed gives the same placement everywhere.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from farflung.advice.placement import exhaustive_search
from farflung.advice.placement.dtfm_objective import DtfmCosts, DtfmLayout, laid
from farflung.advice.placement.group_starts import alike, starts
from farflung.advice.placement.link_matrices import Indices
from farflung.advice.placement.loop_loader import loop

TIE: Final = 0.1  # weight of the mean exchange and the mean hop: they tell apart what the maxima do not


class SearchEffort(msgspec.Struct, frozen=True):
    """How long to search: `runs` of `moves` swaps each, the first half from random groups, the rest from the best so
    far; `patience` runs in a row that gain nothing end it.

    Where many devices are interchangeable there are fewer different swaps, and fewer are tried: `moves` times the
    share of devices that are not like another one, at least `alike` of them.
    """

    moves: int = 30_000
    runs: int = 6
    patience: int = 2
    hot: float = 0.02  # first temperature of a run from random groups, of what those groups cost
    cold: float = 0.0002  # and the last
    alike: float = 0.25
    again: float = 0.006  # first temperature of a run from the best groups so far


QUICK: Final = SearchEffort(moves=8_000, runs=2)


def search(costs: DtfmCosts, seed: int, effort: SearchEffort | None = None) -> DtfmLayout:
    """The best layout found; of few devices the best there is. Same arguments, same layout, with numba or without."""
    if (
        len(costs.hop) <= exhaustive_search.DEVICES
    ):  # cheaper than a run of swaps, which misses the best of a few per cent of these
        return exhaustive_search.best(costs)
    how = effort or SearchEffort()
    weigh, run = loop("group_search_loops", "weigh"), loop("group_search_loops", "anneal")
    order = np.arange(costs.stages)
    begun = [(float(sum(weigh(costs.lateral, costs.hop, groups, order.copy()))), groups) for groups in starts(costs)]
    best, cost = min(begun, key=lambda one: one[0])[1].copy(), min(one[0] for one in begun)
    if costs.stages > 1 and costs.ways > 1:
        kinds = alike(costs)
        generator = np.random.default_rng(seed)
        moves, idle = round(how.moves * max(how.alike, len(np.unique(kinds)) / len(kinds))), 0
        for turn in range(how.runs):
            fresh = turn < (how.runs + 1) // 2
            groups = _random(generator, costs) if fresh and turn else best.copy()
            hot = (how.hot if fresh else how.again) * cost
            draws = generator.random((moves, 4))
            reached = float(run(costs.lateral, costs.hop, kinds, groups, draws, hot, how.cold * cost, TIE))
            idle = 0 if reached < cost else idle + 1
            if reached < cost:
                best, cost = groups.copy(), reached
            elif idle >= how.patience:
                break
    return laid(costs, best)


def _random(generator: np.random.Generator, costs: DtfmCosts) -> Indices:
    return generator.permutation(len(costs.hop)).reshape(costs.stages, costs.ways)
