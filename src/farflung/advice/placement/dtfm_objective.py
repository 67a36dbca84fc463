"""Computes DT-FM's objective, for comparison: the latency of one batch on a pipeline of groups (Yuan et al.
2022, section 3).

N = W P devices make W groups of P; a group holds one stage of the pipeline, its members the same layers. In seconds,
of a mesh whose links need not be symmetric:

    exchange   max over groups, over members i, of  sum over members j of  t_ij(c_dp / P) + t_ji(c_dp / P)
    hop        between two groups: the least possible largest  t_ij(c_pp) + t_ji(c_pp)  of a perfect matching
    pipeline   the shortest open tour of all groups along hops
    cost       exchange + pipeline

On symmetric links this is 2 (alpha + c_dp / (beta P)) and dp + 2 pp of the paper and of its code. It knows no
computing, no memory, and that pairs share an access line only by that line's rate; advice.placement.grid_objective
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.advice.placement.grid_objective import wrong
from farflung.advice.placement.link_matrices import Floats, Indices, LinkMatrices
from farflung.advice.placement.loop_loader import loop
from farflung.advice.placement.open_tsp import shortest
from farflung.core import limits
from farflung.core.errors import UsageError

# One task of the published cases, GPT-3 XL in 8 stages of 3 of 24 layers, as their scheduler has it: 1.3e9 parameters
# of 4 bytes, a stage's share; activations of 2024 x 2 bytes for 125,000 tokens, a GiB counted as a GB.
EXCHANGED: Final = 1.3e9 * 4 * 3 / 24
HANDED: Final = 2024 * 2 * 1.25e5 / 2**30 * 1e9


class DtfmCosts(msgspec.Struct, frozen=True):
    """Seconds there and back between all pairs of N devices: both are symmetric, [N, N], with a diagonal of 0."""

    lateral: Floats  # of one member's share of the exchange
    hop: Floats  # of one batch's activations and gradients
    stages: int
    ways: int


def check(count: int, stages: int, exchanged: float, handed: float) -> None:
    """Raises UsageError FF-PLAN-042 for devices that do not make equal stages, FF-PLAN-049 for what is no size."""
    if not 0 < stages <= limits.PLACED_STAGES or count % stages:
        raise UsageError(
            "FF-PLAN-042",
            f"{count} devices cannot make {stages} equal stages",
            cause=f"a layout needs 1 to {limits.PLACED_STAGES} stages, and the same number of devices in each",
            hint="advice.placement.node_selection chooses how many of them to use",
        )
    for name, size in (("exchanged", exchanged), ("handed", handed)):
        if not 0 <= size < float("inf"):
            raise wrong(name, f"{size:g} bytes")


class DtfmScore(msgspec.Struct, frozen=True):
    """Seconds of DT-FM's objective."""

    exchange: float
    pipeline: float

    @property
    def total(self) -> float:
        """What is minimised."""
        return self.exchange + self.pipeline


class DtfmLayout(msgspec.Struct, frozen=True):
    """Groups in the order of the pipeline: `grid[w, p]` is the device of stage w in pipeline p."""

    grid: Indices  # [W, P]
    score: DtfmScore


def costs(
    mesh: LinkMatrices, stages: int, *, exchanged: float = EXCHANGED, handed: float = HANDED,
    devices: Sequence[int] | Indices | None = None,
) -> DtfmCosts:  # fmt: skip
    """Times between all pairs of a mesh, or of some of its devices, for so many stages.

    `exchanged`, `handed`: bytes of a stage's gradients and of a batch's activations. Raises UsageError FF-PLAN-042,
    FF-PLAN-049.
    """
    count = len(mesh) if devices is None else len(devices)
    check(count, stages, exchanged, handed)
    ways = count // stages
    share, batch = mesh.seconds(exchanged / ways, devices), mesh.seconds(handed, devices)
    return DtfmCosts(share + share.T, batch + batch.T, stages, ways)


def score(costs: DtfmCosts, groups: Indices) -> DtfmScore:
    """The cost of groups [W, P], in whatever order: exact up to 12 stages, else of the best tour that was found."""
    sums = [costs.lateral[np.ix_(group, group)].sum(1).max() for group in groups]
    return DtfmScore(float(max(sums)), shortest(between(costs, groups))[1])


def between(costs: DtfmCosts, groups: Indices) -> Floats:
    """[W, W] seconds of the best hop between all pairs of groups."""
    out = np.zeros((len(groups), len(groups)))
    loop("group_search_loops", "all_between")(costs.hop, groups, out)
    return out


def laid(costs: DtfmCosts, groups: Indices) -> DtfmLayout:
    """The groups in the order of the shortest tour, each matched with the one before it."""
    order, length = shortest(between(costs, groups))
    grid = np.array(groups[order])
    for stage in range(1, len(grid)):
        pair, _ = matching(costs.hop, grid[stage - 1], grid[stage])
        grid[stage] = grid[stage][pair]
    sums = [costs.lateral[np.ix_(group, group)].sum(1).max() for group in groups]
    return DtfmLayout(grid, DtfmScore(float(max(sums)), length))


def matching(hop: Floats, left: Indices, right: Indices) -> tuple[Indices, float]:
    """Places in `right` [P] of the partners of `left` [P], and the largest `hop` [N, N] among the pairs; exact.

    Bottleneck assignment by augmenting paths (Derigs & Zimmermann 1978), O(P^3).
    """
    pair = np.empty(len(left), np.int64)
    slowest = loop("group_search_loops", "bottleneck")(
        hop, np.ascontiguousarray(left), np.ascontiguousarray(right), pair
    )
    return pair, float(slowest)
