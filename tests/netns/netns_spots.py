"""Event loops in places of a laboratory, so that several homes are played by one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from farflung.local.netlab import NetworkLab
from farflung.net.io.connection import Connection


class Spot(threading.Thread):
    """An event loop in a place of the laboratory."""

    def __init__(self, laboratory: NetworkLab, who: str) -> None:
        super().__init__(daemon=True)
        self._laboratory, self._who = laboratory, who
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        with self._laboratory.inside(self._who):
            asyncio.set_event_loop(self.loop)
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(10)


async def echo(_connection: Connection, _method: str, body: bytes) -> bytes:
    return body
