"""Wraps the job's key for one lease with HPKE, so that only the lease's node can unwrap it, and only in memory.

Hybrid public key encryption (RFC 9180), base mode, X25519, HKDF-SHA256, AES-256-GCM. The lease's private key is made
when the lease is offered, never written, and gone with the lease: what was sealed under the job's key cannot be
opened afterwards from the node's disk. The node signs its lease key, so that nobody in between can put in another.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from farflung.core.crypto import NS_LEASE_KEY, SigningKey, is_signed
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId, Signature

KEY_BYTES = 32
WRAPPED_BYTES = 80  # encapsulated key 32, key 32, tag 16

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class LeaseKey:
    """A lease's key pair; the private half lives in this object alone."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def unwrap(self, job: Hash, wrapped: bytes) -> bytes:
        """The job's key; raises VerificationError FF-APP-082 when it is not wrapped for this lease and job."""
        try:
            key = _SUITE.decrypt(wrapped, self._private, info=_info(job)) if len(wrapped) == WRAPPED_BYTES else b""
        except (InvalidTag, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise VerificationError(
                "FF-APP-082",
                "the job's key is not wrapped for this lease",
                cause="it was wrapped for another lease or job, or changed on its way",
                hint="propose the job again, and wrap its key for the lease key that comes back",
            )
        return key


def wrap(lease_key: bytes, job: Hash, key: bytes) -> bytes:
    """The job's key as only the holder of this lease can open it. Raises VerificationError FF-APP-063 (no key)."""
    try:
        return _SUITE.encrypt(key, X25519PublicKey.from_public_bytes(lease_key), info=_info(job))
    except ValueError:  # a point of small order: everybody would know the shared secret
        raise VerificationError("FF-APP-063", "a lease key is none that a secret can be wrapped for") from None


def sign_lease_key(key: SigningKey, job: Hash, lease_key: bytes) -> Signature:
    """The node's word that this lease key is its own."""
    return key.sign(NS_LEASE_KEY, job, lease_key)


def is_lease_key_signed(node: PeerId, signature: Signature, job: Hash, lease_key: bytes) -> bool:
    """Whether the node itself named this lease key for this job."""
    return len(lease_key) == KEY_BYTES and is_signed(node, signature, NS_LEASE_KEY, job, lease_key)


def _info(job: Hash) -> bytes:
    return NS_LEASE_KEY.encode() + b"\0" + job
