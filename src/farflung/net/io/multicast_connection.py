"""Serves one member's connection to its group at a relay: takes its whole frames, and gives it the others'.

Nothing here looks into a frame beyond its head. What waits for the member is in a queue of frames that it shares
with the other members; the group bounds them all together.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from farflung.core import limits
from farflung.core.errors import ProtocolError
from farflung.core.ids import PeerId
from farflung.net.certificates import Identity
from farflung.net.io.socket_options import expect, tune
from farflung.net.multicast_frames import HEAD_BYTES, GroupFrameHead, GroupFrameKind, read_head

_TURNS: Final = 8  # frames that one member may send before others have their turn
_BUFFERS: Final = 64  # frames given to the kernel at once


@dataclass(slots=True, eq=False)
class QueuedFrame:
    """One frame, and how many queues it is in."""

    data: bytearray | bytes
    left: int = 1


class GroupLegHost(Protocol):
    """A group, as its members' connections see it."""

    def heard(self, connection: GroupConnection, head: GroupFrameHead, frame: bytearray) -> None:
        """A whole frame of a member. Raises ProtocolError FF-NET-132."""

    def own(self, connection: GroupConnection, head: GroupFrameHead) -> None:
        """Puts a word of the relay's own into a member's queue."""

    def done(self, shared: QueuedFrame) -> None:
        """One of those that a frame is for has it, or will not get it."""

    def moved(self, connection: GroupConnection, size: int) -> None:
        """A member took `size` bytes."""

    def took(self, connection: GroupConnection, shared: QueuedFrame) -> None:
        """A member has the whole of a frame."""

    def released(self, connection: GroupConnection) -> None:
        """A member that was held goes on."""

    def left(self, connection: GroupConnection) -> None:
        """A connection was cut."""


class GroupConnection:
    """One member's connection."""

    def __init__(self, group: GroupLegHost, who: Identity, sock: socket.socket) -> None:
        self._group, self.who, self.socket = group, who, sock
        self._loop = asyncio.get_running_loop()
        self.tuned = tune(sock)
        self._queue: deque[QueuedFrame] = deque()
        self._offset = 0  # of the first one in the queue, already taken
        self.waiting = 0  # bytes in the queue
        self._lost = 0  # frames that it will be told of
        self.is_skipped = False
        self.is_writing = self._is_reading = self.is_closed = self._is_held = False
        self._frame, self._filled = bytearray(HEAD_BYTES), 0
        self._head: GroupFrameHead | None = None
        self._expected = 1  # bytes for which the kernel wakes us
        self.heard = self.took = self._loop.time()

    @property
    def member(self) -> PeerId:
        """The account."""
        return self.who.account

    # What it sends

    def read(self, *, should: bool) -> None:
        """Whether it is listened to; never while it is held."""
        should = should and not self._is_held
        if should != self._is_reading and not self.is_closed:
            self._is_reading = should
            self.heard = self._loop.time()
            if should:
                self._loop.add_reader(self.socket.fileno(), self._readable)
            else:
                self._loop.remove_reader(self.socket.fileno())

    def is_silent(self, now: float) -> bool:
        """Whether nothing came for too long, though it was listened to."""
        return self._is_reading and now - self.heard > limits.CIRCUIT_IDLE_SECONDS

    def _readable(self) -> None:
        try:
            for _ in range(_TURNS):
                if self.is_closed or not self._is_reading or not self._fill():
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, EOFError, ProtocolError):
            self.close()
        self._expect()

    def _expect(self) -> None:
        """A part of a frame is of no use to anybody: packets alone do not wake us."""
        missing = len(self._frame) - self._filled
        if missing != self._expected and not self.is_closed:
            self._expected = missing
            expect(self.socket, missing)

    def _fill(self) -> bool:
        """Reads on; False when this frame is not whole yet. Raises OSError, EOFError, ProtocolError."""
        if self._head is None:
            self._receive()
            if self._filled < HEAD_BYTES:
                return False
            self._head = read_head(self._frame)
            self._frame += bytes(self._head.size)
        if self._filled < len(self._frame):
            self._receive()
        if self._filled < len(self._frame):
            return False
        head, frame = self._head, self._frame
        self._head, self._frame, self._filled = None, bytearray(HEAD_BYTES), 0
        self._group.heard(self, head, frame)
        return True

    def _receive(self) -> None:
        with memoryview(self._frame) as view:
            size = self.socket.recv_into(view[self._filled :])
        if not size:
            raise EOFError
        self.heard = self._loop.time()
        self._filled += size

    # What it is given

    def give(self, shared: QueuedFrame) -> bool:
        """Puts a frame into its queue, and sends what can be sent; False: it takes nothing, the frame is lost to it."""
        if self.is_closed or self.is_skipped:
            self._lost += 1
            return False
        if not self._queue:
            self.took = self._loop.time()  # until now there was nothing to take
        self._queue.append(shared)
        self.waiting += len(shared.data)
        return True

    def flush(self) -> None:
        """Gives the kernel what it takes."""
        try:
            while self._queue and not (self.is_closed or self._is_held):
                self._send()
        except (BlockingIOError, InterruptedError):
            self._write(should=True)
        except OSError:
            self.close()
        else:
            self._write(should=False)

    def _send(self) -> None:
        views = [memoryview(shared.data) for _, shared in zip(range(_BUFFERS), self._queue, strict=False)]
        views[0] = views[0][self._offset :]
        size = self.socket.sendmsg(views)
        self.waiting -= size
        self.took = self._loop.time()
        self._group.moved(self, size)
        size += self._offset
        while self._queue and size >= len(self._queue[0].data):
            size -= len(self._queue[0].data)
            self._group.took(self, self._queue.popleft())
        self._offset = size
        if self.is_skipped and not self._queue:
            self.is_skipped = False
            self._tell_gap()

    def _tell_gap(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            self._group.own(self, GroupFrameHead(0, GroupFrameKind.GAP, counter=lost))

    def skip(self) -> None:
        """Loses what waits for it, but for the frame that it has begun to take; then takes nothing."""
        while len(self._queue) > (1 if self._offset else 0):
            shared = self._queue.pop()
            self.waiting -= len(shared.data)
            self._lost += 1
            self._group.done(shared)
        if not self._queue:
            self._tell_gap()
        self.is_skipped = True

    def hold(self) -> None:
        """Takes nothing from it and gives it nothing, as if it stood still, until `release`."""
        self._is_held = True
        self.read(should=False)
        self._write(should=False)

    def release(self) -> None:
        """Goes on."""
        self._is_held = False
        self._group.released(self)
        self.flush()

    def _write(self, *, should: bool) -> None:
        if should != self.is_writing and not self.is_closed:
            self.is_writing = should
            if should:
                self._loop.add_writer(self.socket.fileno(), self.flush)
            else:
                self._loop.remove_writer(self.socket.fileno())

    def close(self) -> None:
        """Cuts it."""
        if self.is_closed:
            return
        self.read(should=False)
        self._write(should=False)
        self.is_closed = True
        for shared in self._queue:
            self._group.done(shared)
        self._queue.clear()
        self.waiting = 0
        self.socket.close()
        self._group.left(self)
