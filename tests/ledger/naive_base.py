"""What both halves of the naive ledger start from."""

from __future__ import annotations

from typing import Any

TOP = 2**63 - 1


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
