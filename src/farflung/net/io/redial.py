"""Starts another dial beside one that gets no answer.

Data sent into a cut line waits for TCP's own retransmission pauses; a new dial does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from farflung.net.io.connection import Connection

ANEW_SECONDS: Final = 4.0  # without an answer, until another dial begins


async def first_of(dial: Callable[[int], Coroutine[Any, Any, Connection]], numbers: Iterable[int]) -> Connection:
    """What becomes of the first dial that ends; `dial` gets the next number every ANEW_SECONDS while none does.

    A later one that succeeds is closed, unless its number is 0: those are shared with others.
    """
    waiting: dict[asyncio.Task[Connection], int] = {}
    done: set[asyncio.Task[Connection]] = set()
    try:
        for number in numbers:
            waiting[asyncio.create_task(dial(number))] = number
            done, _ = await asyncio.wait(waiting, timeout=ANEW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
        else:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        best = min(done, key=lambda each: each.cancelled() or each.exception() is not None)
        del waiting[best]
        return best.result()
    finally:
        for each, number in waiting.items():
            each.add_done_callback(_leave if number == 0 else _close)


def _leave(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()  # nobody needs to hear of it


def _close(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
