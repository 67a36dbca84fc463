"""Orders the groups that a pipeline visits by the shortest open tour."""

from __future__ import annotations

from typing import Final

import numpy as np

from farflung.advice.placement.link_matrices import Floats, Indices
from farflung.advice.placement.loop_loader import loop

EXACT: Final = 12  # stages up to which the tour is the best there is
WINDOW: Final = 8  # consecutive stages of a longer tour that are put in their best order


def shortest(between: Floats) -> tuple[Indices, float]:
    """The order of all stages, and its length; `between` [W, W] is symmetric.

    To 12 stages by dynamic programming over subsets (Held & Karp 1962). Beyond, from the nearest neighbour of every
    stage by 2-opt (Croes 1958) and Or-opt (Or 1976), then the best order of every 8 consecutive stages, again and again
    until nothing gains.
    """
    count = len(between)
    if count <= EXACT:
        order = np.arange(count)
        return order, float(loop("group_search_loops", "exact_tour")(between, order))
    found = [_polished(between, _nearest(between, start)) for start in range(count)]
    return min(found, key=lambda one: one[1])


def _nearest(between: Floats, start: int) -> Indices:
    """From a stage always on to the nearest that is left."""
    order, left = [start], set(range(len(between))) - {start}
    while left:
        here = order[-1]
        order.append(min(left, key=lambda then: (between[here, then], then)))
        left.remove(order[-1])
    return np.array(order)


def _polished(between: Floats, order: Indices) -> tuple[Indices, float]:
    length = float(loop("group_search_loops", "improve_tour")(between, order))
    for _ in range(len(order)):
        for first in range(len(order) - WINDOW + 1):
            _window(between, order, first)
        shorter = float(loop("group_search_loops", "improve_tour")(between, order))
        if shorter >= length - 1e-12:
            break
        length = shorter
    return order, shorter


def _window(between: Floats, order: Indices, first: int) -> None:
    """Puts WINDOW consecutive stages in their best order between their neighbours, which stay.

    The neighbours join the subset program as first and last: an edge that no tour can do without leads from each to
    everywhere but the other, longer than all true edges together.
    """
    last = first + WINDOW
    ends = [order[first - 1]] if first > 0 else []
    tail = [order[last]] if last < len(order) else []
    stages = np.array([*ends, *order[first:last], *tail])
    part = between[np.ix_(stages, stages)].copy()
    far = float(part.sum()) + 1.0
    for end in ([0] if ends else []) + ([len(stages) - 1] if tail else []):
        part[end, :] += far
        part[:, end] += far
    best = np.arange(len(stages))
    loop("group_search_loops", "exact_tour")(part, best)
    if (ends and best[0] != 0) or (not ends and tail and best[-1] != len(stages) - 1):
        best = best[::-1]
    order[first:last] = stages[best[len(ends) : len(stages) - len(tail)]]
