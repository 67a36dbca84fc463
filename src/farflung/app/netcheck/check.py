"""Runs the measurements of `farflung check --net`: relays at once, then rates one by one, within its time limit.

What is not done when the time is over is missing from what was found, and the findings say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil

from farflung.app.netcheck import peer as netcheck_peer
from farflung.app.netcheck.relay import RelayAddress, RelayProbe, shared_port
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, NetworkError, UsageError
from farflung.core.ids import PeerId
from farflung.host.io import doctor_sockets, doctor_storage
from farflung.host.net_readings import LocalNetReading, NetReadings, PeerReading, PortReachReading, ThroughputReading
from farflung.net import relay_probe
from farflung.net.io.connection import Connection
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.mdns import why_not
from farflung.net.io.probe_dialer import ProbeDialer
from farflung.net.io.probe_window import move
from farflung.net.messages import MessageKind
from farflung.peers.process import bandwidth_limits

SECONDS: Final = 28.0  # for all; with the start of Python the check stays below 30 s
RATED: Final = 2  # relays whose rates are measured
RATE_SECONDS: Final = 2.0  # each way
RATE_BYTES: Final = 16 * limits.MIB  # each way: half a minute's allowance for two checks
_FIRST_BYTES: Final = 8 * limits.KIB
_PING_PAUSE: Final = 0.05
_WARM: Final = 0.3  # of a transfer: it has not got going yet
_ROUTE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}  # nobody's (RFC 5737, RFC 3849)
_NUMBER_BYTES: Final = 16


@dataclass(frozen=True)
class NetCheckRequest:
    """What is to be measured. `listen`: a port of this computer that others should reach. `peer`: whom to look for in
    the directory of `ledger`, which is named with its key.
    """

    key: SigningKey
    relays: tuple[RelayAddress, ...] = ()
    listen: int | None = None
    peer: PeerId | None = None
    ledger: RelayAddress | None = None
    clock: Callable[[], float] = time.time


@dataclass
class _NetCheckState:
    local: LocalNetReading
    relays: list[RelayProbe] = field(default_factory=list)
    reach: PortReachReading | None = None
    peer: PeerReading | None = None
    is_cut: bool = False


async def look(asked: NetCheckRequest, say: Callable[[str], None], seconds: float = SECONDS) -> NetReadings:
    """Everything, after at most `seconds`. `say` hears what is being done."""
    found = _NetCheckState(_local())
    caller = ProbeDialer(asked.key)
    found.relays = [RelayProbe(named, caller, asked.clock) for named in asked.relays]
    try:
        async with asyncio.timeout(seconds):
            await _all(asked, found, say)
    except TimeoutError:
        found.is_cut = True
    finally:
        await caller.close()
    seen = tuple(probe.found for probe in found.relays)
    return NetReadings(found.local, doctor_sockets.congestion(), seen, found.reach, found.peer, is_cut=found.is_cut)


async def _all(asked: NetCheckRequest, found: _NetCheckState, say: Callable[[str], None]) -> None:
    if asked.peer is not None and asked.ledger is not None:
        say(f"asking {asked.ledger.place} for the peer")
        found.peer = await netcheck_peer.meet(asked.key, asked.ledger, asked.peer, asked.clock)
    if not found.relays:
        return
    say("asking " + ", ".join(named.place for named in asked.relays))
    before, start = _sent(), time.monotonic()
    with shared_port() as port:
        await asyncio.gather(*(probe.meet(port) for probe in found.relays))
    spent = time.monotonic() - start
    sending = max(0, _sent() - before) / max(0.5, spent)
    found.local = _local(sending)
    say("following packets on their way")
    await asyncio.gather(*(probe.follow() for probe in found.relays))
    met = [probe for probe in found.relays if probe.found.is_met and not probe.found.is_stalled]
    if asked.listen is not None:
        say(f"trying port {asked.listen} from outside")
        found.reach = await _reach(asked.listen, [probe for probe in found.relays if probe.found.is_met])
    for probe in sorted(met, key=lambda each: min(each.found.trips))[:RATED]:
        say(f"sending to and from {probe.found.place}")
        await _rates(probe)


def _local(sending: float = 0.0) -> LocalNetReading:
    kept = doctor_storage.clock().is_kept
    four, six = _from(socket.AF_INET), _from(socket.AF_INET6)
    return LocalNetReading(sys.platform, four, six, kept, sending, _device(four or six), _lan())


def _lan() -> str:
    """Why no node here looks for peers on the LAN; empty: they do. A file that cannot be read ends no check."""
    try:
        return (
            why_not()
            if bandwidth_limits.read_bandwidth_limits().lan
            else "lan = false in network.toml, or FARFLUNG_LAN"
        )
    except UsageError as error:
        return f"{error.message} ({error.cause})" if error.cause else error.message


def _device(source: str) -> str:
    """The network device that has this address; "" where none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if source in [each.address.split("%")[0] for each in addresses]:
            return str(name)
    return ""


def _from(family: socket.AddressFamily) -> str:
    """The address that this computer would send from to somewhere far away; nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((_ROUTE[family], 9))
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def _sent() -> int:
    """Bytes that this computer has sent to others so far."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(each.bytes_sent for name, each in counters.items() if not name.startswith("lo"))


async def _reach(port: int, relays: Sequence[RelayProbe]) -> PortReachReading:
    """Whether a relay reaches this port; where nobody listens on it, this check does, for that time."""
    if not relays or relays[0].connection is None:
        return PortReachReading(port, why="no relay could be asked to try")
    family = relays[0].family
    came = asyncio.Event()
    server: asyncio.Server | None = None

    def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        writer.close()

    try:
        server = await asyncio.start_server(arrived, "0.0.0.0" if family == socket.AF_INET else "::", port)  # noqa: S104 - --listen asked for it
    except OSError as error:
        if not isinstance(error, PermissionError) and await _is_open(port):
            return await _answered(relays[0], PortReachReading(port, is_ours=False), came)
        return PortReachReading(port, why=f"cannot listen on it: {error.strerror or error}")
    try:
        return await _answered(relays[0], PortReachReading(port), came)
    finally:
        server.close()


async def _answered(probe: RelayProbe, reach: PortReachReading, came: asyncio.Event) -> PortReachReading:
    assert probe.connection is not None
    try:
        told = await probe.connection.call(
            relay_probe.REACH, encode(reach.port), timeout=2 * limits.MEASURE_REACH_SECONDS
        )
        number = decode(told, int, _NUMBER_BYTES)
        answer = relay_probe.ReachResult(number).name.lower()
    except (FarflungError, ValueError) as error:
        return PortReachReading(reach.port, reach.is_ours, why=str(error))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5 if answer == "yes" and reach.is_ours else 0):
            await came.wait()
    return PortReachReading(reach.port, reach.is_ours, came.is_set(), answer)


async def _is_open(port: int) -> bool:
    """Whether somebody listens on it here."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        with contextlib.suppress(psutil.Error, OSError):  # some systems tell root alone
            return any(
                each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
                for each in psutil.net_connections("tcp")
            )
        return False
    writer.close()
    return True


# Rates


async def _rates(probe: RelayProbe) -> None:
    """Up beside round trips on another connection, then down."""
    try:
        bulk, small = await probe.dial(), await probe.dial()
    except (OSError, FarflungError):
        return
    try:
        probe.note(is_rated=True)
        pings: list[float] = []
        pinging = asyncio.create_task(_ping(small, pings))
        probe.note(up=await _moved(bulk, _sink))
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)
        probe.note(loaded=tuple(pings))
        probe.drop(bulk)  # with all that still waits to be sent
        probe.note(down=await _moved(small, _source))
    finally:
        for connection in (bulk, small):
            probe.drop(connection)


async def _ping(connection: Connection, trips: list[float]) -> None:
    """Round trips, until it is cancelled; one that is not back yet counts with its age."""
    start = time.monotonic()
    try:
        while True:
            start = time.monotonic()
            await connection.call(relay_probe.TIME, b"", timeout=RATE_SECONDS)
            trips.append(time.monotonic() - start)
            await asyncio.sleep(_PING_PAUSE)
    except NetworkError:
        trips.append(time.monotonic() - start)


async def _moved(connection: Connection, ask: Callable[[int], tuple[str, bytes]]) -> ThroughputReading | None:
    """How fast pieces arrive, asked for by `ask(bytes)`; None where too few did."""
    arrived: list[tuple[float, int]] = []

    async def call(size: int) -> bytes:
        method, body = ask(size)
        return await connection.call(method, body, kind=MessageKind.JOIN, timeout=None)

    with contextlib.suppress(FarflungError):
        # A slow line shows what it can with small pieces.
        await move(call, RATE_BYTES, RATE_SECONDS, arrived, first=_FIRST_BYTES)
    return rate_of(arrived)


def rate_of(arrived: Sequence[tuple[float, int]]) -> ThroughputReading | None:
    """The rate of pieces (seconds since the start, bytes), without the time in which the transfer got going."""
    if len(arrived) < 2 or arrived[-1][0] <= 0:
        return None
    whole, moved = arrived[-1][0], sum(size for _, size in arrived)
    warm = [each for each in arrived if each[0] >= _WARM * whole]
    seconds = warm[-1][0] - warm[0][0]
    if len(warm) < 2 or seconds <= 0:
        return ThroughputReading(moved / whole, moved, whole)
    return ThroughputReading(sum(size for _, size in warm[1:]) / seconds, moved, whole)


def _sink(size: int) -> tuple[str, bytes]:
    return relay_probe.SINK, bytes(size)


def _source(size: int) -> tuple[str, bytes]:
    return relay_probe.SOURCE, encode(size)
