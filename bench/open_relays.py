"""Measures the relay that a node chooses, and what it carries: four relays in three regions, seen from a home.

Each place is a network namespace with a line of its own, in one process: few bytes a second, so that the process is not
what is measured. Used by bench/open.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from netns_spots import Spot, echo
from reporting import Row, at_least, at_most

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
            self.endpoint = Endpoint(self.key, echo, ByteCounter(), listen=listen, pacer=LinePacer())
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

    def goodput(self, peer: HomeSite, seconds: float, *, all_ways: bool = False) -> float:
        """Bytes a second that the peer answers for, over the best way or over all."""
        return float(self.spot.do(self._sent(peer, seconds, all_ways), seconds + SECONDS))

    async def _sent(self, peer: HomeSite, seconds: float, all_ways: bool) -> float:
        first = await self.paths.connection(peer.key.public)
        loop = asyncio.get_running_loop()
        await _moved([first], loop.time() + seconds / 2)  # TCP has found its rate, and the ways are open
        ways = list(self.paths.ways(peer.key.public)) if all_ways else [await self.paths.connection(peer.key.public)]
        began = loop.time()
        moved = await _moved(ways, began + seconds)
        return moved / (loop.time() - began)


async def _moved(ways: list[Connection], end: float) -> int:
    """Bytes that were answered for until then; those that wait for an answer then are waited for."""
    loop, moved = asyncio.get_running_loop(), 0

    async def keep(way: Connection) -> None:
        nonlocal moved
        while loop.time() < end:
            await way.call("count", bytes(PIECE), timeout=SECONDS, kind=MessageKind.JOIN)
            moved += PIECE

    await asyncio.gather(*(keep(way) for way in ways for _ in range(WINDOW)), return_exceptions=True)
    return moved


def rows(quick: bool) -> Iterator[Row]:
    """The relay that is chosen, what it carries, and how long a bad one is kept."""
    describe()
    yield from _choice(2.0 if quick else 15.0, senders=2 if quick else 8)
    yield from _leaving(quick)


def _homes(count: int) -> list[EmulatedHome]:
    near = EmulatedHome(up=UPLINK, down=RATE, rtt=2, nat=NatType.SYMMETRIC)
    return [near] * count


def _relays(rates: dict[int, float]) -> list[EmulatedHome]:
    rated = [(rates.get(number, 10 * RATE), trip) for number, trip in enumerate(REGIONS)]
    return [EmulatedHome(up=rate, down=rate, rtt=trip - 2, nat=NatType.NONE) for rate, trip in rated]


def _choice(seconds: float, senders: int) -> Iterator[Row]:
    """Homes that choose among four relays; one sends to another, then half of them to the other half."""
    homes = 2 * senders
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
        told = (
            f"measured by transfers of their own, {trips} ms; chosen {waited:.0f} s after it knew them, the best last"
        )
        yield at_most("relays that are better than the chosen one, of four", better + nearer, "relays", 0, told)
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
    told = f"direct {straight * 8e-6:.2f} Mbit/s, through the relay {relayed * 8e-6:.2f}; uplink {UPLINK:.0f} Mbit/s"
    yield at_least("goodput through the chosen relay against the direct line", relayed / straight, "ratio", 0.95, told)
    half = len(at) // 2
    for sender, receiver in zip(at[:half], at[half:], strict=True):
        sender.learn(receiver, (relays[0].place,))
    begun = [
        asyncio.run_coroutine_threadsafe(sender._sent(receiver, seconds, False), sender.spot.loop)
        for sender, receiver in zip(at[:half], at[half:], strict=True)
    ]
    total = sum(each.result(seconds + SECONDS) for each in begun)
    share = total * 8e-6 / (half * UPLINK)
    told = f"{half} homes send to {half} others through it at the same time; payload bytes against line bits"
    yield at_least("their goodput against their uplinks", share, "ratio", 0.9, told)


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
                sending = asyncio.run_coroutine_threadsafe(one._sent(two, 40.0, True), one.spot.loop)
            took = until(lambda one=one, bad=bad: one.selector.places[:1] != (bad,), 60.0)
            if case == "overstates":
                sending.cancel()
            told = "from its end, or from the first byte that it carries"
            yield at_most(f"the chosen relay {case}: until another is preferred", took, "s", LEFT, told)
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
