"""Matches two groups so that the slowest pair that exchanges data is as fast as any perfect matching allows."""

from __future__ import annotations

import numpy as np

from farflung.advice.placement.link_matrices import Floats, Indices
from farflung.advice.placement.loop_loader import loop


def matching(hop: Floats, left: Indices, right: Indices) -> tuple[Indices, float]:
    """Places in `right` [P] of the partners of `left` [P], and the largest `hop` [N, N] among the pairs; exact.

    Bottleneck assignment by augmenting paths (Derigs & Zimmermann 1978), O(P^3).
    """
    pair = np.empty(len(left), np.int64)
    slowest = loop("group_search_loops", "bottleneck")(
        hop, np.ascontiguousarray(left), np.ascontiguousarray(right), pair
    )
    return pair, float(slowest)
