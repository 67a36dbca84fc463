"""Opens more connections over a path that carries bulk: each has its own TCP start and loss recovery.

Over 100 Mbit/s and 100 ms, 100 MB filled .88 and .85 of the line with one connection of bbr (0.5 and 2 % loss), and
.94 and .91 with four; what was missing was lost in the first two seconds (docs/decisions/026-paths.md).

Whoever can dial the path opens them after the first use for bulk, and closes them when they rest. They are bulk's
alone, and bulk leaves the first connection to control as soon as one of them stands: what is lost of bulk would hold up
what was sent behind it for a round trip and more. Asking and the choice of paths stay with the first connection too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.net.endpoint_records import DIRECT, EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.paths import PathType

CONNECTIONS: Final = 4  # of one path, beside its first connection
REST_SECONDS: Final = 60.0  # after which an idle lane is closed, and a path that refused one is asked again

_Path = tuple[PeerId, EndpointAddress]


class ParallelConnections:
    """The further connections of all paths of one endpoint. `spawn` runs a task until it ends or all ends."""

    def __init__(self, endpoint: Endpoint, spawn: Callable[[Coroutine[None, None, None]], object]) -> None:
        self._endpoint, self._spawn = endpoint, spawn
        self._mine: list[Connection] = []  # dialled here
        self._dialling: set[_Path] = set()
        self._resting: dict[_Path, float] = {}  # until when no lane is tried

    def of(self, first: Connection) -> tuple[Connection, ...]:
        """What carries bulk over the path of `first`: its lanes, else itself. Those that are missing are dialled."""
        several = self.beside(first)
        if len(several) < CONNECTIONS and first.place.port > 0 and first.way in (PathType.DIRECT, PathType.RELAY):
            self._add((first.peer, first.place), CONNECTIONS - len(several))
        for each in several:
            each.round_trip = first.round_trip
        return several[:CONNECTIONS] or (first,)

    def beside(self, first: Connection) -> tuple[Connection, ...]:
        """The usable lanes over the path of `first`."""
        path = (first.place, first.way)
        return tuple(
            each
            for each in self._endpoint.connections(first.peer)
            if each is not first and (each.place, each.way) == path and not (each.is_worn or each.is_doubted)
        )

    def stand(self, peer: PeerId) -> None:
        """There are more connections for bulk: who carries some need not find out by looking."""
        for each in self._endpoint.connections(peer):
            each.widen()

    def is_busy(self, first: Connection) -> bool:
        """Whether calls of this end wait for an answer over the path of `first`."""
        return first.is_busy or any(each.is_busy for each in self.beside(first))

    def look(self, now: float) -> None:
        """Closes lanes that rest. `now`: seconds of the loop's clock."""
        for each in list(self._mine):
            if each.is_open and not each.is_busy and now - each.heard >= REST_SECONDS:
                each.close()
            if not each.is_open:
                self._mine.remove(each)
        self._resting = {path: until for path, until in self._resting.items() if until > now}

    def _add(self, path: _Path, count: int) -> None:
        if path not in self._dialling and path not in self._resting:
            self._dialling.add(path)
            self._spawn(self._dial(path, count))

    async def _dial(self, path: _Path, count: int) -> None:
        peer, place = path
        relay = place.relay if place.relay != DIRECT else None
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(self._one(peer, place, relay, 2 + number))
        except* FarflungError:
            self._resting[path] = asyncio.get_running_loop().time() + REST_SECONDS
        finally:
            self._dialling.discard(path)

    async def _one(self, peer: PeerId, place: EndpointAddress, relay: PeerId | None, number: int) -> None:
        connection = await self._endpoint.dial(peer, place.host, place.port, relay=relay, fresh=number)
        self._mine.append(connection)
        self.stand(peer)
