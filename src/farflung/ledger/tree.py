"""A dense Merkle tree that remembers its inner nodes, so that a block pays only for the rows it touched.

Roots and paths are those of `core.merkle` (a test compares them); a tree is never changed: `with_leaves` shares
nothing mutable with its source. k changed leaves of N cost k log N hashes and one copy of the pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farflung.core.crypto import NS_NODE, NS_ROOT, digest
from farflung.core.ids import Hash

Levels = tuple[tuple[Hash, ...], ...]


class Tree:
    """The hashes of all levels, leaves first; the last level holds the top alone (or nothing: no leaves)."""

    __slots__ = ("_levels",)

    def __init__(self, levels: Levels = ((),)) -> None:
        self._levels = levels

    @property
    def count(self) -> int:
        """Number of leaves."""
        return len(self._levels[0])

    @property
    def root(self) -> Hash:
        """The same root that core.merkle.root_of_hashes gives for the leaves."""
        top = self._levels[-1][0] if self.count else b""
        return digest(NS_ROOT, self.count.to_bytes(8, "little"), top)

    def with_leaves(self, changes: Mapping[int, Hash]) -> Tree:
        """The tree with leaf hashes replaced, or added behind the last (without a gap)."""
        if not changes:
            return self
        levels = [_patched(self._levels[0], changes)]
        dirty: Iterable[int] = changes
        while len(levels[-1]) > 1:
            below, depth = levels[-1], len(levels)
            before = self._levels[depth] if depth < len(self._levels) else ()
            dirty = sorted({index >> 1 for index in dirty})
            levels.append(_patched(before, {index: _parent(below, index) for index in dirty}))
        return Tree(tuple(levels))

    def path(self, index: int) -> tuple[Hash, ...]:
        """Sibling hashes from leaf `index` upwards, for core.merkle.holds."""
        siblings: list[Hash] = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                siblings.append(level[index ^ 1])
            index >>= 1
        return tuple(siblings)


def _parent(below: tuple[Hash, ...], index: int) -> Hash:
    left, right = 2 * index, 2 * index + 1
    return digest(NS_NODE, below[left], below[right]) if right < len(below) else below[left]


def _patched(before: tuple[Hash, ...], changes: Mapping[int, Hash]) -> tuple[Hash, ...]:
    after = list(before)
    for index in sorted(changes):
        if index < len(after):
            after[index] = changes[index]
        else:
            after.append(changes[index])
    return tuple(after)
