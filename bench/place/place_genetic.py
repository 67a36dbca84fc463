"""The peer of the placement benchmark: a memetic genetic search of the kind that DT-FM describes (its section 3.4).

Written from the description: a population of balanced partitions; each trial crosses two parents at five points,
mends the balance of the child, improves it by one pass of cyclic moves (a device leaves its group for the next of a
random cycle of groups, as Kang & Moon 2000 partition graphs; half of the passes pull near devices together, half drive
them apart), and puts it in the place of the parent that is more like it, if it is better, else of the other, else of
the worst of all. It reaches what DT-FM's own search reaches on its five cases. One evaluation is the matchings of all
pairs of groups and one exact tour, by the planner's own compiled functions; 100 for the population and 4,900
trials by default.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from farflung.advice.placement.dtfm_objective import DtfmCosts
from farflung.advice.placement.loop_loader import loop

POPULATION = 100
TRIALS = 4_900
POINTS = 5

weigh = loop("group_search_loops", "weigh")


@njit(fastmath=False)
def _rows(label, stages, ways):
    """Groups [W, P] of a label for each device."""
    groups, filled = np.empty((stages, ways), np.int64), np.zeros(stages, np.int64)
    for device in range(label.shape[0]):
        groups[label[device], filled[label[device]]] = device
        filled[label[device]] += 1
    return groups


@njit(fastmath=False)
def _cross(first, second, stages, ways, points):
    """Alternate stretches of two parents; devices of groups that came out too large go where there is room."""
    count = first.shape[0]
    cuts = np.sort(np.random.randint(1, count, points))
    child, size = np.empty(count, np.int64), np.zeros(stages, np.int64)
    piece = 0
    for device in range(count):
        while piece < points and device >= cuts[piece]:
            piece += 1
        child[device] = first[device] if piece % 2 == 0 else second[device]
        size[child[device]] += 1
    for device in np.random.permutation(count):
        if size[child[device]] > ways:
            room = np.flatnonzero(size < ways)
            to = room[np.random.randint(0, room.shape[0])]
            size[child[device]] -= 1
            size[to] += 1
            child[device] = to
    return child


@njit(fastmath=False)
def _improve(lateral, label, stages):
    """One pass of cyclic moves, each device once: the state with the least sum of `lateral` inside groups is kept."""
    count = label.shape[0]
    pull = np.zeros((count, stages))  # what a device would exchange with each group
    for i in range(count):
        for j in range(count):
            if i != j:
                pull[i, label[j]] += lateral[i, j]
    free = np.ones(count, np.bool_)
    best, total, least = label.copy(), 0.0, 0.0
    for _ in range(count // stages):
        cycle = np.random.permutation(stages)
        picked = np.full(stages, -1, np.int64)
        for at in range(stages):
            here, to = cycle[at], cycle[(at + 1) % stages]
            gain = -np.inf
            for i in range(count):
                if free[i] and label[i] == here and pull[i, here] - pull[i, to] > gain:
                    gain, picked[at] = pull[i, here] - pull[i, to], i
        for at in range(stages):
            i, here, to = picked[at], cycle[at], cycle[(at + 1) % stages]
            total += pull[i, to] - pull[i, here]
            for j in range(count):
                if j != i:
                    pull[j, here] -= lateral[j, i]
                    pull[j, to] += lateral[j, i]
            label[i], free[i] = to, False
        if total < least - 1e-12:
            least, best = total, label.copy()
    label[:] = best


@njit(fastmath=False)
def _evolve(lateral, hop, stages, ways, population, trials, points, seed):
    np.random.seed(seed)
    count = stages * ways
    order = np.arange(stages)
    apart = -np.minimum(hop, np.median(hop))  # fast links between groups, where batches are handed over
    even = np.arange(count) // ways
    labels, costs = np.empty((population, count), np.int64), np.empty(population)
    for k in range(population):
        labels[k] = even[np.random.permutation(count)]
        exchange, pipeline = weigh(lateral, hop, _rows(labels[k], stages, ways), order)
        costs[k] = exchange + pipeline
    for _ in range(trials):
        a = np.random.randint(0, population)
        b = (a + 1 + np.random.randint(0, population - 1)) % population
        child = _cross(labels[a], labels[b], stages, ways, points)
        _improve(lateral if np.random.random() < 0.5 else apart, child, stages)
        exchange, pipeline = weigh(lateral, hop, _rows(child, stages, ways), order)
        cost = exchange + pipeline
        near, far = (a, b) if (child != labels[a]).sum() <= (child != labels[b]).sum() else (b, a)
        worst = int(np.argmax(costs))
        for place in (near, far, worst):
            if cost < costs[place]:
                labels[place], costs[place] = child, cost
                break
    return costs.min()


def genetic(of: DtfmCosts, seed: int, trials: int = TRIALS) -> float:
    """The least cost that the search finds, seconds; it evaluates POPULATION + `trials` partitions."""
    return float(_evolve(of.lateral, of.hop, of.stages, of.ways, POPULATION, trials, POINTS, seed))
