"""Manages an endpoint's paths to its peers: carries out what `net.paths` decides, and reports measurements.

    learn(peer, places)      where a peer is
    await connection(peer)   the best path for control: what stands, else a relay at once; better ones behind it
    ways(peer)               all connections for bulk: over all open paths, several over each (`lanes`)

Round trips and silence are asked for by a small request, only over connections to other machines and only while they
are in use; of a new path at every tick, until no single answer decides. Goodput is what bulk moved over them anyway.
Only a path that has lost a third of its goodput is measured by a burst of its own. Peers on one machine stay on the
path that they have: nothing is better there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError, NetworkError, ProtocolError
from farflung.core.ids import PeerId, short
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net import paths
from farflung.net.endpoint_records import DIRECT, EndpointAddress, EndpointRecord, check_newer
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.hole_punch import HolePuncher, cannot
from farflung.net.io.parallel_connections import ParallelConnections
from farflung.net.io.redial import first_of
from farflung.net.io.socket_options import losses
from farflung.net.messages import MessageKind
from farflung.net.paths import MEETING, Event, PathCondition, PathType

ECHO: Final = "path.echo"  # any body up to limits.FRAME_BYTES, answered by nothing
TICK_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 1.0  # without a byte, while an answer is due: is it still there?
SILENT_SECONDS: Final = 4.0  # after which another path is tried
GRACE_SECONDS: Final = 1.0  # in which a silent connection may still speak when another one stands
TRIP_SECONDS: Final = 5.0  # between two measurements of a round trip that is known
USED_SECONDS: Final = 30.0  # for which a peer counts as in use
_BULK_BYTES: Final = 128 * limits.KIB  # moved in one tick, to tell goodput
_DIALS: Final = (1, 101)  # numbers of new connections that no lane has
_BURST: Final = 16  # messages of limits.FRAME_BYTES, at once: with fewer under way a long path tells its length


@dataclass(eq=False, slots=True)
class _WatchedConnection:
    """One connection as it is watched."""

    connection: Connection
    moved: int
    at: float
    was_busy: bool = False
    tripped: float = float("-inf")  # when its round trip was last asked for
    asked: asyncio.Task[None] | None = None
    silent: float | None = None  # `heard` when it was found silent
    tried: float = float("-inf")  # when another path was last wanted, because it is silent and owes an answer
    sent: tuple[int, int] = (0, 0)  # bytes sent, and sent again


@dataclass(eq=False, slots=True)
class _PeerPaths:
    """One peer."""

    state: paths.PathSelectionState = field(default_factory=paths.PathSelectionState)
    lines: dict[EndpointAddress, _WatchedConnection] = field(default_factory=dict)
    is_known: bool = False
    told: EndpointRecord | None = None  # by the peer itself, newer than what others say
    wanted: float = float("-inf")
    error: FarflungError | None = None
    failures: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class PathManager:
    """The paths of one endpoint. `on_way(peer, way)`: the way that control takes has changed."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        may_meet: bool = True,
        may_meet_here: bool = False,
        is_near: Callable[[PeerId, EndpointAddress], bool] = lambda _peer, _place: False,
        on_way: Callable[[PeerId, PathType], None] = lambda _peer, _way: None,
    ) -> None:
        """`may_meet`: whether to leave relays by simultaneous open; `may_meet_here`: also on one machine.

        `is_near`: whether a place of a peer is on this machine's LAN; who is dialled there is met by Way.LAN.
        """
        self._endpoint, self._may_meet, self._may_meet_here = endpoint, may_meet, may_meet_here
        self._is_near, self._on_way = is_near, on_way
        self._peers: dict[PeerId, _PeerPaths] = {}
        self._tasks = OwnedTasks()
        self._openings: HolePuncher | None = None
        self._parallel = ParallelConnections(endpoint, self._tasks.begin)
        self._loop: asyncio.AbstractEventLoop | None = None

    def learn(self, peer: PeerId, places: Iterable[EndpointAddress]) -> None:
        """Where the peer is reached, the best place first; replaces what was learned before."""
        peer_paths = self._paths_of(peer)
        peer_paths.is_known, told = True, peer_paths.told.places if peer_paths.told is not None else ()
        self._feed(peer, peer_paths, paths.KnownAddressesEvent(tuple(dict.fromkeys((*told, *places))), self._may_meet))

    def hear(self, record: EndpointRecord) -> None:
        """A peer's own checked word of where it is, which counts before others'. Raises ProtocolError FF-NET-112."""
        peer_paths = self._peers.get(record.peer)
        if peer_paths is not None and peer_paths.is_known:
            check_newer(peer_paths.told, record)
            peer_paths.told = record
            self.learn(record.peer, record.places)

    def forget(self, peers: Iterable[PeerId]) -> None:
        """These are of no interest any more; a connection that rests is closed by the end that dialled it."""
        for peer in peers:
            self._peers.pop(peer, None)
            for connection in self._endpoint.connections(peer):
                connection.retire()

    async def connection(self, peer: PeerId) -> Connection:
        """The best open connection, or a new one to whichever place answers first. Raises FarflungError."""
        peer_paths = self._paths_of(peer)
        peer_paths.wanted = self._now()
        failures, most = (peer_paths.failures, max(1, sum(path.place.port > 0 for path in peer_paths.state.paths)))
        while (found := self._standing(peer, peer_paths)) is None:
            if peer_paths.failures - failures < most:
                self._feed(peer, peer_paths, paths.PathWantedEvent())
            peer_paths.changed.clear()
            if not any(path.condition is PathCondition.TRYING for path in peer_paths.state.paths):
                raise peer_paths.error or _nowhere(peer)
            await peer_paths.changed.wait()
        return found

    def ways(self, peer: PeerId) -> tuple[Connection, ...]:
        """All open connections that share bulk, those of the best path first."""
        peer_paths = self._paths_of(peer)
        peer_paths.wanted = self._now()
        self._feed(peer, peer_paths, paths.PathWantedEvent(is_bulk=True))
        lines = [peer_paths.lines[place] for place in peer_paths.state.ways(self._now()) if place in peer_paths.lines]
        firsts = [line.connection for line in lines if _is_usable(line.connection)]
        return tuple(each for first in firsts for each in self._beside(first))

    def _beside(self, first: Connection) -> tuple[Connection, ...]:
        return self._parallel.of(first) if self._is_far(first) else (first,)

    def _is_far(self, connection: Connection) -> bool:
        """Whether the peer is on another machine."""
        return connection.tuned is not None and (self._may_meet_here or not connection.tuned.is_local)

    def way(self, peer: PeerId) -> PathType | None:
        """What control takes now."""
        peer_paths = self._peers.get(peer)
        path = (
            None
            if peer_paths is None or peer_paths.state.control is None
            else peer_paths.state.path(peer_paths.state.control)
        )
        return None if path is None else path.way

    async def close(self) -> None:
        """Tries and measures no more; connections are the endpoint's."""
        if self._openings is not None:
            await self._openings.close()
        self._endpoint.on_accepted = None
        await self._tasks.close()

    # Inside

    def _begin(self) -> None:
        """The first use, in the loop: from now on it listens and measures."""
        self._loop = asyncio.get_running_loop()
        self._openings = HolePuncher(self._endpoint, self._may_open, self._came)
        self._endpoint.services[ECHO] = _echo
        self._endpoint.on_accepted = self._came
        self._tasks.begin(self._watch())

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _paths_of(self, peer: PeerId) -> _PeerPaths:
        if self._loop is None:
            self._begin()
        peer_paths = self._peers.get(peer)
        if peer_paths is None:
            peer_paths = self._peers[peer] = _PeerPaths()
            if (standing := self._endpoint.connection(peer)) is not None:
                self._join(peer, peer_paths, standing)
        return peer_paths

    def _may_open(self, peer: PeerId) -> bool:
        peer_paths = self._peers.get(peer)
        return self._may_meet and peer_paths is not None and peer_paths.is_known

    def _came(self, connection: Connection) -> None:
        """Somebody has dialled us."""
        peer_paths = self._peers.get(connection.peer) if connection.is_open else None
        if peer_paths is not None:
            self._join(connection.peer, peer_paths, connection)
            self._parallel.stand(connection.peer)

    def _join(self, peer: PeerId, peer_paths: _PeerPaths, connection: Connection) -> None:
        """A connection stands. One that already stood over the same place stays, unless it is silent."""
        place = connection.place
        old = peer_paths.lines.get(place)
        if old is not None and old.connection is not connection:
            if old.silent is None and _is_usable(old.connection):
                self._feed(peer, peer_paths, paths.PathOpenedEvent(place, old.connection.way))  # if it was doubted
                return
            self._tasks.begin(self._bury(peer, old.connection))
        peer_paths.lines[place] = _WatchedConnection(connection, connection.moved, self._now())
        connection.ways = functools.partial(self.ways, peer)
        self._tasks.begin(self._until_lost(peer, peer_paths, place, connection))
        self._feed(peer, peer_paths, paths.PathOpenedEvent(place, connection.way))

    async def _until_lost(
        self, peer: PeerId, peer_paths: _PeerPaths, place: EndpointAddress, connection: Connection
    ) -> None:
        await connection.closed()
        line = peer_paths.lines.get(place)
        if line is not None and line.connection is connection:
            del peer_paths.lines[place]
            self._feed(peer, peer_paths, paths.PathLostEvent(place))
            for other in self._endpoint.connections(peer):  # a lane of the same path may stand
                if (other.place, other.way) == (place, connection.way):
                    self._join(peer, peer_paths, other)
                    break

    async def _bury(self, peer: PeerId, connection: Connection) -> None:
        """Ends what stays silent though the peer answers elsewhere: a peer that was only busy speaks on both."""
        heard = connection.heard
        await asyncio.sleep(GRACE_SECONDS)
        if connection.heard == heard:
            connection.drop(_dead(peer))

    def _standing(self, peer: PeerId, peer_paths: _PeerPaths) -> Connection | None:
        """What control prefers; what somebody doubts is silent from now on, what is worn is left to end."""
        for _ in range(limits.PLACES):
            line = peer_paths.lines.get(peer_paths.state.control) if peer_paths.state.control is not None else None
            if line is None:
                return None
            if _is_usable(line.connection):
                return line.connection
            if line.connection.is_open and not line.connection.is_worn:
                self._silent(peer, peer_paths, line)
            else:
                del peer_paths.lines[line.connection.place]
                self._feed(peer, peer_paths, paths.PathLostEvent(line.connection.place))
        return None

    def _feed(self, peer: PeerId, peer_paths: _PeerPaths, event: Event) -> None:
        before = self.way(peer)
        peer_paths.state, effects = paths.handle(peer_paths.state, event, self._now())
        for effect in effects:
            match effect:
                case paths.DialPath():
                    self._tasks.begin(self._dial(peer, peer_paths, effect.place))
                case paths.ProbePath():
                    self._tasks.begin(self._burst(peer, peer_paths, effect.place))
                case paths.ClosePath() if (line := peer_paths.lines.pop(effect.place, None)) is not None:
                    self._tasks.begin(self._bury(peer, line.connection))
                case _:
                    pass
        peer_paths.changed.set()
        if (after := self.way(peer)) is not None and after is not before:
            self._on_way(peer, after)

    async def _dial(self, peer: PeerId, peer_paths: _PeerPaths, place: EndpointAddress) -> None:
        try:
            connection = await self._meet(peer, peer_paths) if place == MEETING else await self._reach(peer, place)
        except FarflungError as error:
            if place != MEETING:
                peer_paths.error, peer_paths.failures = error, peer_paths.failures + 1
            self._feed(peer, peer_paths, paths.PathFailedEvent(place))
        else:
            self._join(peer, peer_paths, connection)
            self._parallel.stand(peer)
            if connection.place != place:
                self._feed(peer, peer_paths, paths.PathFailedEvent(place))

    async def _reach(self, peer: PeerId, place: EndpointAddress) -> Connection:
        relay = place.relay if place.relay != DIRECT else None

        async def dial(number: int) -> Connection:
            return await self._endpoint.dial(peer, place.host, place.port, relay=relay, fresh=number)

        connection = await first_of(dial, _DIALS)
        if self._is_near(peer, place):
            connection.way = PathType.LAN
        return connection

    async def _meet(self, peer: PeerId, peer_paths: _PeerPaths) -> Connection:
        assert self._openings is not None
        for line in peer_paths.lines.values():
            over = line.connection
            if over.way is PathType.RELAY and _is_usable(over) and self._is_far(over):
                await self._trip(peer, peer_paths, line)
                return await self._openings.open(over)
        raise cannot(peer, "no relay carries to another machine")

    # Measuring

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._parallel.look(self._now())
            for peer, peer_paths in list(self._peers.items()):
                for line in list(peer_paths.lines.values()):
                    self._look(peer, peer_paths, line)
                self._feed(peer, peer_paths, paths.PathTickEvent())

    def _look(self, peer: PeerId, peer_paths: _PeerPaths, line: _WatchedConnection) -> None:
        connection, now = line.connection, self._now()
        if not self._is_far(connection):
            return
        beside, seconds = self._parallel.beside(connection), now - line.at
        moved = connection.moved + sum(lane.moved for lane in beside)
        is_busy = self._parallel.is_busy(connection)
        if line.silent is not None and connection.heard != line.silent:
            line.silent = None
            self._feed(peer, peer_paths, paths.PathRecoveredEvent(connection.place))
        if line.silent is not None and connection.is_busy and now - line.tried >= SILENT_SECONDS:
            line.tried = now  # the first try may have failed: the peer was not at its relay again
            self._feed(peer, peer_paths, paths.PathWantedEvent())
        if line.was_busy and is_busy and moved - line.moved >= _BULK_BYTES:
            sent = _losses(connection, *beside)
            more, again = sent[0] - line.sent[0], sent[1] - line.sent[1]
            loss = again / more if more > _BULK_BYTES else None
            goodput, line.sent = (moved - line.moved) / seconds, sent
            self._feed(peer, peer_paths, paths.PathMeasuredEvent(connection.place, goodput=goodput, loss=loss))
        line.moved, line.at, line.was_busy = moved, now, is_busy
        is_used = now - peer_paths.wanted <= USED_SECONDS
        is_quiet = connection.is_busy and now - connection.heard >= QUIET_SECONDS
        path = peer_paths.state.path(connection.place)
        rest = 0.0 if path is None or len(path.trips) < paths.TRIPS else TRIP_SECONDS
        if line.asked is None and (is_quiet or (is_used and now - line.tripped >= rest)):
            line.asked = self._tasks.begin(self._trip(peer, peer_paths, line))

    async def _trip(self, peer: PeerId, peer_paths: _PeerPaths, line: _WatchedConnection) -> None:
        """Asks for nothing; the answer tells the round trip, its absence that the path is silent."""
        connection, before = line.connection, self._now()
        line.tripped = before
        try:
            await connection.call(ECHO, b"", timeout=SILENT_SECONDS)
        except NetworkError as error:
            is_kept = peer_paths.lines.get(connection.place) is line  # else another one carries this path by now
            if is_kept and error.code == "FF-NET-047" and connection.heard <= before:
                self._silent(peer, peer_paths, line)
        else:
            trip = self._now() - before
            self._feed(peer, peer_paths, paths.PathMeasuredEvent(connection.place, trip=trip))
            path = peer_paths.state.path(connection.place)
            connection.round_trip = trip if path is None else path.trip
        finally:
            line.asked = None

    def _silent(self, peer: PeerId, peer_paths: _PeerPaths, line: _WatchedConnection) -> None:
        line.silent = line.connection.heard
        line.connection.doubt()
        self._feed(peer, peer_paths, paths.PathSilentEvent(line.connection.place))

    async def _burst(self, peer: PeerId, peer_paths: _PeerPaths, place: EndpointAddress) -> None:
        """Asks what is left of a path's goodput, if no bulk goes over it anyway."""
        line = peer_paths.lines.get(place)
        if line is None or self._parallel.is_busy(line.connection):
            return
        connection, before, piece = line.connection, self._now(), bytes(limits.FRAME_BYTES)
        with contextlib.suppress(NetworkError):
            await asyncio.gather(*(connection.call(ECHO, piece, kind=MessageKind.SYNC) for _ in range(_BURST)))
            seconds = self._now() - before
            if seconds > 0 and peer_paths.lines.get(place) is line:
                self._feed(
                    peer, peer_paths, paths.PathMeasuredEvent(place, goodput=_BURST * limits.FRAME_BYTES / seconds)
                )


def _losses(*connections: Connection) -> tuple[int, int]:
    """Bytes sent, and sent again, over all of them."""
    told = [losses(each.tcp) for each in connections]
    return sum(sent for sent, _ in told), sum(again for _, again in told)


def _is_usable(connection: Connection) -> bool:
    return connection.is_open and not (connection.is_worn or connection.is_doubted)


async def _echo(connection: Connection, method: str, body: bytes) -> bytes:
    if len(body) > limits.FRAME_BYTES:
        raise ProtocolError("FF-NET-116", "too much to measure with", cause=f"{len(body)} bytes at a time")
    return b""


def _nowhere(peer: PeerId) -> NetworkError:
    return NetworkError(
        "FF-NET-117", f"no path to {short(peer)}", cause="no address of it is known", hint="get a fresh address"
    )


def _dead(peer: PeerId) -> NetworkError:
    return NetworkError(
        "FF-NET-118",
        f"a path to {short(peer)} was silent",
        cause="an answer is overdue, and another path stands",
        hint="nothing: what was under way is tried again over the other one",
    )
