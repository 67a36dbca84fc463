"""Measures one relay step by step: presence, identity, distance, address used, and whether large packets arrive.

A step that fails ends the steps, and leaves what it met; `host.doctor_relays` says what that means.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from farflung.app.netcheck import traceroute
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import PeerId
from farflung.host.net_readings import ObservedAddress, RelayReading, ResponderKind, TcpConnectOutcome, voice
from farflung.net import relay_probe
from farflung.net.io.connection import Connection
from farflung.net.io.probe_dialer import ProbeDialer
from farflung.net.messages import MessageKind

CONNECT_SECONDS: Final = 3.2  # a SYN that was lost is sent again after one second, and after three
ANSWER_SECONDS: Final = 1.2  # for four bytes; then a line's end is sent, which makes a web server speak
SECOND_SECONDS: Final = 1.0
HANDSHAKE_SECONDS: Final = 5.0
TRIPS: Final = 9
TRIP_SECONDS: Final = 3.0  # for all of them
BULK_SECONDS: Final = 5.0
ELSEWHERE: Final = 443  # a port that is open, or refused, on most machines
# Bytes of the packets that are tried where large ones do not pass.
SIZES: Final = (1500, 1492, 1450, 1400, 1280, 1200, 1000, 576)
_HEADERS: Final = {4: 40, 6: 60}  # of IP and TCP
_IP_MTU: Final = {4: (0, 14), 6: (41, 24)}  # level, option: Linux's IP_MTU, IPV6_MTU
_UNREACHABLE: Final = {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.EPROTO}
_NUMBER_BYTES: Final = 16
_PLACE_BYTES: Final = 512


@dataclass(frozen=True)
class RelayAddress:
    """A relay as somebody named it. `key`: None where none was named."""

    host: str
    port: int
    key: PeerId | None = None

    @property
    def place(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RelayProbe:
    """One relay. `found` grows with each step, and is true at any time. `clock`: seconds since 1970."""

    def __init__(self, named: RelayAddress, caller: ProbeDialer, clock: Callable[[], float] = time.time) -> None:
        self._named, self._caller, self._clock = named, caller, clock
        self._address: tuple[Any, ...] = ()
        self.family = socket.AF_INET
        self.found = RelayReading(
            named.place, named.host, named.port, named=named.key.hex() if named.key is not None else ""
        )
        self.connection: Connection | None = None

    def note(self, **facts: Any) -> None:
        """Adds to what was found."""
        self.found = msgspec.structs.replace(self.found, **facts)

    async def meet(self, port: int = 0) -> None:
        """From the name to round trips, clock and large packets. `port`: the local one to use (0: any)."""
        if not (await self._resolve() and await self._ask_version()):
            return
        key = self._key()
        if key is None or not await self._call(key, port):
            return
        await self._trips()
        await self._bulk()

    async def follow(self) -> None:
        """How far packets get: to the port and to another one where there is no connection, and by UDP."""
        if not self._address:
            return
        host = str(self._address[0])
        jobs = [(host, traceroute.UDP_PORT, socket.SOCK_DGRAM)]
        if self.found.way in (TcpConnectOutcome.SILENT, TcpConnectOutcome.UNREACHABLE):
            other = ELSEWHERE if self._named.port != ELSEWHERE else 80
            jobs += [(host, self._named.port, socket.SOCK_STREAM), (host, other, socket.SOCK_STREAM)]
        trails = await asyncio.gather(*(asyncio.to_thread(traceroute.trail, *job) for job in jobs))
        self.note(**dict(zip(("udp", "trail", "other"), trails, strict=False)))

    async def dial(self, *, port: int = 0, segment: int = 0, seconds: float = HANDSHAKE_SECONDS) -> Connection:
        """One connection more. `segment`: the largest TCP segment of both sides (0: as the system has it).

        Raises NetworkError, OSError, TimeoutError.
        """
        key = self._key()
        assert key is not None
        async with asyncio.timeout(seconds):
            return await self._caller.call(await self._connected(port, segment), key)

    def drop(self, connection: Connection) -> None:
        """Ends one that `dial` gave."""
        self._caller.drop(connection)

    # Steps

    async def _resolve(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found = await addresses(self._named.host, self._named.port)
        except (OSError, UnicodeError) as error:
            words = "no answer in time" if isinstance(error, TimeoutError) else _words(error)
            self.note(way=TcpConnectOutcome.NO_NAME, words=words)
            return False
        known = {socket.AF_INET: 4, socket.AF_INET6: 6}
        self.note(families=tuple(sorted({known[each[0]] for each in found if each[0] in known})))
        for family, _, _, _, address in found[:4]:
            self.family, self._address = family, address
            self.note(address=str(address[0]))
            if await self._knock():
                return True
        return False

    async def _knock(self) -> bool:
        start = time.monotonic()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                (await self._connected()).close()
        except TimeoutError:
            self.note(way=TcpConnectOutcome.SILENT, words=f"no answer within {CONNECT_SECONDS:.0f} s")
        except ConnectionRefusedError as error:
            self.note(way=TcpConnectOutcome.REFUSED, words=_words(error))
        except OSError as error:
            self.note(way=_way(error), words=_words(error))
        else:
            self.note(way=TcpConnectOutcome.STANDS, words="", connect=time.monotonic() - start)
            return True
        return False

    async def _connected(self, port: int = 0, segment: int = 0) -> socket.socket:
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if segment:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
            if port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):  # somebody has it: then this address is no vantage point
                    sock.bind(("", port))
            await asyncio.get_running_loop().sock_connect(sock, self._address)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _ask_version(self) -> bool:
        heard = b""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await self._connected()
        except OSError as error:
            self.note(way=_way(error), words=_words(error))
            return False
        with sock:
            for said, seconds in ((relay_probe.QUESTION, ANSWER_SECONDS), (b"\r\n\r\n", SECOND_SECONDS)):
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(seconds + self.found.connect):
                        await loop.sock_sendall(sock, said)
                        while piece := await loop.sock_recv(sock, 512):
                            heard += piece
                            if len(heard) >= relay_probe.ANSWER_BYTES:
                                break
                        else:
                            self.note(voice=ResponderKind.CLOSED)
                            break
                if heard:
                    break
                self.note(voice=ResponderKind.SILENT)
        if heard:
            kind, words, key = voice(heard)
            self.note(voice=kind, heard=words, key=key)
        return self.found.voice in (ResponderKind.OURS, ResponderKind.CLOSED, ResponderKind.SILENT)

    def _key(self) -> PeerId | None:
        if self._named.key is not None:
            return self._named.key
        return PeerId(bytes.fromhex(self.found.key)) if self.found.key else None

    async def _call(self, key: PeerId, port: int) -> bool:
        try:
            connection = await self.dial(port=port)
        except TimeoutError:
            self.note(code="FF-NET-044", cause=f"no handshake within {HANDSHAKE_SECONDS:.0f} s")
            await self._sizes()
            return False
        except FarflungError as error:
            self.note(code=error.code, cause=error.cause or error.message)
            return False
        except OSError as error:
            self.note(code="FF-NET-043", cause=_words(error))
            return False
        self.connection = connection
        self.note(key=key.hex(), mtu=_mtu(connection, self.family))
        return True

    async def _trips(self) -> None:
        assert self.connection is not None
        trips: list[float] = []
        best: tuple[float, float] | None = None  # round trip and skew of the quickest question
        with contextlib.suppress(NetworkError, TimeoutError):
            async with asyncio.timeout(TRIP_SECONDS):
                for _ in range(TRIPS):
                    start, wall = time.monotonic(), self._clock()
                    told = decode(await self.connection.call(relay_probe.TIME, b""), int, _NUMBER_BYTES)
                    trip = time.monotonic() - start
                    trips.append(trip)
                    if best is None or trip < best[0]:
                        best = trip, told / 1000 - (wall + trip / 2)
        if best is None:
            self.note(code="FF-NET-047", cause="it takes us in and answers nothing")
            return
        self.note(trips=tuple(trips), skew=best[1])
        with contextlib.suppress(FarflungError):
            told_place = await self.connection.call(relay_probe.WHERE, b"", timeout=2.0)
            there = decode(told_place, tuple[str, int], _PLACE_BYTES)
            if self.connection.tcp is not None and _is_address(there[0]):
                here = self.connection.tcp.getsockname()
                self.note(seen=ObservedAddress((str(here[0]), int(here[1])), there))

    async def _bulk(self) -> None:
        """Whether full packets arrive, both ways; if not, the largest that do."""
        if self.connection is None or not self.found.trips:
            return
        try:
            await self._both_ways(self.connection, BULK_SECONDS)
        except FarflungError as error:
            if error.code == "FF-NET-047":
                await self._sizes()
        else:
            self.note(mtu=_mtu(self.connection, self.family))

    async def _both_ways(self, connection: Connection, seconds: float) -> None:
        size = limits.MEASURE_BYTES // 4
        calls = (
            connection.call(relay_probe.SINK, bytes(size), kind=MessageKind.JOIN, timeout=seconds),
            connection.call(relay_probe.SOURCE, encode(size), kind=MessageKind.JOIN, timeout=seconds),
        )
        done = await asyncio.gather(*calls, return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each

    async def _sizes(self) -> None:
        """Tries all sizes at once; if a small one passes, it was the size that the line did not take."""
        headers = _HEADERS[4 if self.family == socket.AF_INET else 6] + 12  # and the timestamps of TCP
        passed = await asyncio.gather(*(self._passes(size - headers) for size in SIZES))
        best = max((size for size, is_good in zip(SIZES, passed, strict=True) if is_good), default=0)
        self.note(is_stalled=True, passing=best)

    async def _passes(self, segment: int) -> bool:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(BULK_SECONDS):
                connection = await self.dial(segment=segment + 12)
                await self._both_ways(connection, BULK_SECONDS)
        except (OSError, FarflungError):
            return False
        finally:
            if connection is not None:
                self.drop(connection)
        return True


async def addresses(host: str, port: int) -> list[Any]:
    """What `socket.getaddrinfo` says of TCP. Raises OSError, UnicodeError.

    In a thread that ends with the process: asyncio waits for its own, and a dead name server takes half a minute.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def settle(found: list[Any], error: Exception | None) -> None:
        if not answer.done():
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

    def ask() -> None:
        found: list[Any] = []
        failed: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        except (OSError, UnicodeError) as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(settle, found, failed)

    threading.Thread(target=ask, daemon=True).start()
    return await answer


def _is_address(text: str) -> bool:
    """Whether a relay has told an address, and nothing that a terminal would obey."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text.isprintable()


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return (getattr(error, "strerror", None) or str(error))[:100]


def _way(error: OSError) -> TcpConnectOutcome:
    if error.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return TcpConnectOutcome.NO_ROUTE
    if error.errno in _UNREACHABLE:
        return TcpConnectOutcome.UNREACHABLE
    if isinstance(error, TimeoutError):
        return TcpConnectOutcome.SILENT
    return TcpConnectOutcome.REFUSED if isinstance(error, ConnectionRefusedError) else TcpConnectOutcome.FAILED


def _mtu(connection: Connection, family: socket.AddressFamily) -> int:
    if connection.tcp is None or not traceroute.CAN_TRACE:
        return 0
    with contextlib.suppress(OSError):
        return int(connection.tcp.getsockopt(*_IP_MTU[4 if family == socket.AF_INET else 6]))
    return 0


@contextlib.contextmanager
def shared_port() -> Iterator[int]:
    """A local port from which several connections may begin: what the other ends see of it tells a NAT's kind."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
