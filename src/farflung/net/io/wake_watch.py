"""Notices that this computer slept, so that connections which died meanwhile are found dead within seconds.

A closed lid stops the processes and cuts the line. After it was opened, what was sent meanwhile waits for TCP's own
pauses (up to two minutes), and whoever asked over such a connection waits for its time-out. Seen from here a sleep is
a timer that fires late by a clock that goes on while the computer is suspended; on Linux and macOS the clock of an
event loop does not. A process that was stopped for seconds looks the same, and asking costs little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TICK_SECONDS: Final = 2.0
ASLEEP_SECONDS: Final = 5.0  # by which a tick is late at least: a busy computer is late by less
READ_SECONDS: Final = 0.1  # in which all is read that came before the sleep, and says nothing of now
# Clocks that go on in a suspended computer. The time of day may be set as well: that looks like a sleep, and harms not.
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def seconds_awake_or_not() -> float:
    """Seconds that go on while the computer is suspended."""
    return time.time() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class WakeWatch:
    """One event loop's timer. `on_wake` is called after each sleep."""

    def __init__(self, on_wake: Callable[[], None], clock: Callable[[], float] = seconds_awake_or_not) -> None:
        """`clock`: seconds that go on while the computer is suspended."""
        self._on_wake, self._clock = on_wake, clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self) -> None:
        """Looks from now on, until `end`. Called again it changes nothing."""
        if self._timer is None:
            self._wait()

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._due = self._clock() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        if self._clock() - self._due >= ASLEEP_SECONDS:
            asyncio.get_running_loop().call_later(READ_SECONDS, self._on_wake)
        self._wait()
