"""Computes seconds of collectives on given links by the alpha-beta model (Hockney 1994; Thakur et al. 2005,
section 3): alpha the way from one rank to another, beta a bit's time on the slowest line it passes, with lines
that several flows share.

    ring            event by event: rank i sends its next chunk of S/n when the last one has left it and the one
                    before has come; 2 (n - 1) alpha + 2 (n - 1)/n S beta on even links, more on uneven ones
    tree            2 ceil(log2 n) alpha + 2 S beta of the slowest line; two trees, pipelined
    direct          2 (alpha + (n - 1)/n S beta): all chunks at once, each rank's own line carries them;
                    in turn, as DT-FM assumes (Yuan et al. 2022, section 3.1): the largest over i of the sum over
                    j of 2 (alpha_ij + S beta_ij/n)
    star            up to a hub and down again: n S through its line
    fan-out         k up each line, a relay gives (n - 1) k to each: the busiest line and two ways
    all-gather of payloads, all-to-all      all at once: the busiest line
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.access_links import Floats, RankGroup, least
from farflung.advice.traffic.traffic_terms import TrafficLoad
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link


def ring(group: RankGroup, size: float, *, rounds: int = 2) -> Seconds:
    """An all-reduce of `size` bytes; `rounds` = 1: a reduce-scatter or an all-gather alone. Exact for these links."""
    n = group.ranks
    input_checks.amount("size", size)
    input_checks.count("rounds", rounds, most=2)
    if n == 1:
        return Seconds(0.0)
    here = np.arange(n)
    after = (here + 1) % n
    send = 8.0 * size / n / group.rate()[here, after]
    way = group.delay()[here, after]
    free, came = np.zeros(n), np.zeros(n)
    for _ in range(rounds * (n - 1)):
        free = np.maximum(free, came) + send
        came = np.roll(free + way, 1)
    return Seconds(float(came.max()))


def tree(group: RankGroup, size: float) -> Seconds:
    """An all-reduce by two pipelined binary trees."""
    input_checks.amount("size", size)
    if group.ranks == 1:
        return Seconds(0.0)
    depth = (group.ranks - 1).bit_length()
    slowest = float(group.rate().min())
    return Seconds(2 * depth * float(group.delay().max()) + 2 * 8.0 * size / slowest)


def direct(group: RankGroup, size: float, *, in_turn: bool = False) -> Seconds:
    """An all-reduce where each rank sums an n-th and gives it back; `in_turn`: peers are served one after another."""
    n = group.ranks
    input_checks.amount("size", size)
    if not in_turn:
        return Seconds(2 * all_to_all(group, size))
    each = group.delay() + 8.0 * size / n / group.rate()
    np.fill_diagonal(each, 0.0)
    return Seconds(2 * float(each.sum(axis=1).max()))


def star(group: RankGroup, hub: Link, size: float) -> Seconds:
    """Sums through a hub with a line of its own: up, then down again. Raises UsageError FF-PLAN-021."""
    input_checks.link("hub", hub)
    input_checks.amount("size", size)
    bits, n = 8.0 * size, group.ranks
    up = max(bits / float(group.up().min()), n * bits / hub.down)
    down = max(bits / float(group.down().min()), n * bits / hub.up)
    way = max(link.round_trip for link in group.links) / 2 + hub.round_trip / 2
    return Seconds(up + down + 2 * way)


def fan(group: RankGroup, relay: Link, sizes: Sequence[float]) -> Seconds:
    """A payload of each once up to a relay that copies it to all others, given on as it comes.

    Raises UsageError FF-PLAN-020, FF-PLAN-021.
    """
    input_checks.link("relay", relay)
    bits = 8.0 * _sizes(group, sizes)
    total, n = float(bits.sum()), group.ranks
    lines = [float((bits / group.up()).max()), float(((total - bits) / group.down()).max())]
    lines += [total / relay.down, (n - 1) * total / relay.up]
    way = max(link.round_trip for link in group.links) + relay.round_trip
    return Seconds(max(lines) + way if n > 1 else 0.0)


def gather(group: RankGroup, sizes: Sequence[float]) -> Seconds:
    """A payload of each to all others, straight: up (n - 1) times."""
    one = _sizes(group, sizes)
    return least(group, np.where(np.eye(group.ranks, dtype=bool), 0.0, one[:, None]))


def all_to_all(group: RankGroup, size: float) -> Seconds:
    """An n-th of `size` bytes from each to each other."""
    input_checks.amount("size", size)
    return least(group, np.where(np.eye(group.ranks, dtype=bool), 0.0, size / group.ranks))


def on_link(load: TrafficLoad, link: Link) -> Seconds:
    """How long a load keeps its busiest rank's link busy: bytes, and a way for each message that waits for another.

    All ranks have this link, and nothing is hidden behind computing. Raises UsageError FF-PLAN-021.
    """
    input_checks.link("link", link)
    up, down = 8.0 * load.sent / link.up, 8.0 * load.received / link.down
    return Seconds(max(up, down) + load.messages * link.round_trip)


def _sizes(group: RankGroup, sizes: Sequence[float]) -> Floats:
    input_checks.count("sizes", len(sizes), least=group.ranks, most=group.ranks)
    return np.array([input_checks.amount(f"sizes[{at}]", one) for at, one in enumerate(sizes)])
