"""Decides which node key speaks for an account: the account signs it, with an epoch and an end (N1).

The account is the address and holds the money, so its key should lie where no stranger's packet arrives. What a
machine proves in TLS and in tickets is a *node key*: the account's own (epoch 0, without an end), or another one under
a certificate. Epochs only grow. Which of them count now is the registry's to say (`keyring`); this file judges what
follows from the bytes alone. Times are seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_NODE_KEY, SigningKey, is_signed
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES, PeerId, Signature, short

FOREVER: Final = 253_402_300_799  # the last second of the year 9999: the end of a certificate that has none


class NodeKey(Wire, frozen=True):
    """What an account says: `node` speaks for me, as the key of `epoch` (1 and up), from `begins` to `expires`."""

    account: PeerId
    node: PeerId
    epoch: int
    begins: int
    expires: int


class NodeCertificate(Wire, frozen=True):
    """A node key under its account's signature (NS_NODE_KEY)."""

    key: NodeKey
    signature: Signature


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, once proved: `node` is the key that was proved, `account` the address that it speaks for."""

    account: PeerId
    node: PeerId
    epoch: int = 0
    begins: int = 0
    expires: int = FOREVER


def bare(key: PeerId) -> Identity:
    """An account that proves its own key."""
    return Identity(key, key)


def certify(
    account: SigningKey, node: PeerId, epoch: int, *, begins: int = 0, expires: int = FOREVER
) -> NodeCertificate:
    """The certificate of a node key. Raises ProtocolError FF-NET-100 for values that no reader accepts."""
    key = NodeKey(account.public, node, epoch, begins, expires)
    _check_values(key)
    return NodeCertificate(key, account.sign(NS_NODE_KEY, encode(key)))


def read_certificate(data: bytes) -> NodeCertificate:
    """Decodes a certificate; `check_certificate` says whether it is one. Raises ProtocolError FF-CORE-020 .. 022."""
    return decode(data, NodeCertificate, limits.NODE_CERTIFICATE_BYTES)


def check_certificate(certificate: NodeCertificate) -> Identity:
    """The identity of whoever proves the certificate's node key.

    Raises ProtocolError FF-NET-100 malformed, FF-NET-101 not signed by the account. Says nothing about the time.
    """
    key = certificate.key
    _check_values(key)
    is_whole = len(certificate.signature) == SIGNATURE_BYTES
    if not is_whole or not is_signed(key.account, certificate.signature, NS_NODE_KEY, encode(key)):
        raise ProtocolError(
            "FF-NET-101",
            f"the node key is not certified by {short(key.account)}",
            cause="the signature is not the account's",
            hint="check that the address belongs to the peer you want; if it does, someone is in between",
        )
    return Identity(key.account, key.node, key.epoch, key.begins, key.expires)


def signer_of(
    account: PeerId, certificate: NodeCertificate | None, signature: bytes, namespace: str, message: bytes
) -> Identity | None:
    """Who signed what is said in the account's name; None: nobody whom the account certified. Says nothing of time."""
    try:
        who = bare(account) if certificate is None else check_certificate(certificate)
    except ProtocolError:
        return None
    is_own = who.account == account
    return who if is_own and is_signed(who.node, signature, namespace, message) else None


def _check_values(key: NodeKey) -> None:
    if len(key.account) != ID_BYTES or len(key.node) != ID_BYTES:
        raise _malformed("a key has 32 bytes")
    if key.node == key.account:
        raise _malformed("an account needs no certificate for itself")
    if not 0 < key.epoch < limits.EPOCHS:
        raise _malformed("the epoch is out of range")
    if not 0 <= key.begins < key.expires <= FOREVER:
        raise _malformed("its time is none")


def _malformed(cause: str) -> ProtocolError:
    return ProtocolError(
        "FF-NET-100",
        "malformed node certificate",
        cause=cause,
        hint="check that the peer runs this version of farflung",
    )


@dataclass(frozen=True, slots=True)
class Credential:
    """What a process proves: a node key, and the certificate of the account for which it speaks (None: its own)."""

    node: SigningKey
    certificate: NodeCertificate | None = None

    def __post_init__(self) -> None:
        """Raises what `check_certificate` raises, and FF-NET-100 when the certificate is another key's."""
        if self.certificate is not None and check_certificate(self.certificate).node != self.node.public:
            raise _malformed("it is for another node key")

    @property
    def identity(self) -> Identity:
        """Who this is to others."""
        return bare(self.node.public) if self.certificate is None else check_certificate(self.certificate)

    @property
    def account(self) -> PeerId:
        """The address."""
        return self.node.public if self.certificate is None else self.certificate.key.account


def credential_of(own: SigningKey | Credential) -> Credential:
    """An account's own key is a credential, too."""
    return own if isinstance(own, Credential) else Credential(own)
