"""Runs the request handlers of one endpoint: one task a request, bounded per peer; no exception leaks out.

A handler goes on when its connection is lost (half a state change is worse than a lost answer); so places are
counted by key, over all connections that the key has had.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from farflung.core import limits
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind
from farflung.net.streams import StreamRequest

Handler = Callable[[Connection, str, bytes], Awaitable[bytes]]
OnError = Callable[[Exception], None]


def internal_error() -> FarflungError:
    """What a peer learns of a handler that broke."""
    return FarflungError("FF-NET-099", "internal error", hint="see the log of the peer that answered")


class RequestHandlers:
    """Those of one endpoint that are under way."""

    def __init__(self, handler: Handler, on_error: OnError, freed: Callable[[PeerId], None]) -> None:
        """`freed(peer)`: one of the peer's handlers is done; more of its requests may start."""
        self._handler, self._on_error, self._freed = handler, on_error, freed
        self._tasks = OwnedTasks()
        self._running = Counter[tuple[PeerId, bool]]()  # by key and lane: is it bulk?

    def has_place(self, peer: PeerId, kind: MessageKind) -> bool:
        """Whether another request of this key may start: its answer will have to be held."""
        most = limits.BULK_HANDLERS if kind.is_bulk else limits.STREAMS_OPEN
        return self._running[peer, kind.is_bulk] < most

    def start(self, connection: Connection, asked: StreamRequest) -> None:
        """Works on one request; the answer goes out on its connection, if that still stands."""
        self._running[connection.peer, asked.kind.is_bulk] += 1
        self._tasks.begin(self._work(connection, asked))

    async def close(self) -> None:
        """Cancels what is under way and waits for it."""
        await self._tasks.close()

    async def _work(self, connection: Connection, asked: StreamRequest) -> None:
        try:
            connection.check(asked.kind)
            connection.answer(asked, await self._handler(connection, asked.method, asked.body))
        except FarflungError as error:
            connection.refuse(asked, error)
        except asyncio.CancelledError:
            connection.refuse(asked, internal_error())
            raise
        except Exception as error:
            connection.refuse(asked, internal_error())
            self._on_error(error)
        finally:
            self._leave(connection.peer, asked.kind)

    def _leave(self, peer: PeerId, kind: MessageKind) -> None:
        place = (peer, kind.is_bulk)
        self._running[place] -= 1
        if not self._running[place]:
            del self._running[place]
        self._freed(peer)
