"""Hands ciphertext to one transport and knows, to the byte, what the kernel has taken of it and for what kind."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from farflung.core import limits
from farflung.net.counters import Meter
from farflung.net.frames import FRAGMENT_BYTES
from farflung.net.io.manners import Manners
from farflung.net.io.tuning import Tuned, tune
from farflung.net.streams import Kind

_OVERFULL_BYTES: Final = 256 * limits.KIB  # four of the largest frames


class Outlet:
    """The sending half of a transport. `is_full`: the kernel takes no more for now."""

    def __init__(
        self,
        transport: asyncio.Transport,
        meter: Meter,
        manners: Manners | None,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when it may send again after `manners` held it."""
        self._transport, self._meter, self._manners = transport, meter, manners
        self._written: deque[tuple[Kind, int]] = deque()  # what the kernel may not have taken yet
        self._waiting = 0  # bytes of it
        self.is_full = False
        transport.set_write_buffer_limits(high=0)
        self.socket: socket.socket | None = transport.get_extra_info("socket")
        self.remote: tuple[str, int] | None = transport.get_extra_info("peername")
        self.tuned: Tuned | None = None
        if self.socket is not None:
            self.tuned = tune(self.socket)
            if manners is not None:
                manners.open(self.socket, transport, wake)

    def emptied(self) -> None:
        """The kernel has taken everything, and takes more."""
        self.is_full = False
        self.account()

    def check(self, kind: Kind) -> None:
        """Raises NetworkError FF-NET-150 when the owner allows no more of this kind this month."""
        if self.socket is not None and self._manners is not None:
            self._manners.check(self.socket, kind)

    def took(self, size: int) -> None:
        """`size` bytes came in."""
        self._meter.received(size)
        if self.socket is not None and self._manners is not None:
            self._manners.received(self.socket, size)

    @property
    def piece(self) -> int:
        """Bytes of the next frame at most; 0: none for now, since the kernel is full or the owner's cap is reached.

        On a slow line control shall not wait for a large one.
        """
        if self.is_full or self.socket is None or self._manners is None:
            return 0 if self.is_full else FRAGMENT_BYTES
        if self._manners.is_held(self.socket):
            return 0
        return min(FRAGMENT_BYTES, self._manners.held(self.socket) // 2)

    @property
    def is_overfull(self) -> bool:
        """Whether more waits than our own frames can cause: the peer makes TLS answer, and does not read."""
        return self._transport.get_write_buffer_size() > _OVERFULL_BYTES

    def write(self, kind: Kind, data: bytes) -> None:
        """Sends `data`, now or as soon as the kernel takes it."""
        if not data or self._transport.is_closing():
            return
        self._written.append((kind, len(data)))
        self._waiting += len(data)
        self._transport.write(data)
        if not self._transport.is_closing():  # else the kernel has refused it, and what waited is gone
            self.account()

    def account(self) -> None:
        """Counts what was taken since the last look: what was written, less what the transport still holds."""
        taken = self._waiting - self._transport.get_write_buffer_size()
        self._waiting -= max(0, taken)
        while taken > 0:
            kind, size = self._written.popleft()
            part = min(size, taken)
            self._meter.sent(kind, part)
            if self.socket is not None and self._manners is not None:
                self._manners.sent(self.socket, part)
            taken -= part
            if part < size:
                self._written.appendleft((kind, size - part))

    def close(self) -> None:
        """Closes behind the last byte written."""
        self._transport.close()

    def abort(self) -> None:
        """Closes now."""
        self._transport.abort()

    def gone(self) -> None:
        """The transport is closed: its share of the line is for others."""
        if self.socket is not None and self._manners is not None:
            self._manners.close(self.socket)
