"""Places more devices than can be searched together: blocks of near ones, each placed by itself, then joined.

Hops of a pipeline stay inside a block; every stage's exchange runs over all blocks, wherever they are, as it does in
any layout. Blocks are cut from one line of all devices: sites in the order of a short tour, inside a site by the slower
direction of their own line, so that homes with poor lines share pipelines instead of holding up many.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from farflung.advice.placement.dtfm_objective import EXCHANGED, HANDED, DtfmLayout, DtfmScore, check, costs
from farflung.advice.placement.link_matrices import Indices, LinkMatrices
from farflung.advice.placement.loop_loader import loop
from farflung.advice.placement.open_tsp import shortest
from farflung.advice.placement.simulated_annealing import SearchEffort, search

TOGETHER: Final = 1000  # devices that are still placed as one block
BLOCK: Final = 256
SITES: Final = 256  # whose tour is looked for; more are taken by their number
EFFORT: Final = SearchEffort(moves=3_000, runs=1)


def place(
    mesh: LinkMatrices, stages: int, seed: int, *, exchanged: float = EXCHANGED, handed: float = HANDED,
    effort: SearchEffort = EFFORT, block: int = BLOCK,
) -> DtfmLayout:  # fmt: skip
    """A layout of all devices of a mesh under DT-FM's objective, N up to 131,072: `anneal.search` block by block.

    Raises UsageError as `dtfm.costs`.
    """
    check(len(mesh), stages, exchanged, handed)
    ways = len(mesh) // stages
    parts = []
    for number, devices in enumerate(blocks(mesh, stages, handed, block)):
        share = exchanged * (len(devices) // stages) / ways  # so that each pair exchanges what it will in the whole
        of = costs(mesh, stages, exchanged=share, handed=handed, devices=devices)
        parts.append(devices[search(of, seed + number, effort).grid])
    grid = np.ascontiguousarray(np.hstack(parts))
    return DtfmLayout(grid, score(mesh, grid, exchanged=exchanged, handed=handed))


def score(mesh: LinkMatrices, grid: Indices, *, exchanged: float = EXCHANGED, handed: float = HANDED) -> DtfmScore:
    """DT-FM's cost of a layout as it stands, of any size: nothing of N x N is kept."""
    lines = (mesh.site, mesh.delay, mesh.rate, mesh.up, mesh.down)
    lateral = float(loop("block_loops", "exchange")(grid, *lines, exchanged / grid.shape[1]))
    return DtfmScore(lateral, float(loop("block_loops", "pipeline")(grid, *lines, handed)))


def blocks(mesh: LinkMatrices, stages: int, handed: float, block: int = BLOCK) -> Iterator[Indices]:
    """All devices in blocks of whole pipelines, none much larger than `block`, or than one pipeline."""
    order = line(mesh, handed)
    pipelines = len(mesh) // stages
    count = max(1, -(-len(mesh) // max(block, stages)))
    ends = [pipelines * at // count * stages for at in range(count + 1)]
    for first, last in pairwise(ends):
        if last > first:
            yield order[first:last]


def line(mesh: LinkMatrices, handed: float) -> Indices:
    """All devices, neighbours near each other."""
    own = np.minimum(mesh.up, mesh.down)
    return np.lexsort((np.arange(len(mesh)), -own, tour_of_sites(mesh, handed)[mesh.site]))


def tour_of_sites(mesh: LinkMatrices, handed: float) -> Indices:
    """The place of each site [S] on a short tour of all, there and back; of more than SITES its number."""
    place = np.arange(len(mesh.delay))
    if len(place) <= SITES:
        times = mesh.delay + 8.0 * handed / mesh.rate
        apart = times + times.T
        np.fill_diagonal(apart, 0.0)
        place[shortest(apart)[0]] = np.arange(len(place))
    return place
