"""A relay's books of one pass: what it carried for whom, what they signed, and whether it goes on.

Theory. `carried[m]` counts what m sent and what m was given. m's *lag* is how much of that its last receipt does not
speak of. The relay carries for two parties only while neither lags by more than a window, so that of what it carried
between them at most two windows are unsigned by one or the other; and by the formula of `core.tolls` all the rest is
billed. What was lost on the way (a circuit that broke) stays in the lag until the pass is done, so that nobody gains
by breaking circuits.

    OPEN     --- a party's lag > window ---> HELD     --- its receipt ---> OPEN
    OPEN     --- carried >= quota --------> USED_UP  --- the payer's renewal ---> OPEN

Receipts count upwards: one that says less than the last changes nothing, in any order and however often it comes.
Where the relay has seen all of a pass, one that says it received a window more than it was given changes nothing
either: in a fan-out its sender could not know better.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from farflung.core import limits, tolls
from farflung.core.ids import PeerId
from farflung.core.tolls import Receipt, SignedPass, SignedReceipt
from farflung.net.passes import is_current, renews


class Carrier(Protocol):
    """What forwards bytes under a pass."""

    def hold(self, why: str) -> None:
        """Reads nothing more, until `release` with the same reason."""

    def release(self, why: str) -> None:
        """Goes on."""

    def close(self) -> None:
        """Ends."""


class Standing(enum.Enum):
    """Whether the relay carries for two parties."""

    OPEN = "open"
    HELD = "held"  # until one of them signs
    USED_UP = "used up"  # until the payer signs for more


@dataclass(slots=True)
class _Party:
    sent: int = 0  # taken from it, by the relay's own count
    received: int = 0  # given to it
    said: SignedReceipt | None = None  # its last receipt

    @property
    def lag(self) -> int:
        """Bytes that it has not signed."""
        said = self.said.receipt if self.said is not None else None
        sent, received = (said.sent, said.received) if said is not None else (0, 0)
        return max(0, self.sent - sent) + max(0, self.received - received)


class Books:
    """One pass at one relay."""

    def __init__(
        self, signed: SignedPass, window: int = limits.RECEIPT_WINDOW, *, is_whole: bool = False
    ) -> None:
        """`window`: bytes that each party may lag. `is_whole`: nothing was carried under this pass before."""
        self.signed, self._window, self._is_whole = signed, window, is_whole
        self.carried = 0  # bytes given to parties
        self._parties = {party: _Party() for party in signed.toll.holders}

    def moved(self, sender: PeerId, receiver: PeerId, size: int) -> Standing:
        """`size` bytes more went from one holder to another: whether the relay goes on between them."""
        self._parties[sender].sent += size
        self.given(receiver, size)
        return self.standing(sender, receiver)

    def given(self, receiver: PeerId, size: int) -> None:
        """A holder was given `size` bytes that had come in before: a copy of a fan-out."""
        self._parties[receiver].received += size
        self.carried += size

    def taken(self, sender: PeerId, size: int) -> None:
        """`size` bytes came in from a holder, to be copied."""
        self._parties[sender].sent += size

    def standing(self, *parties: PeerId) -> Standing:
        """Whether the relay carries between these holders now."""
        if self.carried >= self.signed.toll.quota:
            return Standing.USED_UP
        return Standing.HELD if self.late(parties) else Standing.OPEN

    def lag(self, party: PeerId) -> int:
        """Bytes carried for a holder that it has not signed."""
        return self._parties[party].lag

    def renew(self, signed: SignedPass) -> bool:
        """Takes the pass as its payer signed it anew; False: it is less than what stands here, or another one."""
        if not renews(signed.toll, self.signed.toll):
            return False
        self.signed = signed
        for party in signed.toll.holders:
            self._parties.setdefault(party, _Party())
        return True

    def sign(self, signed: SignedReceipt) -> bool:
        """Takes a receipt whose signature was checked; False: it is of another pass, or older than the last one."""
        receipt = signed.receipt
        if not tolls.is_of(receipt, self.signed.toll):
            return False
        party = self._parties[receipt.party]
        if party.said is not None and not _is_newer(receipt, party.said.receipt):
            return False
        if self._is_whole and receipt.received > party.received + self._window:
            return False
        party.said = signed
        return True

    def restore(self, receipts: tuple[SignedReceipt, ...]) -> None:
        """Goes on from what was signed before this relay was started anew."""
        for signed in receipts:
            party = self._parties[signed.receipt.party]
            party.sent, party.received, party.said = signed.receipt.sent, signed.receipt.received, signed
        self.carried = self.billed

    def count(self, party: PeerId) -> tuple[int, int]:
        """Bytes that were taken from a holder, and given to it."""
        return self._parties[party].sent, self._parties[party].received

    def late(self, parties: Iterable[PeerId]) -> list[PeerId]:
        """Those of these holders that lag by more than the window."""
        return [party for party in parties if self.lag(party) > self._window]

    def last(self, party: PeerId) -> SignedReceipt | None:
        """A holder's last receipt."""
        return self._parties[party].said

    @property
    def receipts(self) -> tuple[SignedReceipt, ...]:
        """The last receipt of each party that has signed, in the order of their keys."""
        found = (self._parties[party].said for party in sorted(self._parties))
        return tuple(said for said in found if said is not None)

    @property
    def billed(self) -> int:
        """Bytes that can be claimed by what is signed."""
        said = {each.receipt.party: (each.receipt.sent, each.receipt.received) for each in self.receipts}
        return tolls.billed(self.signed.toll.quota, said)

    @property
    def is_tried(self) -> bool:
        """Whether its parties have signed for a window."""
        return self.billed >= self._window


def unsigned(kept: Iterable[Books]) -> int:
    """Bytes that were carried under all these passes and cannot be claimed by what is signed."""
    return sum(max(0, books.carried - books.billed) for books in kept)


def untried(kept: Iterable[Books], now: int) -> int:
    """How many of these passes count at `now` (seconds since 1970), and nobody knows whether anybody will sign."""
    return sum(is_current(books.signed.toll, now) and not books.is_tried for books in kept)


def _is_newer(receipt: Receipt, last: Receipt) -> bool:
    """Neither number falls, and one has grown."""
    grown = receipt.sent >= last.sent and receipt.received >= last.received
    return grown and (receipt.sent, receipt.received) != (last.sent, last.received)
