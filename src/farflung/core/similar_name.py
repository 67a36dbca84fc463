"""Finds the known name that a mistyped one was meant to be; a name that resembles none has no such guess."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LENGTH: Final = 100  # characters of a name that are looked at
SHARE: Final = 3  # at most one edit in so many characters


def similar_name(name: str, names: Iterable[str]) -> str:
    """The nearest of `names` by edits (insert, delete, replace, swap neighbours), at most one in SHARE; else ''."""
    name = name[:LENGTH].strip().lower()
    most = max(1, len(name) // SHARE)
    near = [(_edits(name, each.lower()), each) for each in names if abs(len(each) - len(name)) <= most]
    return min((pair for pair in near if pair[0] <= most), default=(0, ""), key=lambda pair: pair[0])[1] if name else ""


def _edits(one: str, other: str) -> int:
    """The optimal string alignment distance (Damerau 1964)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]
