"""Values are counted in bytes as a decoder would make them, and no further than anybody asked."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError
from farflung.core.value_count import count_values

LEAVES: list[Any] = [
    None, True, 0, 127, 128, 255, 256, 65_535, 65_536, 2**32, 2**63, -1, -32, -33, -129, -40_000, -(2**33), 1.5,
    "", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 70_000, b"", b"x" * 255, b"x" * 256, b"x" * 70_000,
    msgspec.msgpack.Ext(1, b"x"), msgspec.msgpack.Ext(1, b"xx"), msgspec.msgpack.Ext(1, b"x" * 4),
    msgspec.msgpack.Ext(1, b"x" * 8), msgspec.msgpack.Ext(1, b"x" * 16), msgspec.msgpack.Ext(1, b"x" * 17),
    msgspec.msgpack.Ext(1, b"x" * 300), msgspec.msgpack.Ext(1, b"x" * 70_000), [], {}, [1] * 15, [1] * 16,
    [1] * 70_000, {i: i for i in range(15)}, {i: i for i in range(16)}, {i: i for i in range(70_000)},
]  # fmt: skip


def counted(value: Any) -> int:
    """By what was made."""
    if isinstance(value, list | tuple):
        return 1 + sum(map(counted, value))
    if isinstance(value, dict):
        return 1 + sum(counted(k) + counted(v) for k, v in value.items())
    return 1


@pytest.mark.parametrize("place", range(len(LEAVES)))
def test_each_form_is_one_value(place: int) -> None:
    value = [LEAVES[place], 7]
    assert count_values(msgspec.msgpack.encode(value), 1 << 20) == counted(value)


@pytest.mark.parametrize("seed", range(20))
def test_any_nesting_is_counted(seed: int) -> None:
    random_ = random.Random(seed)

    def make(depth: int) -> Any:
        if depth == 0 or random_.random() < 0.3:
            return random_.choice(LEAVES[:36])
        return [make(depth - 1) for _ in range(random_.randrange(5))]

    value = [make(4) for _ in range(5)]
    assert count_values(msgspec.msgpack.encode(value), 1 << 20) == counted(value)


def test_counting_ends_where_it_is_too_much() -> None:
    assert count_values(b"\x90" * 1000, 10) == 11
    assert count_values(b"", 10) == 0


@pytest.mark.parametrize(
    "data", [b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff\x01", b"\xc4", b"\xdb\x00", b"\xc1" * 9]
)
def test_what_is_not_well_formed_ends_the_count(data: bytes) -> None:
    assert count_values(data, 100) <= len(data)


class Listed(Wire, frozen=True):
    numbers: tuple[int, ...]


def test_a_message_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    data = encode(Listed((1, 2, 3)))
    assert decode(data, Listed, 100, 5) == Listed((1, 2, 3))
    assert decode(memoryview(data), Listed, 100, 5) == decode(bytearray(data), Listed, 100) == Listed((1, 2, 3))
    with pytest.raises(ProtocolError, match="FF-CORE-024"):
        decode(data, Listed, 100, 4)
    with pytest.raises(ProtocolError, match="FF-CORE-024"):
        decode(b"\x91" + b"\xc1" * 10, Listed, 100, 4)  # no message at all: it is not looked at
