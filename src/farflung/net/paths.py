"""Decides over which of several paths two peers talk: what is tried, what is measured, what is preferred.

    untried --Dial--> trying --Opened--> open --Lost--> failed --after its pause--> trying ...
                        |                 |  ^            ^
                        |                 +--|---Silent-->+     no pause; Spoken takes it back
                        +-- Failed -----------------------+     pauses double from 5 s up to 600 s

A path is a place of the peer's record, or MEETING: a TCP simultaneous open that the two agree on over an open path. One
relay path is opened at once; everything else is tried behind it, a second relay only for bulk. Control goes over the
shortest round trip, bulk over the highest goodput, both only where it is a fifth better than what is in use; what is
within a tenth of it, and needs no relay, is taken too. A busy machine only ever lengthens what it measures of a round
trip, so the least of the last few counts. A dead or silent path is left at once; a silent connection is closed when
another one stands, so that whoever waits on it hears of it. Nothing here waits or measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.net.endpoint_records import DIRECT, EndpointAddress

MEETING: Final = EndpointAddress("", 0)
RELAYS: Final = 2  # to one peer at a time
BETTER: Final = 1.2  # by this factor, to leave a path that works
AS_GOOD: Final = 1.1  # within this factor the kind of the path counts
DROP: Final = 0.7  # of a path's own smoothed goodput: ask what has become of it
PROBE_SECONDS: Final = 30.0  # between two probes of one path
STRIPE_SECONDS: Final = 10.0  # for which a doubtful path shares bulk with all others
PAUSES: Final = Backoff(5.0, 600.0)
SLOW_SECONDS: Final = 2.0  # while nothing stands, until one more path is tried
STEADY_SECONDS: Final = 60.0  # a path that stood so long may be tried again at once
TRIPS: Final = 4  # round trips of a path that are remembered
_NEW: Final = 0.25  # weight of a new measurement of goodput or loss


class PathType(StrEnum):
    """What a connection runs over; of equal ones the first counts."""

    LAN = "lan"
    DIRECT = "direct"
    OPENED = "opened"
    RELAY = "relay"


class PathCondition(StrEnum):
    """What is known of a path."""

    UNTRIED = "untried"
    TRYING = "trying"
    OPEN = "open"
    FAILED = "failed"


class NetworkPath(msgspec.Struct, frozen=True):
    """One path to a peer. `trip`: seconds there and back; `goodput`: bytes a second; `loss`: of what was sent.

    `trips`: what was measured last; `trip` is the least of them.
    """

    place: EndpointAddress
    condition: PathCondition = PathCondition.UNTRIED
    way: PathType = PathType.RELAY
    trip: float | None = None
    goodput: float | None = None
    loss: float = 0.0
    trips: tuple[float, ...] = ()
    failures: int = 0
    since: float = 0.0  # tried or open since; failed: not to be tried before
    probed: float = float("-inf")
    is_silent: bool = False  # a connection stands, and nothing comes over it

    @property
    def is_open(self) -> bool:
        """Whether it stands."""
        return self.condition is PathCondition.OPEN

    @property
    def is_relayed(self) -> bool:
        """Whether it would go through a relay."""
        return self.place.relay != DIRECT

    @property
    def worth(self) -> float | None:
        """Bytes a second that arrive at the first try; None: nothing is known."""
        return None if self.goodput is None else self.goodput * (1 - self.loss)


class PathSelectionState(msgspec.Struct, frozen=True):
    """All paths to one peer. `control` and `bulk`: the preferred ones, which are open; None while nothing is."""

    paths: tuple[NetworkPath, ...] = ()
    control: EndpointAddress | None = None
    bulk: EndpointAddress | None = None
    is_bulk: bool = False  # somebody moves much
    stripe_until: float = float("-inf")

    def path(self, place: EndpointAddress) -> NetworkPath | None:
        """The path over this place."""
        return next((path for path in self.paths if path.place == place), None)

    def ways(self, now: float) -> tuple[EndpointAddress, ...]:
        """The open paths that share bulk, the best first. A relay carries no bulk beside a better way without one."""
        there = [path for path in self.paths if path.is_open]
        best = self.path(self.bulk) if self.bulk is not None else None
        if best is not None and best.way is not PathType.RELAY and now >= self.stripe_until:
            there = [path for path in there if path.way is not PathType.RELAY]
        there.sort(key=lambda path: (path.place != self.bulk, -(path.worth or 0.0)))
        return tuple(path.place for path in there)


class KnownAddressesEvent(msgspec.Struct, frozen=True):
    """Where the peer is, and whether the two may meet by simultaneous open."""

    places: tuple[EndpointAddress, ...]
    may_meet: bool = False


class PathWantedEvent(msgspec.Struct, frozen=True):
    """Somebody wants to talk with the peer now."""

    is_bulk: bool = False


class PathOpenedEvent(msgspec.Struct, frozen=True):
    """A connection over this place stands, whoever dialled it."""

    place: EndpointAddress
    way: PathType


class PathSilentEvent(msgspec.Struct, frozen=True):
    """Nothing comes over this path though an answer is due."""

    place: EndpointAddress


class PathRecoveredEvent(msgspec.Struct, frozen=True):
    """Something came over a path that was silent."""

    place: EndpointAddress


class PathFailedEvent(msgspec.Struct, frozen=True):
    """It could not be opened."""

    place: EndpointAddress


class PathLostEvent(msgspec.Struct, frozen=True):
    """The connection is gone, or dead."""

    place: EndpointAddress


class PathMeasuredEvent(msgspec.Struct, frozen=True):
    """What an open path showed: seconds, bytes a second, part lost. None: that was not measured."""

    place: EndpointAddress
    trip: float | None = None
    goodput: float | None = None
    loss: float | None = None


class PathTickEvent(msgspec.Struct, frozen=True):
    """Time passes."""


Event = (
    KnownAddressesEvent
    | PathWantedEvent
    | PathOpenedEvent
    | PathFailedEvent
    | PathLostEvent
    | PathSilentEvent
    | PathRecoveredEvent
    | PathMeasuredEvent
    | PathTickEvent
)
_OfPath = PathOpenedEvent | PathFailedEvent | PathLostEvent | PathSilentEvent | PathRecoveredEvent | PathMeasuredEvent


class DialPath(msgspec.Struct, frozen=True):
    """Open a connection over this place; MEETING: agree on a simultaneous open."""

    place: EndpointAddress


class ProbePath(msgspec.Struct, frozen=True):
    """Measure this open path, by a short burst if nothing else tells."""

    place: EndpointAddress


class ClosePath(msgspec.Struct, frozen=True):
    """End the silent connection over this place: others stand."""

    place: EndpointAddress


Effect = DialPath | ProbePath | ClosePath


def handle(state: PathSelectionState, event: Event, now: float) -> tuple[PathSelectionState, list[Effect]]:
    """The next state and what to do. `now`: seconds of a clock that only goes forward."""
    effects = list[Effect]()
    match event:
        case KnownAddressesEvent():
            state, effects = _known(state, event, now)
        case PathWantedEvent():
            state = msgspec.structs.replace(state, is_bulk=state.is_bulk or event.is_bulk)
        case PathTickEvent():
            pass
        case _:
            state, effects = _happened(state, event, now)
    state, closes = _leave(_prefer(state), now)
    state, tries = _try(state, now, is_wanted=isinstance(event, PathWantedEvent | PathSilentEvent))
    return state, effects + closes + tries


def pause(failures: int) -> float:
    """Seconds before a path that failed so often in a row is tried again."""
    return PAUSES.pause(failures - 1) if failures else 0.0


def choose(relays: Iterable[NetworkPath], count: int = RELAYS) -> list[NetworkPath]:
    """The best relays: by goodput and loss; within a fifth of the best the shorter round trip. Unmeasured ones last."""
    left, chosen = list(relays), list[NetworkPath]()
    while left and len(chosen) < count:
        known = [path for path in left if path.worth is not None]
        if known:
            most = max(path.worth or 0.0 for path in known)
            near = [path for path in known if (path.worth or 0.0) * BETTER >= most]
            best = min(near, key=lambda path: float("inf") if path.trip is None else path.trip)
        else:
            best = left[0]
        left.remove(best)
        chosen.append(best)
    return chosen


def _known(
    state: PathSelectionState, event: KnownAddressesEvent, now: float
) -> tuple[PathSelectionState, list[Effect]]:
    """Places that are named no more are forgotten, unless a connection over them stands: that is proof enough."""
    wanted = [*dict.fromkeys(event.places[: limits.PLACES]), *([MEETING] if event.may_meet else [])]
    kept = [path for path in state.paths if path.place in wanted or path.is_open]
    there = {path.place for path in kept}
    made = [NetworkPath(place, way=_kind(place)) for place in wanted if place not in there]
    order = {place: n for n, place in enumerate(wanted)}
    paths = sorted(kept + made, key=lambda path: order.get(path.place, len(order)))
    return msgspec.structs.replace(state, paths=tuple(paths)), []


def _kind(place: EndpointAddress) -> PathType:
    if place == MEETING:
        return PathType.OPENED
    return PathType.DIRECT if place.relay == DIRECT else PathType.RELAY


def _happened(state: PathSelectionState, event: _OfPath, now: float) -> tuple[PathSelectionState, list[Effect]]:
    effects: list[Effect] = []
    replace = msgspec.structs.replace
    path = state.path(event.place)
    if path is None:
        if not isinstance(event, PathOpenedEvent):
            return state, []
        path = NetworkPath(event.place)  # the peer came over a way that it had not named
        state = replace(state, paths=(*state.paths, path))
    match event:
        case PathOpenedEvent() if not path.is_open:
            path = replace(path, condition=PathCondition.OPEN, way=event.way, since=now, is_silent=False)
            path = replace(path, trip=None, trips=())
        case PathFailedEvent() if not path.is_open:
            failures = path.failures + 1
            rest = now + pause(failures + 2 * (path.place == MEETING))  # a router stays of its kind
            path = replace(path, condition=PathCondition.FAILED, failures=failures, since=rest)
        case PathSilentEvent() if path.is_open:
            path = replace(path, condition=PathCondition.FAILED, since=now, is_silent=True)
        case PathRecoveredEvent() if path.is_silent:
            path = replace(path, condition=PathCondition.OPEN, since=now, is_silent=False)
        case PathLostEvent() if path.is_silent:
            path = replace(path, is_silent=False)
        case PathLostEvent() if path.is_open:
            failures = 0 if now - path.since >= STEADY_SECONDS else path.failures + 1
            path = replace(path, condition=PathCondition.FAILED, failures=failures, since=now + pause(failures))
        case PathMeasuredEvent() if path.is_open:
            has_dropped = event.goodput is not None and path.goodput is not None and event.goodput < DROP * path.goodput
            path = _smoothed(path, event)
            if has_dropped and now - path.probed >= PROBE_SECONDS:
                path = replace(path, probed=now)
                state = replace(state, stripe_until=now + STRIPE_SECONDS)
                effects.append(ProbePath(path.place))
    paths = tuple(path if each.place == path.place else each for each in state.paths)
    return replace(state, paths=paths), effects


def _smoothed(path: NetworkPath, told: PathMeasuredEvent) -> NetworkPath:
    def mix(old: float | None, new: float | None) -> float | None:
        return old if new is None else new if old is None else (1 - _NEW) * old + _NEW * new

    goodput, loss = mix(path.goodput, told.goodput), mix(path.loss, told.loss) or 0.0
    path = msgspec.structs.replace(path, goodput=goodput, loss=loss)
    if told.trip is None:
        return path
    trips = (*path.trips, told.trip)[-TRIPS:]
    return msgspec.structs.replace(path, trips=trips, trip=min(trips))


def _prefer(state: PathSelectionState) -> PathSelectionState:
    there = [path for path in state.paths if path.is_open]
    control, bulk = state.path(state.control or MEETING), state.path(state.bulk or MEETING)
    nearest = _best(there, control if state.control else None, is_bulk=False)
    fastest = _best(there, bulk if state.bulk else None, is_bulk=True)
    return msgspec.structs.replace(state, control=nearest, bulk=fastest)


def _leave(state: PathSelectionState, now: float) -> tuple[PathSelectionState, list[Effect]]:
    """Silent connections end when another one stands; their paths rest as if they had failed."""
    if not any(path.is_open for path in state.paths):
        return state, []
    closed = [path.place for path in state.paths if path.is_silent]
    for place in closed:
        state, _ = _happened(state, PathFailedEvent(place), now)
        state, _ = _happened(state, PathLostEvent(place), now)
    return state, [ClosePath(place) for place in closed]


def _best(there: Sequence[NetworkPath], now: NetworkPath | None, *, is_bulk: bool) -> EndpointAddress | None:
    if now is None or not now.is_open:
        if not there:
            return None

        def rank(path: NetworkPath) -> tuple[float, int]:
            trip = float("inf") if path.trip is None else path.trip
            return (-(path.worth or 0.0) if is_bulk else trip), list(PathType).index(path.way)

        now = min(there, key=rank)
    for path in there:
        if (beats if is_bulk else is_nearer)(path, now):
            now = path
    return now.place


def is_nearer(new: NetworkPath, old: NetworkPath) -> bool:
    """Whether control leaves the old path for the new one."""
    if new.trip is None or old.trip is None:
        return False
    return new.trip * BETTER <= old.trip or (new.trip <= old.trip * AS_GOOD and _needs_less(new, old))


def beats(new: NetworkPath, old: NetworkPath) -> bool:
    """Whether bulk leaves the old path for the new one."""
    ours, theirs = new.worth, old.worth
    if ours is None or theirs is None or ours * AS_GOOD < theirs:
        return False
    if ours >= theirs * BETTER and ours > theirs:
        return True
    if new.trip is None or old.trip is None:
        return _needs_less(new, old)
    return is_nearer(new, old)


def _needs_less(new: NetworkPath, old: NetworkPath) -> bool:
    return old.way is PathType.RELAY and new.way is not PathType.RELAY


def _try(state: PathSelectionState, now: float, *, is_wanted: bool) -> tuple[PathSelectionState, list[Effect]]:
    """One path at once where nothing stands, another when that takes long; behind it all whose pause is over."""
    ripe = [p for p in state.paths if p.condition is PathCondition.UNTRIED or _is_over(p, now)]
    busy = [p for p in state.paths if p.condition in (PathCondition.TRYING, PathCondition.OPEN)]
    relays = sum(path.is_relayed for path in busy)
    chosen: list[NetworkPath] = []
    if not any(path.is_open for path in busy):
        busy = [path for path in busy if path.place != MEETING]  # over what should it be agreed on?
        is_slow = bool(busy) and now - max(path.since for path in busy) >= SLOW_SECONDS
        if is_slow or (is_wanted and not busy):
            chosen = _first(state, ripe, is_wanted=is_wanted)
    else:
        is_met = any(path.is_open and path.way is not PathType.RELAY for path in busy)
        chosen = [p for p in ripe if not p.is_relayed and not (is_met and p.place == MEETING)]
        if state.is_bulk and relays < RELAYS:
            chosen += choose((p for p in ripe if p.is_relayed), RELAYS - relays)
    places = {path.place for path in chosen}
    paths = tuple(
        msgspec.structs.replace(path, condition=PathCondition.TRYING, since=now) if path.place in places else path
        for path in state.paths
    )
    return msgspec.structs.replace(state, paths=paths), [DialPath(path.place) for path in chosen]


def _first(state: PathSelectionState, ripe: list[NetworkPath], *, is_wanted: bool) -> list[NetworkPath]:
    """What to try while nothing stands: relays before others; whoever wants the peer now waits for no pause."""
    left = [p for p in state.paths if p.place.port and p.condition is not PathCondition.TRYING]
    places = choose([p for p in left if p.is_relayed], len(left)) + [p for p in left if not p.is_relayed]
    fresh = [p for p in places if p in ripe and not p.is_silent]
    return (fresh or (sorted(places, key=lambda p: p.since) if is_wanted else []))[:1]


def _is_over(path: NetworkPath, now: float) -> bool:
    return path.condition is PathCondition.FAILED and now >= path.since
