"""The worker's end of a pipe, for tests that answer in the place of a worker process."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.train import blobs, worker_messages
from farflung.train.io.worker import WorkerChannel


class WorkerEnd:
    """Requests as a worker reads them, and its replies. `connection` is blocking, and closed by its owner."""

    def __init__(self, connection: socket.socket) -> None:
        self._channel = WorkerChannel(connection.fileno(), connection.fileno())

    async def next(self) -> worker_messages.Request | None:
        """The next request; None when the agent is gone."""
        return cast("worker_messages.Request | None", await asyncio.to_thread(self._read))

    def _read(self) -> Any:
        raw = self._channel.read()
        if raw is None:
            return None
        request = decode(raw, cast(type[Any], worker_messages.Request), limits.WORKER_BYTES)
        return blobs.put(request, iter(self._channel.lent(blobs.count(request))))

    async def reply(self, said: worker_messages.Reply) -> None:
        light, long = blobs.take(said)
        await asyncio.to_thread(self._channel.write, encode(light))
        await asyncio.to_thread(self._channel.write_blobs, long)
