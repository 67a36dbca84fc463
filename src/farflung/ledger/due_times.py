"""Computes when the ledger's clock has something to do next: until then a committee without work makes no block.

    a row's time     a deadline or an expiry: the first block at or after it acts on the row
    a channel's end  its `expires`, at which its relay claims, and that and the grace, at which the rest goes back
    an epoch's end   where the next boundary changes something, blocks go on until it is reached
    a heartbeat      otherwise, so that readers see that the committee is there, and ledger time stays near the clock

Each of them costs a block, `idle_ms` apart at the least. Whoever waits for another time hands in a transaction: that
is a block at once.
"""

from __future__ import annotations

from typing import Final

from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.rules.epochs import is_awaited
from farflung.ledger.rules.relays import GRACE_MS
from farflung.ledger.table_rows import ChannelRow

HEARTBEAT_MS: Final = 1_800_000  # between two blocks at most, where the law lets one block move time so far


def next_due(state: LedgerState) -> int:
    """The ledger time (ms) of the next block that is due without a transaction, later than the state's own.

    The state's own time where an epoch's boundary is awaited: as soon as the law allows.
    """
    now = state.time
    if is_awaited(state):
        return now
    heartbeat = now + min(HEARTBEAT_MS, state.params.step_ms_max)
    channels = state.tables[ChannelRow.TABLE].next_due(now - GRACE_MS) + GRACE_MS
    return min(heartbeat, channels, *(table.next_due(now) for table in state.tables.values()))
