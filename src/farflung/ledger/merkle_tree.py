"""Implements a dense Merkle tree that stores its inner nodes, so that a block pays only for the rows it touched.

Roots and paths are those of `core.merkle` (a test compares them). A tree is never changed: `with_leaves` shares with
its source every chunk of 64 hashes that stayed. k changed leaves of N cost k log N hashes and N / 32 pointers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from farflung.core import merkle
from farflung.core.ids import ID_BYTES, Hash

_SHIFT: Final = 6  # 2 ** 6 hashes a chunk, one behind the other
_MASK: Final = (1 << _SHIFT) - 1
_PAIR: Final = 2 * ID_BYTES

Level = tuple[bytes, ...]


class MerkleTree:
    """The hashes of all levels, leaves first; the last level holds the top alone (or nothing: no leaves)."""

    __slots__ = ("_levels", "count")

    def __init__(self, levels: tuple[Level, ...] = ((),), count: int = 0) -> None:
        self._levels, self.count = levels, count

    @property
    def root(self) -> Hash:
        """The same root that core.merkle.root_of_hashes gives for the leaves."""
        return merkle.seal(self.count, self._levels[-1][0] if self.count else b"")

    def with_leaves(self, changes: Mapping[int, Hash]) -> MerkleTree:
        """The tree with leaf hashes replaced, or added behind the last (without a gap)."""
        if not changes:
            return self
        places = sorted(changes)
        count = width = max(self.count, places[-1] + 1)
        levels = [_patched(self._levels[0], places, [changes[place] for place in places])]
        while width > 1:
            below, depth = levels[-1], len(levels)
            before = self._levels[depth] if depth < len(self._levels) else ()
            places = list(dict.fromkeys(place >> 1 for place in places))
            levels.append(_patched(before, places, merkle.parents([_pair(below, place) for place in places])))
            width = (width + 1) >> 1
        return MerkleTree(tuple(levels), count)

    def level(self, height: int) -> bytes:
        """All nodes that stand `height` above the leaves, one behind the other; where the tree ends below, its top."""
        return b"".join(self._levels[min(height, len(self._levels) - 1)])

    def path(self, index: int) -> tuple[Hash, ...]:
        """Sibling hashes from leaf `index` upwards, for core.merkle.holds."""
        siblings: list[Hash] = []
        for level in self._levels[:-1]:
            pair = _pair(level, index >> 1)
            if len(pair) == _PAIR:
                siblings.append(Hash(pair[:ID_BYTES] if index & 1 else pair[ID_BYTES:]))
            index >>= 1
        return tuple(siblings)


def _pair(level: Level, index: int) -> bytes:
    """Both children of node `index` of the level above, one behind the other; the last of an odd number is alone."""
    start = (2 * index & _MASK) * ID_BYTES
    return level[2 * index >> _SHIFT][start : start + _PAIR]


def _patched(before: Level, places: Sequence[int], hashes: Sequence[bytes]) -> Level:
    after, at = list(before), 0
    while at < len(places):
        number = places[at] >> _SHIFT
        end = bisect_left(places, (number + 1) << _SHIFT, at)
        chunk = bytearray(after[number] if number < len(after) else b"")
        for number_in in range(at, end):
            start = (places[number_in] & _MASK) * ID_BYTES
            chunk[start : start + ID_BYTES] = hashes[number_in]
        after[number : number + 1] = [bytes(chunk)]
        at = end
    return tuple(after)
