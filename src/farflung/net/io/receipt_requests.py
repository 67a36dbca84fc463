"""Picks the connection for a paid relay's receipt request: the last one used to sign, else the registration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from farflung.core.codec import encode
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net.io.connection import Connection
from farflung.net.io.relay_payer import SIGN
from farflung.net.relay_meter import PassMeter

COLLECT_SECONDS: Final = 5.0  # for a party to sign when it is asked


class ReceiptRoutes:
    """The parties of one relay that have signed here, and those who are being asked."""

    def __init__(self, attached: Callable[[PeerId], Connection | None]) -> None:
        """`attached`: the connection by which a party is attached to this relay, if it is."""
        self._attached = attached
        self._known: dict[PeerId, Connection] = {}
        self._asked: dict[tuple[PassMeter, PeerId], asyncio.Task[None]] = {}  # and have not answered yet
        self._tasks = OwnedTasks()

    def hear(self, connection: Connection) -> None:
        """Its party signed over this connection."""
        if self._known.get(connection.peer) is not connection:
            self._known[connection.peer] = connection
            self._tasks.begin(self._until_gone(connection))

    async def _until_gone(self, connection: Connection) -> None:
        await connection.closed()
        if self._known.get(connection.peer) is connection:
            del self._known[connection.peer]

    def ask(self, books: PassMeter, parties: Iterable[PeerId]) -> set[asyncio.Task[None]]:
        """Lets those of them who lag sign now, each once at a time; they do so by themselves soon enough otherwise."""
        late = {(books, party) for party in parties if books.lag(party)}
        for each in late - set(self._asked):
            self._asked[each] = self._tasks.begin(self._ask(*each))
        return {self._asked[each] for each in late}

    async def collect(self, books: PassMeter, parties: Iterable[PeerId]) -> None:
        """As `ask`; returns when they have signed, or will not."""
        asked = self.ask(books, parties)
        if asked:
            await asyncio.wait(asked)

    async def _ask(self, books: PassMeter, party: PeerId) -> None:
        connection = self._known.get(party) or self._attached(party)
        try:
            if connection is not None and connection.is_open:
                with contextlib.suppress(NetworkError):
                    await connection.call(SIGN, encode(books.signed), timeout=COLLECT_SECONDS)
        finally:
            del self._asked[books, party]

    async def close(self) -> None:
        """Asks nobody any more."""
        await self._tasks.close()
