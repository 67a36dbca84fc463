"""Encodes values as canonical msgpack: one value, one byte string.

A decoded message must re-encode to the bytes it came from: msgspec alone accepts
non-minimal integers, duplicate keys and any key order, so `decode` checks the round trip. Structs that
are signed, hashed or sent are `array_like=True, frozen=True, forbid_unknown_fields=True` (see `Wire`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from farflung.core.errors import ProtocolError
from farflung.core.value_count import count_values

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, omit_defaults=False, gc=False):
    """Base of every struct that is hashed, signed or sent. Subclasses pass `tag=` when they join a union.

    Frozen values made of frozen values hold no cycles, so Python's collector passes them by: it would take a tenth of
    a ledger's time.
    """


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


def decode(data: bytes | bytearray | memoryview, kind: type[T], limit: int, values: int | None = None) -> T:
    """Reads canonical bytes of at most `limit` bytes as `kind`.

    `values`: so many numbers, texts and lists it may hold, which are counted before any is made; None: not counted.
    Raises ProtocolError: FF-CORE-020 too long, FF-CORE-021 not of this type, FF-CORE-022 not canonical,
    FF-CORE-023 a float that is not finite, FF-CORE-024 too many values.
    """
    _check_length(data, limit)
    if values is not None and count_values(data, values) > values:
        raise ProtocolError("FF-CORE-024", "message of too many values", cause=f"the limit is {values}")
    value = _read(data, kind)
    if encode(value) != data:
        raise ProtocolError("FF-CORE-022", "message is not canonical", cause="it does not re-encode to itself")
    if _may_hold_floats(cast(Hashable, kind)):
        _refuse_non_finite(value)
    return value


def decode_head(data: bytes | bytearray | memoryview, kind: type[T], limit: int) -> T:
    """The first fields of a struct of any format: `kind` names them, and what follows is not looked at.

    Raises ProtocolError FF-CORE-020, FF-CORE-021.
    """
    _check_length(data, limit)
    return _read(data, kind)


def _check_length(data: bytes | bytearray | memoryview, limit: int) -> None:
    if len(data) > limit:
        raise ProtocolError("FF-CORE-020", f"message of {len(data)} bytes", cause=f"the limit is {limit} bytes")


def _read(data: bytes | bytearray | memoryview, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ProtocolError("FF-CORE-021", "message is not of the expected type", cause=str(error)[:200]) from None


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what `decode_head` reads: more may follow."""


_PLAIN: Final = (
    inspect.BoolType,
    inspect.BytesType,
    inspect.EnumType,
    inspect.IntType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.StrType,
)


@cache
def _may_hold_floats(kind: Hashable) -> bool:
    """Whether a value of this type has to be searched. Most of what is sent holds integers and bytes alone."""
    return _has_floats(inspect.type_info(kind), set())


def _has_floats(of: Any, seen: set[type]) -> bool:
    if isinstance(of, _PLAIN):
        return False
    if isinstance(of, inspect.StructType):
        if of.cls in seen:  # a struct inside itself
            return False
        seen.add(of.cls)
        return any(_has_floats(field.type, seen) for field in of.fields)
    if isinstance(of, inspect.UnionType):
        return any(_has_floats(each, seen) for each in of.types)
    if isinstance(of, inspect.TupleType):
        return any(_has_floats(each, seen) for each in of.item_types)
    if isinstance(of, inspect.ListType | inspect.VarTupleType):
        return _has_floats(of.item_type, seen)
    if isinstance(of, inspect.DictType):
        return _has_floats(of.key_type, seen) or _has_floats(of.value_type, seen)
    return True  # a float, or something that nobody looked into


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
