"""Traces the route to an address like traceroute, without root, from the errors that Linux queues on a socket.

Packets that may pass one, two, three ... routers are sent at once; the router at which one ends says so. What differs
between the trails to two ports of one address is the work of whoever stands behind the last router of the shorter one.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Final

from farflung.host.net_readings import RouteTrace

ROUTERS: Final = 10
SECONDS: Final = 1.5
UDP_PORT: Final = 33434  # where nobody listens, and where everybody's traceroute goes
CAN_TRACE: Final = sys.platform == "linux"
_RECVERR: Final = {socket.AF_INET: (0, 11), socket.AF_INET6: (41, 25)}  # level, option
_HOPS: Final = {socket.AF_INET: (0, 2), socket.AF_INET6: (41, 16)}  # IP_TTL, IPV6_UNICAST_HOPS
_ERROR_QUEUE: Final = 0x2000
_ERROR: Final = struct.Struct("=IBBBBII")  # sock_extended_err of linux/errqueue.h
_FROM_ROUTER: Final = (2, 3)  # ICMP, ICMPv6
_EXPIRED: Final = {2: 11, 3: 3}  # the type of "time exceeded" in each


@dataclass
class _HopProbe:
    sock: socket.socket
    hops: int
    router: str = ""
    seconds: float = 0.0
    is_end: bool = False
    is_done: bool = False


def trail(address: str, port: int, kind: socket.SocketKind, seconds: float = SECONDS) -> RouteTrace | None:
    """Routers on the way to a port, by TCP (SOCK_STREAM) or UDP. None where this system does not tell."""
    if not CAN_TRACE:
        return None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    probes: list[_HopProbe] = []
    start = time.monotonic()
    try:
        for hops in range(1, ROUTERS + 1):
            probes.append(_sent(family, kind, (address, port), hops))  # noqa: PERF401 - all are closed if one fails
        _wait(probes, start, start + seconds)
    except OSError:
        return None
    finally:
        for probe in probes:
            probe.sock.close()
    return _told(probes)


def _sent(family: socket.AddressFamily, kind: socket.SocketKind, place: tuple[str, int], hops: int) -> _HopProbe:
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        sock.setsockopt(*_RECVERR[family], 1)
        sock.setsockopt(*_HOPS[family], hops)
        # Nobody is left half open.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(BlockingIOError):
            sock.connect(place)
        if kind == socket.SOCK_DGRAM:
            with contextlib.suppress(OSError):
                sock.send(b"farflung check")
    except BaseException:
        sock.close()
        raise
    return _HopProbe(sock, hops)


def _wait(probes: list[_HopProbe], start: float, stop: float) -> None:
    poller = select.poll()
    open_ = {probe.sock.fileno(): probe for probe in probes}
    for number, probe in open_.items():
        poller.register(number, select.POLLOUT if probe.sock.type == socket.SOCK_STREAM else select.POLLIN)
    while open_ and (left := stop - time.monotonic()) > 0:
        for number, _ in poller.poll(left * 1000):
            probe = open_[number]
            _read(probe, time.monotonic() - start)
            if probe.is_done:
                poller.unregister(number)
                del open_[number]
        ends = [probe.hops for probe in probes if probe.is_end]
        if ends and all(probe.is_done for probe in probes if probe.hops < min(ends)):
            return


def _read(probe: _HopProbe, seconds: float) -> None:
    with contextlib.suppress(BlockingIOError):
        _, ancillary, _, _ = probe.sock.recvmsg(512, 512, _ERROR_QUEUE)
        for _, _, data in ancillary:
            if len(data) >= _ERROR.size:
                _hear(probe, data)
    failed = probe.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if not probe.is_done and failed in (0, errno.ECONNREFUSED):
        probe.is_end = failed == errno.ECONNREFUSED or probe.sock.type == socket.SOCK_STREAM
    probe.is_done, probe.seconds = True, seconds


def _hear(probe: _HopProbe, data: bytes) -> None:
    number, origin, kind, _, _, _, _ = _ERROR.unpack_from(data)
    if origin not in _FROM_ROUTER:
        return
    rest = data[_ERROR.size :]
    if origin == 2:
        router = socket.inet_ntop(socket.AF_INET, rest[4:8])
    else:
        router = socket.inet_ntop(socket.AF_INET6, rest[8:24])
    probe.is_done = True
    if kind != _EXPIRED[origin] and number == errno.ECONNREFUSED:  # the destination: no such port
        probe.is_end = True
    else:
        probe.router = router


def _told(probes: list[_HopProbe]) -> RouteTrace:
    end = min((probe.hops for probe in probes if probe.is_end), default=ROUTERS + 1)
    before = [probe for probe in probes if probe.hops < end]
    last = max((probe.hops for probe in before if probe.router), default=0)
    shown = before if end <= ROUTERS else before[:last]
    return RouteTrace(
        tuple(probe.router for probe in shown),
        tuple(round(probe.seconds, 6) if probe.router else 0.0 for probe in shown),
        end <= ROUTERS,
    )
