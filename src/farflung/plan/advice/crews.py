"""Which hosts to take: of every number that is tried, the fastest, the cheapest for their speed, the best connected and
those with the largest cards; and of those that wait for each other at every step, the same within each class of speed.

Nobody lends more than a third of a crew of three or more: whoever verifies must be somebody else (docs/threats.md),
and one owner's withdrawal must not end the job. Who plans over machines of his own says so, and lends them all.
Members that wait for each other at every step are alike within a factor 1.25 (market.match): a crew is taken from each
window of speed. Those that agree once in a round wait for the slowest, so for them it is the same crew that is fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from farflung.plan.advice.offers import Host

SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
OWNERS_LEAST: Final = 3  # of a crew that has so many members or more
WINDOWS: Final = 6  # of speed that are looked at: those whose hosts compute most together
Speed = Callable[[Host], float]


def crews(
    hosts: Sequence[Host], speed: Speed, least: int = 1, *, alike: float = 0.0, is_own: bool = False
) -> Iterator[tuple[Host, ...]]:
    """Each crew once, `least` hosts or more; hosts in the order of their names.

    `alike`: how many times as fast as the slowest a member is at most; 0: any. `is_own`: no owner is held to a third.
    """
    seen: set[tuple[str, ...]] = set()
    for window in _windows(hosts, speed, alike) if alike else (tuple(hosts),):
        for size in (size for size in SIZES if least <= size <= len(window)):
            for order in _orders(window, speed):
                crew = order[:size] if is_own else spread(order, size)
                names = tuple(sorted(host.name for host in crew))
                if len(crew) == size and names not in seen:
                    seen.add(names)
                    yield tuple(sorted(crew, key=lambda host: host.name))


def _orders(hosts: Sequence[Host], speed: Speed) -> tuple[list[Host], ...]:
    def lines(host: Host) -> float:
        return -min(host.link.up, host.link.down)

    return (
        sorted(hosts, key=lambda host: (-speed(host), host.price, host.name)),
        sorted(hosts, key=lambda host: (host.price / speed(host), host.name)),
        sorted(hosts, key=lambda host: (lines(host), -speed(host), host.name)),
        sorted(hosts, key=lambda host: (-host.card.memory[0], -speed(host), host.price, host.name)),
    )


def _windows(hosts: Sequence[Host], speed: Speed, alike: float) -> list[tuple[Host, ...]]:
    """Hosts from each speed to `alike` times that; of those within another one only the larger."""
    ordered = sorted(hosts, key=lambda host: (speed(host), host.name))
    found: list[tuple[Host, ...]] = []
    end = 0
    for at, slowest in enumerate(ordered):
        reached = end
        while end < len(ordered) and speed(ordered[end]) <= alike * speed(slowest):
            end += 1
        if end > reached:  # else it is part of the window before
            found.append(tuple(ordered[at:end]))
    return sorted(found, key=lambda window: -sum(map(speed, window)))[:WINDOWS]


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


def fair(crew: Sequence[Host]) -> list[Host]:
    """What is left of a crew, so that of these, too, at most a third are of one owner."""
    found = list(crew)
    while len(fewer := spread(found, len(found))) < len(found):
        found = fewer
    return found
