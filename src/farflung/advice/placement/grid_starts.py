"""Constructs grids of nodes to start a search with: which nodes are taken, by several orders, and their
positions.

Taken are the fastest, the cheapest for what they do, the cheapest, those with the best lines, those of the largest
sites. They then stand by rate, or by cliques of near sites as DT-FM's groups do (advice.placement.group_starts): a
stage inside a clique, where its exchange is much, or one of each in every stage, so that pipelines stay inside,
where what they hand on is. Nodes that are not alike are never mixed before what is alike has been dealt out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from farflung.advice.placement.device_clusters import tour_of_sites
from farflung.advice.placement.grid_objective import Fleet, PlacementGoal, StepWork
from farflung.advice.placement.group_starts import cliques, spread
from farflung.advice.placement.link_matrices import Floats, Indices, LinkMatrices

LEVELS: Final = 4  # of cliques of sites, evenly chosen
FEW: Final = 2  # of them, and of ways to take nodes, of a fleet above MANY
MANY: Final = 2_000


class GridStarts:
    """What of a fleet is the same for all shapes of grids."""

    def __init__(self, fleet: Fleet, work: StepWork, wish: PlacementGoal) -> None:
        few = FEW if len(fleet) > MANY else LEVELS
        self.fleet, self.wish = fleet, wish
        self.cliques = list(_levels(fleet.mesh, work.handed, few))
        self.orders = list(_orders(fleet, wish, self.cliques[0]))[: few + 1]

    def grids(self, stages: int, ways: int) -> Iterator[Indices]:
        """Different grids of a shape, in a fixed order."""
        seen: set[bytes] = set()
        for order in self.orders:
            for taken in self._taken(order, stages, ways):
                for placed in self._placed(taken, ways):
                    grid = np.ascontiguousarray(placed.reshape(stages, ways))
                    if grid.tobytes() not in seen:
                        seen.add(grid.tobytes())
                        yield grid

    def _taken(self, order: Indices, stages: int, ways: int) -> Iterator[Indices]:
        """The first of an order, and, where that is another set, the first that make stages of similar cards."""
        first = order[: stages * ways]
        yield first
        rate = self.fleet.rate
        fastest = rate[first].max() if np.isfinite(self.wish.similar) else 0.0
        if fastest <= self.wish.similar * rate[first].min():
            return
        sorted_ = np.lexsort((np.argsort(order, kind="stable"), -rate))
        rows: list[Indices] = []
        at = 0
        while len(rows) < stages and at + ways <= len(order):
            row = sorted_[at : at + ways]
            if rate[row[0]] <= self.wish.similar * rate[row[-1]]:
                rows.append(row)
                at += ways
            else:
                at += 1
        if len(rows) == stages:
            yield np.concatenate(rows)

    def _placed(self, taken: Indices, ways: int) -> Iterator[Indices]:
        """Orders of those nodes; consecutive P make a stage, in which pipelines go through near nodes."""
        fleet = self.fleet
        alike = taken[np.lexsort((taken, -fleet.memory[taken], -fleet.rate[taken]))]
        kind = _kinds(fleet.rate[alike], self.wish.similar)
        yield alike
        for clique in self.cliques:
            name = clique[alike]
            for order in spread(np.unique(name, return_inverse=True)[1].astype(np.int64), kind):
                rows = alike[order].reshape(-1, ways)
                yield np.take_along_axis(rows, np.argsort(clique[rows], axis=1, kind="stable"), 1)


def _kinds(rate: Floats, similar: float) -> Indices:
    """A number for each of nodes sorted by rate, the same for those that may share a stage with the first of it."""
    kind, first, number = np.zeros(len(rate), np.int64), 0, 0
    while first < len(rate):
        end = first + int(np.searchsorted(-rate[first:] * similar, -rate[first], "right"))
        kind[first:end] = number
        first, number = end, number + 1
    return kind


def _levels(mesh: LinkMatrices, handed: float, most: int) -> Iterator[Indices]:
    """Cliques of nodes [N] by their sites: each site one, then ever more of near sites; numbered along a short tour."""
    place = tour_of_sites(mesh, handed)
    found = [np.arange(len(place))]
    if 1 < len(place) <= MANY:
        times = mesh.delay + 8.0 * handed / mesh.rate
        apart = times + times.T
        np.fill_diagonal(apart, 0.0)
        found += cliques(apart)[:-1]  # the last is all in one
    chosen = np.unique(np.linspace(0, len(found) - 1, min(most, len(found))).astype(int))
    for clique in (found[at] for at in chosen):
        first = np.full(len(place), len(place))
        np.minimum.at(first, clique, place)
        yield np.unique(first[clique], return_inverse=True)[1].astype(np.int64)[mesh.site]


def _orders(fleet: Fleet, wish: PlacementGoal, site: Indices) -> Iterator[Indices]:
    """All nodes, whoever is to be taken first in front."""
    number = np.arange(len(fleet))
    line = np.minimum(fleet.mesh.up, fleet.mesh.down)
    whole = np.bincount(site, fleet.rate)[site]
    if wish.by_money:
        yield np.lexsort((number, -fleet.rate, fleet.price / fleet.rate))
        yield np.lexsort((number, -fleet.rate, fleet.price))
    yield np.lexsort((number, -fleet.memory, -fleet.rate))
    yield np.lexsort((number, site, -whole))
    yield np.lexsort((number, -fleet.rate, -line))
    yield np.lexsort((number, -fleet.rate, fleet.failures))
    yield np.lexsort((number, -fleet.rate, -fleet.memory))
