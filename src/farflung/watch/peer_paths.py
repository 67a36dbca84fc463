"""Summarizes how a run's nodes connected to each other, and the duration of payload exchanges: rows for a page."""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from farflung.core import events
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline


class PathPairCount(Struct, frozen=True):
    """So many pairs of nodes that talked in the end `how`."""

    how: str
    pairs: int


class ExchangeSummary(Struct, frozen=True):
    """The rounds whose payloads came by one `way`: how many, and the medians of their seconds."""

    way: str
    rounds: int
    predicted: float
    taken: float


class PeerPathSummary(Struct, frozen=True):
    """All that is known; `carried` bytes and `paid` pico-credits are of all relays together."""

    reached: tuple[PathPairCount, ...]
    exchanged: tuple[ExchangeSummary, ...]
    homes: str
    relays: int
    carried: int
    paid: int

    @property
    def pairs(self) -> int:
        """Of all ways."""
        return sum(each.pairs for each in self.reached)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show: older logs tell nothing of this."""
        return bool(self.reached or self.exchanged or self.homes or self.relays)


def path_summary(t: RunTimeline) -> PeerPathSummary:
    """What the events tell of it."""
    found: dict[str, list[events.RoundEndEvent]] = {}
    for closed in t.rounds.values():
        if closed.way:
            found.setdefault(closed.way, []).append(closed)
    exchanged = tuple(
        ExchangeSummary(
            way, len(rounds), median(each.way_predicted for each in rounds), median(each.way_taken for each in rounds)
        )
        for way, rounds in found.items()
    )
    reached = (
        ()
        if t.ways is None
        else tuple(PathPairCount(how, count) for name, how in phrases.WAYS.items() if (count := getattr(t.ways, name)))
    )
    paid = t.relays.values()
    return PeerPathSummary(
        reached,
        exchanged,
        phrases.homes(t.housed) if t.housed is not None else "",
        len(paid),
        sum(each.bytes for each in paid),
        sum(each.paid for each in paid),
    )
