"""What a connection that carries peers' bytes asks of the kernel, in one place; what a system lacks is left as it is.

    TCP_NODELAY           a frame leaves when it is written
    TCP_NOTSENT_LOWAT     the kernel holds little unsent, so that control can overtake bulk
    TCP_CONGESTION        bbr, where the kernel has it and lets this user choose it; else what the system has chosen
    SO_MAX_PACING_RATE    only where a rate was given (`pacing`)

Connections within one machine keep the system's congestion control: nothing is lost there, so bbr has nothing to win;
it would pace what memory carries, by timers, which costs processor time and speed.

Sources: tcp(7); draft-ietf-ccwg-bbr; figures in docs/decisions/024-congestion-control.md.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from dataclasses import dataclass
from typing import Final

from farflung.core import limits

WANTED: Final = "bbr"
CAN_PACE: Final = sys.platform == "linux"
MOST_PACED: Final = (1 << 31) - 1  # bytes a second: the option is an int
_UNSENT_BYTES: Final = 256 * limits.KIB  # in the kernel, not yet on the wire
_NAME_BYTES: Final = 16  # TCP_CA_NAME_MAX
# Not every system has these names, and Python has none for the last: Linux's number, except on SPARC and PA-RISC.
_CONGESTION: Final[int | None] = getattr(socket, "TCP_CONGESTION", None)
_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_MAX_PACING_RATE: Final = 47


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a connection got, read back from the kernel.

    `congestion`: the algorithm's name, "" where the system does not say. `refusal`: the system's error number when
    bbr was asked for and not given (EPERM: not to this user, ENOENT: it has none), else 0.
    """

    congestion: str
    is_local: bool
    refusal: int = 0


def tune(sock: socket.socket) -> Tuned:
    """Asks for all of it, of a connected socket. Raises nothing: a socket that is broken shows it when it is used."""
    _set(sock, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if _NOTSENT_LOWAT is not None:  # without it control overtakes only what the kernel does not yet hold
        _set(sock, socket.IPPROTO_TCP, _NOTSENT_LOWAT, _UNSENT_BYTES)
    local = is_local(sock)
    refusal = 0 if local else ask(sock, WANTED)
    return Tuned(congestion(sock), local, refusal)


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
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def _set(sock: socket.socket, level: int, option: int, value: int) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, value)
