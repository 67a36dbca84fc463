"""Opens a connection through a relay: shows a ticket, reads the relay's status, and hands the transport over."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.ids import PeerId, short
from farflung.core.relay_passes import SignedRelayPass
from farflung.net import relay_tickets
from farflung.net.certificates import Credential, credential_of
from farflung.net.counters import ByteCounter, ConnectionMeter
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind
from farflung.net.relay_tickets import Ticket, TicketPurpose, TicketStatus

# The cause and the hint for each status.
_REFUSALS: Final = {
    TicketStatus.MALFORMED: ("it cannot read our ticket", "check that both sides run the same version of farflung"),
    TicketStatus.ELSEWHERE: ("another relay listens there", "get a fresh address of the peer"),
    TicketStatus.STALE: ("our ticket is not of this minute", "set this machine's clock, or the relay's"),
    TicketStatus.FORGED: ("it does not take our signature", "dial again; if it fails again, someone is in between"),
    TicketStatus.BARRED: ("it does not serve this key", "ask who runs the relay to admit your key"),
    TicketStatus.REPLAYED: ("the ticket was shown before", "dial again; if it fails again, someone is in between"),
    TicketStatus.FULL: ("it has no place for another circuit", "try again later, or another relay"),
    TicketStatus.VOID: ("our node key does not count any more", "use the newest key of this account"),
    TicketStatus.UNKNOWN: ("nobody waits for that circuit any more", "wait: the other side will dial again"),
    TicketStatus.UNPAID: ("it carries for a pass only", "ask the payer of this job for one"),
    TicketStatus.NO_HOLDER: ("the pass is not for these two keys", "ask the payer for a pass that names both"),
    TicketStatus.LAPSED: ("our pass is not of this quarter of an hour", "set the clocks of payer and relay, ask anew"),
    TicketStatus.USED_UP: ("our pass or its payer's channel is used up", "ask the payer for more"),
    TicketStatus.UNFUNDED: ("the payer has no channel with it that pays its price", "ask the payer to open one"),
    TicketStatus.OWING: ("receipts for what it carried are missing", "wait for both sides to sign, then dial again"),
}


Make = Callable[[SignedRelayPass | None], Connection]  # under which pass a spare was joined


class RelayDial(asyncio.BufferedProtocol):
    """Shows a ticket, with what goes behind it, and waits.

    When joined, the connection from `make` takes the transport over, at that very byte.
    """

    def __init__(self, ticket: bytes, early: bytes, counter: ByteCounter, make: Make) -> None:
        self._ticket, self._early, self._make, self._meter = ticket, early, make, ConnectionMeter(counter)
        self._buffer, self._filled = bytearray(relay_tickets.ANSWER_BYTES), 0
        # Reads what has filled the buffer.
        self._read: Callable[[bytes], TicketStatus | ProtocolError | None] = self._read_answer
        self._transport: asyncio.Transport | None = None
        self._made: Connection | None = None
        self.answered: asyncio.Future[Connection | TicketStatus] = asyncio.get_running_loop().create_future()
        self.answered.add_done_callback(_heard)  # who dialled may have given up while TCP still connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the relay is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._meter.sent(MessageKind.CONTROL, len(self._ticket) + len(self._early))
        transport.write(self._ticket + self._early)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: room for the rest of the answer, and not for a byte of what follows it."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: `nbytes` of the answer are there."""
        assert self._transport is not None
        self._meter.received(nbytes)
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        refusal = TicketStatus.UNKNOWN if self.answered.done() else self._read(bytes(self._buffer))
        if refusal is not None:
            self._settle(refusal)
            self._transport.abort()

    def _read_answer(self, word: bytes) -> TicketStatus | ProtocolError | None:
        status = relay_tickets.read_answer(word)
        if status is TicketStatus.JOINED:
            self._joined(None)
        elif status is TicketStatus.PAID:
            self._await(2, self._read_size)
        else:
            return _not_ours() if status is None else status
        return None

    def _read_size(self, word: bytes) -> ProtocolError | None:
        size = relay_tickets.read_size(word)
        if size is None:
            return _not_ours()
        self._await(size, self._read_pass)
        return None

    def _read_pass(self, word: bytes) -> ProtocolError | None:
        toll = relay_tickets.read_pass(word)
        if toll is None:
            return _not_ours()
        self._joined(toll)
        return None

    def _await(self, size: int, read: Callable[[bytes], TicketStatus | ProtocolError | None]) -> None:
        """The next `size` bytes belong to the answer, too. A new buffer: asyncio still looks at the one before."""
        self._buffer, self._filled, self._read = bytearray(size), 0, read

    def _joined(self, toll: SignedRelayPass | None) -> None:
        assert self._transport is not None
        self._made = self._make(toll)
        if self._made.tally is not None:
            self._made.tally.sent(len(self._early))  # the relay carries it, and not the ticket
        self._transport.set_protocol(self._made)
        self._made.connection_made(self._transport)
        self._settle(self._made)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the relay is gone."""
        self._settle(_not_a_relay(str(exc) if exc else "it closed the connection without an answer"))

    def give_up(self) -> None:
        """Nobody waits any more."""
        self.answered.cancel()
        if self._made is not None:
            self._made.drop(NetworkError("FF-NET-046", "the dial was given up"))
        elif self._transport is not None:
            self._transport.abort()

    def _settle(self, what: Connection | TicketStatus | NetworkError) -> None:
        if self.answered.done():
            return
        if isinstance(what, NetworkError):
            self.answered.set_exception(what)
        else:
            self.answered.set_result(what)


def _heard(answered: asyncio.Future[Connection | TicketStatus]) -> None:
    """Takes note of an error that nobody waits for any more."""
    if not answered.cancelled():
        answered.exception()


async def visit(
    own: Credential, counter: ByteCounter, ticket: Ticket, place: tuple[str, int], make: Make, early: bytes = b""
) -> RelayDial:
    """Shows a ticket to the relay at `place`, and the `early` bytes of a handshake behind it. Raises FF-NET-070."""
    host, port = place
    signed = relay_tickets.sign_ticket(own, ticket)
    loop = asyncio.get_running_loop()
    try:
        _, visitor = await loop.create_connection(lambda: RelayDial(signed, early, counter, make), host, port)
    except (OSError, ValueError, OverflowError) as error:  # the latter: no host name, no port
        raise NetworkError(
            "FF-NET-070",
            f"cannot reach relay {short(ticket.relay)} at {host}:{port}",
            cause=getattr(error, "strerror", None) or str(error)[:200],
            hint="check that the relay is running and that the address is current",
        ) from error
    return visitor


async def dial_by_relay(
    own: Credential,
    counter: ByteCounter,
    ticket: Ticket,
    place: tuple[str, int],
    make: Callable[[], Connection],
    early: bytes = b"",
) -> Connection:
    """A connection to `ticket.peer` through the relay at `place`; its handshake is not done yet.

    `make` builds it once the relay has joined the two; `early` is what it would say first, and leaves with the ticket.
    Raises NetworkError FF-NET-070 nobody there, 071 the peer is not attached, 072 refused, 073 the peer does not come;
    ProtocolError FF-NET-074 no relay of ours.
    """
    visitor = await visit(own, counter, ticket, place, lambda _: make(), early)
    try:
        found = await visitor.answered
    except BaseException:
        visitor.give_up()
        raise
    if isinstance(found, TicketStatus):
        raise _refused(ticket, found)
    return found


def new_ticket(
    own: SigningKey | Credential,
    purpose: TicketPurpose,
    relay: PeerId,
    peer: PeerId,
    circuit: int = 0,
    toll: SignedRelayPass | None = None,
) -> Ticket:
    """A ticket of this moment, for one use: it ends after half of what a relay allows, for the sake of slow clocks."""
    expires = int(time.time()) + limits.TICKET_SECONDS // 2
    nonce = secrets.token_bytes(relay_tickets.NONCE_BYTES)
    return Ticket(purpose, relay, credential_of(own).account, peer, circuit, nonce, expires, toll)


def _refused(ticket: Ticket, status: TicketStatus) -> NetworkError:
    relay, peer = short(ticket.relay), short(ticket.peer)
    if status is TicketStatus.ABSENT:
        return NetworkError(
            "FF-NET-071",
            f"{peer} is not attached to relay {relay}",
            cause="it is not running, lost its connection to the relay, or uses another one",
            hint="try again in a second, or get a fresh address of the peer",
        )
    if status in (TicketStatus.SILENT, TicketStatus.DECLINED):
        return NetworkError(
            "FF-NET-073",
            f"{peer} does not come to relay {relay}",
            cause="it declined" if status is TicketStatus.DECLINED else "it did not come in time",
            hint="check that this key takes part in the run, and try again",
        )
    cause, hint = _REFUSALS[status]
    return NetworkError("FF-NET-072", f"relay {relay} refuses", cause=cause, hint=hint)


def _not_ours() -> ProtocolError:
    return _not_a_relay("its answer is none of ours")


def _not_a_relay(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-074",
        "no relay answers",
        cause=cause[:200],
        hint="check that the address belongs to a relay of this version, and dial again",
    )
