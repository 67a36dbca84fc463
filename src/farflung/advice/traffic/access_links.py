"""Models ranks behind their own access links, and what several flows at once do to those links.

A rank's link has a rate up, a rate down and a round trip; the way from i to j takes half of either's round trip, or
what a matrix of measured pairs says, and a pair may have a rate of its own besides (bit/s). All flows of a rank
pass its one link, which a matrix of pairs alone cannot say, and which is what limits homes.

`finish` is fluid max-min fairness by progressive filling (Bertsekas & Gallager, Data Networks, section 6.5.2): all
rates grow alike until a line is full, flows over it are fixed, the others go on. `least` is the lower bound that
overlapping transfers reach: the busiest line's bytes over its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from farflung.advice.traffic import input_checks
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Seconds
from farflung.plan.link_syntax import FASTEST, LONGEST, Link

Floats = np.ndarray[Any, np.dtype[np.float64]]
_NEVER: Final = 1e-12  # of a flow's bytes: what is left of it is rounding


class RankGroup(msgspec.Struct, frozen=True):
    """Ranks by their links. `delays`: seconds one way from row to column; `rates`: bit/s of a pair, 0: its links'.

    Raises FF-PLAN-020 (no rank, or too many to time one by one), -021 (a link's rates or round trip), -022 (a matrix).
    """

    links: tuple[Link, ...]
    delays: tuple[tuple[float, ...], ...] | None = None
    rates: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        input_checks.count("ranks", len(self.links), most=limits.PLANNED_TIMED)
        for at, link in enumerate(self.links):
            input_checks.link(f"links[{at}]", link)
        if self.delays is not None:
            input_checks.matrix("delays", self.delays, len(self.links), LONGEST)
        if self.rates is not None:
            input_checks.matrix("rates", self.rates, len(self.links), FASTEST)

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.links)

    def delay(self) -> Floats:
        """Seconds from row to column, shape (ranks, ranks), 0 on the diagonal."""
        if self.delays is not None:
            found = np.array(self.delays, np.float64)
        else:
            half = np.array([link.round_trip / 2 for link in self.links])
            found = half[:, None] + half[None, :]
        np.fill_diagonal(found, 0.0)
        return found

    def rate(self) -> Floats:
        """Bit/s of one flow alone from row to column, shape (ranks, ranks); infinite on the diagonal."""
        up, down = self.up(), self.down()
        found = np.minimum(up[:, None], down[None, :])
        if self.rates is not None:
            own = np.array(self.rates, np.float64)
            found = np.where(own > 0, np.minimum(own, found), found)
        np.fill_diagonal(found, np.inf)
        return found

    def up(self) -> Floats:
        """Bit/s out of each rank."""
        return np.array([link.up for link in self.links], np.float64)

    def down(self) -> Floats:
        """Bit/s into each rank."""
        return np.array([link.down for link in self.links], np.float64)


class RankFlow(msgspec.Struct, frozen=True):
    """Bytes from one rank to another."""

    source: int
    target: int
    size: float


def alike(link: Link, ranks: int) -> RankGroup:
    """So many ranks with the same link."""
    return RankGroup((link,) * input_checks.count("ranks", ranks, most=limits.PLANNED_TIMED))


def least(group: RankGroup, sizes: Floats) -> Seconds:
    """Seconds until `sizes` bytes from row to column are through, all at once: the busiest line, the longest way."""
    bits = 8.0 * sizes
    lines = np.concatenate([bits.sum(axis=1) / group.up(), bits.sum(axis=0) / group.down()])
    pairs = (bits / group.rate()).max(initial=0.0)
    way = np.where(sizes > 0, group.delay(), 0.0).max(initial=0.0)
    return Seconds(float(max(lines.max(), pairs) + way))


def finish(group: RankGroup, flows: Sequence[RankFlow]) -> tuple[Seconds, ...]:
    """When each flow is through, if all begin at once and share lines fairly; in their order.

    Raises UsageError FF-PLAN-020 (too many flows), FF-PLAN-021 (a size), FF-PLAN-024 (there is no such rank).
    """
    input_checks.count("flows", len(flows), least=0, most=limits.PLANNED_FLOWS)
    for flow in flows:
        _check(group, flow)
    if not flows:
        return ()
    source, target = (np.array([getattr(flow, end) for flow in flows]) for end in ("source", "target"))
    left = 8.0 * np.array([flow.size for flow in flows])
    whole, way = left.copy(), group.delay()[source, target]
    caps, now = group.rate()[source, target], 0.0
    done = np.zeros(len(flows))
    while (active := left > _NEVER * whole).any():
        speed = _fair(group, source, target, caps, active)
        with np.errstate(divide="ignore", invalid="ignore"):
            needs = np.where(active, left / speed, np.inf)
        step = float(needs.min())
        now += step
        left = np.where(active, np.where(needs <= step, 0.0, left - speed * step), left)
        done[active] = now
    return tuple(Seconds(float(one)) for one in done + way)


def _fair(group: RankGroup, source: Any, target: Any, caps: Floats, active: Any) -> Floats:
    """Max-min fair bit/s of the active flows."""
    ranks = group.ranks
    room = np.concatenate([group.up(), group.down(), caps])
    speed, open_ = np.zeros(len(caps)), active.copy()
    lines = np.stack([source, ranks + target, 2 * ranks + np.arange(len(caps))])
    while open_.any():
        users = np.bincount(lines[:, open_].ravel(), minlength=len(room))
        share = np.where(users > 0, room / np.maximum(users, 1), np.inf)
        more = float(share.min())
        speed[open_] += more
        room = room - more * users
        full = (users > 0) & (share <= more * (1 + 1e-12))
        open_ &= ~full[lines].any(axis=0)
    return speed


def _check(group: RankGroup, flow: RankFlow) -> None:
    input_checks.amount("flow.size", flow.size)
    ends = (flow.source, flow.target)
    if flow.source == flow.target or not all(0 <= end < group.ranks for end in ends):
        raise UsageError(
            "FF-PLAN-024",
            f"no flow goes from rank {flow.source} to rank {flow.target}",
            cause=f"there are ranks 0 to {group.ranks - 1}, and nobody sends to itself",
            hint="correct source and target",
        )
