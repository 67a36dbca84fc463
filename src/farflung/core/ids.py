"""Defines typed bytes that name things, each with one text form: lower-case hex.

A `PeerId` is an Ed25519 public key: it is a peer's network address and its ledger account (N1).
"""

from __future__ import annotations

from typing import NewType

Hash = NewType("Hash", bytes)
PeerId = NewType("PeerId", bytes)
Signature = NewType("Signature", bytes)

ID_BYTES = 32
SIGNATURE_BYTES = 64
ZERO_HASH = Hash(bytes(ID_BYTES))


def text(value: bytes) -> str:
    """The full text form of an id."""
    return value.hex()


def short(value: bytes) -> str:
    """The first eight hex digits: for screens, never for comparison."""
    return value[:4].hex()
