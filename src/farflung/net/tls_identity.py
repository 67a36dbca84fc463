"""Defines a peer's TLS certificate: fixed bytes around its Ed25519 key (N1: the key is the address).

TLS wants X.509, and X.509 is a large language; two sentences of it are enough here. Every certificate is the same
DER text (RFC 5280, RFC 8410) with two holes, the 32-byte node key and that key's own signature over the first part:
no dates that pass, nothing to choose. The second sentence has one extension more, not critical, and a third hole in it:
the account's certificate for the node key (`certificates`). So `read` compares bytes, and only OpenSSL ever parses.
"""

from __future__ import annotations

import ssl
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, PeerId
from farflung.net.certificates import Credential, Identity, bare, check_certificate, read_certificate

_INTEGER, _BITS, _BYTES, _OID, _TEXT, _UTC, _TIME = 0x02, 0x03, 0x04, 0x06, 0x0C, 0x17, 0x18
_SEQUENCE, _SET, _EXPLICIT_0, _EXPLICIT_3 = 0x30, 0x31, 0xA0, 0xA3


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes([size])
    return bytes([0x81, size]) if size < 0x100 else b"\x82" + size.to_bytes(2, "big")


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([tag]) + _length(len(body)) + body


_ED25519 = _der(_SEQUENCE, _der(_OID, bytes([0x2B, 0x65, 0x70])))  # 1.3.101.112
_NAME = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _der(_OID, bytes([0x55, 0x04, 0x03])), _der(_TEXT, b"farflung"))))
_VALIDITY = _der(_SEQUENCE, _der(_UTC, b"700101000000Z"), _der(_TIME, b"99991231235959Z"))
# 2.25.x, the arc of UUIDs, which nobody has to register: x is the UUID (version 5, URL) of "farflung/node-key/1"
_CERTIFIED = _der(_OID, bytes.fromhex("69b290b1f08eb1eacf93b2cdc3eff9e4e1d801"))


def _signed_part(public: bytes, certified: bytes) -> bytes:
    """`certified`: the encoded NodeCertificate, or nothing."""
    key = _der(_SEQUENCE, _ED25519, _der(_BITS, b"\0", public))
    version = _der(_EXPLICIT_0, _der(_INTEGER, b"\x02"))
    extension = _der(_SEQUENCE, _CERTIFIED, _der(_BYTES, certified))
    last = _der(_EXPLICIT_3, _der(_SEQUENCE, extension)) if certified else b""
    return _der(_SEQUENCE, version, _der(_INTEGER, b"\x01"), _ED25519, _NAME, _VALIDITY, _NAME, key, last)


def _whole(public: bytes, certified: bytes, signature: bytes) -> bytes:
    return _der(_SEQUENCE, _signed_part(public, certified), _ED25519, _der(_BITS, b"\0", signature))


CERTIFICATE_BYTES: Final = len(_whole(bytes(ID_BYTES), b"", bytes(SIGNATURE_BYTES)))  # without an account's


def certificate(own: Credential) -> bytes:
    """The self-signed X.509 certificate of a node key, DER; the same bytes each time."""
    certified = b"" if own.certificate is None else encode(own.certificate)
    public = own.node.public
    return _whole(public, certified, own.node.private.sign(_signed_part(public, certified)))


def pem(own: Credential) -> bytes:
    """Private key and certificate in one PEM text, as `ssl.SSLContext.load_cert_chain` reads it. Secret."""
    secret = own.node.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret + ssl.DER_cert_to_PEM_cert(certificate(own)).encode()


def read(cert: bytes) -> Identity:
    """Who the certificate names. Raises ProtocolError FF-NET-002 for other bytes, 100 and 101 for an account's part.

    Says nothing about who sent it: that the sender holds the node key is proved by the TLS handshake alone.
    """
    if len(cert) > limits.HELLO_BYTES:
        raise _foreign()
    found = _bare(cert) if len(cert) == CERTIFICATE_BYTES else _certified(cert)
    if found is None:
        raise _foreign()
    return found


def _bare(cert: bytes) -> Identity | None:
    """A key that is its own account."""
    public = _between(cert, _BARE_KEY_AT, ID_BYTES)
    return bare(PeerId(public)) if _whole(public, b"", cert[-SIGNATURE_BYTES:]) == cert else None


def _certified(cert: bytes) -> Identity | None:
    """A node key with its account's certificate in it; None where the form or the key is another."""
    size = len(cert) - _CERTIFIED_OVERHEAD
    if not 0x80 <= size <= limits.NODE_CERTIFICATE_BYTES:  # so all lengths around it keep their form
        return None
    public = _between(cert, _CERTIFIED_KEY_AT, ID_BYTES)
    part = _between(cert, len(cert) - _CERTIFIED_TAIL - size, size)
    if _whole(public, part, cert[-SIGNATURE_BYTES:]) != cert:
        return None
    try:
        certified = read_certificate(part)
    except ProtocolError:
        return None
    identity = check_certificate(certified)
    return identity if identity.node == public else None


def _between(cert: bytes, at: int, size: int) -> bytes:
    return bytes(cert[at : at + size])


def _foreign() -> ProtocolError:
    return ProtocolError(
        "FF-NET-002",
        "not a farflung certificate",
        cause="it differs from the forms that docs/protocol/net.md allows",
        hint="check that the address belongs to a farflung peer of this version",
    )


_MARK = bytes([0xFF]) * ID_BYTES  # found once in a certificate of nothing else
_SAMPLE = _whole(_MARK, bytes(0x80), bytes(SIGNATURE_BYTES))
_BARE_KEY_AT: Final = _whole(_MARK, b"", bytes(SIGNATURE_BYTES)).index(_MARK)
_CERTIFIED_KEY_AT: Final = _SAMPLE.index(_MARK)
_CERTIFIED_OVERHEAD: Final = len(_SAMPLE) - 0x80
# The 3 are tag, length and unused bits of the signature.
_CERTIFIED_TAIL: Final = len(_ED25519) + 3 + SIGNATURE_BYTES
