"""Registers and removes lending nodes, and holds the stake behind each.

`free` backs nothing yet; `lock` moves stake behind a lease and `unlock` moves it back; what is
burnt stays in the row for ever and backs nothing. A node whose registration has run out gets its stake back at the
first block in which no lease is open.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules.accounts import check_key, deposit, withdraw
from farflung.ledger.table_rows import NodeRow, NodeState
from farflung.ledger.transactions import NodeLeave, NodeRegister


def register(draft: StateDraft, sender: PeerId, op: NodeRegister) -> None:
    """Opens or renews a registration. Codes: FF-LEDG-010, -022 expiry, -023 stake too small, -203 anybody's key."""
    params = draft.params
    if not draft.now < op.expires <= draft.now + params.node_ms_max:
        raise PolicyError("FF-LEDG-022", f"expiry {op.expires} is past or too far ahead")
    check_key(sender)
    row = draft.find(NodeRow, sender) or NodeRow(sender, op.caps, op.unit_price, op.expires)
    missing = max(0, op.stake - row.stake)
    if row.stake + missing < params.stake_min:
        raise PolicyError("FF-LEDG-023", f"stake {op.stake} is below {params.stake_min}")
    withdraw(draft, sender, missing)
    draft.put(
        replace(
            row,
            caps=op.caps,
            unit_price=op.unit_price,
            expires=op.expires,
            free=row.free + missing,
            state=NodeState.ACTIVE,
        )
    )


def leave(draft: StateDraft, sender: PeerId, op: NodeLeave) -> None:
    """Ends a registration. Codes: FF-LEDG-020 not registered, FF-LEDG-021 leases are open."""
    row = active(draft, sender)
    if row.leases:
        raise PolicyError("FF-LEDG-021", f"{row.leases} leases are open: their stake stays locked")
    release(draft, row)


def active(draft: StateDraft, node: PeerId) -> NodeRow:
    """A node that lends; raises PolicyError FF-LEDG-020."""
    row = draft.find(NodeRow, node)
    if row is None or row.state != NodeState.ACTIVE:
        raise PolicyError("FF-LEDG-020", f"node {node[:4].hex()} is not registered")
    return row


def standing(draft: StateDraft, node: PeerId) -> NodeRow:
    """A node whose ask stands; raises PolicyError FF-LEDG-020: not registered, or expired."""
    row = active(draft, node)
    if draft.now >= row.expires:
        raise PolicyError("FF-LEDG-020", f"the registration of node {node[:4].hex()} has run out")
    return row


def lock(draft: StateDraft, node: PeerId, stake: int) -> None:
    """Puts stake behind one lease. Codes: FF-LEDG-020 not registered or expired, FF-LEDG-039 too little."""
    row = standing(draft, node)
    if stake > row.free:
        raise PolicyError("FF-LEDG-039", f"node {node[:4].hex()} has {row.free} free stake, not {stake}")
    draft.put(replace(row, free=row.free - stake, locked=row.locked + stake, leases=row.leases + 1))


def unlock(draft: StateDraft, node: PeerId, stake: int) -> None:
    """Frees what `lock` put behind one lease."""
    row = active(draft, node)
    draft.put(replace(row, free=row.free + stake, locked=row.locked - stake, leases=row.leases - 1))


def seize(draft: StateDraft, node: PeerId, stake: int, taken: int) -> None:
    """Ends what `lock` began without giving `taken` back: that the caller has to put elsewhere."""
    row = active(draft, node)
    freed = row.free + stake - taken
    draft.put(replace(row, free=freed, locked=row.locked - stake, leases=row.leases - 1))


def burn(draft: StateDraft, node: PeerId, amount: int) -> None:
    """Money that nobody gets lies in this row for ever, whether the node still lends or not."""
    row = draft.find(NodeRow, node)
    if row:
        draft.put(replace(row, burnt=row.burnt + amount))


def release(draft: StateDraft, row: NodeRow) -> None:
    """Returns the whole stake (never what is burnt) and closes the registration."""
    draft.put(replace(row, free=0, state=NodeState.LEFT))
    deposit(draft, row.node, row.free)


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: releases nodes that are past their expiry and hold no lease."""
    for row in draft.due(NodeRow, draft.now):
        release(draft, row)
