"""Repeats work that failed, with the pauses of a `Backoff`, until it succeeds or its time is over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from farflung.core.backoff import Backoff
from farflung.core.errors import FarflungError

T = TypeVar("T")


async def retry(
    work: Callable[[], Awaitable[T]],
    backoff: Backoff,
    may_pass: Callable[[FarflungError], bool],
    *,
    tries: float = math.inf,
    patience: Callable[[], float] = lambda: math.inf,
    stood: float | None = None,
    on_pause: Callable[[FarflungError, float], None] = lambda _error, _waited: None,
) -> T:
    """What `work` returns. Raises its last error: one that may not pass, or when it has failed `tries` times, or when
    the seconds of `patience` are over.

    `stood`: the time counts from the first failure, and anew from one that a try of more than `stood` seconds ends in;
    None: from the begin. `on_pause` hears before each pause of the failure, and of the seconds since the begin.
    """
    loop = asyncio.get_running_loop()
    began = counted = loop.time()
    failures = 0
    while True:
        tried = loop.time()
        try:
            return await work()
        except FarflungError as error:
            now = loop.time()
            if stood is not None and (not failures or now - tried > stood):
                counted, failures = now, 0
            if failures + 1 >= tries or not may_pass(error) or now - counted >= patience():
                raise
            on_pause(error, now - began)
        await asyncio.sleep(backoff.pause(failures))
        failures += 1
