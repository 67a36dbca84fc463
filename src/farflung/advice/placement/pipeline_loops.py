"""Runs the loops over stages of unequal nodes: where a chain of units is cut, and which node holds which part.

Without numba they run as they stand. A chain is given by running sums [U + 1] from its first unit: FLOP, state bytes
and kept bytes; a stage that holds units [a, b) has the differences.
"""

from __future__ import annotations

import numpy as np

from farflung.advice.placement import numba_optional
from farflung.advice.placement.numba_optional import loop

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
    low, high = (0.0, 2.0 * work[-1] / rates.min())  # twice: a quotient times its divisor may come out too small
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
        chain[1, end] - chain[1, starts[stage]] + flight * (chain[2, end] - chain[2, starts[stage]]) <= nodes[1, node]
    )


LOOPS = ("divide", "cut", "holds", "reach", "deal")


def load(cache):
    """The loops by name, compiled, with a folder that keeps their compiled code."""
    return numba_optional.load(globals(), LOOPS, cache)
