"""A token bucket says how long to wait so that no more than a rate goes through, however large the pieces are.

A piece is let through whole and paid for afterwards: after it, as long is waited as it takes at that rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DEPTH_SECONDS: Final = 0.1  # what may be saved while nothing goes through


@dataclass(slots=True)
class TokenBucket:
    """Of `rate` bytes a second. `level`: bytes that may go through at once; below zero: how many are owed."""

    rate: float
    level: float = 0.0
    at: float = 0.0  # seconds, of the clock that `take` is given

    def take(self, size: int, now: float) -> float:
        """`size` bytes went through; seconds until more may. A clock that goes back stops here."""
        depth = _DEPTH_SECONDS * self.rate
        self.level = min(depth, self.level + self.rate * max(0.0, now - self.at)) - size
        self.at = max(self.at, now)
        return max(0.0, -self.level / self.rate)
