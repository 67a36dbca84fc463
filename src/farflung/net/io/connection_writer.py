"""Hands ciphertext to one transport and counts, to the byte, what the kernel has taken of it and for which kind."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from farflung.net.counters import ConnectionMeter
from farflung.net.frames import FRAGMENT_BYTES
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.socket_options import UNSENT_BYTES, SocketTuning, hold, tune
from farflung.net.messages import MessageKind
from farflung.net.write_size import MOST_WRITTEN, WriteSizer

_OVERFULL_BYTES: Final = 2 * MOST_WRITTEN
_BEHIND_SECONDS: Final = 0.01  # in which something follows a message, or a word is said behind it


class ConnectionWriter:
    """The sending half of a transport. `is_full`: the kernel takes no more for now."""

    def __init__(
        self,
        transport: asyncio.Transport,
        meter: ConnectionMeter,
        pacer: LinePacer | None,
        wake: Callable[[], None],
        say: Callable[[], None],
    ) -> None:
        """`wake` is called when it may send again after `pacer` held it, `say` when a word is needed (`followed`)."""
        self._transport, self._meter, self._pacer = transport, meter, pacer
        self._written: deque[tuple[MessageKind, int]] = deque()  # what the kernel may not have taken yet
        self._waiting = 0  # bytes of it
        self._sizer = WriteSizer()
        self._held = UNSENT_BYTES
        self._bound: tuple[LinePacer, socket.socket] | None = None  # if it leads to another home
        self._say, self._writes = say, 0
        self._saying: asyncio.TimerHandle | None = None
        self.is_full = self._is_gone = False
        transport.set_write_buffer_limits(high=0)
        self.socket: socket.socket | None = transport.get_extra_info("socket")
        self.remote: tuple[str, int] | None = transport.get_extra_info("peername")
        self.tuned: SocketTuning | None = None
        if self.socket is not None:
            self.tuned = tune(self.socket)
            if pacer is not None:
                pacer.open(self.socket, transport, wake)
                self._bound = (pacer, self.socket) if pacer.minds(self.socket) else None

    def filled(self) -> None:
        """The kernel takes no more."""
        self.is_full = True
        self.account()
        self._sizer.filled(asyncio.get_running_loop().time())
        held = self._sizer.held
        is_other = not 0.8 * self._held <= held <= 1.25 * self._held  # not for every trifle
        if is_other and self._bound is None and self.socket is not None:
            self._held = held
            hold(self.socket, held)

    def emptied(self) -> None:
        """The kernel has taken everything, and takes more."""
        self.is_full = False
        self.account()

    def check(self, kind: MessageKind) -> None:
        """Raises NetworkError FF-NET-150 when the owner allows no more of this kind this month."""
        if self.socket is not None and self._pacer is not None:
            self._pacer.check(self.socket, kind)

    def took(self, size: int) -> None:
        """`size` bytes came in."""
        self._meter.received(size)
        if self.socket is not None and self._pacer is not None:
            self._pacer.received(self.socket, size)

    @property
    def piece(self) -> int:
        """Bytes to write next at most; 0: none for now, since the kernel is full or the owner's cap is reached.

        On a slow line control shall not wait for a large one.
        """
        if self.is_full:
            return 0
        if self._bound is None:
            return self._sizer.written
        pacer, sock = self._bound
        return 0 if pacer.is_held(sock) else min(FRAGMENT_BYTES, pacer.held(sock) // 2)

    @property
    def is_overfull(self) -> bool:
        """Whether more waits than our own frames can cause: the peer makes TLS answer, and does not read."""
        return self._transport.get_write_buffer_size() > _OVERFULL_BYTES

    def write(self, kind: MessageKind, data: bytes) -> None:
        """Sends `data`, now or as soon as the kernel takes it."""
        if not data or self._transport.is_closing():
            return
        size = len(data)
        self._writes += 1
        self._written.append((kind, size))
        self._waiting += size
        self._transport.write(memoryview(data))  # what the kernel leaves is not copied twice
        if not self._transport.is_closing():  # else the kernel has refused it, and what waited is gone
            self.account()

    def account(self) -> None:
        """Counts what was taken since the last look: what was written, less what the transport still holds."""
        taken = self._waiting - self._transport.get_write_buffer_size()
        if taken <= 0:
            return
        self._waiting -= taken
        self._sizer.took(taken)
        while taken > 0:
            kind, size = self._written.popleft()
            part = min(size, taken)
            self._meter.sent(kind, part)
            if self._bound is not None:
                pacer, sock = self._bound
                pacer.sent(sock, part)
            taken -= part
            if part < size:
                self._written.appendleft((kind, size - part))

    def followed(self) -> None:
        """Has a word said behind what was just written to another home, if nothing else follows.

        TCP takes a packet for lost when one behind it is acknowledged: within a round trip and a quarter (RFC 8985).
        Of the last one it only hears nothing, and repeats it after two round trips and 0.2 s, or later.
        """
        if self._bound is not None:
            self._cancel()
            loop = asyncio.get_running_loop()
            self._saying = loop.call_later(_BEHIND_SECONDS, self._look_behind, self._writes)

    def _look_behind(self, writes: int) -> None:
        self._saying = None
        if writes == self._writes and not self._transport.is_closing():
            self._say()

    def _cancel(self) -> None:
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None

    def close(self) -> None:
        """Closes behind the last byte written."""
        self._transport.close()

    def abort(self) -> None:
        """Closes now, if it is not closed yet: asyncio fails for one that closed behind its last byte."""
        if not self._is_gone:
            self._transport.abort()

    def gone(self) -> None:
        """The transport is closed: its share of the line is for others."""
        self._is_gone = True
        self._cancel()
        if self.socket is not None and self._pacer is not None:
            self._pacer.close(self.socket)
