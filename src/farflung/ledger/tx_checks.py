"""Checks the form of a transaction: types, sizes and ranges, before any of its content is looked at."""

from __future__ import annotations

import msgspec

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import ProtocolError
from farflung.core.ids import ID_BYTES, SIGNATURE_BYTES
from farflung.core.money import MAX_CREDITS
from farflung.ledger.transactions import VERSION, SignedTx


def fault_of(signed: SignedTx) -> str:
    """What is wrong with the form of a transaction (types, sizes, ranges), or the empty text."""
    try:
        decode(encode(signed), SignedTx, limits.TX_BYTES)
    except ProtocolError as error:
        return error.cause or error.message
    except (OverflowError, TypeError, ValueError):
        return "it cannot be encoded"
    return fault_within(signed)


def fault_within(signed: SignedTx) -> str:
    """The same of a transaction that was decoded from its canonical bytes: only its ranges are left to be looked at."""
    tx = signed.tx
    if tx.version != VERSION:
        return f"version {tx.version} is not {VERSION}"
    if not 1 <= len(tx.ops) <= limits.TX_OPS:
        return f"{len(tx.ops)} operations, not 1 to {limits.TX_OPS}"
    return "" if _is_in_range(signed) else "a number or an id is out of range"


def _is_in_range(value: object) -> bool:
    """Numbers lie in 0 .. 2^63 - 1, ids have 32 bytes, signatures 64, `data` any length, texts are addresses."""
    if isinstance(value, int):
        return 0 <= value <= MAX_CREDITS
    if isinstance(value, bytes):
        return len(value) == ID_BYTES
    if isinstance(value, tuple):
        return all(map(_is_in_range, value))
    if isinstance(value, str):
        return len(value.encode()) <= limits.ADDRESS_BYTES
    if not isinstance(value, msgspec.Struct):
        return False
    for name in value.__struct_fields__:
        item = getattr(value, name)
        kind = type(item)  # most are numbers and bytes: a call for each would take as long as executing it
        if kind is int:
            if not 0 <= item <= MAX_CREDITS:
                return False
        elif kind is bytes:
            if name != "data" and len(item) != (SIGNATURE_BYTES if name == "signature" else ID_BYTES):
                return False
        elif not _is_in_range(item):
            return False
    return True
