"""A network of simulated hosts: lines with delay, rate, loss and a queue, routers that translate addresses, cuts.

The model of TCP. A stream arrives whole and in order. Its bytes leave in segments through the sender's line, one behind
the other with all else that this host sends, then pass the receiver's line; both lines are shared by all streams.
At most WINDOW bytes are under way or unread; when the line's queue is full the rest waits in the sender's socket (the
sender waits and no packet is dropped: there is no congestion control, a stream gets what the line has). A lost packet
costs its segment a round trip and RTO_SECONDS, and all behind it wait. While there is no way, segments are tried again
after RTO_SECONDS, twice that, ... GIVE_UP_SECONDS long. Headers weigh nothing.
"""

from __future__ import annotations

import contextvars
import errno
import random
import selectors
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from sim_net_clock import EPOCH, Clock

if TYPE_CHECKING:
    from sim_net_sockets import SimSocket

WINDOW = 256 * 1024
SEGMENT_SECONDS = 0.01  # of its sender's line in one event
PACKET = 1400
RTO_SECONDS = 0.2
GIVE_UP_SECONDS = 900.0
Address = tuple[str, int]
HERE: contextvars.ContextVar[Process] = contextvars.ContextVar("HERE")


class Nat(Enum):
    """What stands before a home: nothing, a router that keeps ports, or one that takes a new port for each address.

    Both kinds of router let in only whom somebody inside has written to.
    """

    NONE = 0
    CONE = 1
    SYMMETRIC = 2


@dataclass
class Line:
    """`up`, `down`: bytes a second. `delay`: seconds one way. `loss`: of packets. `queue`: seconds of sending."""

    up: float = 12.5e6
    down: float = 12.5e6
    delay: float = 0.02
    loss: float = 0.0
    queue: float = 0.1
    up_free: float = 0.0  # when the last byte given to it has left
    down_free: float = 0.0


@dataclass
class Router:
    """Translates the addresses of one home."""

    ip: str
    is_symmetric: bool
    ports: dict[tuple[object, ...], int] = field(default_factory=dict)  # from inside out
    owners: dict[int, Address] = field(default_factory=dict)
    written: set[tuple[int, Address]] = field(default_factory=set)
    next_port: int = 40_000

    def out(self, inside: Address, to: Address) -> Address:
        """The address that `to` sees."""
        key = (inside, to) if self.is_symmetric else (inside,)
        if key not in self.ports:
            port = inside[1]
            if self.is_symmetric or port in self.owners:
                port, self.next_port = self.next_port, self.next_port + 1
            self.ports[key] = port
            self.owners[port] = inside
        self.written.add((self.ports[key], to))
        return self.ip, self.ports[key]

    def inward(self, port: int, source: Address) -> Address | None:
        """For whom inside it is; None: for nobody, and nobody is told."""
        return self.owners.get(port) if (port, source) in self.written else None


@dataclass(eq=False)
class Host:
    """A machine. `skew`: seconds that its clock is ahead."""

    name: str
    ip: str
    line: Line
    router: Router | None = None
    skew: float = 0.0
    is_on: bool = True
    is_cut: bool = False
    listeners: dict[int, SimSocket] = field(default_factory=dict)
    calling: dict[tuple[int, Address], SimSocket] = field(default_factory=dict)
    next_port: int = 50_000


@dataclass(eq=False)
class Process:
    """One life of a program on a host. `sent`, `received`: what its sockets took and gave."""

    host: Host
    is_alive: bool = True
    sent: int = 0
    received: int = 0
    broken: int = 0  # connections that failed
    sockets: dict[int, SimSocket] = field(default_factory=dict)

    def end(self, *, silently: bool = False) -> None:
        """Its sockets are closed by the kernel, or vanish with the machine's current."""
        self.is_alive = False
        for sock in list(self.sockets.values()):
            if silently:
                sock.vanish()
            else:
                sock.close()


class Net:
    """All hosts, and everything under way."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock, self.seed = clock, seed
        self.hosts: dict[str, Host] = {}  # by name
        self.routers: list[Router] = []
        self.parted: set[frozenset[str]] = set()
        self.sockets: dict[int, SimSocket] = {}
        self.trace: list[tuple[float, str]] = []
        self.next_fd = 1 << 20
        self._flows: dict[str, int] = {}

    def ready(self, keys: dict[int, selectors.SelectorKey]) -> list[tuple[selectors.SelectorKey, int]]:
        """What the selector asks, at every turn of the loop: so it costs little."""
        found, read, write = [], selectors.EVENT_READ, selectors.EVENT_WRITE
        for fd, sock in self.sockets.items():
            key = keys.get(fd)
            if key is None:
                continue
            events = 0
            if key.events & read and (sock.inbox or sock.has_end or sock.error or sock.waiting):
                events = read
            if key.events & write and sock.is_writable:
                events |= write
            if events:
                found.append((key, events))
        return found

    def note(self, what: str) -> None:
        self.trace.append((round(self.clock.now, 9), what))

    def wall(self) -> float:
        """`time.time` of whoever asks."""
        process = HERE.get(None)
        return EPOCH + self.clock.now + (process.host.skew if process is not None else 0.0)

    def delay(self, one: Host, other: Host) -> float:
        if one is other:
            return 20e-6
        if one.router is not None and one.router is other.router:
            return 500e-6
        return one.line.delay + other.line.delay

    def carries(self, one: Host, other: Host) -> bool:
        """Whether there is a way now."""
        if not (one.is_on and other.is_on):
            return False
        if one is other or (one.router is not None and one.router is other.router):
            return True
        return not (one.is_cut or other.is_cut) and frozenset((one.name, other.name)) not in self.parted

    def find(self, source: Host, inside: Address, to: Address) -> tuple[Host, Address, Address] | None:
        """Where a packet to `to` ends: the host, its own address and the address that it sees. None: nowhere."""
        ip, port = to
        if ip.startswith("127.") or ip == source.ip:
            return source, (source.ip, port), inside
        for host in self.hosts.values():
            if host.ip == ip and (host.router is None or host.router is source.router):
                seen = inside
                if source.router is not None and host.router is not source.router:
                    seen = source.router.out(inside, to)
                return host, to, seen
        seen = inside if source.router is None else source.router.out(inside, to)
        for router in self.routers:
            if router.ip == ip and router is not source.router:  # no hairpin
                target = router.inward(port, seen)
                if target is not None:
                    host = next(each for each in self.hosts.values() if each.ip == target[0])
                    return host, target, seen
        return None

    def numbers(self, flow: str) -> random.Random:
        """The chances of one stream: those of others do not move them."""
        self._flows[flow] = self._flows.get(flow, 0) + 1
        return random.Random(f"{self.seed} {flow} {self._flows[flow]}")


class Link:
    """What both directions of a connection share. `moved`: the end whose address is not what the other knows."""

    def __init__(self) -> None:
        self.moved: Host | None = None


class Flow:
    """One direction of one connection."""

    def __init__(self, net: Net, link: Link, source: SimSocket, sink: SimSocket) -> None:
        self._net, self._link, self.source, self._sink = net, link, source, sink
        self.one, self._other = source.process.host, sink.process.host
        self._random = net.numbers(f"{self.one.name}>{self._other.name}")
        self.unsent = bytearray()
        self.is_ended = False  # nothing comes behind `unsent`
        self._has_ended = False
        self._flying: deque[tuple[float, bytes]] = deque()  # an empty one is the end
        self._unacknowledged = 0
        self._tries, self._tried = 0, 0.0
        self._is_waiting = False

    def pump(self) -> None:
        """Sends what the line and the window take."""
        while not self._is_waiting and (self.unsent or (self.is_ended and not self._has_ended)):
            room = WINDOW - self._unacknowledged - len(self._sink.inbox)
            if self.unsent and room <= 0:
                return  # what is read or acknowledged goes on here
            line, now = self.one.line, self._net.clock.now
            too_long = line.up_free - now - line.queue
            if too_long > 0 and self.one is not self._other:
                self._is_waiting = True
                self._net.clock.after(too_long + SEGMENT_SECONDS, self._go_on)
                return
            size = min(len(self.unsent), room, max(PACKET, int(line.up * SEGMENT_SECONDS)))
            data = bytes(self.unsent[:size])
            del self.unsent[:size]
            self._has_ended = not data
            self._unacknowledged += size
            self._fly(data)

    def _go_on(self) -> None:
        self._is_waiting = False
        self.pump()

    def drop(self) -> None:
        """Nothing of it goes out any more."""
        self.unsent.clear()
        self._flying.clear()
        self._has_ended = self.is_ended = True

    def _fly(self, data: bytes) -> None:
        at = self._net.clock.now + self._net.delay(self.one, self._other)
        if self.one is not self._other:
            up, down, size = self.one.line, self._other.line, len(data)
            up.up_free = max(self._net.clock.now, up.up_free) + size / up.up
            at = up.up_free + self._net.delay(self.one, self._other)
            down.down_free = max(at, down.down_free) + size / down.down
            at = down.down_free
            loss = 1 - (1 - up.loss) * (1 - down.loss)
            while loss and self._random.random() < 1 - (1 - loss) ** (1 + size // PACKET):
                at += RTO_SECONDS + 2 * self._net.delay(self.one, self._other)
        if self._flying:
            at = max(at, self._flying[-1][0])
        self._flying.append((at, data))
        if len(self._flying) == 1:
            self._net.clock.after(at - self._net.clock.now, self._land)

    def _land(self) -> None:
        if not self._flying:
            return
        if self._link.moved is not None or not self._net.carries(self.one, self._other):
            self._stall()
            return
        self._tries = 0
        while self._flying and self._flying[0][0] <= self._net.clock.now + 1e-9:
            self._deliver(self._flying.popleft()[1])
        if self._flying:
            self._net.clock.after(self._flying[0][0] - self._net.clock.now, self._land)

    def _stall(self) -> None:
        if self._link.moved is self.one and self.one.is_on:  # who gets it knows no such connection
            self.drop()
            self._net.clock.after(self._net.delay(self.one, self._other), lambda: self.source.fail(errno.ECONNRESET))
            return
        if self._tries == 0:
            self._tried = self._net.clock.now
        pause = min(RTO_SECONDS * 2**self._tries, 60.0)
        self._tries += 1
        if self._net.clock.now + pause - self._tried > GIVE_UP_SECONDS:
            self.drop()
            self.source.fail(errno.ETIMEDOUT)
        else:
            self._net.clock.after(pause, self._land)

    def _deliver(self, data: bytes) -> None:
        back = self._net.delay(self.one, self._other)
        if self._sink.is_gone and data:
            self._net.note(f"{self.one.name}>{self._other.name} refused")
            self.drop()
            self._net.clock.after(back, lambda: self._reset())
            return
        if not self._sink.is_gone:
            self._net.note(f"{self.one.name}>{self._other.name} {len(data)}")
            self._sink.take(data)
        if data:
            self._net.clock.after(back, lambda: self._acknowledge(len(data)))

    def _reset(self) -> None:
        if self._net.carries(self.one, self._other):
            self.source.fail(errno.ECONNRESET)

    def _acknowledge(self, size: int) -> None:
        self._unacknowledged -= size
        self.pump()
