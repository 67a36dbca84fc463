"""Keeps an endpoint at its best known relays: measures, and carries out what `net.relay_selection` decides.

    Mooring(endpoint, places)   attached at once to the first two; `on_change(places)` is called when others are better

A relay is measured by requests of its own (`net.relay_probe`) over a connection of its own: round trips, then at most
PROBE_BYTES up and as many down, each for at most PROBE_SECONDS; what TCP sent again on the way up counts as lost. Where
that is over before TCP has found its rate, MORE_BYTES follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net import relay_probe, relay_selection
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.probe_window import move
from farflung.net.io.socket_options import losses
from farflung.net.messages import MessageKind
from farflung.net.relay_selection import Event

LOOK_SECONDS: Final = 0.5  # between looks whether a relay still knows us
PROBE_BYTES: Final = limits.MIB
MORE_BYTES: Final = 4 * limits.MIB
START_TRIPS: Final = 12.0  # in which TCP finds the rate of a fast line
PROBE_SECONDS: Final = 3.0
LINGER_SECONDS: Final = 20.0  # at a relay that is left, for those who have not heard of it
SETTLE_SECONDS: Final = 5.0  # for a new relay to know us, before others are told of it
_TRIPS: Final = 3
_FRESH: Final = 900  # number of the connection that measures: nobody else takes it
_CARRY_LOOKS: Final = 2  # of them, until what was carried is looked at
_BULK_BYTES: Final = 128 * limits.KIB  # carried meanwhile, to tell anything
_SOME_BYTES: Final = 8 * limits.KIB  # carried beside that: it was used, too

OnChange = Callable[[tuple[EndpointAddress, ...]], None]


class RelaySelector:
    """One endpoint's. Make it in the loop; `close` before the endpoint."""

    def __init__(self, endpoint: Endpoint, places: Iterable[EndpointAddress]) -> None:
        """`places`: the relays that are known, the preferred first, up to limits.PLACES."""
        self._endpoint = endpoint
        self.on_change: OnChange = lambda _: None
        self._state, self._told = relay_selection.RelaySelectionState(), tuple[EndpointAddress, ...]()
        self._tasks = OwnedTasks()
        self._moved: dict[Connection, int] = {}
        self._looked = _now()
        known = tuple(places)
        self._feed(relay_selection.KnownRelaysEvent(known))
        self._told = self._state.attached
        if len(known) > len(self._told):  # else there is nothing to choose
            self._tasks.begin(self._watch())

    @property
    def places(self) -> tuple[EndpointAddress, ...]:
        """Where this endpoint is known, as others were told, the best relay first."""
        return self._told

    async def close(self) -> None:
        """Measures and changes no more."""
        await self._tasks.close()

    def _feed(self, event: Event) -> None:
        self._state, effects = relay_selection.handle(self._state, event, _now())
        for effect in effects:
            place = effect.place
            match effect:
                case relay_selection.AttachRelay():
                    self._endpoint.attach(place.relay, place.host, place.port)
                case relay_selection.DetachRelay():
                    self._tasks.begin(self._leave(place))
                case relay_selection.ProbeRelay():
                    self._tasks.begin(self._measure(place))
        if self._told and any(not isinstance(effect, relay_selection.ProbeRelay) for effect in effects):
            self._tasks.begin(self._tell())

    async def _tell(self) -> None:
        """Others hear of a new relay when it knows us."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while not all(self._endpoint.is_attached(p.relay) for p in self._state.attached):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS / 5)
        if self._told != self._state.attached:
            self._told = self._state.attached
            self.on_change(self._told)

    async def _leave(self, place: EndpointAddress) -> None:
        await asyncio.sleep(LINGER_SECONDS)
        if place.relay not in {each.relay for each in self._state.attached}:
            await self._endpoint.detach(place.relay)

    # Measuring

    async def _watch(self) -> None:
        for look in itertools.count(1):
            await asyncio.sleep(LOOK_SECONDS)
            for place in self._state.attached:
                is_there = self._endpoint.is_attached(place.relay)
                self._feed(
                    relay_selection.RelayAttachedEvent(place) if is_there else relay_selection.RelayDetachedEvent(place)
                )
            for rates in self._carried() if look % _CARRY_LOOKS == 0 else ():
                self._feed(relay_selection.RelayTrafficEvent(rates))
            self._feed(relay_selection.RelayTickEvent())

    def _carried(self) -> list[tuple[tuple[EndpointAddress, float], ...]]:
        """For each peer what our relays moved since the last look, where one of them moved much."""
        now, ours = _now(), {place.relay: place for place in self._state.attached}
        seconds, self._looked = now - self._looked, now
        moved: dict[PeerId, dict[EndpointAddress, int]] = defaultdict(lambda: defaultdict(int))
        seen = dict[Connection, int]()
        for connection in self._endpoint.standing:
            seen[connection] = connection.moved
            place = ours.get(connection.place.relay)
            if place is not None:
                moved[connection.peer][place] += connection.moved - self._moved.get(connection, 0)
        self._moved = seen
        return [
            tuple((place, size / seconds) for place, size in of.items() if size >= _SOME_BYTES)
            for of in moved.values()
            if max(of.values()) >= _BULK_BYTES
        ]

    async def _measure(self, place: EndpointAddress) -> None:
        try:
            measured = await self._probe(place)
        except FarflungError:
            self._feed(relay_selection.RelayUnmeasuredEvent(place))
        else:
            self._feed(measured)

    async def _probe(self, place: EndpointAddress) -> relay_selection.RelayMeasuredEvent:
        """Raises FarflungError."""
        connection = await self._endpoint.dial(place.relay, place.host, place.port, fresh=_FRESH)
        try:
            trip = float("inf")
            for _ in range(_TRIPS):
                began = _now()
                await connection.call(relay_probe.TIME, b"", timeout=PROBE_SECONDS)
                trip = min(trip, _now() - began)
            before = losses(connection.tcp)
            up = await _transfer(lambda n: connection.call(relay_probe.SINK, bytes(n), kind=MessageKind.JOIN), trip)
            after = losses(connection.tcp)
            down = await _transfer(
                lambda n: connection.call(relay_probe.SOURCE, encode(n), kind=MessageKind.JOIN), trip
            )
        finally:
            connection.close()
        sent, again = after[0] - before[0], after[1] - before[1]
        goodput = (up[0] + down[0]) / (up[1] + down[1])
        return relay_selection.RelayMeasuredEvent(place, trip, goodput, again / sent if sent else 0.0)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _transfer(ask: Callable[[int], Coroutine[Any, Any, bytes]], trip: float) -> tuple[int, float]:
    """Bytes that arrived, and in how many seconds. Raises NetworkError, FF-NET-180 when nothing arrived.

    What is over within some round trips tells how near the relay is. Then more is moved over the connection that is
    warm by then, and counts alone.
    """
    arrived = list[tuple[float, int]]()
    for most in (PROBE_BYTES, MORE_BYTES):
        arrived.clear()
        await move(ask, most, PROBE_SECONDS, arrived)
        if not arrived:
            raise NetworkError(
                "FF-NET-180",
                "a relay could not be measured",
                cause=f"not one piece arrived in {PROBE_SECONDS:.0f} s",
                hint="nothing: it is tried again later, and others are used meanwhile",
            )
        if arrived[-1][0] >= START_TRIPS * trip:
            break
    return sum(size for _, size in arrived), max(arrived[-1][0], 1e-6)
