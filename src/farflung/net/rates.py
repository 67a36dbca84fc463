"""Keeps one flow under a rate: says how long to wait after each piece. The clock is the caller's."""

from __future__ import annotations

from typing import Final

_BURST_SECONDS: Final = 0.05  # that may be caught up at once: a timer's delay, not a second's worth


class Bucket:
    """`rate` bytes a second on the average over any time, and at most a twentieth of a second's bytes ahead."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate, self._free_at = rate, now  # when all that was taken has had its time

    def take(self, size: int, now: float) -> float:
        """`size` bytes went at `now` (seconds): how long to wait before the next; 0: not at all."""
        self._free_at = max(self._free_at, now - _BURST_SECONDS) + size / self._rate
        return max(0.0, self._free_at - now)
