"""Keeps the circuits of one relay: joins two sockets, and paces, meters and counts their bytes until the end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from farflung.core import limits
from farflung.core.ids import PeerId
from farflung.net import relay_tickets
from farflung.net.certificates import Identity
from farflung.net.io.pacer import UploadPacer
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.io.relay_splice import RelayCircuit
from farflung.net.relay_meter import PassMeter
from farflung.net.relay_tickets import TicketStatus


@dataclass(frozen=True, slots=True, eq=False)
class PendingDial:
    """A dialer whose peer has been told."""

    dialer: PeerId
    target: PeerId
    socket: socket.socket
    identity: Identity  # of the dialer
    books: PassMeter | None  # that it is carried under


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What a relay allows: seconds, and bytes a second."""

    uplink: int | None = None  # that all circuits together may send to other machines; None: what TCP finds
    circuit_rate: int = 0  # that one circuit forwards each way; 0: no bound
    may_splice: bool = True  # the kernel moves the bytes, where it can
    handshake_seconds: float = limits.HANDSHAKE_SECONDS
    callback_seconds: float = limits.CIRCUIT_SECONDS  # until the dialled peer has come


UNBOUNDED_RELAY: Final = RelayLimits()


class CircuitTable:
    """`forwarded`: bytes that were taken from peers and given to peers, of groups too."""

    def __init__(
        self,
        limits: RelayLimits,
        uplink: UploadPacer | None,
        gate: RelayMeteringGate | None,
        *,
        tell: Callable[[socket.socket, bytes], None],
        on_traffic: Callable[[int], None] | None,
        on_end: Callable[[PeerId], None],
    ) -> None:
        """`tell` says the relay's word to a socket, or raises OSError; `on_end` hears whose circuit ended."""
        self._limits, self._uplink, self._gate = limits, uplink, gate
        self._tell, self._on_traffic, self._on_end = tell, on_traffic, on_end
        self.circuits: dict[RelayCircuit, tuple[Identity, Identity]] = {}  # and who dialled, and whom
        self.forwarded = 0

    def join(self, waiting: PendingDial, comer: socket.socket, identity: Identity, *, is_spare: bool) -> None:
        """From now on what one says goes to the other. A spare is told of the pass: it was summoned by nobody."""
        books = waiting.books
        circuit = RelayCircuit(
            waiting.socket, comer, may_splice=self._limits.may_splice, on_moved=self._carried, on_end=self._ended
        )
        self.circuits[circuit] = waiting.identity, identity
        self._meter(circuit, waiting)
        if self._uplink is not None:
            for end, tuned in zip(circuit.sockets, circuit.tuned, strict=True):
                if not tuned.is_local:  # what stays on this machine does not go up the line
                    self._uplink.open(end)
        word = relay_tickets.answer(TicketStatus.JOINED)
        try:
            self._tell(comer, relay_tickets.paid_answer(books.signed) if is_spare and books is not None else word)
            self._tell(waiting.socket, word)
        except OSError:
            circuit.close()
        else:
            circuit.start()

    def _meter(self, circuit: RelayCircuit, waiting: PendingDial) -> None:
        """Bounds its rate and opens its books, where it has such."""
        rates = [self._limits.circuit_rate, waiting.books.signed.toll.rate if waiting.books is not None else 0]
        if any(rates):
            circuit.limit(min(rate for rate in rates if rate))
        if self._gate is not None and waiting.books is not None:
            self._gate.opened(circuit, waiting.books, waiting.dialer, waiting.target)

    def _carried(self, circuit: RelayCircuit, sink: socket.socket, size: int) -> None:
        self.moved(sink, size)
        if self._gate is not None:
            self._gate.moved(circuit, sink is circuit.sockets[0], size)

    def moved(self, sink: socket.socket, size: int) -> None:
        """A peer was given `size` bytes."""
        self.forwarded += size
        if self._uplink is not None:
            self._uplink.sent(sink, size)
        if self._on_traffic is not None:
            self._on_traffic(size)

    def _ended(self, circuit: RelayCircuit) -> None:
        dialer, _ = self.circuits.pop(circuit)
        self._on_end(dialer.account)
        if self._gate is not None:
            self._gate.ended(circuit)
        if self._uplink is not None:
            for end in circuit.sockets:
                self._uplink.close(end)

    def recheck(self, counts: Callable[[Identity], bool]) -> int:
        """Ends the circuits of node keys that do not count any more; returns how many."""
        void = [circuit for circuit, ends in self.circuits.items() if not all(counts(end) for end in ends)]
        for circuit in void:
            circuit.close()
        return len(void)

    def look(self) -> None:
        """Ends those that are idle."""
        for circuit in list(self.circuits):
            circuit.look()

    def end(self) -> None:
        """Ends all."""
        for circuit in list(self.circuits):
            circuit.close()
