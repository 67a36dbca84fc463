"""Measures the loopback with a connection of farflung's own kind: TCP, clear hello, TLS 1.3 between two keys.

Also what the system does with connections to other computers, as far as it can be told without asking any.
"""

from __future__ import annotations

import contextlib
import errno
import platform
import re
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError
from farflung.core.limits import KIB, MIB
from farflung.host.io.doctor_storage import broken
from farflung.host.machine_readings import (
    CongestionReading,
    LoopbackReading,
    MissingReading,
    PortRangeReading,
    PortReading,
    SystemCallFailure,
)
from farflung.net.io import socket_options
from farflung.net.io.tls_key import FileTlsCredentials
from farflung.net.tls import TlsSession

HOST: Final = "127.0.0.1"
SENT: Final = 8 * MIB
PIECE: Final = 256 * KIB
TURNS: Final = 30
TIMEOUT: Final = 3.0  # seconds that one end waits for the other
PORTS: Final = 16  # listeners of the default run: 13 of them
RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
CONTROLS: Final = Path("/proc/sys/net/ipv4")
MODULES: Final = Path("/lib/modules")


class _LoopbackEnd:
    """One end of a connection, in the calling thread."""

    def __init__(self, link: socket.socket, session: TlsSession) -> None:
        self._link, self._session, self._plain = link, session, bytearray()
        link.settimeout(TIMEOUT)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def shake(self) -> None:
        """Until the other's key is proved, and this end has said what it must."""
        self._flush()
        while not self._session.is_ready:
            self._take()

    def send(self, data: bytes) -> None:
        self._session.send(data)
        self._flush()

    def receive(self, count: int) -> bytes:
        while len(self._plain) < count:
            self._take()
        data = bytes(self._plain[:count])
        del self._plain[:count]
        return data

    def _take(self) -> None:
        data = self._link.recv(PIECE)
        if not data:
            raise ConnectionError("the other end closed the connection")
        self._plain += b"".join(self._session.receive(data))
        self._flush()

    def _flush(self) -> None:
        self._link.sendall(self._session.outgoing())


def _answer(listener: socket.socket, key: FileTlsCredentials) -> None:
    """The other end: gives each byte back, then takes the rest and says so."""
    with contextlib.closing(key), contextlib.suppress(OSError, FarflungError):
        link, _ = listener.accept()
        with link:
            end = _LoopbackEnd(link, TlsSession.server(key))
            end.shake()
            for _ in range(TURNS):
                end.send(end.receive(1))
            end.receive(SENT)
            end.send(b"x")


def loopback() -> LoopbackReading:
    """Connects to itself, says hello, plays some bytes round trip, sends a few MB."""
    here, there = SigningKey(b"\1" * 32), SigningKey(b"\2" * 32)  # they protect nothing
    mine, theirs = FileTlsCredentials(here), FileTlsCredentials(there)
    try:
        with socket.create_server((HOST, 0)) as listener:
            listener.settimeout(TIMEOUT)
            threading.Thread(target=_answer, args=(listener, theirs), daemon=True).start()
            start = time.perf_counter()
            with socket.create_connection(listener.getsockname(), TIMEOUT) as link:
                end = _LoopbackEnd(link, TlsSession.client(mine, there.public))
                end.shake()
                shaken = time.perf_counter() - start
                turns = [_turn(end) for _ in range(TURNS)]
                start = time.perf_counter()
                for _ in range(SENT // PIECE):
                    end.send(bytes(PIECE))
                end.receive(1)
                rate = SENT / max(1e-9, time.perf_counter() - start)
    except (OSError, FarflungError) as error:
        return LoopbackReading(broken=_words(error))
    finally:
        mine.close()
    return LoopbackReading(shaken, statistics.median(turns), rate)


def _turn(end: _LoopbackEnd) -> float:
    start = time.perf_counter()
    end.send(b"x")
    end.receive(1)
    return time.perf_counter() - start


def _words(error: OSError | FarflungError) -> SystemCallFailure:
    if isinstance(error, FarflungError):
        return SystemCallFailure(0, f"{error.message}: {error.cause}" if error.cause else error.message)
    if isinstance(error, TimeoutError):
        return SystemCallFailure(0, f"no answer within {TIMEOUT:.0f} s")
    return broken(error)


def ports() -> PortRangeReading | MissingReading:
    """Listens on some free ports at once."""
    numbers: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        numbers = [int(word) for word in re.split(r"\s+", RANGE.read_text("ascii").strip())]
    first, last = numbers if len(numbers) == 2 else (0, 0)
    held = 0
    with contextlib.ExitStack() as open_ports:
        try:
            for held in range(1, PORTS + 1):  # noqa: B007
                open_ports.enter_context(socket.create_server((HOST, 0)))
        except OSError as error:
            held -= 1
            if error.errno == errno.EMFILE:
                return MissingReading("this process may not open as many files", "ulimit -n 1024")
    return PortRangeReading(first, last, PORTS, held)


def port(number: int) -> PortReading:
    """Listens on one port, and lets it go."""
    try:
        socket.create_server((HOST, number)).close()
    except OSError as error:
        return PortReading(number, broken(error))
    return PortReading(number)


def congestion() -> CongestionReading:
    """Asks for what farflung's connections ask for, on a socket that goes nowhere, and reads what the system says."""
    wanted = socket_options.WANTED
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        own = socket_options.congestion(tried)
        refusal = socket_options.ask(tried, wanted)
        got = socket_options.congestion(tried)
    available, allowed = (_names(CONTROLS / f"tcp_{word}_congestion_control") for word in ("available", "allowed"))
    in_kernel = True if wanted in available else _is_in_kernel(f"tcp_{wanted}")
    return CongestionReading(sys.platform, wanted, own, got, refusal, available, allowed, in_kernel)


def _names(file: Path) -> tuple[str, ...]:
    try:
        return tuple(file.read_text("ascii", "replace").split())
    except OSError:  # not Linux, or hidden
        return ()


def _is_in_kernel(module: str) -> bool | None:
    """Whether the running kernel has this module, on disk or built in; None where its lists are not here."""
    folder = MODULES / platform.release()
    lists = [folder / "modules.dep", folder / "modules.builtin"]
    try:
        return any(f"/{module}.ko" in file.read_text("utf-8", "replace") for file in lists)
    except OSError:
        return None
