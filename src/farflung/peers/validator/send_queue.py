"""Queues a validator's messages to one other, within bounds, and redials whenever the connection is lost.

What does not fit is dropped, the oldest first: whoever lacks it asks for it (docs/protocol/sdbft, "Catching up").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.io.connection import Connection

PAUSES: Final = Backoff(0.05, 1.0)  # between two tries to reach a peer


class PeerSendQueue:
    """The way to one peer."""

    def __init__(
        self,
        peer: PeerId,
        reach: Callable[[], Awaitable[Connection]],
        on_met: Callable[[PeerId], None],
        most: int = limits.LANE_BYTES,
    ) -> None:
        """`on_met` hears of each connection; `most`: bytes that wait at a time."""
        self._peer, self._reach, self._on_met, self._most = peer, reach, on_met, most
        self._queue: deque[tuple[str, bytes]] = deque()
        self._stirred = asyncio.Event()
        self.size = self.dropped = 0
        self.is_met = False
        self._task = asyncio.create_task(self._keep())

    def put(self, method: str, body: bytes) -> None:
        """Sends, or queues, or drops what has waited longest."""
        self._queue.append((method, body))
        self.size += len(body)
        while self.size > self._most:
            self.size -= len(self._queue.popleft()[1])
            self.dropped += 1
        self._stirred.set()

    def stir(self) -> None:
        """The peer was heard of: it is tried at once."""
        if not self.is_met:
            self._stirred.set()

    async def close(self) -> None:
        """Ends; what waits is dropped."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                connection = await self._reach()
            except NetworkError:
                self._stirred.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSES.pause(failures)):
                        await self._stirred.wait()
                failures += 1
                continue
            failures, self.is_met = 0, True
            self._on_met(self._peer)
            with contextlib.suppress(NetworkError):
                await self._empty(connection)
            self.is_met = False

    async def _empty(self, connection: Connection) -> None:
        """Sends what comes until the connection is gone."""
        gone = asyncio.ensure_future(connection.closed())
        gone.add_done_callback(lambda _: self._stirred.set())
        try:
            while not gone.done():
                while self._queue and not gone.done():
                    method, body = self._queue.popleft()
                    self.size -= len(body)
                    await connection.tell(method, body)
                self._stirred.clear()
                if not self._queue and not gone.done():
                    await self._stirred.wait()
        finally:
            gone.cancel()
