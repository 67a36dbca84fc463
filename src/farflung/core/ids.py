"""Typed bytes that name things, each with one text form: lower-case hex.

A `PeerId` is an Ed25519 public key: it is a peer's network address and its ledger account (N1).
"""

from __future__ import annotations

from typing import NewType

from farflung.core.errors import UsageError

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


def parse_id(value: str) -> bytes:
    """Reads the text form of a 32-byte id; raises UsageError FF-CORE-001."""
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        raw = b""
    if len(raw) != ID_BYTES or value != raw.hex():
        raise UsageError(
            "FF-CORE-001",
            f"not an id: {value[:80]!r}",
            cause=f"an id is {2 * ID_BYTES} lower-case hex digits",
            hint="copy it again from the place that printed it",
        )
    return raw
