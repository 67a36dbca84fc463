"""Keeps an owner's background tasks until they have ended, and cancels them with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedTasks:
    """The tasks of one owner that have not ended, the oldest first: a simulated network is always ended in one order.

    No error is lost here: one that nobody awaited goes to the loop's exception handler, also when all is closed.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._running))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` from now on; it need not be awaited. After `close` it is cancelled before its first step."""
        task = asyncio.create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        if self._is_closed:
            task.cancel()
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)

    def drop_oldest(self) -> None:
        """Cancels what began first, and holds it no more."""
        oldest = next(iter(self._running))
        del self._running[oldest]
        oldest.cancel()

    def cancel(self) -> None:
        """Cancels all, and does not wait for it."""
        for task in self:
            task.cancel()

    async def close(self) -> None:
        """Cancels all, and returns when all has ended."""
        self._is_closed = True
        while self._running:
            self.cancel()
            await asyncio.wait(self)  # not `gather`, which would take their errors from them
