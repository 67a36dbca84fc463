"""Divides the money that a lie cost: half is bounty of those who found it, the rest is burnt.

Silence is all burnt.

Were all of it bounty, a worker could have itself accused by a friend and lose nothing (verify: incentives). Burnt
money stays in the accused's row, so that the sum over all rows is still what genesis minted; it backs nothing, and
nobody can move it. That somebody showed nothing proves nothing, and nobody could show the opposite: were there a bounty
for saying so, two verifiers would earn by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules import nodes
from farflung.ledger.rules.accounts import deposit
from farflung.ledger.table_rows import LeaseRow


def share_of(taken: int, finders: int) -> int:
    """The bounty of each of the finders, in pico-credits: both divisions are rounded down."""
    return taken // 2 // finders if finders else 0


def is_lie(lease: LeaseRow, taken: int) -> bool:
    """Whether what this lease loses is for a lie, which costs the whole stake: less is for silence."""
    return taken == lease.stake


def finders_of(lease: LeaseRow, taken: int, accusers: Sequence[PeerId]) -> Sequence[PeerId]:
    """Who is rewarded for what this lease lost: of silence, nothing was shown to anybody."""
    return accusers if is_lie(lease, taken) else ()


def spend(draft: StateDraft, accused: PeerId, taken: int, finders: Sequence[PeerId]) -> None:
    """Gives each finder its share of `taken`, and burns all that is left of it in the accused's row."""
    share = share_of(taken, len(finders))
    for finder in finders:
        deposit(draft, finder, share)
    nodes.burn(draft, accused, taken - share * len(finders))
