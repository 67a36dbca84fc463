"""Counts what one party sends and receives under a pass, and says when a receipt is due. No clock, no key, no socket.

    bytes  ---> counted --- limits.RECEIPT_BYTES more than signed ---> due
    time   ---> anything unsigned after limits.RECEIPT_SECONDS ------> due
    end of a connection --- anything unsigned -----------------------> due

A party that is started anew has forgotten what it counted. The relay shows it its own last receipt, and it goes on
from there: what it had not signed when it died is the relay's loss.

A party signs its own numbers and no others, so a relay that says it carried more gets nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from farflung.core import limits, tolls
from farflung.core.ids import PeerId
from farflung.core.tolls import Pass, Receipt


class Tally:
    """One party's bytes under one pass, over all its connections. `on_due` is called when enough is unsigned."""

    def __init__(self, toll: Pass, party: PeerId, on_due: Callable[[], None]) -> None:
        self.toll = toll
        self.connections = 0  # that count here
        self._party, self._on_due = party, on_due
        self._sent = self._received = 0  # since this party's process began
        self._before = (0, 0)  # what it had signed before that
        self._signed = 0  # of this process's bytes, both ways

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
        if (
            self.unsigned // step > (self.unsigned - size) // step
        ):  # once a step, though signing takes a while
            self._on_due()

    def receipt(self) -> Receipt:
        """What is to be signed now; it counts as signed from here on."""
        self._signed = self._sent + self._received
        sent, received = self._before
        return replace(self.nothing(), sent=sent + self._sent, received=received + self._received)

    def nothing(self) -> Receipt:
        """A receipt for no bytes: a question for the last one."""
        toll = self.toll
        return Receipt(toll.chain, toll.payer, toll.relay, toll.opening, toll.serial, self._party, 0, 0)

    def unsay(self) -> None:
        """The relay did not get the last receipt: all of it is due again."""
        self._signed = 0

    def recall(self, last: Receipt) -> None:
        """Goes on from this party's own last receipt, which it signed before it was started anew."""
        if tolls.is_of(last, self.toll) and last.party == self._party:
            self._before = (last.sent, last.received)
