"""Keeps what a mesh holds of its exchanges, by channel: payloads, decisions, and who waits for which decision.

An exchange has one tag in the whole mesh: channel x 2^32 + number (sync.exchange_channel). Each channel has a window of
its own, so that objects of any age live beside each other; a channel whose object is gone is kept for a while, for
those who come late.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from farflung.core.errors import FarflungError
from farflung.sync.exchange_channel import CHANNEL_BITS, TERMS_BYTES
from farflung.sync.payload_assembly import AHEAD, BEHIND, ExchangeDecision, PayloadAssembly, PayloadPiece, refuse_piece

_NEXT_CHANNELS: Final = 8  # objects that another member may be ahead of this one
_PAST_CHANNELS: Final = 4  # channels that are held after their objects


class ChannelExchanges:
    """The exchanges of one object."""

    def __init__(self) -> None:
        self.assembly = PayloadAssembly()
        self.begun = asyncio.Event()  # no bound is known before the first exchange
        self.moved = asyncio.Event()  # anew for each exchange: the next one has begun
        self.decisions: dict[int, asyncio.Future[ExchangeDecision]] = {}

    def begin(self, tag: int, bound: int) -> None:
        """This peer is at `tag` now."""
        self.assembly.begin(tag, bound)
        self.begun.set()
        self.moved.set()
        self.moved = asyncio.Event()

    async def take(self, rank: int, piece: PayloadPiece) -> bool:
        """Adds a piece; one that is too long for now, of an exchange that is to come, waits for that one's bound."""
        await self.begun.wait()
        while self.assembly.tag < piece.tag <= self.assembly.tag + AHEAD and piece.total > self.assembly.bound:
            await self.moved.wait()
        return self.assembly.add(rank, piece)


class ExchangeTable:
    """Channels by number. Made and used in the loop of its mesh."""

    def __init__(self) -> None:
        self._channels: dict[int, ChannelExchanges] = {}
        self._newest = 0
        self._past: deque[int] = deque()
        self._dropped: set[int] = set()
        self._waiting: dict[int, set[int]] = {}  # tags whose decision a member waits for, by its rank
        self.begin(0, TERMS_BYTES)

    def begin(self, tag: int, bound: int) -> PayloadAssembly:
        """This peer is at `tag` now."""
        self._newest = max(self._newest, tag >> CHANNEL_BITS)
        channel = self.of(tag)
        channel.begin(tag, bound)
        return channel.assembly

    def of(self, tag: int) -> ChannelExchanges:
        """The channel of a tag. Raises ProtocolError FF-SYNC-014: it is over, or far ahead."""
        number = tag >> CHANNEL_BITS
        if number in self._dropped or not 0 <= number <= self._newest + _NEXT_CHANNELS:
            raise refuse_piece(f"exchange {tag} is of an object that is gone, or not there yet")
        if number not in self._channels:
            self._channels[number] = ChannelExchanges()
        return self._channels[number]

    def decision(self, tag: int) -> asyncio.Future[ExchangeDecision]:
        """What was decided of an exchange, or will be."""
        decisions = self.of(tag).decisions
        if tag not in decisions:
            decisions[tag] = asyncio.get_running_loop().create_future()
        return decisions[tag]

    async def answer(self, rank: int, tag: int) -> ExchangeDecision:
        """The same for a member that asks. Raises ProtocolError FF-SYNC-014 where `tag` is far from this peer's."""
        channel = self.of(tag)
        at = channel.assembly.tag
        oldest = min(channel.decisions, default=at)
        if channel.begun.is_set() and not min(oldest, at) <= tag <= at + AHEAD:
            raise refuse_piece(f"exchange {tag} is far from {at}; start all peers again, from one checkpoint")
        waiting = self._waiting.setdefault(rank, set())
        waiting.add(tag)
        try:
            return await asyncio.shield(self.decision(tag))
        finally:
            waiting.discard(tag)

    def decide(self, decision: ExchangeDecision) -> None:
        """Tells all who ask, and forgets what lies far behind."""
        future = self.decision(decision.tag)
        if not future.done():
            future.set_result(decision)
        decisions = self.of(decision.tag).decisions
        for old in sorted(tag for tag in decisions if tag <= decision.tag)[: -BEHIND - 1]:
            del decisions[old]

    def waits_at(self, rank: int) -> list[int]:
        """The exchanges whose decision a member waits for, and this peer has not begun."""
        return [tag for tag in self._waiting.get(rank, ()) if not self.is_begun(tag)]

    def is_begun(self, tag: int) -> bool:
        """Whether this peer is at `tag`, or past it."""
        channel = self._channels.get(tag >> CHANNEL_BITS)
        return channel is not None and channel.begun.is_set() and channel.assembly.tag >= tag

    def fail(self, error: FarflungError, tags: list[int] | None = None) -> None:
        """Tells those who wait for `tags` (None: for anything) that nothing will be decided."""
        for channel in self._channels.values():
            for tag, future in channel.decisions.items():
                if not future.done() and (tags is None or tag in tags):
                    future.set_exception(error)
                    future.exception()  # seen: it need not be awaited

    def forget(self, channel: int) -> None:
        """The object of a channel is gone."""
        self._past.append(channel)
        while len(self._past) > _PAST_CHANNELS:
            old = self._past.popleft()
            self._dropped.add(old)
            self._channels.pop(old, None)
