"""Decides how long a requester that is silent keeps a node's slot: pure, its times are given.

offer signed --(no lease on the ledger for FOLLOW_SECONDS)--> free
leased ------(no order for PARK_SECONDS, and no connection of the requester)--> parked: no worker, slot kept
parked ------(KEEP_SECONDS)--> free for others; the requester's own job is taken up again while nobody else came
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from farflung.core.ids import Hash, PeerId

PARK_SECONDS: Final = 120.0
KEEP_SECONDS: Final = 600.0


class SlotDue(Enum):
    """What a held slot needs now."""

    NOTHING = "nothing"
    LEASE = "the ledger is asked whether the offer became a lease"
    PARK = "the worker ends"


class SlotClock:
    """One slot's. Times are seconds of a clock that only goes forward."""

    def __init__(self, follow: float, park: float = PARK_SECONDS, keep: float = KEEP_SECONDS) -> None:
        """`follow`: seconds within which a signed offer becomes a lease."""
        self._follow, self._park, self._keep = follow, park, keep
        self._offered = self._ordered = 0.0
        self._is_leased = False
        self._parked: tuple[PeerId, Hash, float] | None = None

    @property
    def is_leased(self) -> bool:
        """Whether the ledger was seen to hold the lease."""
        return self._is_leased

    @property
    def ordered(self) -> float:
        """When the requester last asked for something."""
        return self._ordered

    def offer(self, now: float) -> None:
        """An offer was signed for a slot that was free."""
        self._offered = self._ordered = now
        self._is_leased, self._parked = False, None

    def lease(self) -> None:
        """The ledger holds the lease."""
        self._is_leased = True

    def order(self, now: float) -> None:
        """The requester asked for something, or what it asked for is under way."""
        self._ordered = max(self._ordered, now)

    def due(self, now: float, *, is_connected: bool) -> SlotDue:
        """What a held slot needs."""
        if not self._is_leased and now - self._offered >= self._follow:
            return SlotDue.LEASE
        if self._is_leased and not is_connected and now - self._ordered >= self._park:
            return SlotDue.PARK
        return SlotDue.NOTHING

    def park(self, requester: PeerId, job: Hash, now: float) -> None:
        """The worker has ended: the slot is kept for this requester's job."""
        self._parked = requester, job, now + self._keep

    def free(self) -> None:
        """Nobody's job is kept any more."""
        self._parked = None

    def is_parked(self, requester: PeerId) -> bool:
        """Whether the slot was parked with this requester's job."""
        return self._parked is not None and self._parked[0] == requester

    def is_kept(self, requester: PeerId, job: Hash, now: float) -> bool:
        """Whether a free slot is still kept for somebody else than this requester's job."""
        return self._parked is not None and self._parked[:2] != (requester, job) and now < self._parked[2]
