"""Selects the window of asks of similar speed whose last needed ask comes earliest in the order of prices.

Asks are in one order, by (ask, peer id); a *place* is a number in it, and all that clearing knows of a price. A
window is a span of measured speed [p, percent/100 p]; of each owner it counts the first `cap` asks. Of n winners at the
(n+1)-th price, n + 1 asks are needed, and the last of them sets the price. A window of which so many asks lie before
place t exists or does not; the least t is found by doubling and halving, each time for all windows at once.

Why one seller with one slot cannot gain (Vickrey 1961 for one window; the choice between windows is ours): let the
setter are at place t. The winner of a window cannot move t while it wins: the set of asks before t stays as it is,
and windows with the same setter are told apart by speed. Whoever asks more than the setter has the window it left
full at its own place or before, so it does not win. Whoever stands behind t and asks less wins at a setter before t
only, which is less than it costs him. An owner's asks beyond the cap are left out *before* the setter is sought:
where they cannot win but can set the price, a seller with one slot can bend it (docs/decisions/065).
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]

FASTEST: Final = 1 << 52  # FLOP/s: a percentage of it is still a whole number of 64 bits
ALONE: Final = -1  # the number of every owner that no cap can touch


class SpeedWindow(msgspec.Struct, frozen=True):
    """The places of the asks that were needed, cheapest first, and the speed at which their window begins."""

    places: tuple[int, ...]
    slowest: int


class SimilarityRule(msgspec.Struct, frozen=True):
    """What may be taken together: speeds up to `percent` of the slowest, and `cap` asks of one owner (0: no cap)."""

    percent: int
    cap: int = 0


def reach(speed: int, percent: int) -> int:
    """The highest speed that is similar to `speed`: the whole part of percent/100 of it."""
    return speed // 100 * percent + speed % 100 * percent // 100


def best(speeds: Whole, owners: Whole, needed: int, rule: SimilarityRule) -> SpeedWindow | None:
    """The window whose `needed`-th ask has the least place, or None.

    `speeds` (FLOP/s, at most FASTEST) and `owners` (a number for each; ALONE: an owner of one card) are in the order
    of asks. Of several windows with that ask the fastest is taken.
    """
    if needed < 1:
        return None
    found = _least(speeds, owners, needed, rule)
    if found is None:
        return None
    by_speed = np.argsort(speeds[:found], kind="stable")
    counts = _counts(speeds[by_speed], owners[by_speed], rule)
    slowest = int(speeds[by_speed[np.flatnonzero(counts >= needed)[-1]]])
    places = within(speeds[:found], owners[:found], slowest, rule)
    return SpeedWindow(tuple(places.tolist()), slowest)


def within(speeds: Whole, owners: Whole, slowest: int, rule: SimilarityRule) -> Whole:
    """The places of all asks that count in the window which begins at `slowest`."""
    inside = np.flatnonzero((speeds >= slowest) & (speeds <= reach(slowest, rule.percent)))
    return inside[_earlier(owners[inside], rule.cap) < 0] if rule.cap else inside


def widest(speeds: Whole, owners: Whole, rule: SimilarityRule) -> int:
    """How many asks the fullest window counts, of asks that are sorted by speed."""
    return int(_counts(speeds, owners, rule).max(initial=0))


def _least(speeds: Whole, owners: Whole, needed: int, rule: SimilarityRule) -> int | None:
    """How many of the cheapest asks are looked at until a window counts `needed` of them."""
    found = _search(speeds, owners, needed, needed, SimilarityRule(rule.percent))
    if found is None or not rule.cap:
        return found
    return _search(speeds, owners, needed, found, rule)  # with a cap never sooner, and seldom later


def _search(speeds: Whole, owners: Whole, needed: int, many: int, rule: SimilarityRule) -> int | None:
    """The same, where fewer than `many` are known to be too few."""
    few, many = many - 1, min(many, speeds.size)
    while True:
        by_speed = np.argsort(speeds[:many], kind="stable")
        if _is_full(speeds[by_speed], owners[by_speed], needed, rule):
            break
        if many == speeds.size:
            return None
        few, many = many, min(2 * many, speeds.size)
    while many - few > 1:  # `few` are too few, `many` are enough
        middle = (few + many) // 2
        kept = by_speed[by_speed < middle]
        if _is_full(speeds[kept], owners[kept], needed, rule):
            many, by_speed = middle, kept
        else:
            few = middle
    return many


def _is_full(speed: Whole, owner: Whole, needed: int, rule: SimilarityRule) -> bool:
    """Whether a window of asks that are sorted by speed counts `needed` of them."""
    if speed.size < needed:
        return False
    spans = speed[needed - 1 :] <= reach_all(speed[: speed.size - needed + 1], rule.percent)
    if not rule.cap or not spans.any():
        return bool(spans.any())
    return bool((_counts(speed, owner, rule) >= needed).any())


def reach_all(speed: Whole, percent: int) -> Whole:
    """`reach` of each speed."""
    hundreds = speed // 100
    reached: Whole = hundreds * percent + (speed - 100 * hundreds) * percent // 100
    return reached


def _counts(speed: Whole, owner: Whole, rule: SimilarityRule) -> Whole:
    """For each ask, sorted by speed: how many count in the window that begins with it.

    An ask is one too many for all windows that begin at or before its owner's ask `cap` before it and reach it: a
    span of windows, so that all of them are counted by two sums.
    """
    end = np.searchsorted(speed, reach_all(speed, rule.percent), side="right")
    counts = end - np.arange(speed.size)
    if not rule.cap:
        return counts
    last = _earlier(owner, rule.cap)
    late = np.flatnonzero(last >= 0)
    if not late.size:
        return counts
    first, last = np.searchsorted(end, late, side="right"), last[late]
    surplus, size = first <= last, speed.size + 1
    begun = np.bincount(first[surplus], minlength=size) - np.bincount(last[surplus] + 1, minlength=size)
    return counts - np.cumsum(begun)[:-1]


def _earlier(owner: Whole, cap: int) -> Whole:
    """For each ask: where its owner's ask `cap` before it stands, or -1."""
    found = np.full(owner.size, -1, np.int64)
    several = np.flatnonzero(owner >= 0)
    grouped = several[np.argsort(owner[several], kind="stable")]
    same = owner[grouped[cap:]] == owner[grouped[:-cap]]
    found[grouped[cap:][same]] = grouped[:-cap][same]
    return found
