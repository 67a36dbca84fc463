"""Keeps what all connections of one process send to other machines together below what the line carries.

One Uplink divides the rate among the sockets, as in a relay; the rate is what `uplink` estimates from the kernel's own
figures. While nothing is sent there is no timer and nothing is read.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

from farflung.core import limits
from farflung.net import uplink
from farflung.net.io.pacing import Uplink
from farflung.net.io.tuning import UNSENT_BYTES, Reading, hold, is_near, read
from farflung.net.uplink import Line, Phase, Sample

LOOK_SECONDS: Final = 0.02
_HELD_LEAST: Final = 8 * limits.KIB  # held unsent by a connection that is new or slow
_HELD_SECONDS: Final = 0.04  # of what a connection may deliver next
_SHARE_SECONDS: Final = 0.5  # between two divisions: a few round trips
_SEEKING_SECONDS: Final = 0.1  # the same while the rate grows
_BOUND_SHARE: Final = 0.2  # of the time: a receiver that takes no more for so long says nothing of our line


@dataclass(slots=True)
class _Last:
    """Of one socket, at the last look."""

    reading: Reading | None
    was_busy: bool = False
    held: int = UNSENT_BYTES  # bytes that the kernel may hold unsent


class Manners:
    """What one process sends to other machines. Used by one asyncio loop."""

    def __init__(self, line: Line | None = None) -> None:
        """`line`: what is known of it already (None: nothing)."""
        self.line = line or Line()
        self._uplink = Uplink(uplink.ceiling(self.line))
        self._sockets: dict[socket.socket, _Last] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = self._divided = 0.0
        self._has_sent = False

    @property
    def rate(self) -> int:
        """Bytes a second that all of them together may send now."""
        return self._uplink.rate

    def open(self, sock: socket.socket) -> None:
        """A connection stands; nothing if its other end is on this machine or in this home."""
        if not is_near(sock):
            self._sockets[sock] = last = _Last(read(sock))
            self._uplink.open(sock)
            if last.reading is not None:
                _hold(sock, last, 0.0)

    def close(self, sock: socket.socket) -> None:
        """It is gone; nothing if it was not one of these."""
        if self._sockets.pop(sock, None) is not None:
            self._uplink.close(sock)

    def held(self, sock: socket.socket) -> int:
        """Bytes that the kernel may hold of it, unsent."""
        last = self._sockets.get(sock)
        return UNSENT_BYTES if last is None else last.held

    def sent(self, sock: socket.socket, size: int) -> None:
        """The kernel took `size` bytes of it."""
        if sock not in self._sockets:
            return
        self._uplink.sent(sock, size)
        self._has_sent = True
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._looked = self._divided = loop.time()
            for each, last in self._sockets.items():
                last.reading, last.was_busy = read(each), False
            self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        sample = self._sampled(now - self._looked)
        self._looked = now
        self.line = uplink.observe(self.line, sample)
        self._uplink.limit(uplink.ceiling(self.line))
        pause = _SEEKING_SECONDS if self.line.phase is Phase.SEEK else _SHARE_SECONDS
        if now - self._divided >= pause:
            self._uplink.look(now - self._divided)
            self._divided = now
        is_over = not self._has_sent and not sample.is_busy
        self._has_sent = False
        self._timer = None if is_over else loop.call_later(LOOK_SECONDS, self._look)

    def _sampled(self, seconds: float) -> Sample:
        """What all sockets did since the last look. A socket that waits for its receiver, or for us, is not busy."""
        delivered, fastest = 0, 0.0
        trips: list[float] = []
        queues: list[float] = []
        for sock, last in self._sockets.items():
            reading, before = read(sock), last.reading
            if reading is None or before is None:
                last.reading = reading
                continue
            delivered += max(0, reading.delivered - before.delivered)
            bound = reading.receiver_bound - before.receiver_bound > _BOUND_SHARE * seconds
            is_busy = reading.has_unsent and not bound
            if is_busy and last.was_busy:
                fastest += reading.rate
                trips.append(reading.trip)
                queues.append(reading.trip - reading.shortest)
                _hold(sock, last, 2 * reading.rate)
            last.reading, last.was_busy = reading, is_busy
        if not trips:
            return Sample(delivered, seconds, is_busy=False)
        return Sample(delivered, seconds, fastest, min(trips), min(queues))


def _hold(sock: socket.socket, last: _Last, rate: float) -> None:
    """Lets the kernel hold some milliseconds of what the connection may deliver, bytes a second."""
    size = min(UNSENT_BYTES, max(_HELD_LEAST, int(_HELD_SECONDS * rate)))
    if not 0.8 * last.held <= size <= 1.25 * last.held:  # not for every trifle
        last.held = size
        hold(sock, size)
