"""Decides where a key may be reached: a signed record of addresses that ends soon; the newest one counts.

A peer that listens nowhere is reached through the relays that it is attached to; its record then has one place a relay.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_ENDPOINT, SigningKey, check_signed
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, PeerId, Signature

RECORD_BYTES = limits.PLACES * (limits.HOST_BYTES + 64) + limits.KIB
DIRECT: Final = PeerId(bytes(ID_BYTES))  # `relay` of a peer that listens itself
_TIME_LIMIT: Final = 1 << 62


class EndpointAddress(Wire, frozen=True):
    """A host name or address (ASCII) and a TCP port.

    `relay`: the key of the relay that listens there and knows the peer; 32 zero bytes: the peer listens there itself.
    """

    host: str
    port: int
    relay: PeerId = DIRECT


class EndpointRecord(Wire, frozen=True):
    """Where `peer` is reached, the best first. `issued` and `expires` are seconds since 1970; issued later counts."""

    peer: PeerId
    places: tuple[EndpointAddress, ...]
    issued: int
    expires: int


class SignedEndpointRecord(Wire, frozen=True):
    """A record and its peer's signature under NS_ENDPOINT."""

    record: EndpointRecord
    signature: Signature


def sign_record(key: SigningKey, record: EndpointRecord) -> SignedEndpointRecord:
    """Signs a record of the key's own. Raises ProtocolError FF-NET-060 for values that no reader accepts."""
    check_values(record)
    if record.peer != key.public:
        raise _refuse("it names another key than the one that signs")
    return SignedEndpointRecord(record, key.sign(NS_ENDPOINT, encode(record)))


def check_record(signed: SignedEndpointRecord) -> EndpointRecord:
    """The record, if its own peer signed it. Raises ProtocolError FF-NET-060, VerificationError FF-CORE-030."""
    check_values(signed.record)
    if len(signed.signature) != SIGNATURE_BYTES:
        raise VerificationError("FF-CORE-030", "wrong signature", cause="it has another length")
    check_signed(signed.record.peer, signed.signature, NS_ENDPOINT, encode(signed.record))
    return signed.record


def read_record(data: bytes) -> EndpointRecord:
    """Decodes and checks a SignedRecord; raises what `decode` and `check_record` raise."""
    return check_record(decode(data, SignedEndpointRecord, RECORD_BYTES))


def issue(peer: PeerId, places: tuple[EndpointAddress, ...], now: float) -> EndpointRecord:
    """A record of the longest life that readers accept. `now`: seconds since 1970."""
    return EndpointRecord(peer, places, int(now), int(now) + limits.RECORD_SECONDS)


def check_newer(known: EndpointRecord | None, new: EndpointRecord) -> None:
    """Raises ProtocolError FF-NET-112 when the known one of two checked records of one peer was issued later."""
    if known is not None and known.issued > new.issued:
        raise ProtocolError(
            "FF-NET-112",
            "a newer endpoint record of this key is known",
            cause=f"it was issued {known.issued - new.issued} s after this one",
            hint="two processes use one key, or a clock was set back; the older record ends within ten minutes",
        )


def check_time(record: EndpointRecord, now: float) -> None:
    """Raises ProtocolError FF-NET-110 when the record has expired, 111 when it is of the future.

    `now`: seconds since 1970. Clocks may disagree by limits.CLOCK_SECONDS.
    """
    if now > record.expires + limits.CLOCK_SECONDS:
        raise ProtocolError(
            "FF-NET-110",
            "the endpoint record has expired",
            cause=f"it ended {int(now) - record.expires} s ago by this clock",
            hint="the peer is gone, or one of the two clocks is wrong; a running peer publishes a new one",
        )
    if now < record.issued - limits.CLOCK_SECONDS:
        raise ProtocolError(
            "FF-NET-111",
            "the endpoint record is of the future",
            cause=f"it begins in {record.issued - int(now)} s by this clock",
            hint="one of the two clocks is wrong: set it (timedatectl set-ntp true)",
        )


def check_values(record: EndpointRecord) -> None:
    """Raises ProtocolError FF-NET-060 for a record that names no place, whoever signed it."""
    if len(record.peer) != ID_BYTES:
        raise _refuse("a key has 32 bytes")
    if not 0 < len(record.places) <= limits.PLACES:
        raise _refuse(f"it has {len(record.places)} places")
    if len(set(record.places)) < len(record.places):
        raise _refuse("it names a place twice")
    for place in record.places:
        check_place(place)
        if place.relay == record.peer:
            raise _refuse("a peer is not its own relay")
    if not 0 <= record.issued < record.expires < _TIME_LIMIT:
        raise _refuse("its times are out of range")
    if record.expires - record.issued > limits.RECORD_SECONDS:
        raise _refuse(f"it lives longer than {limits.RECORD_SECONDS} s")


def check_place(place: EndpointAddress) -> None:
    """Raises ProtocolError FF-NET-060 for what is no place."""
    host = place.host
    if len(place.relay) != ID_BYTES:
        raise _refuse("a key has 32 bytes")
    if not 0 < len(host) <= limits.HOST_BYTES or not host.isascii() or not host.isprintable() or " " in host:
        raise _refuse("the host is no host name")
    if not 0 < place.port < 1 << 16:
        raise _refuse(f"{place.port} is no port")


def _refuse(cause: str) -> ProtocolError:
    return ProtocolError("FF-NET-060", "malformed endpoint record", cause=cause, hint="ask the peer for a fresh record")
