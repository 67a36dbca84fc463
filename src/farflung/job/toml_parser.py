"""Parses TOML text into dotted keys, each with the line that set it, so that an error can point at it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from farflung.core import bounded_toml, limits
from farflung.core.errors import SpecError
from farflung.job.keys import KEYS, SECTIONS

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_NAME: Final = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_TABLE: Final = re.compile(rf"\s*\[\[?\s*({_PART}(?:\s*\.\s*{_PART})*)\s*\]")
_LINE: Final = re.compile(r"\(at line (\d+)")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class TomlEntry(NamedTuple):
    """One value as it was written. `line` counts from 1; 0 when it is not known."""

    key: str
    value: Any
    line: int


def read(text: str, name: str) -> list[TomlEntry]:
    """The entries of a job file called `name` in messages; raises SpecError FF-JOB-003."""
    try:
        tree = bounded_toml.parse(text, limits.SPEC_BYTES)
    except ValueError as error:
        place = _LINE.search(str(error))
        raise _unreadable(f"{name} line {place[1]}" if place else name, str(error)[:200]) from None
    lines, inside = _lines(text)
    return [TomlEntry(key, value, _line(lines, inside, key)) for key, value in _flat(tree)]


def _unreadable(where: str, cause: str) -> SpecError:
    return SpecError(
        "FF-JOB-003",
        f"{where} is not TOML",
        cause=cause,
        hint='write `key = value` lines under [section] headers, with text in "quotes"',
    )


def _flat(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        is_table = isinstance(value, dict) and name not in KEYS
        if is_table and (value or name in SECTIONS):
            for inner, item in value.items():
                yield f"{_plain(name)}.{_plain(inner)}", item
        else:
            yield _plain(name), value


def _plain(name: str) -> str:
    """A key's own name: quoted where it is not bare, so that `"a.b"` is not taken for b in [a]."""
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _lines(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Where each table and key is written, and where the first one inside each: a scan of the lines, for messages."""
    found: dict[str, int] = {}
    inside: dict[str, int] = {}
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if (head := _TABLE.match(line)) is not None:
            named = table = _parts(head[1])
        elif (name := _NAME.match(line)) is not None:
            named = table + _parts(name[1])
        else:
            continue
        found.setdefault(".".join(named), number)
        for size in range(1, len(named)):
            inside.setdefault(".".join(named[:size]), number)
    return found, inside


def _parts(written: str) -> list[str]:
    return [part if _BARE.fullmatch(part) else json.dumps(part[1:-1]) for part in re.findall(_PART, written)]


def _line(lines: dict[str, int], inside: dict[str, int], key: str) -> int:
    """The line of a key, else of a longer key inside it, else of the table around it."""
    return lines.get(key) or inside.get(key) or lines.get(key.partition(".")[0], 0)
