"""Notices that nothing came over a connection for a while: in time to ask, and in the end to give it up.

It counts looks and not seconds: a process that was stopped for an hour has not listened, so it cannot blame the peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_LOOKS: Final = 3  # without anything: it is over


class IdleTimer:
    """Of one connection. `ask`: nothing came since the last look; `over`: for `seconds`, and there is no other look."""

    def __init__(self, seconds: float, ask: Callable[[], None], over: Callable[[], None]) -> None:
        self._seconds, self._ask, self._over = seconds, ask, over
        self._quiet = 0  # looks since something came
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Looks from now on, until `end`."""
        if self._quiet >= _LOOKS:
            self._over()
            return
        self._timer = asyncio.get_running_loop().call_later(self._seconds / _LOOKS, self.begin)
        self._quiet += 1
        if self._quiet > 1:
            self._ask()

    def broken(self) -> None:
        """Something came."""
        self._quiet = 0

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
