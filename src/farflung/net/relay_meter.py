"""Accounts for one pass at a relay: what it carried for each party, what they signed, and if it goes on.

Theory. What is *at risk* with a payer is what was carried under all its passes and cannot be claimed by what is
signed (`PayerExposure.owed`). It is a window at most; what is left of that is its *room*. A party's *lag* is how much
of what it sent and was given its last receipt does not speak of. The relay carries for a party while there is room
and the party does not lag by more than the room. So one payer leaves no more unsigned, with however many passes and
parties at once; a party that never signs takes half of the room, the next one half of the rest, and no party takes it
all from the others. Two parties that are alone may lag by half a window.

What was lost on the way (a circuit that broke, a party that is gone for ever) stays at risk until the payer makes it
good in a renewal of its pass (`RelayPass.lost`): nobody gains by breaking circuits, and a long run does not end by
what breaks. Whether it does, and how much of it, is the payer's choice (`peers.ledger_client.relay_channel`).

    OPEN     --- no room, or a party's lag > room ---> HELD     --- receipts ---> OPEN
    OPEN     --- carried >= quota -------------------> USED_UP  --- the payer's renewal ---> OPEN

Receipts count upwards: one that says less than the last changes nothing, in any order and however often it comes.
Where the relay has seen all of a pass, one that says it received half a window more than it was given changes nothing
either: in a fan-out its sender could not know better.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from farflung.core import limits, relay_passes
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayReceipt, SignedRelayPass, SignedRelayReceipt
from farflung.net.relay_pass_checks import renews


class Carrier(Protocol):
    """What forwards bytes under a pass."""

    def hold(self) -> None:
        """Carries nothing more, until `release`."""

    def release(self) -> None:
        """Goes on."""

    def close(self) -> None:
        """Ends."""


class PassStatus(enum.Enum):
    """Whether the relay carries for two parties."""

    OPEN = "open"
    HELD = "held"  # until one of them signs
    USED_UP = "used up"  # until the payer signs for more


@dataclass(slots=True)
class _PartyUsage:
    sent: int = 0  # taken from it, by the relay's own count
    received: int = 0  # given to it
    said: SignedRelayReceipt | None = None  # its last receipt
    known: int = 0  # its lag when it was asked, or signed, last
    forgiven: int = 0  # of what it has not signed: the payer made as much good

    @property
    def unsigned(self) -> int:
        """Bytes that it has not signed."""
        if self.said is None:
            return self.sent + self.received
        sent, received = self.sent - self.said.receipt.sent, self.received - self.said.receipt.received
        return (sent if sent > 0 else 0) + (received if received > 0 else 0)

    @property
    def lag(self) -> int:
        """Of these, those that its payer has not made good."""
        lag = self.unsigned - self.forgiven
        return lag if lag > 0 else 0


class PayerExposure:
    """One payer at one relay, over all its passes that are not settled."""

    def __init__(self, window: int = limits.RECEIPT_WINDOW, owed: int = 0, worth: int = limits.PASS_BYTES) -> None:
        """`window`: bytes that may be at risk. `owed`: of them, what earlier passes left, which are settled.

        `worth`: bytes that the payer's channel pays for, from the first on.
        """
        self.window, self._before, self.worth = window, owed, worth
        self.carried = 0  # bytes given to parties
        self.unsigned = 0  # of these, what cannot be claimed by what the parties signed
        self.made_good = 0  # bytes that can be claimed by the payer's own word, if its channel pays for them

    @property
    def owed(self) -> int:
        """Bytes at risk, of these and earlier passes. A word that the channel does not pay for is worth nothing."""
        left = max(0, self.worth - (self.carried - self.unsigned))
        return max(0, self._before + self.unsigned - min(self.made_good, left))

    @property
    def room(self) -> int:
        """Bytes that may be carried now before anybody signs; none or fewer: nothing is carried."""
        return self.window - self.owed

    @property
    def is_low(self) -> bool:
        """Whether half of the window is at risk: then a payer hears of it."""
        return self.owed > self.window // 2


class PassMeter:
    """One pass at one relay."""

    def __init__(
        self, signed: SignedRelayPass, account: PayerExposure | None = None, *, is_whole: bool = False
    ) -> None:
        """`account`: the payer's (None: this is its only pass). `is_whole`: nothing was carried under it before."""
        self.signed, self._is_whole = signed, is_whole
        self.account = PayerExposure() if account is None else account
        self.carried = 0  # bytes given to parties
        self.billed = 0  # bytes that can be claimed by what the parties signed
        self._made_good = 0  # and by the payer's own word, within the quota
        self.kept = 0  # of `carried`, what is written down
        self._parties = {party: _PartyUsage() for party in signed.toll.holders}
        self._bill()

    def _count(self, carried: int) -> None:
        before = max(0, self.carried - self.billed)
        self.account.carried += carried - self.carried
        self.carried = carried
        self.account.unsigned += max(0, carried - self.billed) - before

    def _bill(self) -> None:
        """Something was signed."""
        toll, before = self.signed.toll, max(0, self.carried - self.billed)
        said = {each.receipt.party: (each.receipt.sent, each.receipt.received) for each in self.receipts}
        self.billed = relay_passes.billed(toll.quota, said)
        self.account.unsigned += max(0, self.carried - self.billed) - before
        made_good = relay_passes.billed(toll.quota, said, toll.lost) - self.billed
        self.account.made_good += made_good - self._made_good
        self._made_good = made_good

    def moved(self, sender: PeerId, receiver: PeerId, size: int) -> PassStatus:
        """`size` bytes more went from one holder to another: whether the relay goes on between them."""
        self._parties[sender].sent += size
        self.given(receiver, size)
        return self.standing(sender, receiver)

    def given(self, receiver: PeerId, size: int) -> None:
        """A holder was given `size` bytes that had come in before: a copy of a fan-out."""
        self._parties[receiver].received += size
        self._count(self.carried + size)

    def taken(self, sender: PeerId, size: int) -> None:
        """`size` bytes came in from a holder, to be copied."""
        self._parties[sender].sent += size

    def standing(self, *parties: PeerId) -> PassStatus:
        """Whether the relay carries between these holders now."""
        if self.carried >= self.signed.toll.quota:
            return PassStatus.USED_UP
        return PassStatus.HELD if self.late(parties) else PassStatus.OPEN

    def lag(self, party: PeerId) -> int:
        """Bytes carried for a holder that neither it has signed nor its payer made good."""
        return self._parties[party].lag

    def renew(self, signed: SignedRelayPass) -> bool:
        """Takes the pass as its payer signed it anew; False: it is less than what stands here, or another one."""
        if not renews(signed.toll, self.signed.toll):
            return False
        lost, self.signed = signed.toll.lost - self.signed.toll.lost, signed
        for name in signed.toll.holders:
            party = self._parties.setdefault(name, _PartyUsage())
            # Who lost it nobody says; it is fairness among the parties alone that hangs on it.
            party.forgiven = min(party.forgiven + lost, party.unsigned)
        self._bill()
        return True

    def sign(self, signed: SignedRelayReceipt) -> bool:
        """Takes a receipt whose signature was checked; False: it is of another pass, or older than the last one."""
        receipt = signed.receipt
        if not relay_passes.is_of(receipt, self.signed.toll):
            return False
        party = self._parties[receipt.party]
        if party.said is not None and not _is_newer(receipt, party.said.receipt):
            return False
        if self._is_whole and receipt.received > party.received + self.account.window // 2:
            return False
        party.said = signed
        party.forgiven = min(party.forgiven, party.unsigned)
        party.known = party.lag
        self._bill()
        return True

    def restore(self, receipts: tuple[SignedRelayReceipt, ...], carried: int = 0) -> None:
        """Goes on from what was signed, and `carried`, before this relay was started anew."""
        for signed in receipts:
            party = self._parties[signed.receipt.party]
            party.sent, party.received, party.said = signed.receipt.sent, signed.receipt.received, signed
        self._bill()
        self._count(max(carried, self.billed + self._made_good))

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

    def last(self, party: PeerId) -> SignedRelayReceipt | None:
        """A holder's last receipt."""
        return self._parties[party].said

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to claim: nothing was carried, and nothing made good."""
        return not (self.carried or self.signed.toll.lost)

    @property
    def receipts(self) -> tuple[SignedRelayReceipt, ...]:
        """The last receipt of each party that has signed, in the order of their keys."""
        found = (self._parties[party].said for party in sorted(self._parties))
        return tuple(said for said in found if said is not None)


def _is_newer(receipt: RelayReceipt, last: RelayReceipt) -> bool:
    """Neither number falls, and one has grown."""
    grown = receipt.sent >= last.sent and receipt.received >= last.received
    return grown and (receipt.sent, receipt.received) != (last.sent, last.received)
