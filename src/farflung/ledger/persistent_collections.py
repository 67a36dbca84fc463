"""Implements a persistent vector and a persistent map.

A new version shares all unchanged parts with the one before.

Consensus executes several blocks before one of them is final, some of them side by side: each has its own version,
and none may cost a copy of a million rows. k changes of N items cost k chunks of WIDTH and N / WIDTH pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final, Generic, TypeVar, overload

T = TypeVar("T")

WIDTH: Final = 64  # items of a chunk
_SHIFT: Final = 6
_MASK: Final = WIDTH - 1
_LAYER: Final = 256  # keys of a layer that are always copied into the next: many small layers make slow look-ups
_GROWTH: Final = 4  # a layer has at least so many times the keys of the one above it


class PersistentVector(Sequence[T], Generic[T]):
    """Items by their index, in chunks of WIDTH; only the last chunk may be shorter."""

    __slots__ = ("_count", "chunks")

    def __init__(self, items: Iterable[T] = ()) -> None:
        held = tuple(items)
        self.chunks = tuple(held[start : start + WIDTH] for start in range(0, len(held), WIDTH))
        self._count = len(held)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.chunks)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(self._count)))
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self.at(index % self._count)

    def at(self, place: int) -> T:
        """The item of a known index, which is not checked."""
        return self.chunks[place >> _SHIFT][place & _MASK]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PersistentVector) and self.chunks == other.chunks

    def __hash__(self) -> int:
        return hash(self.chunks)

    def with_items(self, changes: Mapping[int, T]) -> PersistentVector[T]:
        """The sequence with items replaced, or added behind the last (without a gap)."""
        after, count = list(self.chunks), self._count
        opened: dict[int, list[T]] = {}
        for place in sorted(changes):
            number = place >> _SHIFT
            chunk = opened.get(number)
            if chunk is None:
                if number == len(after):
                    after.append(())
                chunk = opened[number] = list(after[number])
            if place < count:
                chunk[place & _MASK] = changes[place]
            else:
                chunk.append(changes[place])
                count += 1
        for number, chunk in opened.items():
            after[number] = tuple(chunk)
        made = PersistentVector[T].__new__(PersistentVector)
        made.chunks, made._count = tuple(after), count
        return made

    def changed(self, before: PersistentVector[T]) -> Iterator[tuple[int, T]]:
        """(index, item) of each item that is not the same object as the one `before` had there, if it had one."""
        for number, (old, new) in enumerate(zip_longest(before.chunks, self.chunks, fillvalue=())):
            if old is not new:
                start = number << _SHIFT
                yield from ((start + at, item) for at, item in enumerate(new) if at >= len(old) or old[at] is not item)


class PersistentMap:
    """The index of each key. Keys are only ever added, so each is in one of the layers, the largest first."""

    __slots__ = ("layers",)

    def __init__(self, layers: tuple[dict[bytes, int], ...] = ()) -> None:
        self.layers = layers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PersistentMap) and dict(self._items()) == dict(other._items())

    def __hash__(self) -> int:
        return hash(frozenset(self._items()))

    def _items(self) -> Iterable[tuple[bytes, int]]:
        return chain.from_iterable(layer.items() for layer in self.layers)

    def find(self, key: bytes) -> int | None:
        """The index of a key, or None."""
        for layer in self.layers:
            place = layer.get(key)
            if place is not None:
                return place
        return None

    def with_keys(self, added: dict[bytes, int]) -> PersistentMap:
        """The map with new keys. A layer that would not be much smaller than the one below it is laid into it."""
        layers = self.layers
        while layers and len(layers[-1]) <= max(_LAYER, _GROWTH * len(added)):
            layers, added = layers[:-1], {**layers[-1], **added}
        return PersistentMap((*layers, added))
