"""Decides who may open a connection through a relay: a signed ticket in clear, and the relay's status in answer.

A TCP connection to a relay begins with a hello (`tls`: a peer talks with the relay itself) or with a ticket. A ticket
speaks about one connection between two other keys, and nothing but those keys' own TLS follows it:

    ticket  = "FFR1" | length (2 bytes, big endian, <= limits.TICKET_BYTES) | SignedTicket in core.codec
    answer  = "FFR1" | status (1 byte)

It names the relay, who shows it, whom that one wants, a nonce, and the second at which it ends; the presenter signs
it with its node key, and adds the account's certificate for that key if it is another one. So a copied ticket is worth
nothing elsewhere, later or twice. What it does not do is prove who holds the socket: that is the business of the two
peers' handshake, which runs behind it and which a thief of a ticket cannot finish.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from typing import Final, NamedTuple, Protocol

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_TICKET, SigningKey
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, PeerId, Signature
from farflung.core.relay_passes import SignedRelayPass
from farflung.net.certificates import Credential, Identity, NodeCertificate, credential_of, signer_of

MAGIC: Final = b"FFR1"
HEAD_BYTES: Final = len(MAGIC) + 2
ANSWER_BYTES: Final = len(MAGIC) + 1
NONCE_BYTES: Final = 16
NOBODY: Final = PeerId(bytes(ID_BYTES))
_INTEGERS: Final = range(1 << 63)


class TicketPurpose(enum.IntEnum):
    """What the presenter of a ticket wants."""

    DIAL = 0  # to reach `peer`, which is attached to the relay
    ACCEPT = 1  # to be joined with `peer`, which asked for `circuit`
    SPARE = 2  # to be joined with whoever dials the presenter next; `peer` is NOBODY


class TicketStatus(enum.IntEnum):
    """The relay's answer. After JOINED and PAID the bytes are the other peer's; else the relay closes."""

    JOINED = 0
    MALFORMED = 1
    ELSEWHERE = 2  # the ticket is for another relay
    STALE = 3  # its time is over, or further ahead than any ticket's may be
    FORGED = 4
    BARRED = 5  # the relay does not serve this key
    REPLAYED = 6
    FULL = 7
    ABSENT = 8  # the wanted peer is not attached here
    SILENT = 9  # it is attached and did not come in time
    DECLINED = 10  # it is attached and does not want to come
    UNKNOWN = 11  # no such circuit waits for the presenter
    UNPAID = 12  # the relay carries for a pass only, and none was shown
    NO_HOLDER = 13  # the pass is not for these two keys
    LAPSED = 14  # the pass is over, not yet begun, or longer than any may be
    USED_UP = 15  # the pass's bytes, or its payer's channel
    UNFUNDED = 16  # the payer has no open channel with the relay, or one at a lower price
    VOID = 17  # the presenter's node key does not count: over, replaced or revoked
    OWING = 18  # receipts for what was carried are missing
    PAID = 19  # to a SPARE: joined, under the pass that follows (`paid_answer`)


class Ticket(Wire, frozen=True):
    """One use of one relay. `circuit` is 0 but in an ACCEPT; `expires` counts seconds since 1970.

    `toll`: who pays, in a DIAL through a relay that asks for it.
    """

    purpose: TicketPurpose
    relay: PeerId
    presenter: PeerId
    peer: PeerId
    circuit: int
    nonce: bytes
    expires: int
    toll: SignedRelayPass | None = None


class SignedTicket(Wire, frozen=True):
    """A ticket and its presenter's signature under NS_TICKET, by the node key of `certificate` if there is one."""

    ticket: Ticket
    signature: Signature
    certificate: NodeCertificate | None = None


class CallbackRequest(Wire, frozen=True):
    """What a relay asks of an attached peer (`relay.circuit`): `dialer` wants it; come with an ACCEPT for `circuit`.

    `toll`: the pass that both of them count and sign under.
    """

    circuit: int
    dialer: PeerId
    toll: SignedRelayPass | None = None


def sign_ticket(own: SigningKey | Credential, ticket: Ticket) -> bytes:
    """The bytes that open a connection to the relay; `own` is the presenter's."""
    credential = credential_of(own)
    signature = credential.node.sign(NS_TICKET, encode(ticket))
    body = encode(SignedTicket(ticket, signature, credential.certificate))
    return MAGIC + len(body).to_bytes(2, "big") + body


def read_head(head: bytes) -> int | None:
    """How many bytes follow a ticket's head of HEAD_BYTES; None: it is no head of ours, or announces too many."""
    size = int.from_bytes(head[len(MAGIC) :], "big")
    is_ours = len(head) == HEAD_BYTES and head.startswith(MAGIC) and 0 < size <= limits.TICKET_BYTES
    return size if is_ours else None


class AdmittedTicket(NamedTuple):
    """A ticket that was let pass, and who showed it."""

    ticket: Ticket
    who: Identity


def judge(body: bytes, relay: PeerId, now: int) -> AdmittedTicket | TicketStatus:
    """The ticket, if it is for this relay, of this minute and signed by its presenter; else why not."""
    try:
        signed = decode(body, SignedTicket, limits.TICKET_BYTES)
    except ProtocolError:
        return TicketStatus.MALFORMED
    ticket = signed.ticket
    if not _is_well_formed(ticket):
        return TicketStatus.MALFORMED
    if ticket.relay != relay:
        return TicketStatus.ELSEWHERE
    if not now < ticket.expires <= now + limits.TICKET_SECONDS:
        return TicketStatus.STALE
    who = signer_of(ticket.presenter, signed.certificate, signed.signature, NS_TICKET, encode(ticket))
    return TicketStatus.FORGED if who is None else AdmittedTicket(ticket, who)


def _is_well_formed(ticket: Ticket) -> bool:
    keys = (ticket.relay, ticket.presenter, ticket.peer)
    return (
        all(len(key) == ID_BYTES for key in keys)
        and len(set(keys)) == len(keys)
        and len(ticket.nonce) == NONCE_BYTES
        and ticket.circuit in _INTEGERS
        and (ticket.circuit == 0) == (ticket.purpose is not TicketPurpose.ACCEPT)
        and (ticket.peer == NOBODY) == (ticket.purpose is TicketPurpose.SPARE)
        and ticket.expires in _INTEGERS
        and (ticket.toll is None or ticket.purpose is TicketPurpose.DIAL)
    )


def answer(status: TicketStatus) -> bytes:
    """The relay's answer, ANSWER_BYTES long."""
    return MAGIC + bytes([status])


def read_answer(data: bytes) -> TicketStatus | None:
    """What the relay says; None: it is no answer of a relay of ours."""
    if len(data) != ANSWER_BYTES or not data.startswith(MAGIC) or data[-1] not in set(TicketStatus):
        return None
    return TicketStatus(data[-1])


def paid_answer(signed: SignedRelayPass) -> bytes:
    """What a spare is told: it is joined, and under this pass both ends count and sign."""
    body = encode(signed)
    return answer(TicketStatus.PAID) + len(body).to_bytes(2, "big") + body


def read_size(data: bytes) -> int | None:
    """How long the pass behind PAID is, by the 2 bytes before it; None: longer than any."""
    size = int.from_bytes(data, "big")
    return size if 0 < size <= limits.TICKET_BYTES else None


def read_pass(body: bytes) -> SignedRelayPass | None:
    """The pass behind PAID, whose signature nobody has checked yet; None: it is none."""
    try:
        return decode(body, SignedRelayPass, limits.TICKET_BYTES)
    except ProtocolError:
        return None


class SingleUseToken(Protocol):
    """What is shown to a relay once: a ticket, or a join (`multicast_groups`)."""

    @property
    def presenter(self) -> PeerId:
        """Who shows it."""

    @property
    def nonce(self) -> bytes:
        """What makes it one of its kind."""

    @property
    def expires(self) -> int:
        """When it is worth nothing any more, seconds since 1970."""


class TicketReplayCache:
    """The tickets that were shown here and could be shown again: each is remembered until it expires.

    Bounded for each key and in all (limits.TICKETS_PER_KEY, TICKETS); when there is no room, the ticket is refused
    rather than forgotten. Only tickets that `judge` let pass may come here, so that nobody fills it with noise.
    """

    def __init__(self) -> None:
        self._known: set[tuple[PeerId, bytes]] = set()
        self._order: list[tuple[int, PeerId, bytes]] = []  # a heap, the first to expire on top
        self._by_key: Counter[PeerId] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def spend(self, ticket: SingleUseToken, now: int) -> TicketStatus | None:
        """Marks a ticket as used: None, or REPLAYED, or FULL."""
        self._forget(now)
        key = ticket.presenter
        if (key, ticket.nonce) in self._known:
            return TicketStatus.REPLAYED
        if len(self._known) >= limits.TICKETS or self._by_key[key] >= limits.TICKETS_PER_KEY:
            return TicketStatus.FULL
        self._known.add((key, ticket.nonce))
        self._by_key[key] += 1
        heapq.heappush(self._order, (ticket.expires, key, ticket.nonce))
        return None

    def _forget(self, now: int) -> None:
        while self._order and self._order[0][0] <= now:
            _, key, nonce = heapq.heappop(self._order)
            self._known.discard((key, nonce))
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
