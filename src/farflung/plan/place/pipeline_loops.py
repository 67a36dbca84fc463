"""Loops over pipelines of unequal stages: where a chain of units is cut, and what a step of a grid of nodes takes.

Without numba they run as they stand. A chain is given by running sums [U + 1] from its first unit: FLOP, state bytes
and kept bytes; a stage that holds units [a, b) has the differences.
"""

from __future__ import annotations

import math

import numpy as np

from farflung.plan.place import optional
from farflung.plan.place.optional import loop

HALVINGS = 60  # of an interval of seconds: to the last bits of a float


@loop
def lowest(work, state, kept, end, seconds, rate, memory, flight):
    """The first unit of the longest stretch [first, end) that a card computes in so many seconds, and holds."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        fits = state[end] - state[middle] + flight * (kept[end] - kept[middle]) <= memory
        if fits and work[end] - work[middle] <= seconds * rate:
            high = middle
        else:
            low = middle + 1
    return high


@loop
def cut(work, state, kept, rates, memories, micro, seconds, starts):
    """Fills stages from the last: each as much as it may. `starts` [p] gets first units; returns the units left over.

    A stage that is d-th from the end keeps min(d, micro) micro-batches (1F1B).
    """
    end = work.shape[0] - 1
    stages = rates.shape[0]
    for at in range(stages - 1, -1, -1):
        flight = min(micro, stages - at)
        end = lowest(work, state, kept, end, seconds, rates[at], memories[at], flight)
        starts[at] = end
    return end


@loop
def divide(work, state, kept, rates, memories, micro, starts):
    """The least seconds of the slowest stage, by bisection, for stages in this order; infinite if they hold too little.

    Filling each stage as far as a time allows leaves no more over than any other way, so the bisection is exact.
    """
    if cut(work, state, kept, rates, memories, micro, np.inf, starts) > 0:
        return np.inf
    low, high = (
        0.0,
        2.0 * work[-1] / rates.min(),
    )  # twice: a quotient times its divisor may come out too small
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            break
        if cut(work, state, kept, rates, memories, micro, middle, starts) > 0:
            low = middle
        else:
            high = middle
    cut(work, state, kept, rates, memories, micro, high, starts)
    return high


@loop
def reach(work, state, kept, rates, memories, micro, seconds, first, last):
    """What every set of cards covers of the chain's end, best order: `first` [2^n] its first unit, `last` who did it.

    Dynamic programming over subsets: whoever covers more is never worse off. Returns the smallest set that covers all,
    or -1.
    """
    cards = rates.shape[0]
    units = work.shape[0] - 1
    first[:] = units
    last[:] = -1
    found, fewest = -1, cards + 1
    for chosen in range(1, 1 << cards):
        size = 0
        for card in range(cards):
            size += chosen >> card & 1
        for card in range(cards):
            if chosen >> card & 1:
                end = first[chosen & ~(1 << card)]
                begin = lowest(work, state, kept, end, seconds, rates[card], memories[card], min(micro, size))
                if last[chosen] < 0 or begin < first[chosen]:
                    first[chosen], last[chosen] = begin, card
        if first[chosen] == 0 and size < fewest:
            found, fewest = chosen, size
    return found


@loop
def deal(grid, chain, nodes, micro, starts):
    """Deals units to the stages of a grid by their slowest and smallest members; returns units that nobody holds."""
    stages = grid.shape[0]
    rates, memories = np.empty(stages), np.empty(stages)
    for w in range(stages):
        rates[w], memories[w] = np.inf, np.inf
        for i in grid[w]:
            rates[w], memories[w] = min(rates[w], nodes[0, i]), min(memories[w], nodes[1, i])
    if divide(chain[0], chain[1], chain[2], rates, memories, micro, starts) == np.inf:
        return starts[0]
    return 0


@loop
def holds(chain, nodes, micro, starts, stage, node):
    """Whether a node's memory is enough for a stage."""
    stages = starts.shape[0]
    end = starts[stage + 1] if stage + 1 < stages else chain.shape[1] - 1
    flight = min(micro, stages - stage)
    return (
        chain[1, end] - chain[1, starts[stage]] + flight * (chain[2, end] - chain[2, starts[stage]])
        <= nodes[1, node]
    )


@loop
def step(grid, chain, nodes, sites, delay, between, terms, starts, parts):
    """Seconds of one optimizer step of a grid [W, P] of nodes whose stages begin at units `starts` [W].

    `chain` [4, U + 1]: running sums of FLOP, state, kept and exchanged bytes. `nodes` [6, N]: FLOP/s, memory, uplink,
    downlink, price, failures a second. `terms`: micro-batches, bytes handed on, steps between exchanges, repair
    seconds, largest ratio of rates in a stage, largest share of one owner.
    `parts` [4] gets: pace of the slowest pipeline, bubble, exchange a step, useful share.
    """
    stages, ways = grid.shape
    micro = int(terms[0])
    slowest, parts[0], parts[1] = 0.0, 0.0, 0.0
    loops = np.empty(stages)  # from each stage to the last and back
    for p in range(ways):
        pace, fill = 0.0, 0.0
        for w in range(stages - 1, -1, -1):
            i = grid[w, p]
            end = starts[w + 1] if w + 1 < stages else chain.shape[1] - 1
            compute = (chain[0, end] - chain[0, starts[w]]) / nodes[0, i]
            ends = (w > 0) + (w < stages - 1)
            wire = 8.0 * terms[1] * ends / min(nodes[2, i], nodes[3, i])
            pace, fill = max(pace, compute, wire), fill + compute
            loops[w] = fill
            if w:
                k = grid[w - 1, p]
                a, b = sites[k], sites[i]
                there = 8.0 * terms[1] / min(between[a, b], nodes[2, k], nodes[3, i])
                back = 8.0 * terms[1] / min(between[b, a], nodes[2, i], nodes[3, k])
                pace = max(pace, there, back)
                fill += delay[a, b] + delay[b, a] + there + back
        whole = fill + (micro - 1) * pace
        for w in range(stages):  # at most so many micro-batches are under way from here on at a time
            window = stages - w
            turns = (micro - 1) // window
            whole = max(whole, fill + turns * loops[w] + (micro - 1 - turns * window) * pace)
        if whole > slowest:
            slowest, parts[0], parts[1] = whole, micro * pace, whole - micro * pace
    parts[2] = _exchange(grid, chain, nodes, sites, delay, between, starts) / terms[2]
    total = slowest + parts[2]
    parts[3] = _useful(grid, nodes, terms[3] + 0.5 * terms[2] * total)
    return total


@loop
def _exchange(grid, chain, nodes, sites, delay, between, starts):
    """Seconds of the slowest stage's ring all-reduce: 2 (P - 1) messages of a P-th, at its slowest member's pace."""
    stages, ways = grid.shape
    if ways == 1:
        return 0.0
    longest = 0.0
    for w in range(stages):
        end = starts[w + 1] if w + 1 < stages else chain.shape[1] - 1
        share = (chain[3, end] - chain[3, starts[w]]) / ways
        hop = 0.0
        for p in range(ways):
            i, j = grid[w, p], grid[w, (p + 1) % ways]
            pace = min(between[sites[i], sites[j]], nodes[2, i], nodes[3, j])
            hop = max(hop, delay[sites[i], sites[j]] + 8.0 * share / pace)
        longest = max(longest, 2.0 * (ways - 1) * hop)
    return longest


@loop
def _useful(grid, nodes, lost):
    """The share of time in which pipelines work that stop for `lost` seconds whenever one of their nodes fails."""
    stages, ways = grid.shape
    total = 0.0
    for p in range(ways):
        failures = 0.0
        for w in range(stages):
            failures += nodes[5, grid[w, p]]
        total += 1.0 / (1.0 + failures * lost)
    return total / ways


@loop
def breach(grid, nodes, owner, terms):
    """How far a grid breaks what was asked: 0 where each stage's cards are similar, and its owners many enough."""
    stages, ways = grid.shape
    worst = 0.0
    for w in range(stages):
        fast, slow, most, same = 0.0, np.inf, 0, 0
        owners = np.sort(owner[grid[w]])
        for p in range(ways):
            i = grid[w, p]
            fast, slow = max(fast, nodes[0, i]), min(slow, nodes[0, i])
            same = same + 1 if p and owners[p] == owners[p - 1] else 1
            most = max(most, same)
        worst = max(worst, fast / slow / terms[4] - 1.0)
        worst += max(0.0, most - max(1.0, math.floor(terms[5] * ways)))
    return max(0.0, worst)


@loop
def rank(grid, chain, nodes, owner, sites, delay, between, terms, by_money, starts, parts):
    """What a search of grids lowers: seconds, or seconds times price, of a pipeline's step that was not lost."""
    seconds = step(grid, chain, nodes, sites, delay, between, terms, starts, parts)
    price = 0.0
    for w in range(grid.shape[0]):
        for i in grid[w]:
            price += nodes[4, i]
    worth = seconds / (parts[3] * grid.shape[1])
    return (worth * price if by_money else worth) * (1.0 + 10.0 * breach(grid, nodes, owner, terms))


@loop
def anneal_grid(grid, spare, chain, nodes, owner, sites, delay, between, terms, by_money, draws, hot, cold):
    """Swaps two nodes of a grid [W, P], or one with a spare [S], as draws [M, 3] say; the best is left in both.

    Layers are dealt again after each swap. Annealing in relative steps: a change from x to y is weighed as ln(y / x),
    at temperatures `hot` to `cold`. A grid that cannot hold the model is worse by each unit than any that can.
    """
    stages, ways = grid.shape
    count, total = stages * ways, stages * ways + spare.shape[0]
    starts, parts = np.zeros(stages, np.int64), np.zeros(4)
    micro = int(terms[0])
    here = np.inf
    best, best_grid, best_spare = here, grid.copy(), spare.copy()
    for move in range(draws.shape[0] + 1):
        heat, limit, a, b = hot, np.inf, 0, 0
        if move:
            a, b = int(draws[move - 1, 0] * count), int(draws[move - 1, 1] * total)
            if a == b:
                continue
            heat = hot * (cold / hot) ** (move / draws.shape[0])
            limit = here * math.exp(-heat * math.log(max(1e-300, draws[move - 1, 2])))
            _swap(grid, spare, a, b)
        over = deal(grid, chain, nodes, micro, starts)
        if over:
            then = 1e30 * (1.0 + over)
        else:
            then = rank(grid, chain, nodes, owner, sites, delay, between, terms, by_money, starts, parts)
        if then > limit:
            _swap(grid, spare, a, b)
            continue
        here = then
        if here < best:
            best = here
            best_grid[:], best_spare[:] = grid, spare
    grid[:], spare[:] = best_grid, best_spare
    return best


@loop
def settle_grid(
    grid, spare, home, room, chain, nodes, owner, sites, delay, between, terms, by_money, starts, draws
):
    """Swaps as `anneal_grid`, but layers stay as they are, and only what gains is kept: for a grid that holds state.

    `home` [N]: the stage whose state a node holds, -1 for none. `room`: bytes that may still be fetched by nodes that
    come to another stage. Returns the bytes that are left of it.
    """
    stages, ways = grid.shape
    count, total = stages * ways, stages * ways + spare.shape[0]
    parts, micro = np.zeros(4), int(terms[0])
    here = rank(grid, chain, nodes, owner, sites, delay, between, terms, by_money, starts, parts)
    for move in range(draws.shape[0]):
        a, b = int(draws[move, 0] * count), int(draws[move, 1] * total)
        if a == b:
            continue
        before = _fetched(grid, home, chain, starts, a // ways) + (
            _fetched(grid, home, chain, starts, b // ways) if b < count and b // ways != a // ways else 0.0
        )
        _swap(grid, spare, a, b)
        after = _fetched(grid, home, chain, starts, a // ways) + (
            _fetched(grid, home, chain, starts, b // ways) if b < count and b // ways != a // ways else 0.0
        )
        fits = holds(chain, nodes, micro, starts, a // ways, grid[a // ways, a % ways])
        if b < count:
            fits = fits and holds(chain, nodes, micro, starts, b // ways, grid[b // ways, b % ways])
        if fits and after - before <= room:
            then = rank(grid, chain, nodes, owner, sites, delay, between, terms, by_money, starts, parts)
            if then < here:
                here = then
                room -= after - before
                continue
        _swap(grid, spare, a, b)
    return room


@loop
def _fetched(grid, home, chain, starts, stage):
    """Bytes of state that the members of a stage lack."""
    end = starts[stage + 1] if stage + 1 < starts.shape[0] else chain.shape[1] - 1
    lacking = 0
    for i in grid[stage]:
        lacking += home[i] != stage
    return lacking * (chain[1, end] - chain[1, starts[stage]])


@loop
def _swap(grid, spare, a, b):
    """Places of a grid are counted row by row, then those of the spares."""
    ways, count = grid.shape[1], grid.shape[0] * grid.shape[1]
    first = grid[a // ways, a % ways]
    if b < count:
        grid[a // ways, a % ways] = grid[b // ways, b % ways]
        grid[b // ways, b % ways] = first
    else:
        grid[a // ways, a % ways] = spare[b - count]
        spare[b - count] = first


LOOPS = (
    "divide", "cut", "holds", "reach", "deal", "step", "breach", "anneal_grid", "settle_grid",
)  # fmt: skip


def load(cache):
    """The loops by name, compiled, with a folder that keeps their compiled code."""
    return optional.load(globals(), LOOPS, cache)
