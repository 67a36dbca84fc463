"""Limits the traffic of one process with other homes to what the line carries and its owner allows.

One UploadPacer divides the rate among the sockets, as in a relay; the rate is what `uplink_estimator` estimates from
the kernel's own figures, and never above the owner's cap. Where the kernel cannot pace, a token bucket holds the
senders back; one for what comes pauses reading, and TCP slows whoever sends. While nothing is sent there is no timer
and nothing is read.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from farflung.core import limits
from farflung.net import rate_headroom, uplink_estimator
from farflung.net.io import socket_options
from farflung.net.io.line_rate_cache import LineRateCache, network_of
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.pacer import UploadPacer
from farflung.net.io.socket_options import UNSENT_BYTES, SocketReading, hold, is_near, read
from farflung.net.max_min_fair import KEPT
from farflung.net.messages import MessageKind
from farflung.net.token_bucket import TokenBucket
from farflung.net.uplink_estimator import UplinkEstimate, UplinkPhase, UplinkSample

LOOK_SECONDS: Final = 0.02
_UNBOUND: Final = 1 << 40  # bytes a second: more than any line
_SHARE_SECONDS: Final = 0.25  # between two divisions: a few round trips
_SHARE_LOOKS: Final = 4  # of which the most counts
_BOUND_SHARE: Final = 0.2  # of the time: a receiver, or we, who hold TCP so long say nothing of our line
_QUIET_LOOKS: Final = 10  # without anything unsent
_TRIFLE: Final = 0.1  # of a rate: not worth writing down
_HELD_LEAST: Final = 8 * limits.KIB  # held unsent by a connection that is new or slow
_HELD_SECONDS: Final = 0.04  # of what a connection may deliver next


@dataclass(frozen=True, slots=True)
class RateCaps:
    """What the owner allows, bytes a second on the line, headers counted. 0: all that it carries."""

    up: int = 0
    down: int = 0


class PausableSource(Protocol):
    """What a connection is read from, as asyncio's transports are."""

    def pause_reading(self) -> None:
        """Nothing is read from now on."""

    def resume_reading(self) -> None:
        """It is read again."""

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""


@dataclass(slots=True)
class _PacedConnection:
    """One connection to another home."""

    source: PausableSource
    wake: Callable[[], None]
    reading: SocketReading | None  # at the last look
    was_waiting: bool = False
    was_busy: bool = False
    calm: int = _QUIET_LOOKS  # in a row without anything unsent
    held: int = UNSENT_BYTES  # bytes that the kernel may hold unsent
    silent: float = 0.0  # seconds since something was delivered


class LinePacer:
    """What one process exchanges with other homes. Used by one asyncio loop."""

    def __init__(
        self,
        caps: RateCaps | None = None,
        *,
        allowance: MonthlyQuota | None = None,
        memory: LineRateCache | None = None,
    ) -> None:
        """`allowance`: of a month (None: no bound). `memory` knows lines of earlier processes (None: nothing)."""
        caps = caps or RateCaps()
        self.line, self.allowance = UplinkEstimate(), allowance
        self._memory, self._network, self._kept = memory, "", 0.0
        self._cap = KEPT * caps.up if caps.up else math.inf  # rates here count what packets carry
        self._pacer = UploadPacer(self._ceiling(), looks=_SHARE_LOOKS)
        self._members: dict[socket.socket, _PacedConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = self._divided = 0.0
        self._lift = rate_headroom.RateHeadroom()
        self._has_sent = False
        self._out = TokenBucket(self._cap) if caps.up and not socket_options.CAN_PACE else None
        self._in = TokenBucket(KEPT * caps.down) if caps.down else None
        self._held = self._paused = False  # by the buckets

    @property
    def rate(self) -> int:
        """Bytes a second that all of them together may send now."""
        return self._pacer.rate

    def _ceiling(self) -> int:
        return int(min(uplink_estimator.ceiling(self.line, self._cap), _UNBOUND))

    def check(self, sock: socket.socket, kind: MessageKind) -> None:
        """Raises NetworkError FF-NET-150 for bulk to another home when the month's volume is used up."""
        if self.allowance is not None and kind.is_bulk and sock in self._members:
            self.allowance.check()

    def open(self, sock: socket.socket, source: PausableSource, wake: Callable[[], None]) -> None:
        """A connection stands; nothing if its other end is on this machine or in this home. `wake`: it may send on."""
        if not is_near(sock):
            self._remember(sock)
            self._members[sock] = member = _PacedConnection(source, wake, read(sock))
            self._pacer.open(sock)
            self._pacer.quiet(sock, True)
            if member.reading is not None:
                _hold(sock, member, 0.0)

    def close(self, sock: socket.socket) -> None:
        """It is gone; nothing if it was not one of these."""
        if self._members.pop(sock, None) is not None:
            self._pacer.close(sock)

    def minds(self, sock: socket.socket) -> bool:
        """Whether it leads to another home."""
        return sock in self._members

    def held(self, sock: socket.socket) -> int:
        """Bytes that the kernel may hold of it, unsent."""
        member = self._members.get(sock)
        return UNSENT_BYTES if member is None else member.held

    def is_held(self, sock: socket.socket) -> bool:
        """Whether it may not send for now: what was sent has to be paid for."""
        return self._held and sock in self._members

    def sent(self, sock: socket.socket, size: int) -> None:
        """The kernel took `size` bytes of it."""
        if (sender := self._members.get(sock)) is None:
            return
        if sender.reading is None:
            self._pacer.sent(sock, size)
        if self.allowance is not None:
            self.allowance.add(size, 0)
        loop = asyncio.get_running_loop()
        if self._out is not None and (wait := self._out.take(size, loop.time())) and not self._held:
            self._held = True
            loop.call_later(wait, self._release)
        self._has_sent = True
        if self._timer is None:
            self._looked = self._divided = loop.time()
            for each, member in self._members.items():
                member.reading, member.was_waiting, member.was_busy = read(each), False, False
            self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def received(self, sock: socket.socket, size: int) -> None:
        """`size` bytes of it came."""
        if sock not in self._members:
            return
        if self.allowance is not None:
            self.allowance.add(0, size)
        loop = asyncio.get_running_loop()
        if self._in is not None and (wait := self._in.take(size, loop.time())):
            if not self._paused:
                self._paused = True
                loop.call_later(wait, self._read_on)
            for member in self._members.values():
                member.source.pause_reading()

    def _release(self) -> None:
        assert self._out is not None
        loop = asyncio.get_running_loop()
        if wait := self._out.take(0, loop.time()):
            loop.call_later(wait, self._release)
            return
        self._held = False
        for member in list(self._members.values()):
            member.wake()

    def _read_on(self) -> None:
        assert self._in is not None
        loop = asyncio.get_running_loop()
        if wait := self._in.take(0, loop.time()):
            loop.call_later(wait, self._read_on)
            return
        self._paused = False
        for member in self._members.values():
            if not member.source.is_closing():
                member.source.resume_reading()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        sample = self._sampled(now, now - self._looked)
        self._looked = now
        more = self._lifted(sample)
        self._pacer.limit(self._ceiling(), more)
        if now - self._divided >= _SHARE_SECONDS:
            self._lift = rate_headroom.divided(self._lift)
            self._pacer.look(now - self._divided)
            self._divided = now
        self._keep()
        is_over = not self._has_sent and not sample.is_busy
        self._has_sent = False
        self._timer = None if is_over else loop.call_later(LOOK_SECONDS, self._look)
        if is_over:
            for sock, member in self._members.items():
                member.calm = _QUIET_LOOKS
                self._pacer.quiet(sock, True)

    def _lifted(self, sample: UplinkSample) -> float:
        """Takes a look in; how many times the rate is shared out after it."""
        before, allowed = self.line.phase, self._pacer.rate * sample.seconds
        self.line = uplink_estimator.observe(self.line, sample)
        self._lift = rate_headroom.looked(self._lift, before, self.line.phase, allowed, sample)
        return rate_headroom.times(self._lift, self.line.phase, self._ceiling(), self._cap)

    def _remember(self, sock: socket.socket) -> None:
        """The first connection names the network; what is known of its line is where we begin."""
        if self._memory is not None and not self._network:
            self._network = network_of(sock)
            if (rate := self._memory.rate(self._network)) is not None:
                self.line, self._kept = uplink_estimator.known(rate, asyncio.get_running_loop().time()), rate
                self._pacer.limit(self._ceiling())

    def _keep(self) -> None:
        """Writes the line's rate down when it has become another one."""
        rate = self.line.rate
        is_new = abs(rate - self._kept) > _TRIFLE * self._kept
        if self._memory is not None and self._network and self.line.phase is UplinkPhase.KEEP and is_new:
            self._kept = rate
            asyncio.get_running_loop().run_in_executor(None, self._memory.keep, self._network, int(rate))

    def _sampled(self, now: float, seconds: float) -> UplinkSample:
        """What all sockets did since the last look.

        A socket that waits for its receiver, or for us, is not busy; one whose other end is gone says nothing at all.
        """
        delivered = again = 0
        trips: list[float] = []
        queues: list[float] = []
        for sock, member in self._members.items():
            reading, before = read(sock), member.reading
            member.reading = reading
            if reading is None or before is None:
                continue
            came = max(0, reading.delivered - before.delivered)
            more = max(0, reading.again - before.again)
            delivered += came
            again += more
            self._pacer.sent(sock, came + more)  # what TCP took may wait in it for long
            member.silent = 0.0 if came or not reading.has_unsent else member.silent + seconds
            bound = reading.bound - before.bound > _BOUND_SHARE * seconds
            is_waiting = reading.has_unsent and not bound and not uplink_estimator.is_cut(member.silent, reading.trip)
            if is_waiting and member.was_waiting:
                _hold(sock, member, 2 * reading.rate)
            is_busy = is_waiting and not reading.is_starved
            if is_busy and member.was_busy:
                trips.append(reading.trip)
                queues.append(reading.trip - reading.shortest)
            member.was_waiting, member.was_busy = is_waiting, is_busy
            member.calm = 0 if is_waiting else member.calm + 1
            self._pacer.quiet(sock, member.calm >= _QUIET_LOOKS)
        if not trips:
            return UplinkSample(now, delivered, seconds, is_busy=False)
        return UplinkSample(now, delivered, seconds, min(trips), min(queues), again=again)


def _hold(sock: socket.socket, member: _PacedConnection, rate: float) -> None:
    """Lets the kernel hold some milliseconds of what the connection may deliver, bytes a second."""
    size = min(UNSENT_BYTES, max(_HELD_LEAST, int(_HELD_SECONDS * rate)))
    if not 0.8 * member.held <= size <= 1.25 * member.held:  # not for every trifle
        member.held = size
        hold(sock, size)
