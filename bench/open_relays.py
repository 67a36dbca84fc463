"""Measures the relay that a node chooses, and what it carries: four relays in three regions, seen from a home.

Each place is a network namespace with a line of its own, in one process: few bytes a second, so that the process is not
what is measured. Used by bench/open.py.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final

from netns_spots import Spot
from reporting import Row, at_least, at_most, told

from farflung.core.codec import describe
from farflung.core.crypto import local_key
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_selection import RelaySelector
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.messages import MessageKind

REGIONS: Final = (20, 80, 80, 200)  # ms there and back to each relay
NARROW: Final = 2  # the relay with a line of a quarter
RATE: Final = 20.0  # Mbit/s of the others' lines and the homes' downlinks
UPLINK: Final = 8.0  # Mbit/s of a home
CROWD_UPLINK: Final = 5.0  # of one of many: all of them share the cores of the machine that emulates them
PIECE: Final = 64 << 10
LEFT: Final = 10.0  # seconds until a bad relay is left
SECONDS: Final = 90.0  # for anything
WINDOW: Final = 16  # pieces on the way of one sender


class Site:
    """A place with an event loop, and what closes it."""

    def __init__(self, lab: NetworkLab, who: str, stack: ExitStack) -> None:
        self.lab, self.who, self.key = lab, who, local_key(11, who)
        self.spot = Spot(lab, who)
        stack.callback(self.spot.end)


class RelaySite(Site):
    """A relay on a line of its own; `limits`: what it allows."""

    def __init__(self, lab: NetworkLab, who: str, stack: ExitStack, limits: RelayLimits) -> None:
        super().__init__(lab, who, stack)

        async def start() -> RelayServer:
            listen = ListenConfig(lab.address(who), allow_remote=True)
            server = RelayServer(self.key, listen=listen, limits=limits)
            await server.start()
            return server

        self.server = self.spot.do(start())
        stack.callback(lambda: self.spot.do(self.server.close()))
        self.place = EndpointAddress(*self.server.address, self.key.public)


class HomeSite(Site):
    """A peer in a home: a node's endpoint, paths and choice of relays, without a job."""

    def __init__(self, lab: NetworkLab, who: str, stack: ExitStack, places: list[EndpointAddress]) -> None:
        super().__init__(lab, who, stack)

        async def start() -> None:
            listen = ListenConfig(lab.address(who), allow_remote=True)
            self.endpoint = Endpoint(self.key, _taken, ByteCounter(), listen=listen, pacer=LinePacer())
            self.paths = PathManager(self.endpoint)
            self.selector = RelaySelector(self.endpoint, places)
            await self.endpoint.attached()

        async def close() -> None:
            await self.selector.close()
            await self.paths.close()
            await self.endpoint.close()

        self.spot.do(start())
        stack.callback(lambda: self.spot.do(close()))

    def learn(self, peer: HomeSite, places: tuple[EndpointAddress, ...]) -> None:
        async def learn() -> None:
            self.paths.learn(peer.key.public, places)

        self.spot.do(learn())

    def goodput(self, peer: HomeSite, seconds: float) -> float:
        """Bytes a second that the peer answers for, over the best way."""
        return float(self.spot.do(self.sent(peer, seconds), seconds + SECONDS))

    async def sent(self, peer: HomeSite, seconds: float) -> float:
        """The same, in its loop."""
        loop = asyncio.get_running_loop()
        # TCP has found its rate
        await _moved(await self.paths.connection(peer.key.public), loop.time() + seconds / 2)
        way, began = await self.paths.connection(peer.key.public), loop.time()
        moved = await _moved(way, began + seconds)
        return moved / (loop.time() - began)

    async def fill(self, peer: HomeSite, seconds: float) -> None:
        """Sends over each way as soon as it is open, as a transfer does."""
        loop, sending = asyncio.get_running_loop(), dict[Connection, asyncio.Task[int]]()
        end = loop.time() + seconds
        await self.paths.connection(peer.key.public)
        try:
            while loop.time() < end:
                for way in self.paths.ways(peer.key.public):
                    if way not in sending:
                        sending[way] = asyncio.create_task(_moved(way, end))
                await asyncio.sleep(0.1)
        finally:
            for task in sending.values():
                task.cancel()
            await asyncio.gather(*sending.values(), return_exceptions=True)


async def _taken(_connection: Connection, _method: str, _body: bytes) -> bytes:
    """Answers without a byte: what is measured is one direction."""
    return b""


async def _moved(way: Connection, end: float) -> int:
    """Bytes that were answered for until then; those that wait for an answer then are waited for."""
    loop, moved = asyncio.get_running_loop(), 0

    async def keep() -> None:
        nonlocal moved
        while loop.time() < end:
            await way.call("count", bytes(PIECE), timeout=SECONDS, kind=MessageKind.JOIN)
            moved += PIECE

    await asyncio.gather(*(keep() for _ in range(WINDOW)), return_exceptions=True)
    return moved


def rows(quick: bool) -> Iterator[Row]:
    """The relay that is chosen, what it carries, and how long a bad one is kept."""
    describe()
    yield from _choice(2.0 if quick else 15.0)
    yield from _crowd(2.0 if quick else 15.0, senders=2 if quick else 8)
    yield from _leaving(quick)


def _homes(count: int, uplink: float = UPLINK) -> list[EmulatedHome]:
    near = EmulatedHome(up=uplink, down=RATE, rtt=2, nat=NatType.SYMMETRIC)
    return [near] * count


def _relays(rates: dict[int, float]) -> list[EmulatedHome]:
    rated = [(rates.get(number, 10 * RATE), trip) for number, trip in enumerate(REGIONS)]
    return [EmulatedHome(up=rate, down=rate, rtt=trip - 2, nat=NatType.NONE) for rate, trip in rated]


def _choice(seconds: float) -> Iterator[Row]:
    """A home that chooses among four relays, and sends to another one through what it chose."""
    homes = 2
    places = [*_homes(homes), EmulatedHome(up=RATE, down=RATE, rtt=2, nat=NatType.NONE), *_relays({NARROW: RATE / 8})]
    with NetworkLab(places) as lab, ExitStack() as stack:
        relays = [RelaySite(lab, f"h{homes + 2 + n}", stack, RelayLimits()) for n in range(len(REGIONS))]
        offered = [each.place for each in relays][::-1]  # the best last
        best = [relays[0].place]  # the others are told of one: they would all measure the narrow line at one time
        at = [HomeSite(lab, f"h{n}", stack, offered if n == 1 else best) for n in range(1, homes + 1)]
        first = at[0]
        waited = until(lambda: first.selector.places[:1] == (relays[0].place,), SECONDS)
        measured = {place: first.spot.do(first.selector._probe(place)) for place in offered}
        chosen = first.selector.places[0]
        better = sum(each.goodput * 0.8 > measured[chosen].goodput for each in measured.values())
        nearer = sum(
            each.trip * 1.3 < measured[chosen].trip
            for each in measured.values()
            if each.goodput >= 0.8 * measured[chosen].goodput
        )
        trips = ", ".join(f"{1000 * measured[each.place].trip:.0f}" for each in relays)
        against = (
            f"measured by transfers of their own, {trips} ms; chosen {waited:.0f} s after it knew them, the best last"
        )
        yield at_most("relays that are better than the chosen one, of four", better + nearer, "relays", 0, against)
        yield from _carried(lab, stack, at, relays, seconds)


def _carried(
    lab: NetworkLab, stack: ExitStack, at: list[HomeSite], relays: list[RelaySite], seconds: float
) -> Iterator[Row]:
    direct = HomeSite(lab, f"h{len(at) + 1}", stack, [relays[0].place])

    async def listen() -> EndpointAddress:
        _, port = await direct.endpoint.start()
        return EndpointAddress(lab.address(direct.who), port)

    open_place = direct.spot.do(listen())
    at[0].learn(direct, (open_place,))
    straight = at[0].goodput(direct, seconds)
    at[0].learn(at[1], (relays[0].place,))
    relayed = at[0].goodput(at[1], seconds)
    against = f"direct {straight * 8e-6:.2f} Mbit/s, through the relay {relayed * 8e-6:.2f}; uplink {UPLINK:.0f} Mbit/s"
    yield at_least(
        "goodput through the chosen relay against the direct line", relayed / straight, "ratio", 0.95, against
    )


def _crowd(seconds: float, senders: int) -> Iterator[Row]:
    """Homes that all send through one relay, and the same bytes by plain TCP through the same places."""
    places = [*_homes(2 * senders, CROWD_UPLINK), *_relays({})[:1]]
    with NetworkLab(places) as lab, ExitStack() as stack:
        relay = RelaySite(lab, f"h{len(places)}", stack, RelayLimits())
        at = [HomeSite(lab, f"h{n + 1}", stack, [relay.place]) for n in range(2 * senders)]
        pairs = list(zip(at[:senders], at[senders:], strict=True))
        plain, plain_cores = _shares(PlainForward(relay, stack).begun(pairs, seconds), seconds)
        for sender, receiver in pairs:
            sender.learn(receiver, (relay.place,))
        begun = [asyncio.run_coroutine_threadsafe(one.sent(two, seconds), one.spot.loop) for one, two in pairs]
        share, cores = _shares(begun, seconds)
    how = f"{senders} homes of {CROWD_UPLINK:.0f} Mbit/s send to {senders} others through one relay"
    against = f"{how}; payload against the line; all of them are one process, which took {cores:.2f} of a core"
    yield at_least("their goodput against their uplinks", share, "ratio", 0.9, against)
    against = f"the same hops without TLS, tickets and answers, one process, {plain_cores:.2f} of a core"
    yield told("plain TCP forwarded there, against their uplinks", plain, "ratio", against)


def _shares(begun: list[Future[float]], seconds: float) -> tuple[float, float]:
    """What all of these moved of their uplinks, and the cores that this process used meanwhile."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    total = sum(each.result(seconds + SECONDS) for each in begun)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return total * 8e-6 / (len(begun) * CROWD_UPLINK), used / (time.monotonic() - began)


class PlainForward:
    """Forwards between two TCP connections that say the same byte first, at a relay's place."""

    def __init__(self, relay: RelaySite, stack: ExitStack) -> None:
        self._host, self._waiting = relay.place.host, dict[bytes, asyncio.StreamWriter]()
        self._reads = dict[bytes, asyncio.StreamReader]()

        async def start() -> asyncio.Server:
            return await asyncio.start_server(self._join, self._host, 0)

        server = relay.spot.do(start())
        self._port = server.sockets[0].getsockname()[1]
        stack.callback(lambda: relay.spot.loop.call_soon_threadsafe(server.close))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = await reader.readexactly(1)
        other = self._waiting.pop(name, None)
        if other is None:
            self._waiting[name], self._reads[name] = writer, reader
            return
        await asyncio.gather(_copied(reader, other), _copied(self._reads.pop(name), writer), return_exceptions=True)

    def begun(self, pairs: list[tuple[HomeSite, HomeSite]], seconds: float) -> list[Future[float]]:
        """For each pair the bytes a second that come from the first to the second."""
        for number, (one, _) in enumerate(pairs):
            asyncio.run_coroutine_threadsafe(self._send(bytes([number]), 1.5 * seconds), one.spot.loop)
        return [
            asyncio.run_coroutine_threadsafe(self._taken(bytes([number]), seconds), two.spot.loop)
            for number, (_, two) in enumerate(pairs)
        ]

    async def _send(self, name: bytes, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        _, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(name)
        end = loop.time() + seconds
        while loop.time() < end:
            writer.write(bytes(PIECE))
            await writer.drain()
        writer.close()

    async def _taken(self, name: bytes, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(name)
        began, moved = loop.time() + seconds / 2, 0
        while data := await reader.read(PIECE):
            moved += len(data) if loop.time() >= began else 0
        writer.close()
        return moved / (loop.time() - began)


async def _copied(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(PIECE):
        sink.write(data)
        await sink.drain()
    sink.close()


def _leaving(quick: bool) -> Iterator[Row]:
    """A chosen relay that dies, and one that is fast for whoever measures it and slow for what it carries."""
    for case, limits in ("dies", RelayLimits()), ("overstates", RelayLimits(circuit_rate=30_000)):
        with NetworkLab([*_homes(2), *_relays({})]) as lab, ExitStack() as stack:
            relays = [RelaySite(lab, f"h{3 + n}", stack, RelayLimits() if n else limits) for n in range(len(REGIONS))]
            one, two = (HomeSite(lab, f"h{n}", stack, [each.place for each in relays]) for n in (1, 2))
            until(lambda one=one: all(each.path.goodput for each in one.selector._state.slots), SECONDS)
            bad = relays[0].place
            if case == "dies":
                lab.cut(3)
            else:
                one.learn(two, tuple(each.place for each in relays[:2]))
                sending = asyncio.run_coroutine_threadsafe(one.fill(two, SECONDS), one.spot.loop)
            took = until(lambda one=one, bad=bad: one.selector.places[:1] != (bad,), 60.0)
            if case == "overstates":
                sending.cancel()
            since = "from the cut of its line" if case == "dies" else "from the first byte that it carries"
            yield at_most(f"the chosen relay {case}: until another is preferred", took, "s", LEFT, since)
        if quick:
            return


def until(holds: Callable[[], bool], seconds: float) -> float:
    """Seconds until something holds. Raises SystemExit when it does not."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"did not happen in {seconds} s")
        time.sleep(0.1)
    return time.monotonic() - began
