"""Checks the emulated network: measures round trip, loss, rate and NAT type of every home from the inside.

All packets go through sockets that this process has in the namespaces. Round trip, loss and rate are measured with bare
IP packets of a protocol number that nobody has (RFC 3692), one for each home: UDP may be blocked, and routers know no
ports of them, so homes behind one carrier would get in each other's way. The NAT kind is found as RFC 5780 finds it.
A measurement that does not agree is made once more; if it still does not, and the machine is to blame, it says so.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from farflung.local.netlab.homes import EmulatedHome, NatType
from farflung.local.netlab.lab import NetworkLab
from farflung.local.netlab.link_emulator import CERTAIN, OVERHEAD, PacketCounters, terms_of

PROTOCOL = 143  # 143 to 252 are not assigned; the home's number is added, modulo 110
PORTS = (3478, 3479)
_IP = 20  # bytes of an IP header
_SMALL, _LARGE = 32, 1400  # bytes of a probe
_ECHOES, _PROBES = 12, 1500
_WINDOW = 0.5  # seconds of full load
_FASTEST = 300.0  # Mbit/s that this sender can be trusted with
_OFFER = 1.3  # of the line's rate
_PATIENCE = 0.25  # seconds beyond the round trip
_TRIES = 5
_RATE_OFF, _TRIP_OFF, _DEVIATIONS = 0.06, 2.0, 4.0
_LATE = 1.5  # ms
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _BUFFER = 35, 33, 8 << 20  # asm-generic/socket.h


@dataclass(frozen=True)
class LabMeasurement:
    """One measurement beside what was asked. `why`: what spoiled it, where the line itself may be well."""

    home: int
    what: str
    asked: str
    got: str
    agrees: bool
    why: str = ""

    @property
    def verdict(self) -> str:
        """ok, wrong, or not to be trusted."""
        return "ok" if self.agrees else "not to be trusted" if self.why else "wrong"

    def __str__(self) -> str:
        tail = f" ({self.why})" if self.why and not self.agrees else ""
        return f"home {self.home}: {self.what}: asked {self.asked}, got {self.got}: {self.verdict}{tail}"


def prove(laboratory: NetworkLab) -> list[LabMeasurement]:
    """Measures every home, one after the other, against the first server; some two seconds each, all lines idle.

    Raises RunError FF-LAB-006 when a line has died.
    """
    return [finding for number in range(1, len(laboratory.homes) + 1) for finding in prove_home(laboratory, number)]


def prove_home(laboratory: NetworkLab, number: int) -> list[LabMeasurement]:
    """Measures one home. Raises RunError FF-LAB-006."""
    home = laboratory.homes[number - 1]
    measures: list[Callable[[], LabMeasurement]] = []
    with _path(laboratory, number) as path:
        if path is None:
            measures.append(lambda: LabMeasurement(number, "path", "a way to s1", "none", agrees=False))
        else:
            measures += [partial(_round_trip, path), partial(_loss, path, 0), partial(_loss, path, 1)]
            measures += [partial(_rate, path, way) for way, rate in enumerate((home.up, home.down)) if rate]
        measures.append(lambda: _nat(laboratory, number))
        return [_twice(measure) for measure in measures]


def _twice(measure: Callable[[], LabMeasurement]) -> LabMeasurement:
    first = measure()
    return first if first.agrees else measure()


@dataclass(frozen=True)
class _RawSocketPair:
    """Two bare IP sockets, at a home and at the server, and where each sends to."""

    laboratory: NetworkLab
    number: int
    home: EmulatedHome
    inner: socket.socket
    outer: socket.socket
    server: str
    seen: str  # the address that the home has for the server

    def ends(self, way: int) -> tuple[socket.socket, str, socket.socket]:
        """Sender, the address it sends to, receiver: up (0) or down (1)."""
        return (self.inner, self.server, self.outer) if way == 0 else (self.outer, self.seen, self.inner)

    def counters(self, way: int) -> PacketCounters:
        return self.laboratory.counters(self.number)[way]

    @property
    def patience(self) -> float:
        home = self.home
        return (home.rtt + 2 * (home.jitter + home.queue)) / 1000 + _PATIENCE


@contextlib.contextmanager
def _path(laboratory: NetworkLab, number: int) -> Iterator[_RawSocketPair | None]:
    protocol = PROTOCOL + number % 110
    server = laboratory.address("s1")
    with (
        laboratory.socket(f"h{number}", socket.SOCK_RAW, protocol) as inner,
        laboratory.socket("s1", socket.SOCK_RAW, protocol) as outer,
    ):
        outer.bind((server, 0))
        for end in (inner, outer):
            end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            end.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            end.setblocking(False)
        path = _RawSocketPair(laboratory, number, laboratory.homes[number - 1], inner, outer, server, "")
        for _ in range(4 * _TRIES):
            inner.sendto(b"?" * _SMALL, (server, 0))
            if select.select([outer], [], [], path.patience)[0]:
                _, (seen, _) = outer.recvfrom(_BUFFER)
                yield _RawSocketPair(laboratory, number, path.home, inner, outer, server, seen)
                return
        yield None


def _drain(receiver: socket.socket, seconds: float = 0.0) -> list[tuple[int, int]]:
    """What came: (when, in ns by the kernel's clock; bytes of the IP packet), until nothing came for so long."""
    there = []
    while seconds == 0.0 or select.select([receiver], [], [], seconds)[0]:
        try:
            packet, ancillary, _, _ = receiver.recvmsg(2048, 64)
        except BlockingIOError:
            break
        stamps = [struct.unpack("qq", data[:16]) for _, kind, data in ancillary if kind == _SO_TIMESTAMPNS]
        there.append((stamps[0][0] * 1_000_000_000 + stamps[0][1] if stamps else 0, len(packet)))
    return there


def _lateness() -> float:
    """How late this machine wakes a process, in ms: the median of some short sleeps."""
    late = []
    for _ in range(20):
        before = time.monotonic()
        time.sleep(0.001)
        late.append((time.monotonic() - before - 0.001) * 1000)
    return statistics.median(late)


def _blame_lateness() -> str:
    late = _lateness()
    return f"this machine wakes a process {late:.1f} ms late" if late > _LATE else ""


def _arrives(receiver: socket.socket, seconds: float) -> bool:
    if not select.select([receiver], [], [], seconds)[0]:
        return False
    receiver.recv(2048)
    return True


def _round_trip(path: _RawSocketPair) -> LabMeasurement:
    home, trips = path.home, []
    _drain(path.inner), _drain(path.outer)
    for _ in range(_ECHOES):
        before = time.monotonic()
        path.inner.sendto(b"e" * _SMALL, (path.server, 0))
        if _arrives(path.outer, path.patience):
            path.outer.sendto(b"e" * _SMALL, (path.seen, 0))
            if _arrives(path.inner, path.patience):
                trips.append((time.monotonic() - before) * 1000)
    frame = (_IP + _SMALL + OVERHEAD) * 8 / 1000  # kbit: at 1 Mbit/s as many ms
    asked = home.rtt + sum(frame / rate for rate in (home.up, home.down) if rate)
    least = min(trips, default=float("inf"))
    agrees = asked - 0.1 <= least <= asked + 2 * home.jitter + _TRIP_OFF
    why = "" if agrees else _blame_lateness()
    return LabMeasurement(path.number, "round trip", f"{asked:.1f} ms", f"{least:.1f} ms at least", agrees, why)


def _send(
    path: _RawSocketPair, way: int, count: int, size: int, gap: float, *, catch_up: bool
) -> tuple[list[tuple[int, int]], float]:
    """Sends packets, one each `gap` seconds; returns what came and the longest time in which nothing was sent.

    A sender that may not catch up never sends two packets with less than the gap between them.
    """
    sender, address, receiver = path.ends(way)
    _drain(receiver)
    payload, there = b"p" * size, []
    due = last = time.monotonic()
    stood = 0.0
    for _ in range(count):
        while (now := time.monotonic()) < due:
            there += _drain(receiver)
            time.sleep(min(0.0005, max(0.0, due - time.monotonic())))
        stood, last = max(stood, now - last), now
        due = (due if catch_up else now) + gap
        with contextlib.suppress(BlockingIOError):
            sender.sendto(payload, (address, 0))
    return there + _drain(receiver, path.patience), stood


def _loss(path: _RawSocketPair, way: int) -> LabMeasurement:
    home, name = path.home, ("up", "down")[way]
    rate, terms, before = (home.up, home.down)[way], terms_of(home, path.number)[way], path.counters(way)
    frame = (_IP + _SMALL + OVERHEAD) * 8 / 1e6  # Mbit
    gap = max(1 / 4000, 2 * frame / rate if rate else 0.0)
    there, _ = _send(path, way, _PROBES, _SMALL, gap, catch_up=False)
    after, seen = path.counters(way), 1 - len(there) / _PROBES
    # Of one packet for the next: losses in bursts say less.
    memory = (terms.stay - terms.enter) / CERTAIN
    deviation = (home.loss * (1 - home.loss) / _PROBES * (1 + memory) / (1 - memory)) ** 0.5
    agrees = abs(seen - home.loss) <= _DEVIATIONS * deviation + 1e-9
    elsewhere = _PROBES - len(there) - (after.lost - before.lost)
    why = f"{elsewhere} packets were lost outside of the line's own chance" if elsewhere else ""
    return LabMeasurement(path.number, f"loss {name}", f"{home.loss:.4f}", f"{seen:.4f}", agrees, why)


def _rate(path: _RawSocketPair, way: int) -> LabMeasurement:
    home, name, rate = path.home, ("up", "down")[way], (path.home.up, path.home.down)[way]
    size = min(_LARGE, home.mtu - _IP)
    frame, packet = (size + _IP + OVERHEAD) * 8 / 1e6, (size + _IP) * 8 / 1e6  # Mbit
    gap = frame / rate / _OFFER * (1 - home.loss)
    count = max(80, round(min(_WINDOW, 20_000 * gap) / gap))
    there, stood = _send(path, way, count, size, gap, catch_up=True)
    asked = rate * packet / frame
    span = (there[-1][0] - there[0][0]) / 1e9 if len(there) > 1 else 0.0
    got = (len(there) - 1) * packet / span if span else 0.0
    off = _RATE_OFF + (home.jitter / 1000 / span if span else 0.0)
    agrees = abs(got / asked - 1) <= off
    why = ""
    if rate > _FASTEST:
        why = f"the sender is not made for more than {_FASTEST:g} Mbit/s"
    elif stood > home.queue / 1000 / 2:
        why = f"the sender stood still for {stood * 1000:.0f} ms, and the line ran empty"
    return LabMeasurement(path.number, f"rate {name}", f"{asked:.1f} Mbit/s", f"{got:.1f} Mbit/s", agrees, why)


# NAT kinds


def expected(home: EmulatedHome, carriers: list[NatType]) -> NatType:
    """What a home looks like from outside: of two NATs in a row the stricter one shows."""
    kinds = list(NatType)  # from the most open to the strictest
    carrier = carriers[home.carrier - 1] if home.carrier else NatType.NONE
    return kinds[max(kinds.index(home.nat), kinds.index(carrier))]


def nat_kind(laboratory: NetworkLab, number: int) -> NatType:
    """What UDP from a home looks like: its mapping for three destinations, its filter for three sources."""
    one, two = laboratory.address("s1"), laboratory.second_address(1)
    mine, patience = laboratory.address(f"h{number}"), laboratory.homes[number - 1].rtt / 1000 + _PATIENCE
    with contextlib.ExitStack() as stack:

        def bound(who: str, address: str, port: int = 0) -> socket.socket:
            made = stack.enter_context(laboratory.socket(who, socket.SOCK_DGRAM))
            made.bind((address, port))
            made.setblocking(False)
            return made

        asked, port, other = (bound("s1", one, PORTS[0]), bound("s1", one, PORTS[1]), bound("s1", two, PORTS[0]))
        first = bound(f"h{number}", mine)
        seen = [_seen(first, server, patience) for server in (asked, port, other)]
        if seen[0] is None:
            return NatType.UDP_BLOCKED
        if seen[0][0] == mine:
            return NatType.NONE
        if len(set(seen)) > 1:
            return NatType.SYMMETRIC
        fresh = bound(f"h{number}", mine)
        public = _seen(fresh, asked, patience)
        for server, kind in ((other, NatType.FULL_CONE), (port, NatType.ADDRESS_RESTRICTED)):
            if public is not None and _answers(server, public, fresh, patience):
                return kind
        return NatType.PORT_RESTRICTED


def _seen(home: socket.socket, server: socket.socket, patience: float) -> tuple[str, int] | None:
    """Where a packet of the home comes from, as this server's socket sees it; None if none comes."""
    for _ in range(_TRIES):
        home.sendto(b"?", server.getsockname())
        if select.select([server], [], [], patience)[0]:
            _, (address, port) = server.recvfrom(64)
            return str(address), int(port)
    return None


def _answers(server: socket.socket, public: tuple[str, int], home: socket.socket, patience: float) -> bool:
    """Whether a packet from this server's socket reaches the home."""
    for _ in range(_TRIES):
        server.sendto(b"!", public)
        if _arrives(home, patience):
            return True
    return False


def _nat(laboratory: NetworkLab, number: int) -> LabMeasurement:
    asked, got = expected(laboratory.homes[number - 1], laboratory.carriers), nat_kind(laboratory, number)
    return LabMeasurement(number, "NAT", asked, got, asked is got)
