"""Runs the loops of the search for groups: bottleneck matchings, open tours, and annealing by swaps.

Without numba they run as they stand. Distances are symmetric: there and back. Devices are numbers 0 to N - 1; a group
is a row of `groups` [W, P].
"""

from __future__ import annotations

import math

import numpy as np

from farflung.advice.placement import numba_optional
from farflung.advice.placement.numba_optional import loop

HELD_KARP = 9  # stages up to which every move of a search asks for the exact tour


@loop
def bottleneck(hop, left, right, pair):
    """The least possible largest edge of a perfect matching of two groups, and in `pair` [P] the partner of each left.

    Augmenting paths at a threshold that is raised only when none is left (Derigs & Zimmermann 1978): exact, O(P^3).
    """
    count = left.shape[0]
    limit = 0.0
    for r in range(count):
        least = np.inf
        for c in range(count):
            least = min(least, hop[left[r], right[c]])
        limit = max(limit, least)
    for c in range(count):
        least = np.inf
        for r in range(count):
            least = min(least, hop[left[r], right[c]])
        limit = max(limit, least)
    owner = np.full(count, -1, np.int64)
    for r in range(count):
        pair[r] = -1
        for c in range(count):
            if owner[c] < 0 and hop[left[r], right[c]] <= limit:
                owner[c], pair[r] = r, c
                break
    slack, parent, reached = np.empty(count), np.empty(count, np.int64), np.empty(count, np.bool_)
    for start in range(count):
        if pair[start] >= 0:
            continue
        for c in range(count):
            slack[c], parent[c], reached[c] = hop[left[start], right[c]], start, False
        while True:
            best = -1
            for c in range(count):
                if not reached[c] and (best < 0 or slack[c] < slack[best]):
                    best = c
            limit = max(limit, slack[best])
            reached[best] = True
            row = owner[best]
            if row < 0:
                break
            for c in range(count):
                if not reached[c] and hop[left[row], right[c]] < slack[c]:
                    slack[c], parent[c] = hop[left[row], right[c]], row
        c = best
        while c >= 0:
            row = parent[c]
            owner[c] = row
            c, pair[row] = pair[row], c
    return limit


@loop
def exact_tour(between, order):
    """The shortest open tour of all stages by dynamic programming over subsets (Held & Karp 1962), in `order` [W].

    O(2^W W^2) time: for few stages.
    """
    count = between.shape[0]
    full = 1 << count
    cost = np.full((full, count), np.inf)
    came = np.zeros((full, count), np.int64)
    for last in range(count):
        cost[1 << last, last] = 0.0
    for visited in range(1, full):
        for last in range(count):
            here = cost[visited, last]
            if here == np.inf:
                continue
            for then in range(count):
                if visited >> then & 1:
                    continue
                wider = visited | 1 << then
                if here + between[last, then] < cost[wider, then]:
                    cost[wider, then] = here + between[last, then]
                    came[wider, then] = last
    last = 0
    for other in range(count):
        if cost[full - 1, other] < cost[full - 1, last]:
            last = other
    length, visited = cost[full - 1, last], full - 1
    for at in range(count - 1, -1, -1):
        order[at] = last
        visited, last = visited & ~(1 << last), came[visited, last]
    return length


@loop
def tour_length(between, order):
    """Sum of the edges along an open tour."""
    total = 0.0
    for i in range(1, order.shape[0]):
        total += between[order[i - 1], order[i]]
    return total


@loop
def improve_tour(between, order):
    """2-opt and Or-opt on an open tour until neither shortens it (Or 1976; Croes 1958), in place; its length.

    At most W^2 improvements, so that rounding can never keep it going.
    """
    count = order.shape[0]
    for _ in range(count * count):
        if not (_reverse_one(between, order) or _move_one(between, order)):
            break
    return tour_length(between, order)


@loop
def _reverse_one(between, order):
    """Reverses the first stretch whose reversal shortens the tour."""
    count = order.shape[0]
    for i in range(count - 1):
        for j in range(i + 1, count):
            gain = 0.0
            if i > 0:
                gain += between[order[i - 1], order[i]] - between[order[i - 1], order[j]]
            if j < count - 1:
                gain += between[order[j], order[j + 1]] - between[order[i], order[j + 1]]
            if gain > 1e-12:
                while i < j:
                    order[i], order[j] = order[j], order[i]
                    i, j = i + 1, j - 1
                return True
    return False


@loop
def _move_one(between, order):
    """Moves the first stage whose move elsewhere shortens the tour."""
    count = order.shape[0]
    for i in range(count):
        here = order[i]
        out = 0.0
        if i > 0:
            out += between[order[i - 1], here]
        if i < count - 1:
            out += between[here, order[i + 1]]
        if 0 < i < count - 1:
            out -= between[order[i - 1], order[i + 1]]
        for gap in range(count + 1):  # before the stage that is now at `gap`
            if gap == i or gap == i + 1:
                continue
            into = 0.0
            if gap > 0:
                into += between[order[gap - 1], here]
            if gap < count:
                into += between[here, order[gap]]
            if 0 < gap < count:
                into -= between[order[gap - 1], order[gap]]
            if into < out - 1e-12:
                to = gap if gap < i else gap - 1
                step = 1 if to > i else -1
                while i != to:
                    order[i] = order[i + step]
                    i += step
                order[to] = here
                return True
    return False


@loop
def tour(between, order):
    """The tour that a search uses: exact for few stages, else `order` improved."""
    if order.shape[0] <= HELD_KARP:
        return exact_tour(between, order)
    return improve_tour(between, order)


@loop
def group_costs(lateral, groups, sums, most):
    """Each device's exchange with its group in `sums` [N], the worst of each group in `most` [W]."""
    for g in range(groups.shape[0]):
        most[g] = 0.0
        for i in groups[g]:
            sums[i] = 0.0
            for j in groups[g]:
                if i != j:
                    sums[i] += lateral[i, j]
            most[g] = max(most[g], sums[i])


@loop
def all_between(hop, groups, between):
    """The bottleneck of every pair of groups in `between` [W, W]."""
    pair = np.empty(groups.shape[1], np.int64)
    for g in range(groups.shape[0]):
        between[g, g] = 0.0
        for h in range(g):
            between[g, h] = bottleneck(hop, groups[g], groups[h], pair)
            between[h, g] = between[g, h]


@loop
def weigh(lateral, hop, groups, order):
    """DT-FM's cost of groups as (exchange, pipeline), seconds; `order` [W] begins as a tour, ends as the best."""
    stages = groups.shape[0]
    sums, most = np.zeros(lateral.shape[0]), np.zeros(stages)
    between = np.zeros((stages, stages))
    group_costs(lateral, groups, sums, most)
    all_between(hop, groups, between)
    return most.max(), tour(between, order)


@loop
def _level(most, between, length, tie):
    """What annealing lowers: the cost, and a little of the means, which tell plateaus apart."""
    stages = most.shape[0]
    hops = 0.0
    for g in range(stages):
        hops += _sum(between[g])
    return most.max() + length + tie * (_sum(most) / stages + hops / max(1, stages * (stages - 1)))


@loop
def _sum(values):
    """A sum from the first to the last: NumPy's own adds in another order than compiled code does."""
    total = 0.0
    for value in values:
        total += value
    return total


@loop
def anneal(lateral, hop, alike, groups, draws, hot, cold, tie):
    """Swaps devices of different groups as draws [M, 4] in [0, 1) say; leaves the best groups seen in `groups`.

    Temperatures fall from `hot` to `cold`, geometrically. `alike` [N]: devices of one number are interchangeable, and
    are never swapped. A swap changes two groups: their sums in O(P), and 2 W - 3 matchings. Returns the best cost.
    """
    stages, ways = groups.shape
    moves, count = draws.shape[0], stages * ways
    sums, most = np.zeros(lateral.shape[0]), np.zeros(stages)
    between, order = np.zeros((stages, stages)), np.arange(stages)
    group_costs(lateral, groups, sums, most)
    all_between(hop, groups, between)
    length = tour(between, order)
    level = _level(most, between, length, tie)
    best, best_groups = most.max() + length, groups.copy()
    best_level = level
    new_most, new_between, new_order = most.copy(), between.copy(), order.copy()
    new_sums = sums.copy()
    pair = np.empty(ways, np.int64)
    for move in range(moves):
        heat = hot * (cold / hot) ** (move / moves)
        decides = draws[move, 3] < 0.5  # half of the devices are of the group with the longest exchange
        g = int(np.argmax(most)) if decides else int(draws[move, 0] * stages)
        i = int(draws[move, 0] * count) % ways
        at = int(draws[move, 1] * (count - ways))
        h, j = at // ways, at % ways
        if h >= g:
            h += 1
        a, b = groups[g, i], groups[h, j]
        if alike[a] == alike[b]:
            continue
        limit = level - heat * math.log(max(1e-300, draws[move, 2]))
        groups[g, i], groups[h, j] = b, a
        _swap_sums(lateral, groups, sums, new_sums, new_most, g, h, a, b)
        if new_most.max() + tie * _sum(new_most) / stages > limit:
            accepted = False
        else:
            _swap_between(hop, groups, new_between, pair, g, h)
            new_length = tour(new_between, new_order)
            new_level = _level(new_most, new_between, new_length, tie)
            accepted = new_level <= limit
        if accepted:
            most[:], between[:], order[:] = new_most, new_between, new_order
            for k in range(ways):
                sums[groups[g, k]], sums[groups[h, k]] = new_sums[groups[g, k]], new_sums[groups[h, k]]
            level = new_level
            cost = most.max() + new_length
            if cost < best - 1e-12 or (cost < best + 1e-12 and level < best_level - 1e-12):
                best, best_level = min(best, cost), level
                best_groups[:] = groups
        else:
            groups[g, i], groups[h, j] = a, b
            new_most[g], new_most[h] = most[g], most[h]
            for k in range(stages):
                new_between[g, k] = new_between[k, g] = between[g, k]
                new_between[h, k] = new_between[k, h] = between[h, k]
            new_order[:] = order
    groups[:] = best_groups
    return best


@loop
def _swap_sums(lateral, groups, sums, new_sums, new_most, g, h, a, b):
    """Sums and worst of two groups after `a` left `g` for `h`, and `b` the other way."""
    new_most[g], new_most[h] = 0.0, 0.0
    new_sums[a], new_sums[b] = 0.0, 0.0
    for i in groups[g]:
        if i != b:
            new_sums[i] = sums[i] - lateral[i, a] + lateral[i, b]
            new_sums[b] += lateral[b, i]
            new_most[g] = max(new_most[g], new_sums[i])
    for i in groups[h]:
        if i != a:
            new_sums[i] = sums[i] - lateral[i, b] + lateral[i, a]
            new_sums[a] += lateral[a, i]
            new_most[h] = max(new_most[h], new_sums[i])
    new_most[g], new_most[h] = max(new_most[g], new_sums[b]), max(new_most[h], new_sums[a])


@loop
def _swap_between(hop, groups, between, pair, g, h):
    """The bottlenecks of two groups with all others."""
    for k in range(groups.shape[0]):
        if k != g:
            between[g, k] = bottleneck(hop, groups[g], groups[k], pair)
            between[k, g] = between[g, k]
        if k not in (g, h):
            between[h, k] = bottleneck(hop, groups[h], groups[k], pair)
            between[k, h] = between[h, k]


LOOPS = (
    "bottleneck", "exact_tour", "improve_tour", "tour_length", "weigh", "anneal", "all_between",
)  # fmt: skip


def load(cache):
    """The loops by name, compiled, with a folder that keeps their compiled code."""
    return numba_optional.load(globals(), LOOPS, cache)
