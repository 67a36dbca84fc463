"""Signatures once more, from the texts alone and slowly: RFC 8032 (section 5.1) for the curve, ZIP-215 for the rule."""

from __future__ import annotations

from functools import cache
from hashlib import sha512

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
ZERO: Point = (0, 1)


def add(one: Point, two: Point) -> Point:
    (a, b), (c, d) = one, two
    both = D * a * b * c * d
    return (a * d + b * c) * pow(1 + both, -1, P) % P, (b * d + a * c) * pow(1 - both, -1, P) % P


def times(number: int, point: Point) -> Point:
    total = ZERO
    for bit in bin(number)[2:]:
        total = add(total, total)
        total = add(total, point) if bit == "1" else total
    return total


def encoded(point: Point, *, over: bool = False, flip: bool = False) -> bytes:
    """The canonical bytes; with `over` of y + p, with `flip` of the other sign."""
    x, y = point
    return (y + P * over | ((x & 1) ^ flip) << 255).to_bytes(32, "little")


def decoded(data: bytes) -> Point | None:
    """ZIP-215: y may be p or more, and x = 0 may have a sign."""
    number = int.from_bytes(data, "little")
    y = number % 2**255 % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    for x in (root := pow(square, (P + 3) // 8, P), root * pow(2, (P - 1) // 4, P) % P):
        if x * x % P == square:
            return (x, y) if x & 1 == number >> 255 else (P - x if x else 0, y)
    return None


BASE = decoded((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def number_of(challenge: bytes) -> int:
    return int.from_bytes(sha512(challenge).digest(), "little") % L


def accepts(public: bytes, signature: bytes, message: bytes) -> bool:
    """ZIP-215: S < L, and [8][S]B = [8]R + [8][k]A, with k over the bytes as they came."""
    a, r, s = decoded(public), decoded(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= L or BASE is None:
        return False
    k = number_of(signature[:32] + public + message)
    return times(8 * s, BASE) == add(times(8, r), times(8 * k, a))


@cache
def torsion() -> list[Point]:
    """The 8 points whose order divides 8: what is left of any point when L of it is taken away."""
    for y in range(2, 99):
        point = decoded(y.to_bytes(32, "little"))
        if point is not None:
            some = times(L, point)
            if times(4, some) != ZERO:
                return [times(number, some) for number in range(8)]
    raise AssertionError
