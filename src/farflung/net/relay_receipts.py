"""Counts what one party sends and receives under a pass, and says when a receipt is due. No clock, no key, no socket.

    bytes  ---> counted --- limits.RECEIPT_BYTES more than signed ---> due
    time   ---> anything unsigned after limits.RECEIPT_SECONDS ------> due
    end of a connection --- anything unsigned -----------------------> due

A party that is started anew has forgotten what it counted. The relay shows it its own last receipt, and it goes on
from there. What it had not signed when it died it takes over from the relay's count of what has ended: only if that
receipt proves an earlier life, only while it knows which of its own bytes are in that count, and at most
limits.RECEIPT_CREDIT from each relay in a life, whatever passes it names and however often it asks (`ReceiptCredit`).

Apart from that a party signs its own numbers and no others, so a relay that says it carried more gets nothing for it.
Theory: a byte is billed when a sender and a receiver sign it. So what a relay can bill by lying to those that were
started anew is bounded by either end: by what it counted in all its lives, and that credit for each life but the first.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from farflung.core import limits, relay_passes
from farflung.core.codec import Wire
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayPass, RelayReceipt, SignedRelayReceipt


class RelayReceiptReply(Wire, frozen=True):
    """A relay's answer to a receipt: the party's last one, and what the relay itself counted for that party.

    Without what is under way: bytes of circuits and groups that stand count when those have ended.
    """

    last: SignedRelayReceipt
    sent: int
    received: int


class RelayUsageReply(Wire, frozen=True):
    """A relay's answer to a payer: bytes that it carried at that one's cost and that are not settled.

    `unsigned`: of these and of earlier ones, what can never be claimed as things stand, once everybody was asked; 0
    while it is little. `lost`: what the payer's last pass made good, as the relay has it; `receipts`: those under that
    pass, to show what can be claimed.
    """

    carried: int
    unsigned: int = 0
    lost: int = 0
    receipts: tuple[SignedRelayReceipt, ...] = ()


class ReceiptCredit:
    """Bytes of earlier lives that one process may still take over: limits.RECEIPT_CREDIT from each relay."""

    def __init__(self) -> None:
        self._taken: dict[PeerId, int] = {}

    def left(self, relay: PeerId) -> int:
        """Nothing from a relay too many: what was taken must never be forgotten."""
        if relay not in self._taken and len(self._taken) >= limits.PASSES_PER_PAYER:
            return 0
        return max(0, limits.RECEIPT_CREDIT - self._taken.get(relay, 0))

    def take(self, relay: PeerId, size: int) -> None:
        """So much was taken over."""
        if size:
            self._taken[relay] = self._taken.get(relay, 0) + size


class ReceiptTally:
    """One party's bytes under one pass, over all its connections. `on_due` is called when enough is unsigned."""

    def __init__(
        self, toll: RelayPass, party: PeerId, on_due: Callable[[], None], credit: ReceiptCredit | None = None
    ) -> None:
        """`credit`: what all tallies of the process share (None: this is the only one)."""
        self.toll = toll
        self.connections = 0  # that count here
        self._credit = ReceiptCredit() if credit is None else credit
        self._has_lived = False  # before this process: a receipt proves it
        self._party, self._on_due = party, on_due
        self._sent = self._received = 0  # since this party's process began
        self._before = (0, 0)  # what it had signed before that
        self._signed = 0  # of this process's bytes, both ways
        self._has_ended = False  # a connection that counted here

    @property
    def credit(self) -> int:
        """Bytes of an earlier life that may still be taken over."""
        return self._credit.left(self.toll.relay) if self._has_lived else 0

    @property
    def unsigned(self) -> int:
        """Bytes, both ways, that no receipt speaks of yet."""
        return self._sent + self._received - self._signed

    def sent(self, size: int) -> None:
        """The kernel took `size` bytes for the relay."""
        self._sent += size
        self._look(size)

    def received(self, size: int) -> None:
        """The relay brought `size` bytes."""
        self._received += size
        self._look(size)

    def _look(self, size: int) -> None:
        step = limits.RECEIPT_BYTES
        # Once a step, though signing takes a while.
        if self.unsigned // step > (self.unsigned - size) // step:
            self._on_due()

    def receipt(self) -> RelayReceipt:
        """What is to be signed now; it counts as signed from here on."""
        self._signed = self._sent + self._received
        sent, received = self._before
        return replace(self.nothing(), sent=sent + self._sent, received=received + self._received)

    def nothing(self) -> RelayReceipt:
        """A receipt for no bytes: a question for the last one."""
        toll = self.toll
        return RelayReceipt(toll.chain, toll.payer, toll.relay, toll.opening, toll.serial, self._party, 0, 0)

    def unsay(self) -> None:
        """The relay did not get the last receipt: all of it is due again."""
        self._signed = 0

    def recall(self, last: RelayReceipt) -> None:
        """Goes on from this party's own last receipt, which it signed before it was started anew."""
        if relay_passes.is_of(last, self.toll) and last.party == self._party:
            self._before = (last.sent, last.received)
            self._has_lived = any(self._before)

    def take_over(self, sent: int, received: int) -> bool:
        """Trusts what the relay counted of an earlier life; whether a receipt is due for it.

        Nothing while connections of this process stand and others have ended: who knows which bytes are in the count?
        """
        if self.connections and self._has_ended:
            return False
        own = (self._sent, self._received) if self._has_ended else (0, 0)
        most = self.credit
        up = min(max(0, sent - self._before[0] - own[0]), most)
        down = min(max(0, received - self._before[1] - own[1]), most - up)
        self._credit.take(self.toll.relay, up + down)
        self._before = self._before[0] + up, self._before[1] + down
        return up + down > 0

    def opened(self) -> None:
        """One more connection counts here."""
        self.connections += 1

    def ended(self) -> None:
        """One less."""
        self.connections -= 1
        self._has_ended = True
