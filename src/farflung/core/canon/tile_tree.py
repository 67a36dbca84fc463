"""Defines the 16-ary tree over the tiles of one execution.

Two players search it for the first tile that differs.

    leaf     = H(NS_TILE; leaf number, canonical bytes of the tile)
    internal = H(NS_TILES; level, first leaf below it, children)           numbers: 8 bytes, little-endian

Leaves are level 0. Node i of level l stands above the leaves from i 16^l on, up to but without (i + 1) 16^l or the
end: only the last node of a level can have fewer than 16 children, and has at least one. The root is the one node of
the first level that has one. A hash names its level and its place, so none can stand for another. 16 children a move
are a compromise of moves and bytes (Verde, arXiv 2502.19405, halves; three moves replace eleven).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from farflung.core import limits
from farflung.core.crypto import NS_TILE, NS_TILES, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, Hash

WIDTH: Final = 16


def leaf_hash(number: int, tile: bytes | memoryview) -> Hash:
    """Of leaf `number`, whose tile has these canonical bytes."""
    return digest(NS_TILE, number.to_bytes(8, "little"), tile)


def node_hash(level: int, first: int, children: Sequence[bytes]) -> Hash:
    """Of the node of `level` ≥ 1 whose first leaf is `first`."""
    return digest(NS_TILES, level.to_bytes(8, "little"), first.to_bytes(8, "little"), *children)


def is_size(leaves: int) -> bool:
    """Whether a tree can have so many leaves."""
    return 1 <= leaves <= limits.EXECUTION_LEAVES


def sizes(leaves: int) -> tuple[int, ...]:
    """How many nodes each level has, from the leaves to the root. Raises ProtocolError FF-CORE-071: out of bounds."""
    if not is_size(leaves):
        raise ProtocolError(
            "FF-CORE-071", f"no tree has {leaves} leaves", cause=f"1 to {limits.EXECUTION_LEAVES} it can have"
        )
    made = [leaves]
    while made[-1] > 1:
        made.append(-(-made[-1] // WIDTH))
    return tuple(made)


def depth(leaves: int) -> int:
    """The root's level. Raises ProtocolError FF-CORE-071."""
    return len(sizes(leaves)) - 1


def child_count(leaves: int, level: int, first: int) -> int:
    """How many children the node of `level` has whose first leaf is `first`; 0 where there is no such node.

    Raises ProtocolError FF-CORE-071.
    """
    if not 1 <= level <= depth(leaves) or not 0 <= first < leaves or first % WIDTH**level:
        return 0
    span: int = WIDTH ** (level - 1)
    return min(WIDTH, -(-(leaves - first) // span))


def root_over(leaves: int, number: int, leaf: bytes, path: Sequence[bytes]) -> Hash | None:
    """The root to which `path` leads from the hash of leaf `number`; None when a path cannot have this length.

    A path has, level by level from the leaves, the other children of the node above, from the left.
    """
    if not is_size(leaves) or not 0 <= number < leaves:
        return None
    node, used = Hash(bytes(leaf)), 0
    for level in range(1, depth(leaves) + 1):
        first = number - number % WIDTH**level
        others = child_count(leaves, level, first) - 1
        siblings = path[used : used + others]
        if len(siblings) < others:
            return None
        place = (number - first) // WIDTH ** (level - 1)
        node = node_hash(level, first, (*siblings[:place], node, *siblings[place:]))
        used += others
    return node if used == len(path) else None


def holds(root: bytes, leaves: int, number: int, tile: bytes, path: Sequence[bytes]) -> bool:
    """Whether leaf `number` of the `leaves` below `root` is a tile of these canonical bytes."""
    return root_over(leaves, number, leaf_hash(number, tile), path) == root


class TileTree:
    """All hashes of one tree: 34 bytes a leaf, whatever the tiles have."""

    def __init__(self, leaves: Iterable[bytes]) -> None:
        """Builds all levels from the leaves' hashes, in their order. Raises ProtocolError FF-CORE-071."""
        self._levels: list[bytearray] = [bytearray()]
        for leaf in leaves:
            self._levels[0] += leaf
        self.leaves: int = len(self._levels[0]) // ID_BYTES
        for level in range(1, depth(self.leaves) + 1):
            self._levels.append(self._above(level))

    def _above(self, level: int) -> bytearray:
        made, span = bytearray(), WIDTH**level
        for first in range(0, self.leaves, span):
            made += node_hash(level, first, self.children(level, first))
        return made

    @property
    def root(self) -> Hash:
        """The one node of the last level."""
        return Hash(bytes(self._levels[-1]))

    @property
    def depth(self) -> int:
        """The root's level."""
        return len(self._levels) - 1

    def children(self, level: int, first: int) -> tuple[Hash, ...]:
        """The hashes below the node of `level` ≥ 1 whose first leaf is `first`; none where there is no such node."""
        count = child_count(self.leaves, level, first)
        start = first // WIDTH ** (level - 1) if count else 0
        return tuple(self._hash(level - 1, place) for place in range(start, start + count))

    def path(self, number: int) -> tuple[Hash, ...]:
        """The way from leaf `number` to the root, for `holds`: 15 siblings a level at most."""
        found: list[Hash] = []
        for level in range(1, self.depth + 1):
            first = number - number % WIDTH**level
            row = self.children(level, first)
            place = (number - first) // WIDTH ** (level - 1)
            found += [*row[:place], *row[place + 1 :]]
        return tuple(found)

    def leaf(self, number: int) -> Hash:
        """The hash of a leaf."""
        return self._hash(0, number)

    def _hash(self, level: int, place: int) -> Hash:
        return Hash(bytes(self._levels[level][place * ID_BYTES : (place + 1) * ID_BYTES]))
