"""Counts the path type (direct or relayed) of each node pair; if the two ends disagree, the better path wins."""

from __future__ import annotations

from collections import Counter

from farflung.core.events import PathCountsEvent
from farflung.core.ids import PeerId
from farflung.net.paths import PathType
from farflung.peers.process.channel import Report


class PathCounts:
    """The supervisor's part."""

    def __init__(self) -> None:
        self._told: dict[frozenset[str], dict[str, PathType]] = {}

    def hear(self, node: PeerId, said: Report) -> None:
        """What a node's process told."""
        own, peer, way = node.hex(), str(said.get("peer")), said.get("way")
        if peer != own and way in list(PathType):
            self._told.setdefault(frozenset((own, peer)), {})[own] = PathType(way)

    def event(self) -> PathCountsEvent:
        """How many pairs took which way last."""
        best = Counter(min(ends.values(), key=list(PathType).index).value for ends in self._told.values())
        return PathCountsEvent(**best)
