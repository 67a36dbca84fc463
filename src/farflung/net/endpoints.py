"""Decides where a key may be reached: a signed record, the newest of which counts.

A peer that listens nowhere is reached through a relay that it is attached to; its record then names that relay.
"""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_ENDPOINT, SigningKey, check_signed
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, PeerId, Signature

RECORD_BYTES = limits.HOST_BYTES + limits.KIB
DIRECT: Final = PeerId(bytes(ID_BYTES))  # `relay` of a peer that listens itself
_SEQUENCE_LIMIT = 1 << 63


class EndpointRecord(Wire, frozen=True):
    """Where `peer` is reached: a host name or address (ASCII) and a TCP port. A higher `sequence` replaces a lower.

    `relay`: the key of the relay that listens there and knows the peer; 32 zero bytes: the peer listens there itself.
    """

    peer: PeerId
    host: str
    port: int
    sequence: int
    relay: PeerId = DIRECT


class SignedRecord(Wire, frozen=True):
    """A record and its peer's signature under NS_ENDPOINT."""

    record: EndpointRecord
    signature: Signature


def sign_record(key: SigningKey, record: EndpointRecord) -> SignedRecord:
    """Signs a record of the key's own. Raises ProtocolError FF-NET-060 for values that no reader accepts."""
    check_values(record)
    if record.peer != key.public:
        raise _refuse("it names another key than the one that signs")
    return SignedRecord(record, key.sign(NS_ENDPOINT, encode(record)))


def check_record(signed: SignedRecord) -> EndpointRecord:
    """The record, if its own peer signed it. Raises ProtocolError FF-NET-060, VerificationError FF-CORE-030."""
    check_values(signed.record)
    if len(signed.signature) != SIGNATURE_BYTES:
        raise VerificationError("FF-CORE-030", "wrong signature", cause="it has another length")
    check_signed(signed.record.peer, signed.signature, NS_ENDPOINT, encode(signed.record))
    return signed.record


def read_record(data: bytes) -> EndpointRecord:
    """Decodes and checks a SignedRecord; raises what `decode` and `check_record` raise."""
    return check_record(decode(data, SignedRecord, RECORD_BYTES))


def newest(old: EndpointRecord | None, new: EndpointRecord) -> EndpointRecord:
    """Which of two checked records of one peer counts: the old one stays unless the new one is higher."""
    return new if old is None or new.sequence > old.sequence else old


def check_values(record: EndpointRecord) -> None:
    """Raises ProtocolError FF-NET-060 for a record that names no place, whoever signed it."""
    host = record.host
    if len(record.peer) != ID_BYTES or len(record.relay) != ID_BYTES:
        raise _refuse("a key has 32 bytes")
    if record.relay == record.peer:
        raise _refuse("a peer is not its own relay")
    if not 0 < len(host) <= limits.HOST_BYTES or not host.isascii() or not host.isprintable() or " " in host:
        raise _refuse("the host is no host name")
    if not 0 < record.port < 1 << 16:
        raise _refuse(f"{record.port} is no port")
    if not 0 <= record.sequence < _SEQUENCE_LIMIT:
        raise _refuse("the sequence is out of range")


def _refuse(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-060", "malformed endpoint record", cause=cause, hint="ask the peer for a fresh record"
    )
