"""Decides how long to pause between tries of something that may come back."""

from __future__ import annotations

from dataclasses import dataclass

_DOUBLINGS = 60  # beyond which no pause grows: a float holds it


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds: the `first` pause, twice as long after each failure in a row, `longest` at most."""

    first: float
    longest: float

    @classmethod
    def every(cls, seconds: float) -> Backoff:
        """Always the same pause."""
        return cls(seconds, seconds)

    def pause(self, failures: int) -> float:
        """Seconds until the next try, after so many failures before the last one."""
        return min(self.first * 2.0 ** min(failures, _DOUBLINGS), self.longest)
