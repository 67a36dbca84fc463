"""Transfers one object between this peer and others over all paths, until it is whole or no peer is left.

What is asked over which way `store.fetch_plan` decides. Here ways come and go:

    source   dialled ──> its ways are offered ──> the last one breaks ──> dialled again after 0.1 s, 0.2 s ... 1 s
                                                  no chunk for `patience` seconds of that, a refusal or a lie ──> lost

A way from which nothing comes is doubted: the next dial makes a new connection, over another path where there is one.
Its answers are still taken, so that no chunk that arrives whole is asked for twice. What is here and what is missing
the chunks themselves tell: a transfer goes on after the death of a path, or of this process, without any other token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from farflung.core.backoff import Backoff
from farflung.core.errors import NetworkError, PolicyError, VerificationError
from farflung.core.ids import PeerId
from farflung.net.io.connection import Connection
from farflung.net.messages import RemoteError
from farflung.store.fetch_plan import FetchPlan

PATIENCE_SECONDS: Final = 8.0  # a peer or a relay that died is back within seconds
_PAUSES: Final = Backoff(0.1, 1.0)  # between two dials
_LOOK_SECONDS: Final = 0.25  # between two looks at ways from which nothing comes

Dial = Callable[[PeerId], Awaitable[Connection]]
Carry = Callable[[Connection, int], Awaitable[None]]  # one chunk, verified and stored at its end
Enter = Callable[[Connection], Awaitable[Iterable[int]]]  # what is at the other end, before the first chunk


@dataclass(slots=True)
class _TransferPeer:
    """A peer at the other end."""

    peer: PeerId
    dials: int = 0  # since a chunk came
    troubled_since: float | None = None  # since when no chunk came of it and its ways break
    dialling: asyncio.Task[tuple[Connection, Iterable[int]]] | None = None
    reason: str = ""
    is_lost: bool = False


class ObjectTransfer:
    """Carries the missing chunks of `plan`. `reasons`: why each source that is lost is lost."""

    def __init__(
        self,
        plan: FetchPlan[Connection],
        sources: Iterable[PeerId],
        dial: Dial,
        carry: Carry,
        *,
        enter: Enter | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`patience`: seconds in which a source may be out of reach."""
        self._plan, self._dial, self._carry, self._enter = plan, dial, carry, enter
        self._patience = patience
        self._sources = {peer: _TransferPeer(peer) for peer in sources}
        self._of: dict[Connection, _TransferPeer] = {}
        self._errands: dict[asyncio.Task[None], tuple[Connection, int]] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def reasons(self) -> Mapping[PeerId, str]:
        """What was last wrong with each source, if something was."""
        return {peer: source.reason for peer, source in self._sources.items() if source.reason}

    async def run(self) -> None:
        """Returns when all is carried, or no source is left. Raises what is this peer's own trouble (RunError)."""
        try:
            while not self._plan.is_complete:
                self._gather()
                self._ask()
                waiting = [*self._errands, *(s.dialling for s in self._sources.values() if s.dialling)]
                if not waiting:
                    return
                events: list[asyncio.Future[Any]] = [*waiting, *(way.widened for way in self._of)]
                await asyncio.wait(events, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._settle()
                self._look()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        tasks: list[asyncio.Task[object]] = [*self._errands]
        tasks += [s.dialling for s in self._sources.values() if s.dialling is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Ways

    def _gather(self) -> None:
        """Offers what stands, dials what does not."""
        for source in self._sources.values():
            mine = [way for way, owner in self._of.items() if owner is source]
            usable = [way for way in mine if not self._plan.is_parked(way)]
            for way in usable[:1]:
                for beside in way.ways():
                    self._offer(source, beside)
            for way in usable:
                self._plan.spared(way, way not in way.ways())
            if not usable and source.dialling is None and not source.is_lost:
                source.dialling = asyncio.create_task(self._reach(source))

    def _offer(self, source: _TransferPeer, way: Connection) -> None:
        if way not in self._of and way.is_open:
            self._of[way] = source
            self._plan.offered(way)

    async def _reach(self, source: _TransferPeer) -> tuple[Connection, Iterable[int]]:
        if source.dials:
            await asyncio.sleep(_PAUSES.pause(source.dials - 1))
        source.dials += 1
        connection = await self._dial(source.peer)
        connection.ways()  # those that are missing are dialled meanwhile
        return connection, (await self._enter(connection) if self._enter is not None else ())

    def _look(self) -> None:
        now = self._loop.time()
        for way in tuple(self._of):
            self._plan.heard(way, way.heard)
            if way.round_trip is not None:
                self._plan.round_trip(way, way.round_trip)
        for way in self._plan.stalled(now):
            way.doubt()
            self._plan.parked(way)
        for way in self._plan.stuck(now):
            self._broken(way, "it is too slow")

    def _broken(self, way: Connection, reason: str) -> None:
        source = self._of.pop(way, None)
        self._plan.failed(way)
        if source is not None:
            self._in_trouble(source, reason)

    def _in_trouble(self, source: _TransferPeer, reason: str) -> None:
        now = self._loop.time()
        source.reason = reason
        if source.troubled_since is None:
            source.troubled_since = now
        if now - source.troubled_since >= self._patience and source not in self._of.values():
            source.is_lost = True

    def _lose(self, source: _TransferPeer, reason: str) -> None:
        source.reason, source.is_lost = reason, True
        for way in [way for way, owner in self._of.items() if owner is source]:
            del self._of[way]
            self._plan.failed(way)
            self._drop_errands(way)

    # Chunks

    def _ask(self) -> None:
        while (step := self._plan.next(self._loop.time())) is not None:
            self._errands[asyncio.create_task(self._run(*step))] = step

    async def _run(self, way: Connection, index: int) -> None:
        await self._carry(way, index)

    def _drop_errands(self, way: Connection, index: int | None = None) -> None:
        for task, errand in self._errands.items():
            if errand[0] is way and index in (None, errand[1]):
                task.cancel()

    def _settle(self) -> None:
        for task in [task for task in self._errands if task.done()]:
            way, index = self._errands.pop(task)
            if task.cancelled():
                continue
            if (error := task.exception()) is None:
                self._arrived(way, index)
            else:
                self._failed(self._of.get(way), error, way)
        for source in self._sources.values():
            if source.dialling is not None and source.dialling.done():
                dialled, source.dialling = source.dialling, None
                self._dialled(source, dialled)

    def _arrived(self, way: Connection, index: int) -> None:
        for other in self._plan.received(index, way, self._loop.time()):
            self._drop_errands(other, index)
        if (source := self._of.get(way)) is not None:
            source.troubled_since, source.dials = None, 0

    def _dialled(self, source: _TransferPeer, dialled: asyncio.Task[tuple[Connection, Iterable[int]]]) -> None:
        if (error := dialled.exception()) is not None:
            self._failed(source, error, None)
            return
        connection, there = dialled.result()
        for index in there:
            self._plan.received(index)
        if not source.is_lost:
            self._offer(source, connection)

    def _failed(self, source: _TransferPeer | None, error: BaseException, way: Connection | None) -> None:
        """A refusal or a lie ends a source, trouble on the line does not; anything else is our own."""
        if isinstance(error, NetworkError) and not isinstance(error, RemoteError):
            if way is not None:
                self._broken(way, str(error))
            elif source is not None:
                self._in_trouble(source, str(error))
        elif isinstance(error, RemoteError | VerificationError | PolicyError):
            if source is not None:
                self._lose(source, str(error))
        else:
            raise error


def told(reasons: Mapping[PeerId, str]) -> str:
    """What is wrong with whom, for an error's cause."""
    return "; ".join(f"{peer[:4].hex()}: {reason}" for peer, reason in reasons.items())[:300]
