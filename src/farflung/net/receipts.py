"""Counts what one party sends and receives under a pass, and says when a receipt is due. No clock, no key, no socket.

    bytes  ---> counted --- limits.RECEIPT_BYTES more than signed ---> due
    time   ---> anything unsigned after limits.RECEIPT_SECONDS ------> due
    end of a connection --- anything unsigned -----------------------> due

A party signs its own numbers and no others, so a relay that says it carried more gets nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable

from farflung.core import limits
from farflung.core.ids import PeerId
from farflung.core.tolls import Pass, Receipt


class Tally:
    """One party's bytes under one pass, over all its connections. `on_due` is called when enough is unsigned."""

    def __init__(self, toll: Pass, party: PeerId, on_due: Callable[[], None]) -> None:
        self.toll = toll
        self._party, self._on_due = party, on_due
        self._sent = self._received = 0
        self._signed = 0  # both ways

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
        toll = self.toll
        said = (toll.chain, toll.payer, toll.relay, toll.opening, toll.serial)
        return Receipt(*said, self._party, self._sent, self._received)

    def unsay(self) -> None:
        """The relay did not get the last receipt: all of it is due again."""
        self._signed = 0
