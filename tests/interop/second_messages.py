"""The second SDBFT's formats: messages, what is hashed and signed, quorums; and what it asks of a state machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import ed25519_zebra
from blake3 import blake3
from second_codec import pack, unpack

NOTARIZE, NULLIFY, FINALIZE = 0, 1, 2
ZERO = bytes(32)
MESSAGE_BYTES = 4 * 2**20

Header = Sequence[Any]  # chain, height, epoch, time, proposer, parent, txs, state
CHAIN, HEIGHT, EPOCH, TIME, PROPOSER, PARENT = range(6)
VOTE = (32, int, int, int, 32)
SIGNED = (VOTE, int, 64)
HEADER = (32, int, int, int, 32, 32, 32, 32)
SHAPES: dict[str, Any] = {
    "ballot": (SIGNED,),
    "quorum": (VOTE, bytes, [64]),
    "proposal": (HEADER, [object], SIGNED),
    "status": (int, int, int, int, 32),
    "blocks": ([(HEADER, [object], (int, int, bytes, [64]))],),
    "pending": ([object],),
}


class Reign(Protocol):
    """The committee of the block after a state, and the parameters that a replica needs."""

    epoch: int
    members: Sequence[bytes]
    delta: int
    idle: int
    step: int


class Law(Protocol):
    """The state machine below; a state is whatever it likes."""

    def reign(self, state: Any) -> Reign: ...

    def validators(self, state: Any) -> set[bytes]: ...

    def play(self, state: Any, header: Header, txs: Sequence[Any], judged: bool) -> Any: ...  # None: invalid

    def fill(self, state: Any, parent: Header, key: bytes, clock: int, pool: list[Any]) -> Any: ...  # header, txs

    def waits(self, state: Any, tx: Any) -> bool: ...


def h(name: str, *parts: bytes) -> bytes:
    whole = name.encode() + b"\0" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return bytes(blake3(whole).digest())


def name_of(header: Header) -> bytes:
    return h("farflung/header/1", pack(header))


def is_signed(key: bytes, vote: Sequence[Any], signature: bytes) -> bool:
    try:
        return bool(ed25519_zebra.ed_verify(signature, h("farflung/vote/1", pack(vote)), key))
    except (ValueError, TypeError):
        return False


def fits(value: Any, shape: Any) -> bool:
    """int, bytes and object mean what they say, 32 so many bytes, [s] a list of s, (s, t) an array of two."""
    if shape is object:
        return True
    if isinstance(shape, int):
        return isinstance(value, bytes) and len(value) == shape
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        right = isinstance(value, list) and len(value) == len(shape)
        return right and all(fits(each, of) for each, of in zip(value, shape, strict=True))
    return type(value) is shape


def read(data: bytes) -> tuple[str, list[Any]] | None:
    value = unpack(data) if len(data) <= MESSAGE_BYTES else None
    if not isinstance(value, list) or not value or not isinstance(value[0], str) or value[0] not in SHAPES:
        return None
    return (value[0], value[1:]) if fits(value[1:], SHAPES[value[0]]) else None


def bits(seats: Sequence[int], n: int) -> bytes:
    found = bytearray((n + 7) // 8)
    for seat in seats:
        found[seat // 8] |= 1 << seat % 8
    return bytes(found)


def is_quorum(count: int, n: int) -> bool:
    return 3 * count > 2 * n


def shown(signatures: dict[int, bytes], n: int) -> list[Any]:
    return [bits(list(signatures), n), [signatures[seat] for seat in sorted(signatures)]]


def checked(vote: Sequence[Any], seats: bytes, signatures: list[bytes], members: Sequence[bytes]) -> dict[int, bytes]:
    """The signatures of a quorum by seat; none if it is not one."""
    n = len(members)
    named = [seat for seat in range(n) if seat // 8 < len(seats) and seats[seat // 8] >> seat % 8 & 1]
    if bits(named, n) != seats or len(named) != len(signatures) or not is_quorum(len(named), n):
        return {}
    found = dict(zip(named, signatures, strict=True))
    return found if all(is_signed(members[seat], vote, found[seat]) for seat in named) else {}
