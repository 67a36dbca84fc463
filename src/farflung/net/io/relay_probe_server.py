"""Answers a peer's questions to a relay about the line between the two (`relay_probe`)."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import NetworkError, ProtocolError
from farflung.net import relay_probe
from farflung.net.io.connection import Connection
from farflung.net.io.pacer import UploadPacer
from farflung.net.relay_probe import ProbeRateLimiter, ReachResult

_NUMBER_BYTES: Final = 16  # of a canonical integer
_ZEROS: Final = bytes(limits.MEASURE_BYTES)


class RelayProbeServer:
    """Measures for others, within an allowance; what it sends keeps to the relay's own `uplink`, if there is one."""

    def __init__(self, clock: Callable[[], float], uplink: UploadPacer | None) -> None:
        """`clock` gives seconds since 1970."""
        self._clock, self._uplink = clock, uplink
        self._limiter = ProbeRateLimiter()
        self._paced: dict[Connection, asyncio.Task[None]] = {}

    def methods(self) -> dict[str, Callable[[Connection, bytes], Awaitable[bytes]]]:
        """What serves each method; raises NetworkError FF-NET-078 over the allowance, ProtocolError FF-NET-075."""
        return {
            relay_probe.TIME: self._time,
            relay_probe.WHERE: self._where,
            relay_probe.SINK: self._sink,
            relay_probe.SOURCE: self._source,
            relay_probe.REACH: self._reach,
        }

    async def _time(self, connection: Connection, body: bytes) -> bytes:
        return encode(int(self._clock() * 1000))

    async def _where(self, connection: Connection, body: bytes) -> bytes:
        return encode(connection.remote)

    async def _sink(self, connection: Connection, body: bytes) -> bytes:
        if len(body) > limits.MEASURE_BYTES:
            raise _refused(f"{len(body)} bytes at a time")
        self._take(connection, len(body))
        return encode(len(body))

    async def _source(self, connection: Connection, body: bytes) -> bytes:
        size = _number(body, limits.MEASURE_BYTES)
        self._take(connection, size)
        self._pace(connection, size)
        return _ZEROS[:size]

    async def _reach(self, connection: Connection, body: bytes) -> bytes:
        host, port = connection.remote[0], _number(body, (1 << 16) - 1)
        if not self._limiter.reach(connection.peer, host, time.monotonic()):
            raise _enough()
        return encode(int(await connects(host, port, limits.MEASURE_REACH_SECONDS)))

    def _take(self, connection: Connection, size: int) -> None:
        if not self._limiter.take(connection.peer, size, time.monotonic()):
            raise _enough()

    def _pace(self, connection: Connection, size: int) -> None:
        """What is sent to be measured goes up the relay's line like everything else."""
        uplink, tcp, tuned = self._uplink, connection.tcp, connection.tuned
        if uplink is None or tcp is None or tuned is None or tuned.is_local:
            return
        if connection not in self._paced:
            uplink.open(tcp)
            self._paced[connection] = asyncio.create_task(self._until_lost(connection, uplink, tcp))
        uplink.sent(tcp, size)

    async def _until_lost(self, connection: Connection, uplink: UploadPacer, tcp: socket.socket) -> None:
        await connection.closed()
        uplink.close(tcp)
        del self._paced[connection]


async def connects(host: str, port: int, seconds: float) -> ReachResult:
    """Whether a TCP connection to this address can be had; it is closed at once, nothing is said."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setblocking(False)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().sock_connect(tried, (host, port))
        except TimeoutError as error:
            # The system gives up after minutes with ETIMEDOUT, which Python calls by the same name.
            return ReachResult.SILENT if error.errno in (None, errno.ETIMEDOUT) else ReachResult.UNREACHABLE
        except ConnectionRefusedError:
            return ReachResult.REFUSED
        except OSError:
            return ReachResult.UNREACHABLE
    return ReachResult.YES


def _number(body: bytes, most: int) -> int:
    number = decode(body, int, _NUMBER_BYTES)
    if not 0 < number <= most:
        raise _refused(f"{number} of that")
    return number


def _refused(what: str) -> ProtocolError:
    return ProtocolError("FF-NET-075", f"a relay does not serve {what}")


def _enough() -> NetworkError:
    return NetworkError(
        "FF-NET-078",
        "the relay measures no more for now",
        cause="so much a minute for each key and for all is the bound",
        hint="ask again in a minute",
    )
