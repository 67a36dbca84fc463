"""Keeps a node registered on a ledger with real time: renewed at three quarters of its life, and when its ask changes.

A run's own ledger counts blocks and ends before any registration does: there a node registers once in its key's life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from farflung.core.errors import FarflungError
from farflung.ledger.params import DAY_MS
from farflung.ledger.table_rows import NodeRow, NodeState
from farflung.ledger.transactions import NodeRegister, Op
from farflung.peers.ledger_client.client import LedgerClient

REGISTERED_MS: Final = 60 * DAY_MS  # for which a node registers itself
RENEW_MS: Final = REGISTERED_MS // 4  # before its end
LOOK_SECONDS: Final = 3600.0


def is_due(row: NodeRow | None, wanted: NodeRegister, now: int) -> bool:
    """Whether a node must register (again) at `now`, ms: never, left, soon over, or it asks or offers something else.

    A stake that slashing took is not put up again by itself.
    """
    if row is None or row.state is not NodeState.ACTIVE or row.expires - now <= RENEW_MS:
        return True
    said = row.caps, row.unit_price
    return said != (wanted.caps, wanted.unit_price) or row.stake + row.burnt < wanted.stake


async def renew(client: LedgerClient, wanted: NodeRegister, now: int, *first: Op) -> bool:
    """Registers where that is due; `first` goes with the first one. Raises what the ledger's client raises."""
    row = await client.node(client.own)
    if not is_due(row, wanted, now):
        return False
    await client.submit(wanted, *(() if row is not None else first))
    return True


async def stay(
    client: LedgerClient,
    wanted: Callable[[], NodeRegister],
    now: Callable[[], int],
    warn: Callable[[FarflungError], None],
) -> None:
    """Looks once an hour, until it is cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await renew(client, wanted(), now())
        except FarflungError as error:
            warn(error)
