"""Attributes each byte at a socket to a kind (issue 2: `bytes_sent` counts at the sockets, TLS included).

Totals are exact: every byte that the kernel took or gave is counted when it does. The split by kind is exact among
honest peers: a frame's ciphertext, record overhead included, belongs to its message's kind; hello, handshake,
alerts and signals are CONTROL. A sender knows the ciphertext of each frame; a receiver computes it from the frame's
length (`tls.wire_size`), and what a strange peer pads or splits otherwise stays CONTROL.
"""

from __future__ import annotations

from farflung.net.messages import MessageKind
from farflung.net.relay_receipts import ReceiptTally
from farflung.net.tls import wire_size


class ByteCounter:
    """Bytes sent and received by one process, by kind, over all its connections."""

    def __init__(self) -> None:
        self.sent: dict[MessageKind, int] = dict.fromkeys(MessageKind, 0)
        self.received: dict[MessageKind, int] = dict.fromkeys(MessageKind, 0)

    @property
    def total_sent(self) -> int:
        """All bytes that the kernel took."""
        return sum(self.sent.values())

    @property
    def total_received(self) -> int:
        """All bytes that the kernel gave."""
        return sum(self.received.values())


class ConnectionMeter:
    """The counting of one connection into its process's Counter, and for who pays for its way, if somebody does."""

    def __init__(self, counter: ByteCounter, tally: ReceiptTally | None = None) -> None:
        self._counter, self.tally = counter, tally
        self._open = 0  # bytes received since the handshake that no frame has claimed yet
        self.total = 0  # both ways

    def sent(self, kind: MessageKind, size: int) -> None:
        """The kernel took `size` bytes of this kind."""
        self._counter.sent[kind] += size
        self.total += size
        if self.tally is not None:
            self.tally.sent(size)

    def received(self, size: int) -> None:
        """The kernel gave `size` bytes: CONTROL until frames claim them."""
        self._counter.received[MessageKind.CONTROL] += size
        self._open += size
        self.total += size
        if self.tally is not None:
            self.tally.received(size)

    def settle(self) -> None:
        """The handshake is over: what came so far belongs to no frame."""
        self._open = 0

    def frame(self, kind: MessageKind, plaintext: int) -> None:
        """A frame of `plaintext` bytes came in: it claims its ciphertext for its kind."""
        size = min(wire_size(plaintext), self._open)
        self._open -= size
        self._counter.received[MessageKind.CONTROL] -= size
        self._counter.received[kind] += size
