"""Redacts text for publication: the paths and addresses of the computer that wrote it are removed.

It is cut at the widest, so that a word too many is lost rather than a folder's name told.
"""

from __future__ import annotations

import re
from typing import Final

ADDRESS: Final = "(address)"
SIZE: Final = 400

_ADDRESSES: Final = re.compile(
    r"""
    \b[a-z][a-z0-9+.-]{1,15}://[^\s'"<>]+          # a URL of any scheme
    | \[[0-9a-f:.]*:[0-9a-f:.]*(?:%\w+)?\](?::\d{1,5})?   # IPv6 in brackets, with a port
    | (?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b    # IPv6
    | (?<![\w:])(?=[0-9a-f:]*::)[0-9a-f:]*[0-9a-f][0-9a-f:]*(?![\w:])   # IPv6, shortened
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b     # IPv4
    | \b(?:[a-z0-9-]+\.)+[a-z]{2,}:\d{1,5}\b       # a host's name with a port
    | \b[a-z][a-z0-9-]+:\d{2,5}\b                  # of one word, too
    """,
    re.VERBOSE | re.IGNORECASE,
)
# From the first slash of an absolute path, a home or a drive to its last part, which alone is kept.
_QUOTED: Final = re.compile(r"(?P<quote>['\"])(?P<path>(?:~[\w.-]*)?/[^'\"]*|[A-Za-z]:[\\/][^'\"]*)(?P=quote)")
_PATHS: Final = re.compile(
    r"(?:(?<![\w.…/])(?:~[\w.-]*)?/|\b[A-Za-z]:[\\/]|\\\\)(?:[^\s'\"`<>:;,()\\/]+[\\/])*(?P<last>[^\s'\"`<>:;,()\\/]*)"
)


def redact(text: str, size: int = SIZE) -> str:
    """At most `size` printable characters of `text`, paths cut down to their last part, addresses taken out."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 8 * size])
    shown = _QUOTED.sub(_quoted, _ADDRESSES.sub(ADDRESS, shown))
    shown = _PATHS.sub(_last, shown)
    return shown if len(shown) <= size else shown[: size - 1] + "…"


def _quoted(found: re.Match[str]) -> str:
    """A path in quotes may hold spaces."""
    last = re.split(r"[\\/]", found["path"])[-1]
    return f"{found['quote']}…/{last}{found['quote']}" if last else "…"


def _last(found: re.Match[str]) -> str:
    last = found["last"]
    return f"…/{last}" if last else found[0] if found[0] == "/" else "…"
