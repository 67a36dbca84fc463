"""Chooses the contradictory votes that a validator reports to the ledger.

Each is brought until the ledger has it, one at a time.

Whoever saw both votes can accuse, and one accusation is enough; the others would fail and cost a fee. So a validator
waits as many blocks as seats lie between the accused one and its own, and looks whether it is still needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.validators import ValidatorAccuse, ValidatorRow, ValidatorState
from farflung.ledger.votes import SignedVote


class AccusationQueue:
    """What `own` has seen of others; at most one accusation for each seat of a committee."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._seen: dict[PeerId, tuple[int, ValidatorAccuse]] = {}  # from which height on it is brought

    def note(self, first: SignedVote, second: SignedVote, members: Sequence[PeerId], height: int) -> None:
        """Two signed votes of a seat of `members` that exclude each other."""
        accused = members[first.seat]
        own = members.index(self._own) if self._own in members else first.seat
        wait = (own - first.seat - 1) % len(members)
        if accused != self._own:
            self._seen.setdefault(accused, (height + wait, ValidatorAccuse(first, second)))

    def due(self, state: LedgerState) -> ValidatorAccuse | None:
        """The accusation to bring after the block of this state; forgets those that the ledger needs no more."""
        for accused, (height, said) in tuple(self._seen.items()):
            row = state.find(ValidatorRow, accused)
            if row is None or row.state == ValidatorState.JAILED:
                del self._seen[accused]
            elif height <= state.height:
                return said
        return None
