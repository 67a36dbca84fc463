"""Parses TOML that anybody may have written, in time and memory that grow as its length and no faster.

The library takes the square of a dotted key's parts (`a.a.a. ... = 1` of 40 kB took 1.6 GB), and some kilobyte for each
table. A scan of the text, which knows strings and comments and nothing else of the language, counts parts, brackets,
tables and digits before the library sees it.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

from farflung.core import limits

# Each alternative takes what it can and never gives back: one pass, whatever the text is.
_TOKEN: Final = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*+"{0,5}+'''  # two quotes may stand before the three that end it
    r"""|'''(?:[^']++|'(?!''))*+'{0,5}+"""
    r"""|"(?:[^"\\\n]++|\\[^\n])*+"?+"""
    r"""|'[^'\n]*+'?+"""
    r"|#[^\n]*+"
    r"|[A-Za-z0-9_+\- \t]++"
    r"|.",
    re.DOTALL,
)
_OPENING: Final = "[{"
_CLOSING: Final = "]}"
_NAMING: Final = "=]"  # behind a key, and behind the name of a table
_ENDING: Final = frozenset("\r\n=,#" + _OPENING + _CLOSING)  # no key goes on behind these


_LONG: Final = 1000
_DIGITS: Final = re.compile(rf"0[xob][0-9A-Fa-f_]{{{_LONG}}}")  # Python reads such a whole number, and cannot write it


def parse(text: str, characters: int) -> dict[str, Any]:
    """The tables of a text of at most so many characters, of limits.TOML_KEY_PARTS, TOML_DEPTH, TOML_TABLES.

    Raises ValueError with the cause, "(at line N, ...)" in it where that is known.
    """
    if len(text) > characters:
        raise ValueError(f"it has more than {characters} characters")
    _check_shape(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_shape(text: str) -> None:
    parts, depth, tables = 1, 0, 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if token.end() - token.start() > _LONG and first not in "\"'#" and _DIGITS.search(token[0]):
            raise ValueError(f"a whole number has {_LONG} digits or more {_place(text, token.start())}")
        if first == ".":
            parts += 1
            if parts > limits.TOML_KEY_PARTS:
                raise ValueError(f"a key has more than {limits.TOML_KEY_PARTS} parts {_place(text, token.start())}")
        elif first in _ENDING:
            tables += (parts - 1 if first in _NAMING else 0) + (first in _OPENING)
            if tables > limits.TOML_TABLES:
                raise ValueError(f"it has more than {limits.TOML_TABLES} tables, arrays and dotted names")
            parts = 1
            depth += (first in _OPENING) - (first in _CLOSING and depth > 0)
            if depth > limits.TOML_DEPTH:
                raise ValueError(f"it is nested too deeply {_place(text, token.start())}")


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"(at line {line}, column {at - text.rfind(chr(10), 0, at)})"
