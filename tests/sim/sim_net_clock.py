"""Time that passes only when nothing else can happen: an asyncio loop whose selector never blocks.

What the selector asks is not the machine's kernel but `sim_net_lines.Net`. When no socket is ready and no callback
waits, the clock jumps to the next timer or to the next thing that the network does, whichever is first.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

EPOCH = 1_800_000_000.0  # seconds since 1970 when a world begins
TURNS_AT_ONCE = 200_000  # of the loop, without time passing: more is an endless loop


class Hung(AssertionError):
    """Everybody waits, and nothing will ever happen."""


class Clock:
    """Virtual seconds since the beginning, and what is to happen in the network."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + max(0.0, seconds), self._number, work))

    @property
    def next(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def work(self) -> None:
        """Does all that is due."""
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()


class Readiness(Protocol):
    """Who knows the simulated sockets."""

    def ready(self, keys: dict[int, selectors.SelectorKey]) -> list[tuple[selectors.SelectorKey, int]]:
        """The keys for which something of what they ask for holds now, and what."""


class _Selector(selectors.BaseSelector):
    def __init__(self, clock: Clock, net: Readiness) -> None:
        self._clock, self._net = clock, net
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._turns = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def get_map(self) -> dict[int, selectors.SelectorKey]:  # type: ignore[override]
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        clock = self._clock
        clock.work()
        ready = self._ready()
        if ready or (timeout is not None and timeout <= 0):
            self._turns += 1
            if self._turns > TURNS_AT_ONCE:
                raise Hung(f"the loop turns without end at {clock.now:.6f} s")
            return ready
        self._turns = 0
        end = None if timeout is None else clock.now + timeout
        while not ready and (end is None or clock.now < end):
            ends = [at for at in (end, clock.next) if at is not None]
            if not ends:
                raise Hung(f"nothing will ever happen after {clock.now:.3f} s")
            clock.now = min(ends)
            clock.work()
            ready = self._ready()
        return ready

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        return self._net.ready(self._keys)


class Loop(asyncio.SelectorEventLoop):
    """asyncio's own loop and transports, on that selector. Threads' work is done at once, in its turn."""

    def __init__(self, clock: Clock, net: Readiness) -> None:
        self._virtual = clock
        self.trouble: list[str] = []  # what the loop was told that nobody caught
        super().__init__(_Selector(clock, net))
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.trouble.append(f"{context['message']}: {context.get('exception')!r}")


@contextlib.contextmanager
def replaced(sockets: type, wall: Callable[[], float], clock: Clock, seed: int) -> Iterator[None]:
    """While inside, the process's sockets, clocks and random numbers are those of the world."""
    numbers = random.Random(seed)
    places: list[tuple[Any, str, Any]] = [
        (socket, "socket", sockets),
        (time, "time", wall),
        (time, "monotonic", lambda: clock.now),
        (time, "clock_gettime", lambda _which: clock.now),
        (secrets, "token_bytes", lambda size=32: numbers.randbytes(size)),
        (secrets, "randbelow", numbers.randrange),
    ]
    kept = [(place, name, getattr(place, name)) for place, name, _ in places]
    state = random.getstate()
    random.seed(seed)
    for place, name, value in places:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in kept:
            setattr(place, name, value)
        random.setstate(state)
