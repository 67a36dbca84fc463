"""Peers in simulated homes start on a relay, meet without it where their routers allow, and survive broken lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import product

import pytest
from netns_spots import Spot, echo

from farflung.core.backoff import Backoff
from farflung.core.codec import describe
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not
from farflung.net import paths
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.path_manager import PathManager
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.relay import RelayServer
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.paths import MEETING, PathCondition, PathType

pytestmark = [pytest.mark.netns, pytest.mark.quiet, pytest.mark.xdist_group("roads"), pytest.mark.timeout(300)]

KINDS = list(NatType)
QUICK = {"up": 0, "down": 0, "rtt": 10}
# Homes 13 and 14 behind one carrier's symmetric NAT, 15 and 16 behind another carrier's.
STRICT, KIND = 13, 15
SHARED = 17  # two hosts
PLAIN, OTHER = (KINDS.index(NatType.PORT_RESTRICTED) + first for first in (1, 7))
SYMMETRIC, SECOND = (KINDS.index(NatType.SYMMETRIC) + first for first in (1, 7))
WAVE = 12  # pairs that meet at the same time, all homes of one kind among them
RELAYS = [local_key(11, f"relay-{n}") for n in range(2)]


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := why_not():
        pytest.skip(why)


class Resident(Spot):
    """A peer in a home, attached to both relays."""

    def __init__(self, laboratory: NetworkLab, who: str, places: tuple[tuple[str, int], ...]) -> None:
        super().__init__(laboratory, who)
        self.key: SigningKey = local_key(11, who)
        self.places = tuple(
            EndpointAddress(host, port, key.public) for key, (host, port) in zip(RELAYS, places, strict=True)
        )
        self.do(self._begin())

    async def _begin(self) -> None:
        self.endpoint = Endpoint(self.key, echo, ByteCounter(), pacer=LinePacer())
        self.path_manager = PathManager(self.endpoint)
        for place in self.places:
            self.endpoint.attach(place.relay, place.host, place.port)
        await self.endpoint.attached()

    def know(self, other: Resident) -> None:
        async def learn() -> None:
            self.path_manager.learn(other.key.public, other.places)

        self.do(learn())

    def ask(self, other: Resident, body: bytes = b"x", seconds: float = 5.0) -> bool:
        """Whether the other answers within so many seconds, over whichever path there is."""

        return self.begin(other, body, seconds).result(60)

    def begin(self, other: Resident, body: bytes = b"x", seconds: float = 5.0) -> Future[bool]:
        """The same, for whoever does not want to wait here."""

        async def call() -> bool:
            try:
                connection = await self.path_manager.connection(other.key.public)
                return await connection.call("say", body, timeout=seconds) == body
            except NetworkError:
                return False

        return asyncio.run_coroutine_threadsafe(call(), self.loop)

    def way(self, other: Resident) -> PathType | None:
        return self.path_manager.way(other.key.public)

    def has_tried(self, other: Resident) -> bool:
        """Whether a simultaneous open with the other has ended."""
        path = self.path_manager._peers[other.key.public].state.path(MEETING)
        return path is not None and path.condition in (PathCondition.OPEN, PathCondition.FAILED)

    def leave(self) -> None:
        async def close() -> None:
            await self.path_manager.close()
            await self.endpoint.close()

        self.do(close())
        self.end()


Town = tuple[NetworkLab, dict[str, Resident], list[tuple[Spot, RelayServer]]]


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    """Two homes of each NAT kind, 1 to 6 and 7 to 12, homes behind carriers, and one with two hosts; all attached."""
    homes = [EmulatedHome(**QUICK, nat=nat) for nat in KINDS * 2]
    homes += [EmulatedHome(**QUICK, carrier=carrier) for carrier in (1, 1, 2, 2)] + [EmulatedHome(**QUICK, hosts=2)]
    carriers = [NatType.SYMMETRIC, NatType.PORT_RESTRICTED]
    describe()
    with NetworkLab(homes, 2, carriers=carriers) as laboratory, ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # Tried again soon where the machine was too slow for both ends to be there in time.
        patch.setattr(paths, "PAUSES", Backoff(1.0, 600.0))
        relays = []
        for number, key in enumerate(RELAYS, 1):
            where = Spot(laboratory, f"s{number}")
            stack.callback(where.end)

            async def open_relay(key: SigningKey = key, number: int = number) -> RelayServer:
                server = RelayServer(key, listen=ListenConfig(laboratory.address(f"s{number}"), allow_remote=True))
                await server.start()
                return server

            server = where.do(open_relay())
            stack.callback(lambda where=where, server=server: where.do(server.close()))
            relays.append((where, server))
        places = tuple(server.address for _, server in relays)

        at: dict[str, Resident] = {}
        for who in (*(f"h{n}" for n in range(1, len(homes) + 1)), f"h{SHARED}.2"):
            at[who] = Resident(laboratory, who, places)
            stack.callback(at[who].leave)
        yield laboratory, at, relays


def eventually(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (there := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return there


def theory(one: NatType, two: NatType) -> PathType:
    """A TCP connection opens from both ends where each end's router keeps one port for all it talks with."""
    return PathType.RELAY if NatType.SYMMETRIC in (one, two) else PathType.OPENED


CASES = {
    f"{one}, {two}": (f"h{KINDS.index(one) + 1}", f"h{KINDS.index(two) + 7}", theory(one, two))
    for one, two in product(KINDS, KINDS)
} | {
    "behind a carrier's symmetric NAT": (f"h{STRICT}", f"h{PLAIN}", PathType.RELAY),
    "both behind it": (f"h{STRICT}", f"h{STRICT + 1}", PathType.RELAY),
    "behind a carrier that keeps ports": (f"h{KIND}", f"h{PLAIN}", PathType.OPENED),
    "both behind it, which turns nothing back": (f"h{KIND}", f"h{KIND + 1}", PathType.RELAY),
    "two hosts of one home": (f"h{SHARED}", f"h{SHARED}.2", PathType.LAN),
}


@pytest.fixture(scope="module")
def asked(town: Town) -> Town:
    """All pairs of the cases talk over a relay at once, and have tried to meet without it, WAVE of them at a time."""
    _, at, _ = town
    pairs = [(at[one], at[two]) for one, two, _ in CASES.values()]
    while pairs:
        wave, pairs = pairs[:WAVE], pairs[WAVE:]
        for one, two in wave:
            one.know(two)
            two.know(one)
        begun = [one.begin(two, seconds=30.0) for one, two in wave]
        assert all(each.result(60) for each in begun)
        for one, two in wave:
            eventually(lambda one=one, two=two: one.has_tried(two) or two.has_tried(one), 5.0)
    return town


@pytest.mark.parametrize("case", list(CASES))
def test_two_homes_take_the_way_that_their_routers_allow(asked: Town, case: str) -> None:
    _, at, _ = asked
    one, two, way = at[CASES[case][0]], at[CASES[case][1]], CASES[case][2]
    assert eventually(lambda: one.has_tried(two) or two.has_tried(one), 40.0)
    # Only what is in use is measured, so they go on talking.
    took = eventually(lambda: one.ask(two) and one.way(two) is way, 40.0)
    assert took, (one.way(two), way, one.path_manager._peers[two.key.public].state)
    assert one.ask(two, bytes(100_000), 30.0)


def test_homes_that_have_met_live_through_broken_lines(asked: Town) -> None:
    laboratory, at, relays = asked
    one, two = at[f"h{PLAIN}"], at[f"h{OTHER}"]
    laboratory.cut(PLAIN)
    waiting = one.begin(two)
    time.sleep(10.0)
    laboratory.restore(PLAIN)
    waiting.result(60)
    assert eventually(lambda: one.ask(two, bytes(100_000), 3.0), 30.0), "after a cut of ten seconds"
    laboratory.change_address(PLAIN)
    assert eventually(lambda: one.ask(two, bytes(100_000), 3.0), 30.0), "with another address"
    where, server = relays[0]
    where.do(server.close())
    strict, second = at[f"h{SYMMETRIC}"], at[f"h{SECOND}"]
    assert eventually(lambda: strict.ask(second, bytes(100_000), 3.0), 15.0), "over the second relay"
