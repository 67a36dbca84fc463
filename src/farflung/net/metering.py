"""A relay's books of one pass: what it carried for whom, what they signed, and whether it goes on.

Theory. What is *at risk* with a payer is what was carried under all its passes and cannot be claimed by what is signed
(`Account.unsigned`). It may be two windows, and a sixteenth of what can be claimed; what is left of that is its *room*.
A party's *lag* is how much of what it sent and was given its last receipt does not speak of. The relay carries for a
party while there is room and the party does not lag by more than the room. So one payer leaves no more unsigned, with
however many passes and parties at once; a party that never signs takes half of the room, the next one half of the rest,
and no party takes it all from the others. Two parties that are alone may lag by a window.

What was lost on the way (a circuit that broke) stays in the lag until the pass is done, so that nobody gains by
breaking circuits. It is what the sixteenth is for: who signs for much may lose now and then.

    OPEN     --- no room, or a party's lag > room ---> HELD     --- receipts ---> OPEN
    OPEN     --- carried >= quota -------------------> USED_UP  --- the payer's renewal ---> OPEN

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
from farflung.net.passes import renews


class Carrier(Protocol):
    """What forwards bytes under a pass."""

    def hold(self) -> None:
        """Reads nothing more, until `release`."""

    def release(self) -> None:
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
    known: int = 0  # its lag when it was asked, or signed, last

    @property
    def lag(self) -> int:
        """Bytes that it has not signed."""
        if self.said is None:
            return self.sent + self.received
        sent, received = self.sent - self.said.receipt.sent, self.received - self.said.receipt.received
        return (sent if sent > 0 else 0) + (received if received > 0 else 0)


class Account:
    """One payer at one relay, over all its passes that are not settled."""

    def __init__(self, window: int = limits.RECEIPT_WINDOW, owed: int = 0) -> None:
        """`window`: bytes; two of them may be unsigned. `owed`: unsigned bytes of passes that are settled."""
        self.window, self._before = window, owed
        self.carried = 0  # bytes given to parties
        self.unsigned = 0  # of these, what cannot be claimed by what is signed

    @property
    def owed(self) -> int:
        """Unsigned bytes, of these and earlier passes, beyond the part that may be lost."""
        return max(0, self._before + self.unsigned - (self.carried - self.unsigned) // limits.RECEIPT_LOST)

    @property
    def room(self) -> int:
        """Bytes that may be carried now before anybody signs; none or fewer: nothing is carried."""
        lost = (self.carried - self.unsigned) // limits.RECEIPT_LOST
        return 2 * self.window + lost - self._before - self.unsigned


class Books:
    """One pass at one relay."""

    def __init__(self, signed: SignedPass, account: Account | None = None, *, is_whole: bool = False) -> None:
        """`account`: the payer's (None: this is its only pass). `is_whole`: nothing was carried under it before."""
        self.signed, self._is_whole = signed, is_whole
        self.account = Account() if account is None else account
        self.carried = 0  # bytes given to parties
        self.billed = 0  # bytes that can be claimed by what is signed
        self._parties = {party: _Party() for party in signed.toll.holders}

    def _count(self, carried: int, billed: int) -> None:
        before = max(0, self.carried - self.billed)
        self.account.carried += carried - self.carried
        self.carried, self.billed = carried, billed
        self.account.unsigned += max(0, carried - billed) - before

    def moved(self, sender: PeerId, receiver: PeerId, size: int) -> Standing:
        """`size` bytes more went from one holder to another: whether the relay goes on between them."""
        self._parties[sender].sent += size
        self.given(receiver, size)
        return self.standing(sender, receiver)

    def given(self, receiver: PeerId, size: int) -> None:
        """A holder was given `size` bytes that had come in before: a copy of a fan-out."""
        self._parties[receiver].received += size
        self._count(self.carried + size, self.billed)

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
        self._count(self.carried, self._bill())
        return True

    def sign(self, signed: SignedReceipt) -> bool:
        """Takes a receipt whose signature was checked; False: it is of another pass, or older than the last one."""
        receipt = signed.receipt
        if not tolls.is_of(receipt, self.signed.toll):
            return False
        party = self._parties[receipt.party]
        if party.said is not None and not _is_newer(receipt, party.said.receipt):
            return False
        if self._is_whole and receipt.received > party.received + self.account.window:
            return False
        party.said = signed
        party.known = party.lag
        self._count(self.carried, self._bill())
        return True

    def restore(self, receipts: tuple[SignedReceipt, ...]) -> None:
        """Goes on from what was signed before this relay was started anew."""
        for signed in receipts:
            party = self._parties[signed.receipt.party]
            party.sent, party.received, party.said = signed.receipt.sent, signed.receipt.received, signed
        billed = self._bill()
        self._count(billed, billed)

    def count(self, party: PeerId) -> tuple[int, int]:
        """Bytes that were taken from a holder, and given to it."""
        return self._parties[party].sent, self._parties[party].received

    def late(self, parties: Iterable[PeerId]) -> list[PeerId]:
        """Those of these holders for whom nothing is carried now: they lag by more than the room, or there is none."""
        room = self.account.room
        return [party for party in parties if room <= 0 or self.lag(party) > room]

    def due(self, parties: Iterable[PeerId]) -> list[PeerId]:
        """Those of these holders that should sign now, lest they are held soon; each is named once for so much."""
        half, found = self.account.room // 2, []
        for name in parties:
            party = self._parties[name]
            if (lag := party.lag) - party.known > half:
                party.known = lag
                found.append(name)
        return found

    def last(self, party: PeerId) -> SignedReceipt | None:
        """A holder's last receipt."""
        return self._parties[party].said

    @property
    def receipts(self) -> tuple[SignedReceipt, ...]:
        """The last receipt of each party that has signed, in the order of their keys."""
        found = (self._parties[party].said for party in sorted(self._parties))
        return tuple(said for said in found if said is not None)

    def _bill(self) -> int:
        said = {each.receipt.party: (each.receipt.sent, each.receipt.received) for each in self.receipts}
        return tolls.billed(self.signed.toll.quota, said)


def _is_newer(receipt: Receipt, last: Receipt) -> bool:
    """Neither number falls, and one has grown."""
    grown = receipt.sent >= last.sent and receipt.received >= last.received
    return grown and (receipt.sent, receipt.received) != (last.sent, last.received)
