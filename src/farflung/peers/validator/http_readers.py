"""Serves a validator's HTTP readers, and fills in the metrics that they see."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from farflung.ledger import queries
from farflung.ledger.chain import Chain
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.ledger_http.metrics import LedgerMetrics
from farflung.peers.ledger_http.server import LOCAL_NAMES, LedgerHttpServer
from farflung.peers.validator.committee import CommitteeMember


@dataclass(frozen=True)
class HttpReadersConfig:
    """Where a validator serves them: `names` is what a request's Host may be beside an address."""

    host: str = LOOPBACK
    port: int = 0
    names: frozenset[str] = LOCAL_NAMES
    is_remote: bool = False


class HttpReaders:
    """Serves readers from a chain that grows, and counts what happens to it."""

    def __init__(
        self,
        chain: Chain,
        committee: Callable[[], CommitteeMember | None] = lambda: None,
        *,
        is_logical: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`committee`: this validator's part in one, if it has any; `clock` gives seconds since 1970.

        `is_logical`: blocks have no clock's time, so how long they took is unknown.
        """
        self._chain, self._committee, self._clock = chain, committee, clock
        self._is_logical, self._height = is_logical, chain.head.height
        self.gauges = LedgerMetrics()
        self._explorer: LedgerHttpServer | None = None

    async def open(self, readers: HttpReadersConfig) -> int:
        """Listens; the port. Raises PolicyError FF-APP-275."""
        ask = partial(queries.reply, self._chain)
        self._explorer = LedgerHttpServer(ask, self.gauges, names=readers.names, refresh=self.look)
        return await self._explorer.start(readers.host, readers.port, allow_remote=readers.is_remote)

    async def close(self) -> None:
        """Serves nobody any more."""
        if self._explorer is not None:
            await self._explorer.close()

    def moved(self) -> None:
        """The chain has new blocks."""
        fresh = self._chain.head.height - self._height
        for block in self._chain.history.blocks(self._height + 1, fresh):
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
            gauges.peer_lag = {peer.hex(): max(0, self._height - height) for peer, height in seat.heights.items()}
