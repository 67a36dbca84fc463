"""Decides how much one connection gives the kernel at once: more if the kernel sends it within a moment.

Large portions cost less processor time, and control waits for what has been given. So it is counted how fast the
kernel takes what there is to send, from one moment in which it takes no more to the next.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.net.frames import FRAGMENT_BYTES

MOST_WRITTEN: Final = 2 * limits.FRAME_BYTES  # at once; more of it leaves the processor's nearest cache
LEAST_HELD: Final = 256 * limits.KIB
MOST_HELD: Final = limits.MIB
_WRITTEN_SECONDS: Final = 0.001
_HELD_SECONDS: Final = 0.004


class WriteSizer:
    """How much of one connection, which begins as if it were slow."""

    def __init__(self) -> None:
        self._since: float | None = None  # when it took no more, for the last time
        self._taken = 0  # bytes since then
        self.written = FRAGMENT_BYTES  # bytes to write at once
        self.held = LEAST_HELD  # bytes that may lie in the kernel and have not left

    def took(self, size: int) -> None:
        """The kernel took `size` bytes."""
        self._taken += size

    def filled(self, now: float) -> None:
        """It takes no more at `now`, seconds of any clock that never goes back."""
        if self._since is not None:
            seconds = max(now - self._since, 1e-6)
            rate = self._taken / seconds
            self.written = _between(FRAGMENT_BYTES, rate * _WRITTEN_SECONDS, MOST_WRITTEN)
            self.held = _between(LEAST_HELD, rate * _HELD_SECONDS, MOST_HELD)
        self._since, self._taken = now, 0


def _between(least: int, value: float, most: int) -> int:
    return int(max(least, min(value, most)))
