"""Decides which chunk to request from which source; any source may stall, fail or lie.

A way is one connection to one source. Faster ways come back for more sooner, and so take work from slower ones:

    missing ──next()──> asked over a way ──received()──> here
       ^                      │
       ├──────failed()────────┤   the way is gone: what it owes goes to the others
       └──────parked()────────┘   nothing came for STALL_SECONDS: likewise, but a late answer counts, and brings it back

The window of a way is twice what it carries in one round trip, both as measured on the chunks that came, as TCP's BBR
has it (Cardwell and others 2016): the least that keeps a line full while an answer is on its way. When nothing is left
to ask, an idle way asks once more for a chunk that a much slower way still owes (`repeated` counts these).

Chunks are verified by hash (`objects.check_chunk`) before `received`, so a lie costs one chunk's transfer. Carrying
chunks the other way, to a peer that stores them, follows the same plan: then `received` means that it has stored one.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from farflung.core import limits
from farflung.store.sealed_objects import ObjectManifest

STALL_SECONDS: Final = 3.0  # without a byte: a bad line repeats a lost packet sooner
SLOWEST_SECONDS: Final = 60.0  # for a chunk behind which nobody else's wait
FIRST_WINDOW: Final = 2
LEAST_WINDOW: Final = 2  # one on its way while the next is asked for
_GAIN: Final = 2.0  # windows may grow by this in a round trip
_SAMPLES: Final = 8  # of which the best rate counts
_CLEARLY: Final = 2.0  # times its own time: later than an idle way would bring it
_SAVED_SECONDS: Final = 0.1  # at least
_TWICE_SHARE: Final = 16  # of an object's chunks one may be asked for twice

WayT = TypeVar("WayT", bound=Hashable)


@dataclass(slots=True)
class _ChunkRequest:
    """A question: when, and how many chunks the way had brought by then."""

    at: float
    brought: int


@dataclass(slots=True)
class _FetchSource:
    """What is known of a way. Rates in chunks a second."""

    window: int
    asked: dict[int, _ChunkRequest] = field(default_factory=dict)  # in the order in which they will be answered
    heard: float = 0.0  # the last sign of life, or when it began to owe something
    moved: float = 0.0  # the last chunk, or likewise
    brought: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    trip: float = math.inf  # seconds, the shortest from a question to its answer
    round_trip: float | None = None  # seconds, of the path, without what a chunk takes
    is_parked: bool = False
    is_spared: bool = False

    @property
    def rate(self) -> float:
        return max(self.rates, default=0.0)

    def ask(self, index: int, now: float) -> None:
        if not self.asked:
            self.heard = self.moved = now
        self.asked[index] = _ChunkRequest(now, self.brought)

    def bring(self, index: int, now: float) -> None:
        """Measures by one answer. Its rate is over the time that it was under way (delivery rate of BBR)."""
        question = self.asked.pop(index)
        spent = max(now - question.at, 1e-6)
        self.brought += 1
        self.heard = self.moved = now
        self.rates.append((self.brought - question.brought) / spent)
        self.trip = min(self.trip, spent)
        if self.round_trip is None:
            wanted = math.ceil(_GAIN * self.rate * self.trip)
        else:
            wanted = math.ceil(_GAIN * self.rate * self.round_trip) + 1
        self.window = min(max(LEAST_WINDOW, wanted), limits.TRANSFER_CHUNKS)

    def brings(self, count: int, now: float) -> float:
        """Seconds until so many chunks may be here: by its newest rate, or as long again as the first has taken."""
        elapsed = now - self.moved if self.asked else 0.0
        if not self.rates:
            return elapsed
        each = 1 / self.rates[-1]
        return (count - 1) * each + max(each - elapsed, elapsed - each)

    def owes_for(self, index: int, now: float) -> float:
        """Seconds until a chunk may come: by its place in the queue, or as long again as it has taken."""
        return self.brings(list(self.asked).index(index) + 1, now)


class FetchPlan(Generic[WayT]):
    """The plan of one fetch: `ways` in order of preference, `have` = chunks that are already here.

    `window` is how many chunks are asked over a way before anything is known of it. Times in seconds, of any clock.
    """

    def __init__(
        self,
        manifest: ObjectManifest,
        ways: Iterable[WayT] = (),
        *,
        have: Iterable[int] = (),
        window: int = FIRST_WINDOW,
    ) -> None:
        self._count = len(manifest.chunks)
        self._window = window
        self._have = {self._checked(index) for index in have}
        self._open = [i for i in range(self._count) if i not in self._have]  # a heap: neither here nor asked
        self._ways: dict[WayT, _FetchSource] = {way: _FetchSource(window) for way in ways}
        self.repeated = 0

    def _checked(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise ValueError(f"no chunk {index} in an object of {self._count}")
        return index

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is here."""
        return len(self._have) == self._count

    @property
    def missing(self) -> tuple[int, ...]:
        """Chunks that are not here, asked or not."""
        return tuple(i for i in range(self._count) if i not in self._have)

    @property
    def ways(self) -> tuple[WayT, ...]:
        """Ways that have not failed, parked ones too."""
        return tuple(self._ways)

    def window(self, way: WayT) -> int:
        """How many chunks may be asked over a way at a time."""
        return self._ways[way].window

    def is_parked(self, way: WayT) -> bool:
        """Whether a way is not asked, until it shows a sign of life."""
        return self._ways[way].is_parked

    def next(self, now: float) -> tuple[WayT, int] | None:
        """What to ask over which way now: the way whose window is emptiest, the first open chunk.

        None when there is nothing to ask: all is here or asked for, every window is full, or no way is left.
        """
        usable = {way: each for way, each in self._ways.items() if not each.is_parked}
        wanted = {way: each for way, each in usable.items() if not each.is_spared} or usable
        while self._open and self._open[0] in self._have:
            heapq.heappop(self._open)  # came unasked
        if not self._open:
            return self._again(now)
        in_time = self._in_time(wanted.values(), now)
        free = [(len(each.asked) / each.window, way) for way, each in wanted.items() if in_time(each)]
        emptiest = min(free, key=lambda each: each[0], default=None)
        if emptiest is None or emptiest[0] >= 1:
            return None
        if sum(len(way.asked) for way in self._ways.values()) >= limits.TRANSFER_CHUNKS:
            return None
        way, index = emptiest[1], heapq.heappop(self._open)
        self._ways[way].ask(index, now)
        return way, index

    def _in_time(self, ways: Iterable[_FetchSource], now: float) -> Callable[[_FetchSource], bool]:
        """Whether a way would bring one more about when all ways together, kept busy, have brought everything."""
        known = [1 / way.rates[-1] for way in ways if way.rates]
        if not known:
            return lambda _: True
        end = (self._count - len(self._have)) / sum(1 / each for each in known) + min(known)
        return lambda way: not way.rates or way.brings(len(way.asked) + 1, now) <= end

    def _again(self, now: float) -> tuple[WayT, int] | None:
        """The end: an idle way asks for what another would bring clearly later, each chunk twice at most."""
        if self.repeated >= max(LEAST_WINDOW, self._count // _TWICE_SHARE):
            return None
        for way, idle in self._ways.items():
            if idle.asked or idle.is_parked or idle.is_spared or not idle.rates:
                continue
            own = idle.brings(1, now) + (idle.round_trip or 0.0)
            owed = [
                (slow.owes_for(index, now), index)
                for slow in self._ways.values()
                for index in slow.asked
                if self._owed(index) < 2
            ]
            if owed and max(owed)[0] > max(_CLEARLY * own, own + _SAVED_SECONDS):
                index = max(owed)[1]
                idle.ask(index, now)
                self.repeated += 1
                return way, index
        return None

    def _owed(self, index: int) -> int:
        return sum(index in way.asked for way in self._ways.values())

    def received(self, index: int, way: WayT | None = None, now: float = 0.0) -> tuple[WayT, ...]:
        """A verified chunk is here, by a way or otherwise; a second copy changes nothing.

        Returns the ways that still owe it: nobody needs it of them any more.
        """
        self._have.add(self._checked(index))
        if way is not None and (by := self._ways.get(way)) is not None:
            by.is_parked = False
            if index in by.asked:
                by.bring(index, now)
        others = tuple(other for other, each in self._ways.items() if index in each.asked)
        for other in others:
            del self._ways[other].asked[index]
        return others

    def round_trip(self, way: WayT, seconds: float) -> None:
        """The round trip of a way's path, measured by somebody else: its window holds no more than fills that."""
        if way in self._ways:
            self._ways[way].round_trip = seconds

    def heard(self, way: WayT, at: float) -> None:
        """A way gave a sign of life at this time: of a chunk that is not whole yet, or of anything else."""
        known = self._ways.get(way)
        if known is not None and at > known.heard:
            known.heard = at
            known.is_parked = False

    def stalled(self, now: float) -> tuple[WayT, ...]:
        """Ways that owe something, and of which nothing at all came for STALL_SECONDS."""
        return tuple(way for way, w in self._ways.items() if w.asked and now - w.heard > STALL_SECONDS)

    def stuck(self, now: float) -> tuple[WayT, ...]:
        """Ways that are heard of, and of which no chunk came for SLOWEST_SECONDS though they owe some."""
        return tuple(way for way, w in self._ways.items() if w.asked and now - w.moved > SLOWEST_SECONDS)

    def parked(self, way: WayT) -> None:
        """What a way owes may be asked over others; it is asked nothing more until it gives a sign of life."""
        self._give_back(way)
        self._ways[way].is_parked = True

    def spared(self, way: WayT, is_spared: bool) -> None:
        """Whether a way is asked nothing more while others are there: what it owes is still to come."""
        self._ways[way].is_spared = is_spared

    def failed(self, way: WayT) -> None:
        """A way broke off, or who is at its end has nothing or lied: not asked again unless it is `offered` anew."""
        if way in self._ways:
            self._give_back(way)
            del self._ways[way]

    def _give_back(self, way: WayT) -> None:
        owed, self._ways[way].asked = self._ways[way].asked, {}
        for index in owed:
            if not self._owed(index) and index not in self._have:
                heapq.heappush(self._open, index)

    def offered(self, way: WayT) -> None:
        """A way to ask over from now on."""
        self._ways.setdefault(way, _FetchSource(self._window))
