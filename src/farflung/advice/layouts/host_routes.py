"""Computes rate and delay between hosts beyond their own lines: as measured, or half of either's round trip (P1,
P4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.advice.offers.measured_pairs import MeasuredPair
from farflung.advice.offers.offer_file import OfferedHost
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

FREE: Final = 1e15  # bit/s between hosts of which nobody says more than their lines


class HostRoute(msgspec.Struct, frozen=True):
    """Bit/s of one flow, and seconds one way."""

    rate: float
    delay: Seconds


def between(one: OfferedHost, other: OfferedHost) -> HostRoute:
    """Between two hosts, either way."""
    usual = Seconds((one.link.round_trip + other.link.round_trip) / 2)
    pair = _measured(one, other)
    return HostRoute(FREE, usual) if pair is None else HostRoute(pair.rate, usual if pair.delay is None else pair.delay)


def _measured(one: OfferedHost, other: OfferedHost) -> MeasuredPair | None:
    """The pair that speaks most nearly of two hosts."""
    ours, theirs = (one.name, one.region), (other.name, other.region)
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):  # both named, one of them, both regions
        for pair in one.pairs:
            if pair.ends in ((ours[a], theirs[b]), (theirs[b], ours[a])):
                return pair
    return None


def line(host: OfferedHost, hosts: Sequence[OfferedHost], flows: int = 1) -> Link:
    """Its line as far as the slowest that was measured to another of the subset lets so many flows use it at a time."""
    found = [_measured(host, other) for other in hosts if other.name != host.name] if host.pairs else []
    measured = [pair for pair in found if pair is not None]
    if not measured:
        return host.link
    least = min(pair.rate for pair in measured) * flows
    trip = max(host.link.round_trip, *(2.0 * (pair.delay or 0.0) for pair in measured))
    return Link(min(host.link.up, least), min(host.link.down, least), Seconds(trip))
