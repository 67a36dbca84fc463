"""A relay joins, at one port, peers that cannot reach each other, and reads nothing of what they say.

What an accepted socket is shows in its first four bytes:

    "FFN1"  a peer that talks with the relay itself: goes to the relay's own Endpoint; by `relay.attach` it becomes
            one that can be dialled here
    "FF.."  any other version, and "FFV?": it is told ours (`relay_probe`), and the end
    "FFG1"  a join: the socket belongs to a group (`multicast_groups`, `multicast_relay`)
    "FFR1"  a ticket (`relay_tickets`)
            DIAL -> waiting --- the dialled peer shows ACCEPT for that circuit --> joined
                       | it declines, is gone, or takes too long: a status, and the end
            DIAL -> joined at once, where the dialled peer keeps a SPARE here (`spare_connections`)
    else    closed

A circuit, waiting or joined, is owned by who dialled it: limits.CIRCUITS_PER_KEY bounds those of one key, CIRCUITS all.
The relay holds no key of the peers' TLS: it can drop and delay, and see who talks with whom, when and how much.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, ProtocolError
from farflung.core.ids import PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.net import multicast_groups, relay_probe, relay_tickets, tls
from farflung.net.certificates import Credential, Identity, credential_of
from farflung.net.counters import ByteCounter
from farflung.net.io.admission import Admission
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.multicast_relay import GroupAdmissionRules, GroupHub
from farflung.net.io.pacer import UploadPacer
from farflung.net.io.relay_circuits import UNBOUNDED_RELAY, CircuitTable, PendingDial, RelayLimits
from farflung.net.io.relay_listener import Greeter, RelayListener, exactly
from farflung.net.io.relay_metering_gate import RelayMeteringGate
from farflung.net.io.relay_probe_server import RelayProbeServer
from farflung.net.io.relay_registration import ATTACH, CALLBACK
from farflung.net.io.spare_connections import SpareConnections, part
from farflung.net.io.tcp_listener import ANY_LOOPBACK_PORT, ListenConfig
from farflung.net.messages import MessageKind, RemoteError
from farflung.net.relay_meter import PassMeter
from farflung.net.relay_tickets import (
    AdmittedTicket,
    CallbackRequest,
    Ticket,
    TicketPurpose,
    TicketReplayCache,
    TicketStatus,
)

_LOOKS: Final = 3  # at all circuits, in their idle time

Method = Callable[[Connection, bytes], Awaitable[bytes]]  # who asks, and the body


class RelayServer:
    """One relay."""

    def __init__(
        self,
        own: SigningKey | Credential,
        *,
        listen: ListenConfig = ANY_LOOPBACK_PORT,
        admission: Admission | None = None,
        limits: RelayLimits = UNBOUNDED_RELAY,
        gate: RelayMeteringGate | None = None,
        counter: ByteCounter | None = None,
        on_traffic: Callable[[int], None] | None = None,
    ) -> None:
        """`admission` (None: everybody) says whom it serves. `gate`: asks for passes (None: it carries for nothing).

        `counter` counts what the relay itself says and hears. `on_traffic(n)`: n bytes more were forwarded.
        """
        self.counter, self._own = counter or ByteCounter(), credential_of(own)
        self.admission, self._limits = admission or Admission(), limits
        self._endpoint = Endpoint(
            self._own, self._handle, self.counter, admission=self.admission, handshake_seconds=limits.handshake_seconds
        )
        self._endpoint.pacer = None  # a socket has one pacer: the relay's uplink, or none
        self._gate, self._uplink = gate, None if limits.uplink is None else UploadPacer(limits.uplink)
        self._circuits = CircuitTable(
            limits, self._uplink, gate, tell=self._tell, on_traffic=on_traffic, on_end=self._release
        )
        self._spent = TicketReplayCache()
        rules = GroupAdmissionRules(self._own.account, self.admission, self._spent, gate)
        self._groups = GroupHub(rules, self._circuits.moved, self.counter, self._uplink)
        self._listener = RelayListener(listen, self._greeters(), limits.handshake_seconds)
        self._methods: dict[str, Method] = {
            ATTACH: self._attach,
            **RelayProbeServer(self.admission.clock, self._uplink).methods(),
        }
        self._spares = SpareConnections(time.monotonic, self.admission.counts)
        self._tasks = OwnedTasks()
        self._attached: dict[PeerId, Connection] = {}
        self._waiting: dict[int, PendingDial] = {}
        self._owned = collections.Counter[PeerId]()  # waiting or joined, by dialer

    def _greeters(self) -> dict[bytes, Greeter]:
        """Whom a stranger wants, by what it says first."""
        return {
            tls.MAGIC: self._meet,
            relay_tickets.MAGIC: self._hear,
            multicast_groups.MAGIC: self._groups.hear,
            relay_probe.FAMILY: self._name,
        }

    async def start(self) -> tuple[str, int]:
        """Listens; returns host and port. Raises FF-NET-040 port taken, 041 no such address, 042 not loopback."""
        place = await self._listener.start()
        self._tasks.begin(self._watch())
        self._tasks.begin(self._groups.watch())
        if self._gate is not None:
            self._methods |= self._gate.serve(self._own.account, self.admission.clock, self._attached.get)
        if self._uplink is not None:
            self._tasks.begin(self._uplink.keep())
        return place

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is the real one once started."""
        return self._listener.address

    @property
    def forwarded(self) -> int:
        """Bytes that it has taken from peers and given to peers."""
        return self._circuits.forwarded

    @property
    def endpoint(self) -> Endpoint:
        """The relay as a peer: for what it asks of others."""
        return self._endpoint

    def recheck(self) -> int:
        """Ends connections and circuits of node keys that do not count any more; returns how many."""
        return self._circuits.recheck(self.admission.counts) + self._endpoint.recheck()

    async def close(self) -> None:
        """Stops listening and ends all circuits and connections."""
        await self._listener.close()
        await self._tasks.close()
        if self._gate is not None:
            await self._gate.close()
        for waiting in self._waiting.values():
            waiting.socket.close()
        self._spares.close()
        self._circuits.end()
        self._groups.close()
        await self._endpoint.close()

    # Strangers

    async def _meet(self, stranger: socket.socket, magic: bytes) -> bool:
        """A peer that talks with the relay itself."""
        await self._endpoint.adopt(stranger, magic)
        return True

    async def _name(self, stranger: socket.socket, magic: bytes) -> bool:
        """Another version of ours, or one that asks for ours."""
        self._tell(stranger, relay_probe.answer(self._own.account))
        return False

    async def _hear(self, stranger: socket.socket, magic: bytes) -> bool:
        """Reads a ticket and does what it says; whether the socket was kept."""
        head = magic + await exactly(stranger, relay_tickets.HEAD_BYTES - len(magic))
        size = relay_tickets.read_head(head)
        if size is None:
            return await self._refuse(stranger, TicketStatus.MALFORMED)
        body = await exactly(stranger, size)
        self.counter.received[MessageKind.CONTROL] += len(head) + size
        found = self._judge(body)
        if isinstance(found, TicketStatus):
            return await self._refuse(stranger, found)
        ticket, identity = found
        if ticket.purpose is TicketPurpose.DIAL:
            refusal = await self._dial(ticket, identity, stranger)
        else:
            act = self._join if ticket.purpose is TicketPurpose.ACCEPT else self._spare
            refusal = act(ticket, identity, stranger)
        return refusal is None or await self._refuse(stranger, refusal)

    def _judge(self, body: bytes) -> AdmittedTicket | TicketStatus:
        now = int(self.admission.clock())
        found = relay_tickets.judge(body, self._own.account, now)
        if isinstance(found, TicketStatus):
            return found
        if not self.admission.admits(found.ticket.presenter):
            return TicketStatus.BARRED
        if not self.admission.counts(found.who):
            return TicketStatus.VOID
        return self._spent.spend(found.ticket, now) or found

    async def _refuse(self, stranger: socket.socket, status: TicketStatus) -> bool:
        """Says why not, and closes; False, because the socket is not kept."""
        with contextlib.suppress(OSError):
            self._say(stranger, status)
        await part(stranger)
        return False

    def _say(self, to: socket.socket, status: TicketStatus) -> None:
        """One small message into an empty send buffer: it fits or the socket is broken."""
        self._tell(to, relay_tickets.answer(status))

    def _tell(self, to: socket.socket, word: bytes) -> None:
        self.counter.sent[MessageKind.CONTROL] += len(word)
        if to.send(word) < len(word):
            raise ConnectionError("the socket took half of a few bytes")

    # Circuits

    async def _dial(self, ticket: Ticket, identity: Identity, dialer: socket.socket) -> TicketStatus | None:
        books: PassMeter | None = None
        if self._gate is not None:
            found = await self._gate.admit(ticket.toll, ticket.presenter, ticket.peer)
            if isinstance(found, TicketStatus):
                return found
            books = found
        target = self._attached.get(ticket.peer)
        if target is None or not target.is_open:
            return TicketStatus.ABSENT
        is_full = len(self._waiting) + len(self._circuits.circuits) >= limits.CIRCUITS
        if is_full or self._owned[ticket.presenter] >= limits.CIRCUITS_PER_KEY:
            return TicketStatus.FULL
        waiting = PendingDial(ticket.presenter, ticket.peer, dialer, identity, books)
        self._owned[ticket.presenter] += 1
        if (spare := self._spares.take(ticket.peer)) is not None:
            self._circuits.join(waiting, *spare, is_spare=True)
            return None
        number = 1 + secrets.randbelow((1 << 63) - 1)
        self._waiting[number] = waiting
        self._tasks.begin(self._call_back(target, number))
        return None

    async def _call_back(self, target: Connection, number: int) -> None:
        """Tells the dialled peer; it comes by `_join`, or the dialer hears why not."""
        status = TicketStatus.SILENT
        try:
            asked = self._waiting[number]
            toll = asked.books.signed if asked.books is not None else None
            body = encode(CallbackRequest(number, asked.dialer, toll))
            await target.call(CALLBACK, body, timeout=self._limits.callback_seconds)
        except RemoteError:
            status = TicketStatus.DECLINED
        except NetworkError as error:
            status = TicketStatus.SILENT if error.code == "FF-NET-047" else TicketStatus.ABSENT
        finally:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                self._release(waiting.dialer)
                await self._refuse(waiting.socket, status)

    def _join(self, ticket: Ticket, identity: Identity, comer: socket.socket) -> TicketStatus | None:
        waiting = self._waiting.get(ticket.circuit)
        if waiting is None or (waiting.target, waiting.dialer) != (ticket.presenter, ticket.peer):
            return TicketStatus.UNKNOWN
        del self._waiting[ticket.circuit]
        self._circuits.join(waiting, comer, identity, is_spare=False)
        return None

    def _spare(self, ticket: Ticket, identity: Identity, comer: socket.socket) -> TicketStatus | None:
        if ticket.presenter not in self._attached:
            return TicketStatus.ABSENT
        self._spares.keep(ticket.presenter, comer, identity)
        return None

    def end_all(self) -> None:
        """Ends circuits and groups: the owner's month is used up. `admit` decides about new ones."""
        self._circuits.end()
        self._groups.close()

    def _release(self, dialer: PeerId) -> None:
        self._owned[dialer] -= 1
        if not self._owned[dialer]:
            del self._owned[dialer]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(limits.CIRCUIT_IDLE_SECONDS / _LOOKS)
            self._circuits.look()

    # Attached peers

    async def _handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        serve = self._methods.get(method)
        if serve is None:
            raise ProtocolError("FF-NET-075", f"a relay does not serve {method[:40]!r}")
        return await serve(connection, body)

    async def _attach(self, connection: Connection, body: bytes) -> bytes:
        if body:
            raise ProtocolError("FF-NET-075", "a relay does not serve an attachment with a body")
        if self._attached.get(connection.peer) is not connection:
            self._attached[connection.peer] = connection
            self._tasks.begin(self._forget(connection))
        return b""

    async def _forget(self, connection: Connection) -> None:
        """The newest connection of a key counts; when it ends the key is not attached any more."""
        await connection.closed()
        if self._attached.get(connection.peer) is connection:
            del self._attached[connection.peer]
            self._spares.drop(connection.peer)
