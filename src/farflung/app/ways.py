"""Counts over which way each pair of a run's nodes talks: both ends tell, and the better one of the two counts."""

from __future__ import annotations

from collections import Counter

from farflung.app.leash import Report, report
from farflung.core.events import WaysTaken
from farflung.core.ids import PeerId
from farflung.net.paths import Way


def tell_way(peer: PeerId, way: Way) -> None:
    """A node's process tells its supervisor."""
    report("way", peer=peer.hex(), way=way.value)


class Ways:
    """The supervisor's part."""

    def __init__(self) -> None:
        self._told: dict[frozenset[str], dict[str, Way]] = {}

    def hear(self, node: PeerId, said: Report) -> None:
        """What a node's process told."""
        own, peer, way = node.hex(), str(said.get("peer")), said.get("way")
        if peer != own and way in list(Way):
            self._told.setdefault(frozenset((own, peer)), {})[own] = Way(way)

    def event(self) -> WaysTaken:
        """How many pairs took which way last."""
        best = Counter(min(ends.values(), key=list(Way).index).value for ends in self._told.values())
        return WaysTaken(**best)
