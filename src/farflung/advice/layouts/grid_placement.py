"""Assigns the hosts of a subset to pipelines and stages by advice.placement, over the lines that they share (P1).

    near    neighbours hand to each other: the shortest tour of all hosts, cut into whole pipelines. What is slow about
            a line, its way or its rate, then holds up one pipeline and not all of them
    alike   hosts sorted by rate, those of one rank in a stage: pipelines of equal make, none waits for another
    swapped annealing by advice/placement's objective from a grid of the search, with the hosts that it leaves out
            as spares; of few hosts also what advice/placement chooses of them all, fewer or more. For what has
            won, as it costs most

A grid is pipelines x stages, each pipeline in the order of its stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.layouts import host_routes, host_speed
from farflung.advice.layouts.host_subsets import spread
from farflung.advice.layouts.training_options import memory_of
from farflung.advice.offers.offer_file import HOUR, OfferedHost
from farflung.advice.placement import device_clusters, grid_objective, layer_chain, node_selection
from farflung.advice.placement.link_matrices import Indices, LinkMatrices, mesh
from farflung.advice.placement.open_tsp import shortest
from farflung.core.errors import PolicyError
from farflung.plan.step_trace import Recomputation

Grid = tuple[tuple[OfferedHost, ...], ...]

TOGETHER: Final = 8  # hosts whose best tour is sooner found than compiled; of more, regions
MOVES: Final = 40  # swaps of the winner: each deals all layers anew
SPARES: Final = 8  # hosts beside those of the winner that may take a place in it
CHOSEN: Final = 16  # hosts of which it is cheap to look at other numbers of stages and pipelines, too


def line(hosts: Sequence[OfferedHost], handed: float) -> tuple[OfferedHost, ...]:
    """All hosts, near ones side by side, for `handed` bytes from each to the next; the end with more memory first.

    Whoever has a weak line is at an end, where one neighbour wants it and not two: a tour passes each inner host
    twice. To 8 hosts the shortest; of more that of their regions, and inside one by the slower way of their own lines.
    """
    if len(hosts) <= TOGETHER:
        times = _mesh(hosts, range(len(hosts))).seconds(handed)
        order = shortest(times + times.T)[0]
    else:
        order = device_clusters.line(_mesh(hosts, _regions(hosts)), handed)
    found = tuple(hosts[at] for at in order)
    ends = [(host.cards * memory_of(host), host.name) for host in (found[0], found[-1])]
    return found if ends[0] >= ends[1] else found[::-1]  # the first stage keeps most micro-batches


def grids(work: JobWork, hosts: Sequence[OfferedHost], ways: int) -> Iterator[Grid]:
    """The subset as `ways` pipelines: near, and, where that is another one, alike."""
    stages, handed = len(hosts) // ways, work.model.handed(1)
    whole = line(hosts, handed)
    near = tuple(line(whole[at * stages : (at + 1) * stages], handed) for at in range(ways))
    yield near
    if ways > 1:
        ranked = sorted(hosts, key=lambda host: (-host_speed.rate(host), -memory_of(host), host.name))
        alike = tuple(tuple(ranked[stage * ways + way] for stage in range(stages)) for way in range(ways))
        if {frozenset(each) for each in alike} != {frozenset(each) for each in near}:
            yield tuple(line(each, handed) for each in alike)


def swapped(
    work: JobWork, grid: Grid, micros: int, every: int, otherwise: float, others: Sequence[OfferedHost] = (), *,
    by_money: bool = False, is_own: bool = False,
) -> Iterator[Grid]:  # fmt: skip
    """Grids that advice/placement's objective finds from one: verified tokens a second, or money for them, churn
    included.

    `otherwise`: mean seconds until a host leaves that does not say. `others`: hosts that the grid does not use.
    """
    held = [host for pipeline in grid for host in pipeline]
    subset = held + _spares(others, SPARES, by_money=by_money)
    stages, ways = len(grid[0]), len(grid)
    begun = np.array([[way * stages + stage for way in range(ways)] for stage in range(stages)])
    fleet, asks, wish = _asked(work, subset, micros, every, otherwise, by_money=by_money)
    left = np.arange(len(held), len(subset))
    yield from _spread(subset, node_selection.improved(fleet, asks, wish, begun, left, 0, MOVES).grid, is_own=is_own)
    if len(left):  # a spare may be of whom the others are too many
        own = _asked(work, held, micros, every, otherwise, by_money=by_money)
        yield from _spread(held, node_selection.improved(*own, begun, left[:0], 0, MOVES).grid, is_own=is_own)
    if len(subset) <= CHOSEN:
        counts = sorted({max(1, stages - 1), stages, stages + 1} - {1})
        try:
            found = node_selection.choose(fleet, asks, wish, stages=counts, moves=MOVES)
        except PolicyError:  # placement counts memory its own way, and finds that nothing fits
            return
        for choice in found:
            yield from _spread(subset, choice.grid, is_own=is_own)


def _spares(others: Sequence[OfferedHost], most: int, *, by_money: bool) -> list[OfferedHost]:
    """The fastest, or the cheapest for their speed."""

    def first(host: OfferedHost) -> tuple[float, str]:
        return (host.price / host_speed.rate(host) if by_money else -host_speed.rate(host)), host.name

    return sorted(others, key=first)[:most]


def _spread(subset: Sequence[OfferedHost], found: Indices, *, is_own: bool) -> Iterator[Grid]:
    """The hosts of a grid [W, P], if nobody lends too many of them."""
    grid = tuple(tuple(subset[at] for at in pipeline) for pipeline in found.T)
    hosts = [host for pipeline in grid for host in pipeline]
    if is_own or len(spread(hosts, len(hosts))) == len(hosts):
        yield grid


def _asked(
    work: JobWork, hosts: Sequence[OfferedHost], micros: int, every: int, otherwise: float, *, by_money: bool
) -> tuple[grid_objective.Fleet, grid_objective.StepWork, grid_objective.PlacementGoal]:
    """A subset, a job and a wish as advice/placement has them. Pipelines that agree once a round need not be alike."""
    fleet = grid_objective.fleet(
        _mesh(hosts, range(len(hosts))), np.array([host_speed.rate(host) for host in hosts]),
        np.array([float(host.cards * memory_of(host)) for host in hosts]),
        price=np.array([float(host.price) for host in hosts]),
        failures=np.array([HOUR / (host.churn or otherwise) for host in hosts]),
    )  # fmt: skip
    asks = grid_objective.StepWork(_chain(work), micros, micros * work.context, work.model.handed(1), every)
    return fleet, asks, grid_objective.PlacementGoal(by_money=by_money, similar=float("inf"))


def _chain(work: JobWork) -> layer_chain.LayerChain:
    """A unit a layer, the embedding with the first and the head with the last one; of one sequence."""
    layers = work.model.layers
    stack = work.stack(1, Recomputation.FULL)
    size = np.array([each.parameters for each in stack.layers])
    size[0] += stack.first.parameters
    size[-1] += stack.last.parameters
    head = work.model.head(work.context)
    flop = np.full(layers, (work.flop(work.context, Recomputation.FULL) - head) / layers)
    flop[-1] += head
    kept = np.array([each.kept for each in stack.layers])
    return layer_chain.chain(flop, size * work.recipe.whole, kept, size * WIRE)


def _mesh(hosts: Sequence[OfferedHost], site: Sequence[int]) -> LinkMatrices:
    """Half of either's round trip lies between two hosts; between regions the mean of that.

    What was measured between two stands for their sites where it is slower.
    """
    sites = np.array(site, np.int64)
    half = np.array([host.link.round_trip / 2 for host in hosts])
    mean = np.bincount(sites, half) / np.bincount(sites)
    delay = mean[:, None] + mean[None, :]
    rate = np.full(delay.shape, host_routes.FREE)
    for at, one in enumerate(hosts):
        for to in range(len(hosts)) if one.pairs else ():
            route, pair = host_routes.between(one, hosts[to]), (sites[at], sites[to])
            if at != to and route.rate < rate[pair]:
                rate[pair], delay[pair] = route.rate, route.delay
    lines = [[host.link.up for host in hosts], [host.link.down for host in hosts]]
    return mesh(sites, delay, rate, *lines)


def _regions(hosts: Sequence[OfferedHost]) -> list[int]:
    """A number for each host's region; the rare ones, of more than can be toured at once, together."""
    counted = Counter(host.region for host in hosts)
    often = sorted(counted, key=lambda region: (-counted[region], region))[: TOGETHER - 1]
    used = {region: at for at, region in enumerate(often)}
    return [used.get(host.region, len(often)) for host in hosts]
