"""A validator's readers: where they are served, and what its gauges show of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from farflung.app.committee import Committee
from farflung.app.explorer.gauges import LedgerGauges
from farflung.app.explorer.server import LOCAL_NAMES, Explorer
from farflung.ledger import queries
from farflung.ledger.chain import Chain
from farflung.net.io.listening import LOOPBACK


@dataclass(frozen=True)
class Readers:
    """Where a validator serves them: `names` is what a request's Host may be beside an address."""

    host: str = LOOPBACK
    port: int = 0
    names: frozenset[str] = LOCAL_NAMES
    is_remote: bool = False


class Attendant:
    """Serves readers from a chain that grows, and counts what happens to it."""

    def __init__(
        self,
        chain: Chain,
        committee: Callable[[], Committee | None] = lambda: None,
        *,
        is_logical: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`committee`: this validator's part in one, if it has any; `clock` gives seconds since 1970.

        `is_logical`: blocks have no clock's time, so that nobody knows how long they took.
        """
        self._chain, self._committee, self._clock = chain, committee, clock
        self._is_logical, self._height = is_logical, chain.head.height
        self.gauges = LedgerGauges()
        self._explorer: Explorer | None = None

    async def open(self, readers: Readers) -> int:
        """Listens; the port. Raises PolicyError FF-APP-275."""
        ask = partial(queries.answer, self._chain)
        self._explorer = Explorer(ask, self.gauges, names=readers.names, refresh=self.look)
        return await self._explorer.start(readers.host, readers.port, allow_remote=readers.is_remote)

    async def close(self) -> None:
        """Serves nobody any more."""
        if self._explorer is not None:
            await self._explorer.close()

    def moved(self) -> None:
        """The chain has new blocks."""
        fresh = self._chain.head.height - self._height
        for block in self._chain.past.blocks(self._height + 1, fresh):
            self.gauges.transactions += len(block.txs)
            if not self._is_logical:
                self.gauges.took(max(0.0, self._clock() - block.header.time / 1000))
        self._height = self._chain.head.height

    def look(self) -> None:
        """Reads what changes without a block."""
        gauges, seat = self.gauges, self._committee()
        gauges.height, gauges.epoch = self._height, self._chain.state.committee.epoch
        if seat is not None:
            gauges.view, gauges.mempool = seat.node.replica.view, len(seat.node.pool)
            gauges.equivocations, gauges.rejected = seat.accused, seat.rejected
            gauges.peer_lag = {
                peer.hex(): max(0, self._height - height) for peer, height in seat.heights.items()
            }
