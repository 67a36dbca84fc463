"""Who hands to whom between two groups: the perfect matching whose slowest pair is as fast as any can be."""

from __future__ import annotations

import numpy as np

from farflung.plan.place.compiled import loop
from farflung.plan.place.mesh import Floats, Indices


def matching(hop: Floats, left: Indices, right: Indices) -> tuple[Indices, float]:
    """Places in `right` [P] of the partners of `left` [P], and the largest `hop` [N, N] among the pairs; exact.

    Bottleneck assignment by augmenting paths (Derigs & Zimmermann 1978), O(P^3).
    """
    pair = np.empty(len(left), np.int64)
    slowest = loop("search_loops", "bottleneck")(
        hop, np.ascontiguousarray(left), np.ascontiguousarray(right), pair
    )
    return pair, float(slowest)
