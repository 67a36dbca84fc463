"""Remembers in a file how fast the line of each network was, so that the next process need not look for it.

A network is named by the addresses of this machine's own side (/24, IPv6 /64): two homes may share a name, and then the
remembered rate is only a beginning, which the next seconds of sending correct.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import FarflungError
from farflung.core.io.durable_files import write_atomic

_VERSION: Final = 1
_OLD_SECONDS: Final = 30 * 86_400  # then a line is looked at as if it were new


class _LineRate(Wire, frozen=True):
    network: str
    rate: int  # bytes of payload a second
    when: int  # seconds since 1970


class _LineRateTable(Wire, frozen=True):
    version: int
    lines: tuple[_LineRate, ...]


class LineRateCache:
    """The file, read anew at every question: other processes write it too. What is damaged or unreadable is nothing."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def rate(self, network: str) -> int | None:
        """Bytes a second of its line, if that is known and not old."""
        now = self._clock()
        return next((e.rate for e in self._lines() if e.network == network and now - e.when < _OLD_SECONDS), None)

    def newest(self) -> int | None:
        """The same of the network that was measured last."""
        found = max(self._lines(), key=lambda each: each.when, default=None)
        return None if found is None or self._clock() - found.when >= _OLD_SECONDS else found.rate

    def keep(self, network: str, rate: int) -> None:
        """Writes it down. Two processes that do so at once: one of them counts. Raises nothing."""
        others = [each for each in self._lines() if each.network != network][-(limits.LINES_KNOWN - 1) :]
        lines = (*others, _LineRate(network, rate, int(self._clock())))
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._path, encode(_LineRateTable(_VERSION, lines)), "net.lines", private=True)
        except (OSError, FarflungError):
            return

    def _lines(self) -> tuple[_LineRate, ...]:
        try:
            with open(self._path, "rb") as file:
                data = file.read(limits.BOOK_BYTES + 1)
            found = decode(data, _LineRateTable, limits.BOOK_BYTES)
        except (OSError, FarflungError):
            return ()
        is_sound = found.version == _VERSION and all(each.rate > 0 for each in found.lines)
        return found.lines if is_sound else ()


def network_of(sock: socket.socket) -> str:
    """The name of the network that a connected socket is in."""
    address = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0])
    length = 24 if address.version == 4 else 64
    return str(ipaddress.ip_network(f"{address}/{length}", strict=False))
