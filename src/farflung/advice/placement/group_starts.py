"""Constructs groups to start a search with: cliques of fast links are spread over groups, or kept whole.

Random partitions of a symmetric network nearly all cost the same, so a search from them wanders on a plateau (the
second case of DT-FM: all that were tried cost 49.5, and the best of these starts 31.6). What gets off it is a
sentence: one device of every clique in each group, and those that are in no clique together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farflung.advice.placement.dtfm_objective import DtfmCosts
from farflung.advice.placement.link_matrices import Floats, Indices

LEVELS: Final = 12  # distinct speeds of links at which cliques are looked for


def starts(costs: DtfmCosts) -> list[Indices]:
    """Different groups [W, P] to begin with, in a fixed order: cliques spread, whole, pooled; and grown one by one."""
    found: dict[bytes, Indices] = {}
    for order in _orders(costs):
        groups = np.ascontiguousarray(order.reshape(costs.stages, costs.ways))
        found.setdefault(np.sort(groups, axis=1).tobytes(), groups)
    return list(found.values())


def _orders(costs: DtfmCosts) -> Iterator[Indices]:
    """Orders of all devices; consecutive P make a group."""
    devices = np.arange(len(costs.hop))
    for clique in cliques(costs.hop):
        yield from spread(clique)
    yield devices
    yield (devices.reshape(costs.stages, costs.ways).T.reshape(-1) if costs.stages == costs.ways else devices[::-1])
    for distances in (costs.lateral, costs.hop, -costs.hop):
        yield _grown(distances, costs.stages, costs.ways)


def spread(clique: Indices, first: Indices | None = None) -> Iterator[Indices]:
    """Orders of all devices by their cliques [N]: whole, and some of each in every group. `first` [N] goes before."""
    size = np.bincount(clique)[clique]
    rank = _ranks(clique)
    alone = size == 1
    kind = np.zeros(len(clique), np.int64) if first is None else first
    yield np.lexsort((clique, -size, kind))  # whole
    yield np.lexsort((clique, rank, alone, kind))  # one of each in every group, those alone together
    yield np.lexsort((rank, clique % 2, alone, kind))  # the same in two halves
    for share in (2, 4):  # so many neighbours of a clique in each group
        yield np.lexsort((clique, rank // share, alone, kind))


def cliques(hop: Floats) -> list[Indices]:
    """Numbers of cliques [N], one array for each threshold at which components of links up to it are new.

    Components of the graph of links that are no slower than a threshold; thresholds are the slowest edges of a
    minimum spanning tree, LEVELS of them evenly chosen.
    """
    edges = _spanning(hop)
    steps = np.unique(np.round([edge[0] for edge in edges], 12))
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, min(LEVELS, len(steps))).astype(int))] if len(steps) else []
    out = []
    for limit in chosen:
        label = np.arange(len(hop))
        for length, a, b in edges:
            if length <= limit + 1e-12:
                label[label == label[b]] = label[a]
        out.append(np.unique(label, return_inverse=True)[1].astype(np.int64))
    return out


def _spanning(hop: Floats) -> list[tuple[float, int, int]]:
    """Edges of a minimum spanning tree (Prim 1957), (seconds, from, to)."""
    count = len(hop)
    near, source = hop[0].copy(), np.zeros(count, np.int64)
    near[0] = np.inf
    left = np.ones(count, np.bool_)
    left[0] = False
    edges = []
    for _ in range(count - 1):
        then = int(np.argmin(np.where(left, near, np.inf)))
        edges.append((float(near[then]), int(source[then]), then))
        left[then] = False
        closer = left & (hop[then] < near)
        near[closer], source[closer] = hop[then][closer], then
    return edges


def _ranks(clique: Indices) -> Indices:
    """How many of its clique stand before each device."""
    order = np.argsort(clique, kind="stable")
    first = np.searchsorted(clique[order], clique)
    out = np.empty(len(clique), np.int64)
    out[order] = np.arange(len(clique))
    return out - first


def _grown(distances: Floats, stages: int, ways: int) -> Indices:
    """Group after group: from the device that is farthest from all, always the one nearest to those within."""
    left: NDArray[np.bool_] = np.ones(len(distances), np.bool_)
    order = []
    for _ in range(stages):
        total = np.where(left, distances[:, left].sum(1), -np.inf)
        within = [int(np.argmax(total))]
        left[within[0]] = False
        near = distances[within[0]].copy()
        while len(within) < ways:
            then = int(np.argmin(np.where(left, near, np.inf)))
            within.append(then)
            left[then] = False
            near = near + distances[then]
        order += within
    return np.array(order, np.int64)


def alike(costs: DtfmCosts) -> Indices:
    """A number for each device [N]; equal numbers are interchangeable: same times to all others, and between them."""
    count = len(costs.hop)
    number = np.full(count, -1, np.int64)
    for i in range(count):
        if number[i] >= 0:
            continue
        number[i] = i
        for j in range(i + 1, count):
            if number[j] < 0 and _same(costs.hop, i, j) and _same(costs.lateral, i, j):
                number[j] = i
    return number


def _same(distances: Floats, i: int, j: int) -> bool:
    differ = distances[i] != distances[j]
    differ[[i, j]] = False
    return not differ.any()
