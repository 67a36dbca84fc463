"""Peers in simulated homes start on a relay, meet without it where their routers allow, and survive broken lines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from farflung.app.lab import Home, Laboratory, Nat, why_not
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import NetworkError
from farflung.net.counters import Counter
from farflung.net.endpoints import Place
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.relay import RelayServer
from farflung.net.io.roads import Roads
from farflung.net.paths import MEETING, Condition, Way

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

QUICK = {"up": 0, "down": 0, "rtt": 10}
PLAIN, OTHER, STRICT, SECOND, CONE, CARRIED, NEXT, SHARED = range(1, 9)
RELAYS = [local_key(11, f"relay-{n}") for n in range(2)]


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := why_not():
        pytest.skip(why)


class Spot(threading.Thread):
    """An event loop in a place of the laboratory."""

    def __init__(self, laboratory: Laboratory, who: str) -> None:
        super().__init__(daemon=True)
        self._laboratory, self._who = laboratory, who
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        with self._laboratory.inside(self._who):
            asyncio.set_event_loop(self.loop)
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(10)


async def echo(_connection: Connection, _method: str, body: bytes) -> bytes:
    return body


class Resident(Spot):
    """A peer in a home, attached to both relays."""

    def __init__(self, laboratory: Laboratory, who: str, places: tuple[tuple[str, int], ...]) -> None:
        super().__init__(laboratory, who)
        self.key: SigningKey = local_key(11, who)
        self.places = tuple(
            Place(host, port, key.public) for key, (host, port) in zip(RELAYS, places, strict=True)
        )
        self.do(self._begin())

    async def _begin(self) -> None:
        self.endpoint = Endpoint(self.key, echo, Counter())
        self.roads = Roads(self.endpoint)
        for place in self.places:
            self.endpoint.attach(place.relay, place.host, place.port)
        await self.endpoint.attached()

    def know(self, other: Resident) -> None:
        async def learn() -> None:
            self.roads.learn(other.key.public, other.places)

        self.do(learn())

    def ask(self, other: Resident, body: bytes = b"x", seconds: float = 5.0) -> bool:
        """Whether the other answers within so many seconds, over whichever path there is."""

        return self.begin(other, body, seconds).result(60)

    def begin(self, other: Resident, body: bytes = b"x", seconds: float = 5.0) -> Future[bool]:
        """The same, for whoever does not want to wait here."""

        async def call() -> bool:
            try:
                connection = await self.roads.connection(other.key.public)
                return await connection.call("say", body, timeout=seconds) == body
            except NetworkError:
                return False

        return asyncio.run_coroutine_threadsafe(call(), self.loop)

    def way(self, other: Resident) -> Way | None:
        return self.roads.way(other.key.public)

    def has_tried(self, other: Resident) -> bool:
        """Whether a simultaneous open with the other has ended."""
        path = self.roads._roads[other.key.public].state.path(MEETING)
        return path is not None and path.condition in (Condition.OPEN, Condition.FAILED)

    def leave(self) -> None:
        async def close() -> None:
            await self.roads.close()
            await self.endpoint.close()

        self.do(close())
        self.end()


@contextmanager
def town() -> Iterator[tuple[Laboratory, Callable[[str], Resident], list[tuple[Spot, RelayServer]]]]:
    homes = [Home(**QUICK, nat=nat) for nat in (Nat.PORT_RESTRICTED,) * 2 + (Nat.SYMMETRIC,) * 2]
    homes += [Home(**QUICK, nat=Nat.FULL_CONE)] + [Home(**QUICK, carrier=1)] * 2 + [Home(**QUICK, hosts=2)]
    with Laboratory(homes, 2, carriers=[Nat.SYMMETRIC]) as laboratory, ExitStack() as stack:
        relays = []
        for number, key in enumerate(RELAYS, 1):
            where = Spot(laboratory, f"s{number}")
            stack.callback(where.end)

            async def open_relay(key: SigningKey = key, number: int = number) -> RelayServer:
                server = RelayServer(key, host=laboratory.address(f"s{number}"), allow_remote=True)
                await server.start()
                return server

            server = where.do(open_relay())
            stack.callback(lambda where=where, server=server: where.do(server.close()))
            relays.append((where, server))
        places = tuple(server.address for _, server in relays)

        def resident(who: str) -> Resident:
            made = Resident(laboratory, who, places)
            stack.callback(made.leave)
            return made

        yield laboratory, resident, relays


def eventually(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (there := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return there


def test_homes_meet_where_routers_allow_and_live_through_broken_lines() -> None:
    with town() as (laboratory, resident, relays):
        names = [f"h{n}" for n in (PLAIN, OTHER, STRICT, SECOND, CONE, CARRIED, NEXT, SHARED)]
        at = {name: resident(name) for name in [*names, f"h{SHARED}.2"]}
        pairs = {
            (PLAIN, OTHER): Way.OPENED,
            (PLAIN, CONE): Way.OPENED,
            (PLAIN, STRICT): Way.RELAY,
            (STRICT, SECOND): Way.RELAY,
            (CARRIED, PLAIN): Way.RELAY,
            (CARRIED, NEXT): Way.RELAY,
        }
        ends = {(at[f"h{a}"], at[f"h{b}"]): way for (a, b), way in pairs.items()}
        ends[at[f"h{SHARED}"], at[f"h{SHARED}.2"]] = Way.LAN
        for one, two in ends:
            one.know(two)
            two.know(one)
            assert one.ask(two)
        for (one, two), way in ends.items():
            assert eventually(lambda one=one, two=two: one.has_tried(two), 20.0)
            is_met = eventually(lambda one=one, two=two, way=way: one.way(two) is way, 15.0)
            assert is_met, (one._who, two._who, one.way(two), way)
            assert one.ask(two, bytes(100_000))

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
        strict, second = at[f"h{STRICT}"], at[f"h{SECOND}"]
        assert eventually(lambda: strict.ask(second, bytes(100_000), 3.0), 15.0), "over the second relay"
