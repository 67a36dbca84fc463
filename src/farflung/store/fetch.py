"""Which chunk to ask of whom: an object comes together from several sources, any of which may fail or lie.

    missing ──next()──> asked of a source ──received()──> here
       ^                      │
       └──────failed()────────┘   the source is asked nothing more; its open questions go to the others

Chunks are verified by hash (`objects.check_chunk`) before `received`, so a lie costs one chunk's transfer.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from farflung.store.objects import Manifest

Source = TypeVar("Source", bound=Hashable)


class FetchPlan(Generic[Source]):
    """The plan of one fetch: `sources` in order of preference, `have` = chunks that are already here.

    `window` is how many chunks may be asked of one source at a time.
    """

    def __init__(
        self, manifest: Manifest, sources: Iterable[Source], *, have: Iterable[int] = (), window: int = 4
    ) -> None:
        self._count = len(manifest.chunks)
        self._window = window
        self._have = {self._checked(index) for index in have}
        self._open = [i for i in range(self._count) if i not in self._have]  # a heap: neither here nor asked
        self._asked: dict[int, Source] = {}
        self._load: dict[Source, int] = dict.fromkeys(sources, 0)

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
    def sources(self) -> tuple[Source, ...]:
        """Sources that have not failed."""
        return tuple(self._load)

    def next(self) -> tuple[Source, int] | None:
        """What to ask of whom now: the least busy source, the first open chunk.

        None when there is nothing to ask: all is here or asked for, every window is full, or no source is left.
        """
        source = min(self._load, key=lambda s: self._load[s], default=None)
        if source is None or self._load[source] >= self._window:
            return None
        while self._open and self._open[0] in self._have:
            heapq.heappop(self._open)  # came unasked
        if not self._open:
            return None
        index = heapq.heappop(self._open)
        self._asked[index] = source
        self._load[source] += 1
        return source, index

    def received(self, index: int) -> None:
        """A verified chunk is here, whoever sent it; a second copy changes nothing."""
        self._have.add(self._checked(index))
        self._release(index)

    def failed(self, source: Source) -> None:
        """A source broke off, does not have it or lied: it is not asked again unless it is `offered` anew."""
        for index in [i for i, asked in self._asked.items() if asked == source]:
            self._release(index)
            heapq.heappush(self._open, index)
        self._load.pop(source, None)

    def offered(self, source: Source) -> None:
        """A source to ask from now on."""
        self._load.setdefault(source, 0)

    def _release(self, index: int) -> None:
        source = self._asked.pop(index, None)
        if source is not None and source in self._load:
            self._load[source] -= 1
