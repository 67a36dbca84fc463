"""Chooses the leader of a view, detects inactive seats, and limits a view's duration.

See docs/protocol/sdbft.md, "Epochs, views, leaders".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farflung.core.ids import Hash, PeerId
from farflung.ledger.votes import faults

ROUND_TRIPS = 3  # a view's exchange takes proposal, NOTARIZE and the quorum's way: 3 bounds on a delay
DOUBLINGS = 10  # of the timer at most
SILENT_ROUNDS = 2  # times every seat led without a vote of one: that one is inactive


@dataclass(frozen=True, slots=True)
class EpochCommittee:
    """One epoch: its committee in seat order, and the milliseconds that rule it.

    `delta_ms` is the delay between honest seats that timers begin with, `idle_ms` the least pause between empty blocks.
    """

    chain: Hash
    epoch: int
    members: tuple[PeerId, ...]
    delta_ms: int
    idle_ms: int

    def leader(self, view: int) -> int:
        """The seat that leads a view."""
        return view % len(self.members)

    def seat(self, key: PeerId) -> int | None:
        """The seat of a key; None for one that only follows."""
        return self.members.index(key) if key in self.members else None

    def span_ms(self, unfinished: int) -> int:
        """How long a view may last after so many that brought nothing final: it doubles with every f + 1 of them."""
        return ROUND_TRIPS * self.delta_ms << min(DOUBLINGS, unfinished // (faults(len(self.members)) + 1))


class SeatActivity:
    """Which seats still vote. A seat counts as active for the first 2n views that a replica sees."""

    def __init__(self, seats: int, begun: int) -> None:
        self._last = [begun] * seats

    def note(self, seats: Iterable[int], view: int) -> None:
        """Votes of these seats in `view` were seen."""
        for seat in seats:
            self._last[seat] = max(self._last[seat], view)

    def is_news(self, seat: int, view: int) -> bool:
        """Whether a vote of the seat in `view` would say more than what is known."""
        return self._last[seat] < view

    def is_inactive(self, seat: int, view: int) -> bool:
        """Whether no vote of the seat was seen for any of the 2n views before `view`."""
        return self._last[seat] + SILENT_ROUNDS * len(self._last) < view
