"""Ends the wait for a model that never returns, and says meanwhile how long it takes.

A model is somebody's program: it may sleep, or wait for what never comes. A process that computes uses processor time,
however busy the machine is. One that was asked for something and used next to none for STALL_SECONDS is ended, and so
is one that used more for one request than it may.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from farflung.core.errors import RunError

T = TypeVar("T")

STALL_SECONDS: Final = 180.0
STALL_SHARE: Final = 0.01  # of a processor: who uses less computes nothing
NOTICE_SECONDS: Final = 40.0  # until the first notice; the next ones come after twice, four times, ... as long
LOOK_SECONDS: Final = 1.0
STALLED: Final = f"it used no processor time for {STALL_SECONDS:.0f} s: the model sleeps, or waits for what never comes"

Tell = Callable[[int], None]


class UsageMeter(Protocol):
    """A process that says what it has used."""

    def usage(self) -> dict[str, float]:
        """`cpu_seconds` so far."""


class StallWatch:
    """One request to one process, looked at now and then; times are of one steady clock, in seconds."""

    def __init__(self, now: float, used: float, most: float = math.inf) -> None:
        """`used`: processor seconds that the process has used; `most`: that it may use for this request."""
        self._most = used + most
        self._began = self._since = now
        self._used, self._notice = used, NOTICE_SECONDS

    def is_stalled(self, now: float, used: float) -> bool:
        """Whether the process has computed nothing for too long."""
        if used - self._used >= STALL_SHARE * STALL_SECONDS:
            self._since, self._used = now, used
        return now - self._since >= STALL_SECONDS

    def is_endless(self, used: float) -> bool:
        """Whether the process has used more than it may."""
        return used > self._most

    def notice(self, now: float) -> int | None:
        """Seconds that the request has taken, when it is time to say so again."""
        taken = now - self._began
        if taken < self._notice:
            return None
        self._notice = 2 * taken
        return round(taken)


async def watched(
    process: UsageMeter, work: Coroutine[Any, Any, T], tell: Tell = lambda _: None, most: float = math.inf
) -> T:
    """What `work`, a request to `process`, comes to; `tell` hears now and then how many seconds it has taken. `most`:
    processor seconds that it may use.

    Raises what `work` raises, RunError FF-APP-488 (it stalled, or used more).
    """
    watch = StallWatch(time.monotonic(), process.usage()["cpu_seconds"], most)
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
            look(watch, process, tell)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def look(watch: StallWatch, process: UsageMeter, tell: Tell) -> None:
    """One look. Raises RunError FF-APP-488."""
    now, used = time.monotonic(), process.usage()["cpu_seconds"]
    if watch.is_stalled(now, used) or watch.is_endless(used):
        raise RunError(
            "FF-APP-488",
            "the model does not return",
            cause="it used more processor time than one request may" if watch.is_endless(used) else STALLED,
            hint="take sleep(), input(), locks and loops without an end out of the module's build and forward",
        )
    taken = watch.notice(now)
    if taken is not None:
        tell(taken)
