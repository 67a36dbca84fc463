"""Runs the loops over grids of nodes [W, P]: the time of a step of one, and the search for better ones by swaps.

Without numba they run as they stand. What a swap changes is worked out anew and nothing else: two pipelines, two
stages, and the layers only where a stage's slowest or smallest member changed.
`chain` [4, U + 1]: running sums of FLOP, state, kept and exchanged bytes. `nodes` [6, N]: FLOP/s, memory, uplink,
downlink, price, failures a second. `terms`: micro-batches, bytes handed on, steps between exchanges, repair seconds,
largest ratio of rates in a stage, largest share of one owner. `starts` [W]: first unit of each stage.
"""

from __future__ import annotations

import math

import numpy as np

from farflung.advice.placement import numba_optional, pipeline_loops
from farflung.advice.placement.numba_optional import loop
from farflung.advice.placement.pipeline_loops import deal, holds

BACKWARD = 2.0 / 3.0  # of a stage's compute at least: its backward pass, which cools a pipeline down
NEVER = 1e30  # a grid that cannot hold the model is worse, by each unit, than any that can


@loop
def pipeline_time(grid, p, chain, nodes, sites, delay, between, terms, starts, found):
    """Seconds of pipeline `p` of a grid in `found`: of its first micro-batch there and back, and of all.

    The others follow at the pace of the slowest of: a transfer, one way of a hop; and, as a stage goes forward again
    only after a backward pass, the way from a stage to another and back, all computing, of one micro-batch in so many
    as there are stages on it (1F1B keeps so many in flight between them).
    """
    stages, micro = grid.shape[0], int(terms[0])
    compute, hop = np.empty(stages), np.zeros(stages)
    fill, free = 0.0, 0.0
    for w in range(stages):
        i = grid[w, p]
        end = starts[w + 1] if w + 1 < stages else chain.shape[1] - 1
        compute[w] = (chain[0, end] - chain[0, starts[w]]) / nodes[0, i]
        fill, free = fill + compute[w], max(free, BACKWARD * compute[w])
        if w:
            k = grid[w - 1, p]
            a, b = sites[k], sites[i]
            one = 0.5 if w > 1 else 1.0  # an inner stage hands on and gets back by one line at the same time
            other = 0.5 if w < stages - 1 else 1.0
            there = 8.0 * terms[1] / min(between[a, b], one * nodes[2, k], other * nodes[3, i])
            back = 8.0 * terms[1] / min(between[b, a], other * nodes[2, i], one * nodes[3, k])
            hop[w] = delay[a, b] + delay[b, a] + there + back
            fill, free = fill + hop[w], max(free, there, back)
    longest = (micro - 1) * free
    for u in range(stages):
        left = micro - stages + u  # times that stage u awaits a backward pass before it goes forward
        total = 0.0
        for v in range(u, stages if left > 0 else u):
            total += compute[v] + (hop[v] if v > u else 0.0)
            waits = (left - 1) // (v - u + 1) + 1
            longest = max(longest, waits * total + (micro - 1 - waits * (v - u + 1)) * free)
    found[0], found[1] = fill, fill + longest


@loop
def ring_time(grid, w, chain, nodes, sites, delay, between, starts):
    """Seconds of stage `w`'s ring all-reduce: 2 (P - 1) messages of a P-th, at its slowest member's pace."""
    stages, ways = grid.shape
    if ways == 1:
        return 0.0
    end = starts[w + 1] if w + 1 < stages else chain.shape[1] - 1
    share = (chain[3, end] - chain[3, starts[w]]) / ways
    hop = 0.0
    for p in range(ways):
        i, j = grid[w, p], grid[w, (p + 1) % ways]
        a, b = sites[i], sites[j]
        hop = max(hop, delay[a, b] + 8.0 * share / min(between[a, b], nodes[2, i], nodes[3, j]))
    return 2.0 * (ways - 1) * hop


@loop
def breach_of(grid, w, nodes, owner, terms, tally, found):
    """How far stage `w` breaks what was asked, in `found`: of similar cards, and of its owners. `tally` [N] is 0."""
    fast, slow, most = 0.0, np.inf, 0
    for i in grid[w]:
        fast, slow = max(fast, nodes[0, i]), min(slow, nodes[0, i])
        tally[owner[i]] += 1
        most = max(most, tally[owner[i]])
    for i in grid[w]:
        tally[owner[i]] = 0
    found[0] = max(0.0, fast / slow / terms[4] - 1.0)
    found[1] = max(0.0, most - max(1.0, math.floor(terms[5] * grid.shape[1])))


@loop
def measure(grid, chain, nodes, owner, sites, delay, between, terms, starts, pipes, rings, tally):
    """All pipelines in `pipes` [P, 4]: seconds of the first micro-batch, of all, failures a second, price a second;
    all stages in `rings` [W, 3]: seconds of the exchange, breach by cards, by owners.
    """
    for p in range(grid.shape[1]):
        _measure_pipe(grid, p, chain, nodes, sites, delay, between, terms, starts, pipes)
    for w in range(grid.shape[0]):
        _measure_ring(grid, w, chain, nodes, owner, sites, delay, between, terms, starts, rings, tally)


@loop
def _measure_pipe(grid, p, chain, nodes, sites, delay, between, terms, starts, pipes):
    pipeline_time(grid, p, chain, nodes, sites, delay, between, terms, starts, pipes[p])
    pipes[p, 2], pipes[p, 3] = 0.0, 0.0
    for i in grid[:, p]:
        pipes[p, 2], pipes[p, 3] = pipes[p, 2] + nodes[5, i], pipes[p, 3] + nodes[4, i]


@loop
def _measure_ring(grid, w, chain, nodes, owner, sites, delay, between, terms, starts, rings, tally):
    rings[w, 0] = ring_time(grid, w, chain, nodes, sites, delay, between, starts)
    breach_of(grid, w, nodes, owner, terms, tally, rings[w, 1:])


@loop
def summed(pipes, rings, terms, parts):
    """A grid's step in `parts` [8]: seconds after the first micro-batch of the slowest pipeline, of that first one,
    of the exchange a step, useful share, price a second, breach; mean pipeline and exchange, mean breach.
    """
    ways, stages = pipes.shape[0], rings.shape[0]
    slowest, mean, price = 0, 0.0, 0.0
    for p in range(ways):
        mean, price = mean + pipes[p, 1] / ways, price + pipes[p, 3]
        if pipes[p, 1] > pipes[slowest, 1]:
            slowest = p
    exchange, cards, owners, broken = 0.0, 0.0, 0.0, 0.0
    for w in range(stages):
        exchange, mean = max(exchange, rings[w, 0]), mean + rings[w, 0] / terms[2] / stages
        cards, owners, broken = max(cards, rings[w, 1]), owners + rings[w, 2], broken + rings[w, 1] / stages
    parts[0], parts[1] = pipes[slowest, 1] - pipes[slowest, 0], pipes[slowest, 0]
    parts[2] = exchange / terms[2]
    step = pipes[slowest, 1] + parts[2]
    lost = terms[3] + 0.5 * terms[2] * step
    useful = 0.0
    for p in range(ways):
        useful += 1.0 / (1.0 + pipes[p, 2] * lost)
    parts[3], parts[4], parts[5] = useful / ways, price, cards + owners
    parts[6], parts[7] = mean, broken + owners
    return step


@loop
def value(pipes, rings, terms, by_money, tie, parts):
    """What a search lowers: seconds, or seconds times price, of a pipeline's step that was not lost, and more by as
    much as the wish is broken; with `tie` of the means, which tell apart what the slowest hides.
    """
    step = summed(pipes, rings, terms, parts)
    worth = 1.0 / (parts[3] * pipes.shape[0])
    worth = worth * parts[4] if by_money else worth
    broken = parts[5] + tie * parts[7]
    return worth * (step + tie * parts[6]) * (1.0 + 10.0 * broken)


@loop
def weigh_grid(grid, chain, nodes, owner, sites, delay, between, terms, by_money, tie):
    """`value` of a grid whose layers are dealt anew."""
    stages, ways = grid.shape
    starts, parts, tally = np.zeros(stages, np.int64), np.zeros(8), np.zeros(nodes.shape[1], np.int64)
    over = deal(grid, chain, nodes, int(terms[0]), starts)
    if over:
        return NEVER * (1.0 + over)
    pipes, rings = np.zeros((ways, 4)), np.zeros((stages, 3))
    measure(grid, chain, nodes, owner, sites, delay, between, terms, starts, pipes, rings, tally)
    return value(pipes, rings, terms, by_money, tie, parts)


@loop
def _picked(draw, pipes, rings, count, total):
    """Two places: the second any, the first any, or of the slowest pipeline, or of the slowest exchange."""
    ways = pipes.shape[0]
    a, b = int(draw[0] * count), int(draw[1] * total)
    if draw[3] < 0.25:
        a = a // ways * ways + int(np.argmax(pipes[:, 1]))
    elif draw[3] < 0.5:
        a = int(np.argmax(rings[:, 0])) * ways + a % ways
    return a, b


@loop
def _again(grid, a, b, chain, nodes, owner, sites, delay, between, terms, starts, pipes, rings, tally):
    """The pipelines and the stages of two places, measured anew."""
    ways, count = grid.shape[1], grid.shape[0] * grid.shape[1]
    for at in (a, b):
        if at < count:
            w, p = at // ways, at % ways
            _measure_pipe(grid, p, chain, nodes, sites, delay, between, terms, starts, pipes)
            _measure_ring(grid, w, chain, nodes, owner, sites, delay, between, terms, starts, rings, tally)


@loop
def _swap_and_deal(grid, spare, a, b, chain, nodes, micro, over, starts, new):
    """Swaps two places; layers in `new`, dealt anew unless no stage's slowest or smallest member changed.

    `over`: units that nobody held before. Returns how many nobody holds now.
    """
    before, after = np.zeros(4), np.zeros(4)
    _lows(grid, a, b, nodes, before)
    _swap(grid, spare, a, b)
    _lows(grid, a, b, nodes, after)
    new[:] = starts
    if over or (before != after).any():
        return deal(grid, chain, nodes, micro, new)
    return 0


@loop
def anneal_grid(grid, spare, chain, nodes, owner, sites, delay, between, terms, by_money, draws, hot, cold, tie):
    """Swaps two nodes of a grid [W, P], or one with a spare [S], as draws [M, 4] say; the best is left in both.

    Annealing in relative steps: a change from x to y is weighed as ln(y / x), at temperatures `hot` to `cold`.
    """
    stages, ways = grid.shape
    count, total, micro = stages * ways, stages * ways + spare.shape[0], int(terms[0])
    starts, new = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    pipes, rings, parts = np.zeros((ways, 4)), np.zeros((stages, 3)), np.zeros(8)
    tally = np.zeros(nodes.shape[1], np.int64)
    over = deal(grid, chain, nodes, micro, starts)
    here = best = NEVER * (1.0 + over)
    if not over:
        measure(grid, chain, nodes, owner, sites, delay, between, terms, starts, pipes, rings, tally)
        here = value(pipes, rings, terms, by_money, tie, parts)
        best = value(pipes, rings, terms, by_money, 0.0, parts)
    old_pipes, old_rings = pipes.copy(), rings.copy()
    best_level, best_grid, best_spare = here, grid.copy(), spare.copy()
    for move in range(draws.shape[0]):
        a, b = _picked(draws[move], pipes, rings, count, total)
        if a == b:
            continue
        heat = hot * (cold / hot) ** (move / draws.shape[0])
        limit = here * math.exp(-heat * math.log(max(1e-300, draws[move, 2])))
        left = _swap_and_deal(grid, spare, a, b, chain, nodes, micro, over, starts, new)
        then = NEVER * (1.0 + left)
        if not left:
            old_pipes[:], old_rings[:] = pipes, rings
            if over or (new != starts).any():
                measure(grid, chain, nodes, owner, sites, delay, between, terms, new, pipes, rings, tally)
            else:
                _again(grid, a, b, chain, nodes, owner, sites, delay, between, terms, new, pipes, rings, tally)
            then = value(pipes, rings, terms, by_money, tie, parts)
        if then > limit:
            _swap(grid, spare, a, b)
            if not left:
                pipes[:], rings[:] = old_pipes, old_rings
            continue
        here, over, starts[:] = then, left, new
        cost = then if over else value(pipes, rings, terms, by_money, 0.0, parts)
        if cost < best * (1.0 - 1e-12) or (cost <= best and then < best_level):
            best, best_level = min(best, cost), then
            best_grid[:], best_spare[:] = grid, spare
    grid[:], spare[:] = best_grid, best_spare
    return best


@loop
def _lows(grid, a, b, nodes, found):
    """The slowest rates and smallest memories of the stages of two places, in `found` [4]."""
    ways, count = grid.shape[1], grid.shape[0] * grid.shape[1]
    found[:] = np.inf
    for i in grid[a // ways]:
        found[0], found[1] = min(found[0], nodes[0, i]), min(found[1], nodes[1, i])
    if b < count:
        for i in grid[b // ways]:
            found[2], found[3] = min(found[2], nodes[0, i]), min(found[3], nodes[1, i])


@loop
def settle_grid(
    grid, spare, home, room, horizon, chain, nodes, owner, sites, delay, between, terms, by_money, starts, draws
):
    """Swaps of a grid that holds state: layers stay, and only what pays for itself is kept.

    `home` [N]: the stage whose state a node holds, -1 for none. `room`: bytes that may still be fetched by nodes that
    come to another stage. A swap pays if the share of time that it saves, of `horizon` seconds, is longer than
    fetching what it needs. Returns the bytes that are left of `room`.
    """
    stages, ways = grid.shape
    count, total, micro = stages * ways, stages * ways + spare.shape[0], int(terms[0])
    pipes, rings, parts = np.zeros((ways, 4)), np.zeros((stages, 3)), np.zeros(8)
    tally, spent = np.zeros(nodes.shape[1], np.int64), np.zeros(2)
    measure(grid, chain, nodes, owner, sites, delay, between, terms, starts, pipes, rings, tally)
    here = value(pipes, rings, terms, by_money, 0.0, parts)
    old_pipes, old_rings = pipes.copy(), rings.copy()
    for move in range(draws.shape[0]):
        a, b = _picked(draws[move], pipes, rings, count, total)
        if a == b:
            continue
        before = _fetched(grid, a, b, home, chain, nodes, starts, spent[:1])
        _swap(grid, spare, a, b)
        more = _fetched(grid, a, b, home, chain, nodes, starts, spent[1:]) - before
        fits = holds(chain, nodes, micro, starts, a // ways, grid[a // ways, a % ways])
        if b < count:
            fits = fits and holds(chain, nodes, micro, starts, b // ways, grid[b // ways, b % ways])
        if fits and more <= room:
            old_pipes[:], old_rings[:] = pipes, rings
            _again(grid, a, b, chain, nodes, owner, sites, delay, between, terms, starts, pipes, rings, tally)
            then = value(pipes, rings, terms, by_money, 0.0, parts)
            if then < here and (1.0 - then / here) * horizon >= spent[1] - spent[0]:
                here = then
                room -= more
                continue
            pipes[:], rings[:] = old_pipes, old_rings
        _swap(grid, spare, a, b)
    return room


@loop
def _fetched(grid, a, b, home, chain, nodes, starts, seconds):
    """Bytes of state that who is at two places lacks; in `seconds` how long their own lines take for it."""
    stages, ways = grid.shape
    size, seconds[0] = 0.0, 0.0
    for at in (a, b):
        if at < stages * ways:
            w, i = at // ways, grid[at // ways, at % ways]
            end = starts[w + 1] if w + 1 < stages else chain.shape[1] - 1
            if home[i] != w:
                size += chain[1, end] - chain[1, starts[w]]
                seconds[0] += 8.0 * (chain[1, end] - chain[1, starts[w]]) / nodes[3, i]
    return size


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


LOOPS = ("measure", "summed", "weigh_grid", "anneal_grid", "settle_grid")


def load(cache):
    """The loops by name, compiled, with a folder that keeps their compiled code; with those that they call."""
    globals().update(pipeline_loops.load(cache))
    return numba_optional.load(globals(), LOOPS, cache)
