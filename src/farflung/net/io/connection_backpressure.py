"""Lets callers wait until there is room for their message in its lane of one connection."""

from __future__ import annotations

import asyncio

from farflung.net.messages import MessageKind
from farflung.net.streams import StreamMultiplexer


class Backpressure:
    """Of one connection. Who waits is woken when there is room, and not whenever something leaves."""

    def __init__(self, streams: StreamMultiplexer) -> None:
        self._streams = streams
        # One kind of each lane.
        self._lanes = tuple((kind, asyncio.Event()) for kind in (MessageKind.CONTROL, MessageKind.SYNC))
        self._is_over = False

    async def wait(self, kind: MessageKind) -> None:
        """Returns when another message of this kind may be queued, or none ever."""
        while not self._streams.has_room(kind) and not self._is_over:
            _, room = self._lanes[kind.is_bulk]
            room.clear()
            await room.wait()

    def look(self) -> None:
        """Something has left."""
        for kind, room in self._lanes:
            if self._streams.has_room(kind):
                room.set()

    def end(self) -> None:
        """Nobody waits any longer."""
        self._is_over = True
        for _, room in self._lanes:
            room.set()
