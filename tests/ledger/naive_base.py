"""What both halves of the naive ledger start from."""

from __future__ import annotations

from typing import Any

TOP = 2**63 - 1


EIGHTH = 2707385501144840649318225287225658788936804267575313519463743609750303402022


def of_small_order(key: bytes) -> bool:
    y = int.from_bytes(key, "little") % 2**255 % (2**255 - 19)
    return y in (0, 1, EIGHTH, 2**255 - 19 - EIGHTH, 2**255 - 20)


class No(Exception):
    pass


def need(condition: object) -> None:
    if not condition:
        raise No


def numbers_in(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    if hasattr(value, "__struct_fields__"):
        value = [getattr(value, name) for name in value.__struct_fields__]
    return [n for item in value for n in numbers_in(item)] if isinstance(value, list | tuple) else []
