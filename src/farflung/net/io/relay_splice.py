"""Forwards the bytes of one circuit: two sockets, two directions, each with one bounded buffer.

Each way is either reading or writing, never both:

    empty   --- source readable: fill once --->   holding        (end of file: shut the sink down, this way is done)
    holding --- sink writable: drain --->         holding ... empty

So while the sink takes nothing nothing is read, the source's own TCP window closes, and the sender waits: that is all
the flow control there is, and no more than limits.CIRCUIT_BUFFER_BYTES are held. A way that waits for its rate's sake
(`bucket`) drains what it has and reads nothing; one that waits until somebody has signed for what went through
(`relay_meter`) does neither. On Linux the buffer is a pipe, and `splice` moves pages through it that this process never
sees; elsewhere it is a `bytearray`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Final, Protocol

from farflung.core import limits
from farflung.net.io.socket_options import tune
from farflung.net.token_bucket import TokenBucket

CAN_SPLICE: Final = sys.platform == "linux" and hasattr(os, "splice")
_TURNS: Final = 16  # fillings and drainings before other circuits have theirs
_QUIET_LOOKS: Final = 3
_UNSTARTED, _STOPPED, _RATE, _HELD = "not started", "stopped", "rate", "held"  # reasons to hold a way
_STILL: Final = frozenset({_STOPPED, _HELD})  # those for which it does not even drain


class KernelSplice(Protocol):
    """A bounded buffer between two sockets. Filled only when empty."""

    @property
    def held(self) -> int:
        """Bytes filled and not drained."""

    def fill(self, source: socket.socket) -> int:
        """Takes what is there; 0 at the end of file. Raises BlockingIOError, OSError."""

    def drain(self, sink: socket.socket) -> int:
        """Gives what the sink takes. Raises BlockingIOError, OSError."""

    def close(self) -> None:
        """Frees what the system lent."""


class MemorySplice:
    """A splice through this process's memory."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(limits.CIRCUIT_BUFFER_BYTES))
        self._start = self._end = 0

    @property
    def held(self) -> int:
        """See Duct."""
        return self._end - self._start

    def fill(self, source: socket.socket) -> int:
        """See Duct."""
        self._start, self._end = 0, source.recv_into(self._view)
        return self._end

    def drain(self, sink: socket.socket) -> int:
        """See Duct."""
        size = sink.send(self._view[self._start : self._end])
        self._start += size
        return size

    def close(self) -> None:
        """See Duct."""
        self._view.release()


class SpliceBuffer:
    """A splice through the kernel alone."""

    def __init__(self) -> None:
        self._exit, self._entry = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._held = 0

    @property
    def held(self) -> int:
        """See Duct."""
        return self._held

    def fill(self, source: socket.socket) -> int:
        """See Duct."""
        size = os.splice(source.fileno(), self._entry, limits.CIRCUIT_BUFFER_BYTES, flags=os.SPLICE_F_NONBLOCK)
        self._held += size
        return size

    def drain(self, sink: socket.socket) -> int:
        """See Duct."""
        size = os.splice(self._exit, sink.fileno(), self._held, flags=os.SPLICE_F_NONBLOCK)
        self._held -= size
        return size

    def close(self) -> None:
        """See Duct."""
        os.close(self._exit)
        os.close(self._entry)


def make_splice(*, may_splice: bool) -> KernelSplice:
    """A pipe where there is one to be had, else a buffer."""
    if may_splice and CAN_SPLICE:
        with contextlib.suppress(OSError):  # no descriptors left
            return SpliceBuffer()
    return MemorySplice()


class _CircuitDirection:
    """One direction."""

    def __init__(self, circuit: RelayCircuit, source: socket.socket, sink: socket.socket, splice: KernelSplice) -> None:
        self._circuit, self._source, self._sink, self.splice = circuit, source, sink, splice
        self._loop = asyncio.get_running_loop()
        self._waits_for: socket.socket | None = None
        self._rate: TokenBucket | None = None
        self._holds: set[str] = {_UNSTARTED}  # why nothing is read
        self.is_done = False

    def hold(self, why: str) -> None:
        """Reads nothing until each such reason is gone, and drains nothing for those of _STILL."""
        self._holds.add(why)
        self._wait(self._next())

    def release(self, why: str) -> None:
        """One reason is gone; if it was the last, waits for bytes."""
        self._holds.discard(why)
        self._wait(self._next())

    def limit(self, rate: int) -> None:
        """Forwards at most `rate` bytes a second from now on."""
        self._rate = TokenBucket(rate, at=self._loop.time())

    def stop(self) -> None:
        """Waits for nothing any more."""
        self.hold(_STOPPED)

    def _next(self) -> socket.socket | None:
        """What to wait for now."""
        if self.is_done:
            return None
        if self.splice.held and self._holds.isdisjoint(_STILL):
            return self._sink
        return None if self._holds else self._source

    def _wait(self, place: socket.socket | None) -> None:
        if place is self._waits_for:
            return
        if self._waits_for is self._source:
            self._loop.remove_reader(self._source.fileno())
        elif self._waits_for is self._sink:
            self._loop.remove_writer(self._sink.fileno())
        self._waits_for = place
        if place is self._source:
            self._loop.add_reader(place.fileno(), self._turn)
        elif place is self._sink:
            self._loop.add_writer(place.fileno(), self._turn)

    def _turn(self) -> None:
        try:
            for _ in range(_TURNS):
                if not self._holds.isdisjoint(_STILL):
                    break
                if self.splice.held:
                    self._count(self.splice.drain(self._sink))
                elif self._holds:
                    break
                elif self.splice.fill(self._source) == 0:
                    self._finish()
                    return
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._circuit.close()
            return
        # only now: to change what is waited for costs as much as to forward some ten KiB
        self._wait(self._next())

    def _count(self, size: int) -> None:
        if self._rate is not None:
            pause = self._rate.take(size, self._loop.time())
            if pause > 0:
                self.hold(_RATE)
                self._loop.call_later(pause, self.release, _RATE)
        self._circuit.moved(self._sink, size)

    def _finish(self) -> None:
        """The source sends no more; the other way may go on."""
        self.is_done = True
        self._wait(None)
        self._sink.shutdown(socket.SHUT_WR)
        self._circuit.half_done()


class RelayCircuit:
    """Two joined sockets, owned from now on. Ends when both ways are done, on any error, or when it is closed."""

    def __init__(
        self,
        one: socket.socket,
        other: socket.socket,
        *,
        may_splice: bool,
        on_moved: Callable[[RelayCircuit, socket.socket, int], None],
        on_end: Callable[[RelayCircuit], None],
    ) -> None:
        self.sockets = (one, other)
        self._on_moved, self._on_end = on_moved, on_end
        self.tuned = (tune(one), tune(other))
        self._ways = tuple(
            _CircuitDirection(self, source, sink, make_splice(may_splice=may_splice))
            for source, sink in ((one, other), (other, one))
        )
        self._quiet = 0
        self._is_closed = False

    @property
    def held(self) -> int:
        """Bytes taken from one peer and not yet given to the other's socket, both ways."""
        return sum(way.splice.held for way in self._ways)

    def start(self) -> None:
        """Forwards from now on."""
        for way in self._ways:
            way.release(_UNSTARTED)

    def limit(self, rate: int) -> None:
        """Forwards at most `rate` bytes a second each way from now on."""
        for way in self._ways:
            way.limit(rate)

    def hold(self) -> None:
        """Reads nothing from either peer and gives them nothing until `release`."""
        for way in self._ways:
            way.hold(_HELD)

    def release(self) -> None:
        """See `hold`."""
        for way in self._ways:
            way.release(_HELD)

    def moved(self, sink: socket.socket, size: int) -> None:
        """A sink took `size` bytes."""
        self._quiet = 0
        self._on_moved(self, sink, size)

    def half_done(self) -> None:
        """One way has ended: so has the circuit, if the other one had before."""
        if all(way.is_done for way in self._ways):
            self.close()

    def look(self) -> None:
        """Called _QUIET_LOOKS times in the idle time; ends a circuit through which nothing went meanwhile."""
        self._quiet += 1
        if self._quiet > _QUIET_LOOKS:
            self.close()

    def close(self) -> None:
        """Ends both connections; what is held is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        for way in self._ways:
            way.stop()
            way.splice.close()
        for each in self.sockets:
            each.close()
        self._on_end(self)
