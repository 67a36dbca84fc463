"""Finds the best groups of a few devices by exhaustive search: the reference for the heuristic search.

Every partition of N <= 12 devices into W groups of P once (groups have no order): N! / (P!^W W!), 15,400 at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np

from farflung.advice.placement.dtfm_objective import DtfmCosts, DtfmLayout, laid
from farflung.advice.placement.loop_loader import loop
from farflung.core.errors import UsageError

DEVICES: Final = 12

Groups = tuple[tuple[int, ...], ...]


def best(costs: DtfmCosts) -> DtfmLayout:
    """The least cost of all layouts. Raises UsageError FF-PLAN-045 above 12 devices."""
    count = len(costs.hop)
    if count > DEVICES:
        raise UsageError(
            "FF-PLAN-045",
            f"the layouts of {count} devices are too many to look at all",
            cause=f"{DEVICES} devices at most",
            hint="farflung.advice.placement.simulated_annealing.search",
        )
    weigh, order = loop("group_search_loops", "weigh"), np.arange(costs.stages)
    least, cost = None, np.inf
    for groups in partitions(tuple(range(count)), costs.ways):
        seen = np.array(groups, np.int64)
        here = sum(weigh(costs.lateral, costs.hop, seen, order))
        if here < cost:
            least, cost = seen, here
    assert least is not None
    return laid(costs, least)


def partitions(devices: tuple[int, ...], ways: int) -> Iterator[Groups]:
    """Each way to make groups of `ways` of all devices, once: the first device is in the first group."""
    if not devices:
        yield ()
        return
    first, rest = devices[0], devices[1:]
    for others in combinations(rest, ways - 1):
        left = tuple(device for device in rest if device not in others)
        for groups in partitions(left, ways):
            yield ((first, *others), *groups)
