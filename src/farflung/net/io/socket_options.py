"""Sets and reads the kernel's socket options for connections between peers, and skips those a system lacks.

    TCP_NODELAY           a frame leaves when it is written
    TCP_NOTSENT_LOWAT     the kernel holds little unsent, so that control can overtake bulk; to other machines some
                          milliseconds of what the connection delivers (`rate_limiter`, `write_size`)
    TCP_CONGESTION        bbr, where the kernel has it and lets this user choose it; else what the system has chosen
    SO_RCVLOWAT           a group's frame is of use when it is whole (`leg`, `fan`)
    SO_MAX_PACING_RATE    to other machines: its share of the line (`pacer`, `rate_limiter`)
    SO_KEEPALIVE          to a relay: its kernel is asked after ALIVE_SECONDS without a byte (`relay_registration`)

Connections within one machine keep the system's congestion control: nothing is lost there, so bbr has nothing to win;
it would pace what memory carries, by timers, which costs processor time and speed.

Sources: tcp(7); draft-ietf-ccwg-bbr; figures in docs/decisions/024-congestion-control.md.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Final

from farflung.core import limits

WANTED: Final = "bbr"
CAN_PACE: Final = sys.platform == "linux"
MOST_PACED: Final = (1 << 31) - 1  # bytes a second: the option is an int
ALIVE_SECONDS: Final = 2  # without a byte, until the other end's kernel is asked, each second anew
DEAD_SECONDS: Final = 5  # without an answer: the connection is over
UNSENT_BYTES: Final = 256 * limits.KIB  # in the kernel, not yet on the wire
_NAME_BYTES: Final = 16  # TCP_CA_NAME_MAX
# Not every system has these names, and Python has none for the last: Linux's number, except on SPARC and PA-RISC.
_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)
_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_MAX_PACING_RATE: Final = 47
_ALIVE: Final = {
    "TCP_KEEPIDLE": ALIVE_SECONDS,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": DEAD_SECONDS - ALIVE_SECONDS,
    "TCP_USER_TIMEOUT": 1000 * DEAD_SECONDS,  # of what was sent and not acknowledged, ms
}
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None) if CAN_PACE else None
# struct tcp_info of linux/tcp.h: the bits that begin with delivery_rate_app_limited, snd_mss, rtt, notsent, min_rtt,
# delivery_rate, rwnd_limited, sndbuf_limited, delivered, bytes_retrans (Linux 4.19)
_INFO: Final = struct.Struct("=7xB8xI48xI72xII8xQ8xQQI12xQ")
_APP_LIMITED: Final = 1 if sys.byteorder == "little" else 0x80
_SENT: Final = struct.Struct("=200xQQ")  # bytes_sent and bytes_retrans of the same (Linux 4.19)
# Networks of homes and offices: what stays in them does not go up the line.
_NEAR: Final = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
                               "fc00::/7", "fe80::/10"))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SocketTuning:
    """What a connection got, read back from the kernel.

    `congestion`: the algorithm's name, "" where the system does not say. `refusal`: the system's error number when
    bbr was asked for and not given (EPERM: not to this user, ENOENT: it has none), else 0.
    """

    congestion: str
    is_local: bool
    refusal: int = 0


@dataclass(frozen=True, slots=True)
class SocketReading:
    """What the kernel says of a connection. Times in seconds, `rate` bytes a second: the newest rate of delivery."""

    # Bytes so far, whole segments, also those that came out of order; counts round at 2^32 segments.
    delivered: int
    again: int  # bytes so far that were sent once more
    rate: float
    trip: float
    shortest: float
    has_unsent: bool
    bound: float  # seconds so far in which the other end's window was shut, or we were late to write more
    is_starved: bool  # `rate` is of a time in which too little was written


def read(sock: socket.socket) -> SocketReading | None:
    """Of a connected socket; None where the system does not say (all but Linux)."""
    if _TCP_INFO is None:
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size)
    except OSError:
        return None
    if len(data) < _INFO.size:
        return None
    bits, segment, trip, unsent, shortest, rate, shut, late, delivered, again = _INFO.unpack(data)
    return SocketReading(
        delivered=delivered * segment,
        again=again,
        rate=rate,
        trip=trip / 1e6,
        shortest=shortest / 1e6,
        has_unsent=unsent > 0,
        bound=(shut + late) / 1e6,
        is_starved=bool(bits & _APP_LIMITED),
    )


def tune(sock: socket.socket) -> SocketTuning:
    """Asks for all of it, of a connected socket. Raises nothing: a socket that is broken shows it when it is used."""
    _set(sock, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hold(sock, UNSENT_BYTES)
    local = is_local(sock)
    refusal = 0 if local else ask(sock, WANTED)
    return SocketTuning(congestion(sock), local, refusal)


def ask(sock: socket.socket, name: str) -> int:
    """Asks for this congestion control; the error number of a refusal, 0 for none, also where none can be asked for."""
    if _CONGESTION is None:
        return 0
    try:
        sock.setsockopt(socket.IPPROTO_TCP, _CONGESTION, name.encode())
    except OSError as error:
        return error.errno or 0
    return 0


def congestion(sock: socket.socket) -> str:
    """The congestion control that the socket has; "" where the system does not say."""
    if _CONGESTION is None:
        return ""
    try:
        name = sock.getsockopt(socket.IPPROTO_TCP, _CONGESTION, _NAME_BYTES)
    except OSError:
        return ""
    return name.split(b"\0")[0].decode("ascii", "replace")


def pace(sock: socket.socket, rate: int) -> None:
    """Lets the socket send `rate` bytes a second at most, 1 to MOST_PACED. The kernel counts payload, not headers.

    Linux paces TCP by itself, with any queue discipline. Elsewhere nothing happens (CAN_PACE).
    """
    if CAN_PACE:  # 0 would mean: as fast as you like
        _set(sock, socket.SOL_SOCKET, _MAX_PACING_RATE, min(max(1, rate), MOST_PACED))


def keep_alive(sock: socket.socket) -> bool:
    """Has the kernel end the connection DEAD_SECONDS after the line was cut; False where it cannot (all but Linux).

    Two packets without payload in ALIVE_SECONDS: 104 bytes, a quarter of what a request and its answer take.
    """
    names = [getattr(socket, name, None) for name in _ALIVE]
    if None in names:
        return False
    _set(sock, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(names, _ALIVE.values(), strict=True):
        _set(sock, socket.IPPROTO_TCP, int(name or 0), value)
    return True


def is_near(sock: socket.socket) -> bool:
    """Whether the other end is on this machine or in this home: then nothing goes over the home's line."""
    return is_local(sock) or _is_private(sock.getpeername()[0])


def _is_private(host: str) -> bool:
    address = _address(host)
    return any(address in network for network in _NEAR)


def hold(sock: socket.socket, size: int) -> None:
    """Lets the kernel hold `size` bytes unsent: control overtakes only what it does not hold."""
    if _NOTSENT_LOWAT is not None:
        _set(sock, socket.IPPROTO_TCP, _NOTSENT_LOWAT, size)


def expect(sock: socket.socket, size: int) -> None:
    """Lets the kernel wake who reads the socket when `size` bytes are there, or its end, and not for each packet."""
    _set(sock, socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


def is_local(sock: socket.socket) -> bool:
    """Whether both ends are on this machine. Also true of what has no other end, and of what is no internet socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    try:
        here, there = sock.getsockname()[0], sock.getpeername()[0]
    except OSError:
        return True
    return here == there or _is_loopback(there)


def _is_loopback(host: str) -> bool:
    return _address(host).is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])  # a link-local one names its device behind it
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def losses(sock: socket.socket | None) -> tuple[int, int]:
    """Bytes that TCP has sent, and of these again, since the connection stands; zeros where the system does not say."""
    if sock is None or _TCP_INFO is None:
        return 0, 0
    with contextlib.suppress(OSError, struct.error):
        sent, again = _SENT.unpack(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SENT.size))
        return int(sent), int(again)
    return 0, 0


def _set(sock: socket.socket, level: int, option: int, value: int) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, value)
