"""Canonical msgpack: one value, one byte string.

A decoded message must re-encode to the bytes it came from: msgspec alone accepts
non-minimal integers, duplicate keys and any key order, so `decode` checks the round trip. Structs that
are signed, hashed or sent are `array_like=True, frozen=True, forbid_unknown_fields=True` (see `Wire`).
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from farflung.core.errors import ProtocolError

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, omit_defaults=False):
    """Base of every struct that is hashed, signed or sent. Subclasses pass `tag=` when they join a union."""


def describe(kind: type[Wire] = Wire) -> None:
    """Lets msgspec look at every struct that there is below `kind`, before a process has a second thread.

    It does so at a struct's first use otherwise, and what it has found by then is shown to other threads before it is
    whole: one that decodes the same struct at that moment reads beyond it, and the process dies (SIGSEGV).
    """
    for each in kind.__subclasses__():
        msgspec.msgpack.Decoder(each)
        describe(each)


def encode(value: Any) -> bytes:
    """The canonical bytes of a value made of Wire structs, tuples, integers, text, bytes and bools."""
    return _ENCODER.encode(value)


def decode(data: bytes | memoryview, kind: type[T], limit: int) -> T:
    """Reads canonical bytes of at most `limit` bytes as `kind`.

    Raises ProtocolError: FF-CORE-020 too long, FF-CORE-021 not of this type, FF-CORE-022 not canonical,
    FF-CORE-023 a float that is not finite.
    """
    if len(data) > limit:
        raise ProtocolError(
            "FF-CORE-020", f"message of {len(data)} bytes", cause=f"the limit is {limit} bytes"
        )
    try:
        value = msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ProtocolError(
            "FF-CORE-021", "message is not of the expected type", cause=str(error)[:200]
        ) from None
    if encode(value) != bytes(data):
        raise ProtocolError(
            "FF-CORE-022", "message is not canonical", cause="it does not re-encode to itself"
        )
    _refuse_non_finite(value)
    return value


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ProtocolError("FF-CORE-023", "message holds NaN or an infinity")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _refuse_non_finite(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            _refuse_non_finite(item)
    elif isinstance(value, dict):
        for item in value.values():
            _refuse_non_finite(item)
