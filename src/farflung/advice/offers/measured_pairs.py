"""Reads the rates and delays measured between two hosts or regions, where they are below what both lines carry
(P4).

    [[pair]]
    between = ["attic", "barn"]   # two hosts, two regions, or one of each; twice the same region: inside it
    rate = 20                     # Mbit/s that one flow carries, either way
    delay = 80                    # ms one way: half of what ping says; as both links say where nothing is said

Of pairs that speak of the same two hosts the nearest one counts: both named, else one, else their regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from farflung.advice.offers.energy_terms import refuse
from farflung.core import limits
from farflung.core.units import Seconds

RATE_MOST: Final = limits.BIT_RATE / 1e6
DELAY_MOST: Final = 60_000.0  # ms
KEYS: Final = ("between", "rate", "delay")


class MeasuredPair(msgspec.Struct, frozen=True):
    """Bit/s of one flow between two, and seconds one way; None: as their links say."""

    ends: tuple[str, str]
    rate: float
    delay: Seconds | None = None


def of(rows: object, hosts: Mapping[str, str]) -> tuple[MeasuredPair, ...]:
    """The pairs of a file of offers; `hosts`: regions by name. Raises UsageError FF-PLAN-061 with the pair's number."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        refuse("pairs", "between", "they are written as [[pair]] parts")
    if len(rows) > limits.OFFERED_PAIRS:
        refuse("pairs", "between", f"there are {len(rows)}, and at most {limits.OFFERED_PAIRS} are looked at")
    regions = set(hosts.values()) - {""}
    found: dict[frozenset[str], MeasuredPair] = {}
    for number, row in enumerate(rows, 1):
        pair = _pair(f"pair {number}", row, hosts, regions)
        if frozenset(pair.ends) in found:
            refuse(f"pair {number}", "between", "another pair is between the same two")
        found[frozenset(pair.ends)] = pair
    return tuple(found.values())


def _pair(called: str, row: Mapping[str, Any], hosts: Mapping[str, str], regions: set[str]) -> MeasuredPair:
    for key in row:
        if key not in KEYS:
            refuse(called, key[:40], f"no pair has that: {', '.join(KEYS)}")
    ends = row.get("between")
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
        refuse(called, "between", "it is two names")
    for end in ends:
        if end not in hosts and end not in regions:
            refuse(called, "between", f"{end[:40]!r} is no host and no region of this file")
    if ends[0] == ends[1] and ends[0] in hosts:
        refuse(called, "between", "it is one and the same host")
    rate, delay = row.get("rate"), row.get("delay")
    if not _is_within(rate, RATE_MOST) or rate == 0:
        refuse(called, "rate", f"it is a number above 0 and at most {RATE_MOST:g} Mbit/s")
    if delay is not None and not _is_within(delay, DELAY_MOST):
        refuse(called, "delay", f"it is a number from 0 to {DELAY_MOST:g} ms; as the links say: leave it out")
    assert rate is not None
    return MeasuredPair((ends[0], ends[1]), rate * 1e6, None if delay is None else Seconds(delay / 1e3))


def _is_within(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def naming(found: Sequence[MeasuredPair], name: str, region: str) -> tuple[MeasuredPair, ...]:
    """The pairs that speak of a host or of its region."""
    return tuple(pair for pair in found if name in pair.ends or (region and region in pair.ends))
