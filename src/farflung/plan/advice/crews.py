"""Which hosts to take: of every number that is tried, the fastest, the cheapest for their speed, the best connected.

Nobody lends more than a third of a crew of three or more: whoever verifies must be somebody else (docs/threats.md),
and one owner's withdrawal must not end the job. Members that wait for each other at every step are alike within a
factor 1.25 (market.match); those that agree once in a round wait for the slowest, so for them it is the same crew that
is fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from farflung.plan.advice.offers import Host

SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
OWNERS_LEAST: Final = 3  # of a crew that has so many members or more


def crews(
    hosts: Sequence[Host], speed: Callable[[Host], float], least: int = 1
) -> Iterator[tuple[Host, ...]]:
    """Each crew once, `least` hosts or more; hosts in the order of their names."""
    orders = (
        sorted(hosts, key=lambda host: (-speed(host), host.price, host.name)),
        sorted(hosts, key=lambda host: (host.price / speed(host), host.name)),
        sorted(hosts, key=lambda host: (-min(host.link.up, host.link.down), -speed(host), host.name)),
    )
    seen: set[tuple[str, ...]] = set()
    for size in (size for size in SIZES if size >= least):
        for order in orders:
            crew = spread(order, size)
            names = tuple(sorted(host.name for host in crew))
            if len(crew) == size and names not in seen:
                seen.add(names)
                yield tuple(sorted(crew, key=lambda host: host.name))


def spread(order: Sequence[Host], size: int) -> list[Host]:
    """The first `size` hosts with at most a third of them of one owner; fewer where there are not so many."""
    most = size if size < OWNERS_LEAST else max(1, size // OWNERS_LEAST)
    held: Counter[str] = Counter()
    crew: list[Host] = []
    for host in order:
        if len(crew) < size and held[host.owner] < most:
            held[host.owner] += 1
            crew.append(host)
    return crew
