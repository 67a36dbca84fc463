"""Selects candidate subsets of hosts: for each size tried, the first hosts of several orders that meet the
limits.

All subsets of a thousand hosts cannot be looked at. Looked at are each host alone, and the first k of five orders
(fastest, cheapest for their speed, best connected, most memory, cheapest), k of SIZES, each among

    all hosts           whatever they are
    a bound and above   lines of 1, 2, 4 ... bit/s and more, together with cards of 1, 2, 4 ... bytes and more, or with
                        as many FLOP/s: a subset waits for its slowest line, and its smallest card decides
    alike               of members that wait for each other at every step: speeds within 1.25 (market.match), from
                        each speed that is offered, or, of many, from the WINDOWS whose hosts compute most together

Bounds are powers of two and not shares of what is offered, so that more offers only add to what lies above one. Who
cannot hold what the layout asks of a host is left out before anybody is counted.

The best small subset of a layout is then tried with one host more and one less. For all that, this is a rule and no
proof: a subset whose members are all second in every order is not looked at.

Nobody lends more than a third of a subset of three or more: whoever verifies must be somebody else (docs/threats.md),
and one owner's withdrawal must not end the job. Who plans over machines of his own says so, and lends them all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from farflung.advice.layouts.training_options import memory_of
from farflung.advice.offers.offer_file import OfferedHost

SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
OWNERS_LEAST: Final = 3  # of a subset that has so many members or more
SIMILAR: Final = 1.25
WINDOWS: Final = 48  # of speed that are looked at
SMALL: Final = 8  # hosts of the best subset up to which one more and one less are tried, too
FOREMOST: Final = 3

Speed = Callable[[OfferedHost], float]
HostSubset = tuple[OfferedHost, ...]


class HostSubsetLimits(msgspec.Struct, frozen=True):
    """What a layout asks of a subset. `least`: its fewest hosts; `most`: its most, 0: any number; `is_alike`: they wait
    for each other at every step; `is_own`: all hosts are the planner's, and no owner is held to a third; `holds`:
    whether a host has room in a subset of so many.
    """

    least: int = 1
    most: int = 0
    is_alike: bool = False
    is_own: bool = False
    holds: Callable[[OfferedHost, int], bool] = lambda host, size: True

    def sizes(self, offered: int) -> Iterator[int]:
        """Of subsets that are tried."""
        return (size for size in SIZES if self.least <= size <= min(offered, self.most or offered))


ANYBODY: Final = HostSubsetLimits()


def subsets(hosts: Sequence[OfferedHost], speed: Speed, bounds: HostSubsetLimits = ANYBODY) -> Iterator[HostSubset]:
    """Each subset once; hosts in the order of their names."""
    seen: set[HostSubset] = set()
    orders, pools = _orders(hosts, speed), _pools(hosts, speed, is_alike=bounds.is_alike)
    for size in bounds.sizes(len(hosts)):
        able = {host.name for host in hosts if bounds.holds(host, size)}
        if size == 1:  # each: there are no more of them than hosts
            yield from ((host,) for host in hosts if host.name in able)
            continue
        for inside in dict.fromkeys(pool & able for pool in pools):
            if len(inside) < size:
                continue
            for order in orders:
                found = spread((host for host in order if host.name in inside), size, is_own=bounds.is_own)
                subset = _named(found)
                if len(subset) == size and subset not in seen:
                    seen.add(subset)
                    yield subset


def roomiest(hosts: Sequence[OfferedHost], speed: Speed, bounds: HostSubsetLimits) -> Iterator[HostSubset]:
    """Of each number those with most memory, whether or not they hold it: what comes nearest where nobody does."""
    seen: set[HostSubset] = set()
    for pool in _windows(hosts, speed) if bounds.is_alike else ([*hosts],):
        order = sorted(pool, key=lambda host: (-capacity(host), -speed(host), host.price, host.name))
        for size in bounds.sizes(len(pool)):
            subset = _named(spread(order, size, is_own=bounds.is_own))
            if len(subset) == size and subset not in seen:
                seen.add(subset)
                yield subset


def beside(
    hosts: Sequence[OfferedHost], subset: HostSubset, speed: Speed, bounds: HostSubsetLimits
) -> Iterator[HostSubset]:
    """A small subset with one host more, of the FOREMOST of each order, or one less."""
    if len(subset) > SMALL:
        return
    inside = {host.name for host in subset}
    others = [host for host in hosts if host.name not in inside and bounds.holds(host, len(subset) + 1)]
    added = {host.name: host for order in _orders(others, speed) for host in order[:FOREMOST]}
    changed = [[*subset, host] for host in added.values()]
    changed += [[host for host in subset if host is not gone] for gone in subset]
    for each in changed:
        size = len(each)
        is_fair = len(spread(each, size, is_own=bounds.is_own)) == size
        if is_fair and bounds.least <= size <= (bounds.most or size):
            yield _named(each)


def spread(order: Iterable[OfferedHost], size: int, *, is_own: bool = False) -> list[OfferedHost]:
    """The first `size` hosts with at most a third of them of one owner; fewer where there are not so many."""
    most = size if is_own or size < OWNERS_LEAST else max(1, size // OWNERS_LEAST)
    held: Counter[str] = Counter()
    subset: list[OfferedHost] = []
    for host in order:
        if len(subset) == size:
            break
        if held[host.owner] < most:
            held[host.owner] += 1
            subset.append(host)
    return subset


def fair(hosts: Sequence[OfferedHost]) -> list[OfferedHost]:
    """What is left of a subset, so that of these, too, at most a third are of one owner."""
    found = list(hosts)
    while len(fewer := spread(found, len(found))) < len(found):
        found = fewer
    return found


def line(host: OfferedHost) -> float:
    """Its slower way, bit/s."""
    return min(host.link.up, host.link.down)


def capacity(host: OfferedHost) -> float:
    """Bytes of all its cards."""
    return float(host.cards * memory_of(host))


def _named(hosts: Iterable[OfferedHost]) -> HostSubset:
    return tuple(sorted(hosts, key=lambda host: host.name))


def _orders(hosts: Sequence[OfferedHost], speed: Speed) -> tuple[list[OfferedHost], ...]:
    return (
        sorted(hosts, key=lambda host: (-speed(host), host.price, host.name)),
        sorted(hosts, key=lambda host: (host.price / speed(host), host.name)),
        sorted(hosts, key=lambda host: (-line(host), host.link.round_trip, -speed(host), host.name)),
        sorted(hosts, key=lambda host: (-capacity(host), -speed(host), host.price, host.name)),
        sorted(hosts, key=lambda host: (host.price, -speed(host), host.name)),
    )


def _pools(hosts: Sequence[OfferedHost], speed: Speed, *, is_alike: bool) -> list[frozenset[str]]:
    """Names of hosts to take the first of, each set once."""
    found: dict[frozenset[str], None] = {}
    for lines in _above(hosts, line):
        within = _windows(lines, speed) if is_alike else (*_above(lines, capacity), *_above(lines, speed))
        found |= dict.fromkeys(frozenset(host.name for host in pool) for pool in within)
    return list(found)


def _above(hosts: Sequence[OfferedHost], value: Callable[[OfferedHost], float]) -> Iterator[list[OfferedHost]]:
    """All, and those above each power of two that lies among their values."""
    for power in sorted({math.floor(math.log2(value(host))) for host in hosts}):
        yield [host for host in hosts if value(host) >= 2.0**power]


def _windows(hosts: Sequence[OfferedHost], speed: Speed) -> list[list[OfferedHost]]:
    """Hosts from each speed to SIMILAR times that."""
    ordered = sorted(hosts, key=lambda host: (speed(host), host.name))
    rates = [speed(host) for host in ordered]
    found: list[list[OfferedHost]] = []
    end = 0
    for at, slowest in enumerate(rates):
        if at and slowest == rates[at - 1]:
            continue
        while end < len(rates) and rates[end] <= SIMILAR * slowest:
            end += 1
        found.append(ordered[at:end])
    return sorted(found, key=lambda window: -sum(map(speed, window)))[:WINDOWS]
