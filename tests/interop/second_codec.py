"""Canonical msgpack by hand: naturals, bytes, text, booleans and arrays, each in its shortest form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DEEPEST = 32


def pack(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, bytes):
        return _head(len(value), ((1, 0xC4), (2, 0xC5), (4, 0xC6))) + value
    if isinstance(value, str):
        text = value.encode()
        return (
            bytes([0xA0 | len(text)]) if len(text) < 32 else _head(len(text), ((1, 0xD9), (2, 0xDA), (4, 0xDB)))
        ) + text
    assert isinstance(value, Sequence)
    start = bytes([0x90 | len(value)]) if len(value) < 16 else _head(len(value), ((2, 0xDC), (4, 0xDD)))
    return start + b"".join(map(pack, value))


def _number(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -32 <= value < 0:
        return bytes([256 + value])
    if value < 0:
        wide = next(size for size in (1, 2, 4, 8) if value >= -(1 << 8 * size - 1))
        return bytes([0xD0 + (1, 2, 4, 8).index(wide)]) + value.to_bytes(wide, "big", signed=True)
    return _head(value, ((1, 0xCC), (2, 0xCD), (4, 0xCE), (8, 0xCF)))


def _head(number: int, forms: tuple[tuple[int, int], ...]) -> bytes:
    size, code = next(form for form in forms if number < 1 << 8 * form[0])
    return bytes([code]) + number.to_bytes(size, "big")


def unpack(data: bytes) -> Any:
    """The value, or None for whatever is not the one shortest way to write it."""
    try:
        value, end = _value(data, 0, DEEPEST)
        return value if end == len(data) and pack(value) == data else None
    except (IndexError, ValueError):
        return None


def _value(data: bytes, at: int, deep: int) -> tuple[Any, int]:
    code, at = data[at], at + 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 256, at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if 0xCC <= code <= 0xD3:
        end = at + (1 << code % 4)
        return int.from_bytes(data[at:end], "big", signed=code >= 0xD0), _within(data, end)
    if 0x90 <= code < 0xA0:
        return _items(data, at, code & 15, deep)
    if code in (0xDC, 0xDD):
        size = 2 if code == 0xDC else 4
        return _items(data, at + size, int.from_bytes(data[at : at + size], "big"), deep)
    if 0xA0 <= code < 0xC0:
        return data[at : at + (code & 31)].decode(), _within(data, at + (code & 31))
    if code in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
        size = 1 << (code - 0xC4 if code < 0xD0 else code - 0xD9)
        start = at + size
        end = _within(data, start + int.from_bytes(data[at:start], "big"))
        return (data[start:end] if code < 0xD0 else data[start:end].decode()), end
    raise ValueError(code)


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise ValueError(end)
    return end


def _items(data: bytes, at: int, count: int, deep: int) -> tuple[list[Any], int]:
    if deep == 0 or count > len(data):
        raise ValueError(count)
    found = []
    for _ in range(count):
        item, at = _value(data, at, deep - 1)
        found.append(item)
    return found, at
