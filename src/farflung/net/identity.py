"""Decides what a peer's TLS certificate looks like: fixed bytes around its Ed25519 key (N1: the key is the address).

TLS wants X.509, and X.509 is a large language; one sentence of it is enough here. Every certificate is the same
DER text (RFC 5280, RFC 8410) with two holes, the 32-byte key and the key's own signature over the first part:
no dates that pass, no extensions, nothing to choose. So `key_of` compares bytes, and only OpenSSL ever parses.
"""

from __future__ import annotations

import ssl
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from farflung.core.crypto import SigningKey
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, PeerId

_INTEGER, _BITS, _OID, _TEXT, _UTC, _TIME = 0x02, 0x03, 0x06, 0x0C, 0x17, 0x18
_SEQUENCE, _SET, _EXPLICIT_0 = 0x30, 0x31, 0xA0


def _length(size: int) -> bytes:
    return bytes([size]) if size < 0x80 else bytes([0x81, size])  # nothing here reaches 256 bytes


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([tag]) + _length(len(body)) + body


_ED25519 = _der(_SEQUENCE, _der(_OID, bytes([0x2B, 0x65, 0x70])))  # 1.3.101.112
_NAME = _der(
    _SEQUENCE, _der(_SET, _der(_SEQUENCE, _der(_OID, bytes([0x55, 0x04, 0x03])), _der(_TEXT, b"farflung")))
)
_VALIDITY = _der(_SEQUENCE, _der(_UTC, b"700101000000Z"), _der(_TIME, b"99991231235959Z"))


def _signed_part(public: bytes) -> bytes:
    key = _der(_SEQUENCE, _ED25519, _der(_BITS, b"\0", public))
    version = _der(_EXPLICIT_0, _der(_INTEGER, b"\x02"))
    return _der(_SEQUENCE, version, _der(_INTEGER, b"\x01"), _ED25519, _NAME, _VALIDITY, _NAME, key)


def _whole(public: bytes, signature: bytes) -> bytes:
    return _der(_SEQUENCE, _signed_part(public), _ED25519, _der(_BITS, b"\0", signature))


_TEMPLATE = _whole(bytes(ID_BYTES), bytes(SIGNATURE_BYTES))
_SIGNATURE_AT: Final = len(_TEMPLATE) - SIGNATURE_BYTES
_KEY_AT: Final = (
    _SIGNATURE_AT - len(_ED25519) - 3 - ID_BYTES
)  # 3: tag, length and unused bits of the signature
CERTIFICATE_BYTES: Final = len(_TEMPLATE)


def certificate(key: SigningKey) -> bytes:
    """The self-signed certificate of `key`, DER; the same bytes each time."""
    return _whole(key.public, key.private.sign(_signed_part(key.public)))


def pem(key: SigningKey) -> bytes:
    """Private key and certificate in one PEM text, as `ssl.SSLContext.load_cert_chain` reads it. Secret."""
    secret = key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret + ssl.DER_cert_to_PEM_cert(certificate(key)).encode()


def key_of(cert: bytes) -> PeerId:
    """The key inside a certificate; raises ProtocolError FF-NET-002 for any other bytes.

    Says nothing about who sent it: that the sender holds the key is proved by the TLS handshake alone.
    """
    public = bytes(cert[_KEY_AT : _KEY_AT + ID_BYTES])
    if len(cert) != CERTIFICATE_BYTES or _whole(public, cert[_SIGNATURE_AT:]) != cert:
        raise ProtocolError(
            "FF-NET-002",
            "not a farflung certificate",
            cause="it differs from the one form that docs/protocol/net.md allows",
            hint="check that the address belongs to a farflung peer of this version",
        )
    return PeerId(public)
