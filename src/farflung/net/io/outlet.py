"""Hands ciphertext to one transport and knows, to the byte, what the kernel has taken of it and for what kind."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Final

from farflung.core import limits
from farflung.net.counters import Meter
from farflung.net.io.tuning import Tuned, tune
from farflung.net.streams import Kind

_OVERFULL_BYTES: Final = 256 * limits.KIB  # four of the largest frames


class Outlet:
    """The sending half of a transport. `is_paused`: the kernel takes no more for now."""

    def __init__(self, transport: asyncio.Transport, meter: Meter) -> None:
        self._transport, self._meter = transport, meter
        self._written: deque[tuple[Kind, int]] = deque()  # what the kernel may not have taken yet
        self.is_paused = False
        transport.set_write_buffer_limits(high=0)
        self.socket: socket.socket | None = transport.get_extra_info("socket")
        self.remote: tuple[str, int] | None = transport.get_extra_info("peername")
        self.tuned: Tuned | None = None if self.socket is None else tune(self.socket)

    @property
    def is_overfull(self) -> bool:
        """Whether more waits than our own frames can cause: the peer makes TLS answer, and does not read."""
        return self._transport.get_write_buffer_size() > _OVERFULL_BYTES

    def write(self, kind: Kind, data: bytes) -> None:
        """Sends `data`, now or as soon as the kernel takes it."""
        if not data or self._transport.is_closing():
            return
        self._written.append((kind, len(data)))
        self._transport.write(data)
        if not self._transport.is_closing():  # else the kernel has refused it, and what waited is gone
            self.account()

    def account(self) -> None:
        """Counts what was taken since the last look: what was written, less what the transport still holds."""
        taken = sum(size for _, size in self._written) - self._transport.get_write_buffer_size()
        while taken > 0:
            kind, size = self._written.popleft()
            part = min(size, taken)
            self._meter.sent(kind, part)
            taken -= part
            if part < size:
                self._written.appendleft((kind, size - part))

    def close(self) -> None:
        """Closes behind the last byte written."""
        self._transport.close()

    def abort(self) -> None:
        """Closes now."""
        self._transport.abort()
