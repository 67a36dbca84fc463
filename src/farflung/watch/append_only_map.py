"""A persistent append-only map: O(1) insert, old versions stay valid.

All states of one mapping share their cells. Each cell remembers at which state it was written and what stood there
before, so an older state looks past what came later. A second successor of one state copies what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _MapCells(Generic[K, V]):
    """The cells of all states: (state that wrote it, value, the cell before or None)."""

    __slots__ = ("cells", "newest")

    def __init__(self, cells: dict[K, tuple[int, V, Any]], newest: int) -> None:
        self.cells, self.newest = cells, newest


class AppendOnlyMap(Mapping[K, V]):
    """One state of a growing mapping. Like any mapping it is compared by its items; it is in the order of adding."""

    __slots__ = ("_shared", "_size", "_state")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        cells: dict[K, tuple[int, V, Any]] = {key: (0, value, None) for key, value in (items or {}).items()}
        self._shared, self._state, self._size = _MapCells(cells, 0), 0, len(cells)

    def having(self, key: K, value: V) -> AppendOnlyMap[K, V]:
        """The next state, in which `value` is at `key`."""
        shared = self._shared
        if shared.newest != self._state:
            return AppendOnlyMap(self).having(key, value)
        before = shared.cells.get(key)
        shared.newest += 1
        shared.cells[key] = (shared.newest, value, before)
        after: AppendOnlyMap[K, V] = AppendOnlyMap.__new__(AppendOnlyMap)
        after._shared, after._state, after._size = shared, shared.newest, self._size + (before is None)
        return after

    def _cell(self, cell: tuple[int, V, Any] | None) -> tuple[int, V, Any] | None:
        while cell is not None and cell[0] > self._state:
            cell = cell[2]
        return cell

    def __getitem__(self, key: K) -> V:
        cell = self._cell(self._shared.cells.get(key))
        if cell is None:
            raise KeyError(key)
        return cell[1]

    def __iter__(self) -> Iterator[K]:
        # A list at once: another thread may add to a later state.
        if len(self._shared.cells) == self._size:
            return iter(list(self._shared.cells))
        cells = list(self._shared.cells.items())
        return (key for key, cell in cells if self._cell(cell) is not None)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return repr(dict(self))
