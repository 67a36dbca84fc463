"""Keeps the sockets that send over one line within its rate, and divides that anew by what each of them sends."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import Final

from farflung.net.io.socket_options import pace
from farflung.net.max_min_fair import divide, wanted

_SHARE_SECONDS: Final = 0.5  # between two looks: a few round trips


@dataclass(slots=True)
class _PacedSender:
    want: int  # bytes a second
    lately: deque[int]  # bytes a second, at the last looks
    share: int = 0
    sent: int = 0  # since the last look
    used: int = 0  # bytes a second, at the last look
    is_quiet: bool = False


class UploadPacer:
    """One line's upload, `rate` bytes a second for all senders together. A newcomer wants all of it until looked at.

    What counts as a sender's use is the most of its last `looks`. BBR sends hardly anything for 0.2 s and a round trip
    every ten seconds: whose share was given away meanwhile is paced to little when it goes on, takes that for its line,
    and needs seconds to come back.
    """

    def __init__(self, rate: int, *, looks: int = 1) -> None:
        self.rate, self.lift, self._looks = rate, 1.0, looks
        self._senders: dict[socket.socket, _PacedSender] = {}

    def open(self, sock: socket.socket) -> None:
        """From now on `sock` has a share."""
        self._senders[sock] = _PacedSender(self.rate, deque(maxlen=self._looks))
        self._divide()

    def close(self, sock: socket.socket) -> None:
        """Its share is for the others; nothing if it had none."""
        if self._senders.pop(sock, None) is not None:
            self._divide()

    def limit(self, rate: int, lift: float = 1.0) -> None:
        """The line carries `rate` from now on, of which `lift` times is shared out; who wanted all still does."""
        if (rate, lift) != (self.rate, self.lift):
            before, self.rate, self.lift = self.rate, rate, lift
            for sender in self._senders.values():
                if sender.want >= before:
                    sender.want = rate
            self._divide()

    def sent(self, sock: socket.socket, size: int) -> None:
        """`size` bytes more were sent; nothing if `sock` has no share."""
        sender = self._senders.get(sock)
        if sender is not None:
            sender.sent += size

    def quiet(self, sock: socket.socket, is_quiet: bool) -> None:
        """Whether nothing waits in it. Then it may send at the whole rate, until it does; nothing if it has no share.

        A TCP that is paced slowly while it says little takes that for its line, and begins its next burst so.
        """
        sender = self._senders.get(sock)
        if sender is not None and sender.is_quiet != is_quiet:
            sender.is_quiet, sender.want = is_quiet, self.rate
            self._divide()

    def look(self, seconds: float) -> None:
        """Divides by what was sent in the `seconds` since the last look."""
        for sender in self._senders.values():
            sender.used = int(sender.sent / max(1e-3, seconds))
            sender.lately.append(sender.used)
            sender.want = wanted(max(sender.lately), sender.share, self.rate, len(self._senders))
            sender.sent = 0
        self._divide()

    async def keep(self) -> None:
        """Looks for ever."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(_SHARE_SECONDS)
            now = loop.time()
            self.look(now - last)
            last = now

    def _divide(self) -> None:
        senders = self._senders.values()
        little = sum(sender.used for sender in senders if sender.is_quiet)
        busy = [sender for sender in senders if not sender.is_quiet]
        rate = max(self.rate // 2, int(self.lift * self.rate) - little)
        shares = iter(divide(rate, [sender.want for sender in busy]))
        for sock, sender in self._senders.items():
            share = self.rate if sender.is_quiet else next(shares)
            if share != sender.share:
                sender.share = share
                pace(sock, share)
