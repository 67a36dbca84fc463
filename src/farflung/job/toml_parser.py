"""Parses TOML text into dotted keys, each with the line that set it, so that an error can point at it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from farflung.core import limits
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
    if len(text) > limits.SPEC_BYTES:
        raise _unreadable(name, f"it is longer than {limits.SPEC_BYTES} bytes")
    try:
        tree = msgspec.toml.decode(text)
    except RecursionError:
        raise _unreadable(name, "it is nested too deeply") from None
    except ValueError as error:
        place = _LINE.search(str(error))
        raise _unreadable(f"{name} line {place[1]}" if place else name, str(error)[:200]) from None
    lines = _lines(text)
    return [TomlEntry(key, value, _line(lines, key)) for key, value in _flat(tree)]


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


def _lines(text: str) -> dict[str, int]:
    """Where each table and key is written: a scan of the lines, for messages only."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (head := _TABLE.match(line)) is not None:
            table = _dotted(head[1])
            found.setdefault(table, number)
        elif (name := _NAME.match(line)) is not None:
            found.setdefault(f"{table}.{_dotted(name[1])}".lstrip("."), number)
    return found


def _dotted(written: str) -> str:
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part[1:-1]) for part in re.findall(_PART, written))


def _line(lines: dict[str, int], key: str) -> int:
    """The line of a key, else of a longer key inside it, else of the table around it."""
    inside = (line for name, line in lines.items() if name.startswith(f"{key}."))
    around = key.partition(".")[0]
    return lines.get(key) or next(inside, 0) or lines.get(around, 0)
