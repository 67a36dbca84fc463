"""Implements the part of HTTP/1.1 (RFC 9112) that readers need: one request without a body, one response. Pure.

Whatever could be read in two ways is refused: a body, folded or doubled header lines, escapes in the target. A page
that a browser was lured to cannot read answers by giving our address a name of its own (DNS rebinding): a `Host` that
is neither an address nor a name that the listener was told to be is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError, UsageError

JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

_LINE: Final = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]+) HTTP/1\.[01]")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\x20-\x7e\t\x80-\xff]*?)[ \t]*")
_TARGET: Final = re.compile(r"/[A-Za-z0-9/_.{}-]*(\?[A-Za-z0-9_=&-]*)?")
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_STATUS: Final = {
    "FF-APP-266": 400,
    "FF-APP-267": 404,
    "FF-APP-268": 405,
    "FF-APP-269": 429,
    "FF-APP-270": 421,
    "FF-APP-271": 404,
    "FF-APP-272": 400,
    "FF-APP-274": 503,
}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One answer."""

    status: int
    body: bytes
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def wire(self) -> bytes:
        """What is sent to a GET."""
        return self.head + self.body

    @property
    def head(self) -> bytes:
        """What is sent to a HEAD: all but the body, whose length it tells (RFC 9110, section 9.3.2)."""
        lines = {
            "Content-Type": self.kind,
            "Content-Length": str(len(self.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **self.headers,
        }
        head = f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return head.encode("ascii") + b"\r\n"


def read_target(head: bytes, names: frozenset[str]) -> str:
    """What a request asks for. `head` ends with its empty line; `names`: other hosts than addresses that we are.

    Raises UsageError FF-APP-266 (cannot be read), PolicyError FF-APP-268 (neither GET nor HEAD), -270 (Host).
    """
    line, *rest = head[: -len(b"\r\n\r\n")].split(b"\r\n")
    match = _LINE.fullmatch(line)
    if match is None or len(match[2]) > limits.API_TARGET_BYTES or len(rest) > limits.API_HEADERS:
        raise unreadable("its first line is none of HTTP/1.1, or there are too many of them")
    headers = _headers(rest)
    if match[1] not in (b"GET", b"HEAD"):
        raise PolicyError(
            "FF-APP-268",
            "only GET and HEAD are answered",
            cause="the interface reads and changes nothing",
            hint="hand transactions in by the ledger's own protocol: docs/protocol/ledger.md",
        )
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise unreadable("it has a body")
    if not _is_ours(headers.get("host", ""), names):
        raise PolicyError(
            "FF-APP-270",
            "this is not the host that was asked for",
            cause="Host is neither an address nor a name of this listener",
            hint="use the address, or start the listener with --name",
        )
    target = match[2].decode("ascii")
    if not _TARGET.fullmatch(target):
        raise unreadable("its path has characters that no path of ours has")
    return target


def _headers(lines: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        name = match[1].decode("ascii").lower() if match else ""
        if match is None or (name in found and name in ("host", "content-length", "transfer-encoding")):
            raise unreadable("a header line is malformed, or there twice")
        found[name] = match[2].decode("latin-1")
    return found


def _is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a Host names us: by an address, which nobody can rename, or by a name that we were told."""
    name = re.sub(r":[0-9]{1,5}\Z", "", host.lower())
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name in names
    return True


def unreadable(cause: str) -> UsageError:
    """A request that is none."""
    return UsageError(
        "FF-APP-266",
        "the request cannot be read",
        cause=cause,
        hint="ask with GET, a path of /v1/openapi.json, and no body",
    )


def is_bodiless(asked: bytes) -> bool:
    """Whether what begins so, read or not, is a HEAD, whose answer has no body."""
    return asked.startswith(b"HEAD ")


def replied(value: Any) -> HttpResponse:
    """An answer in JSON. Raises PolicyError FF-APP-273 when it is too large."""
    body = msgspec.json.encode(value)
    if len(body) > limits.API_ANSWER_BYTES:
        raise PolicyError(
            "FF-APP-273",
            f"the answer has {len(body)} bytes",
            cause=f"the limit is {limits.API_ANSWER_BYTES}",
            hint="ask for a smaller page with limit=",
        )
    return HttpResponse(200, body)


def refused(error: FarflungError, *, again: int = 0) -> HttpResponse:
    """An error in JSON. `again`: seconds after which to ask again."""
    status = _STATUS.get(error.code, 500)
    headers = {"Retry-After": str(again)} if again else {}
    if status == 405:
        headers["Allow"] = "GET, HEAD"
    told = {"code": error.code, "message": error.message, "cause": error.cause, "hint": error.hint, "is_proved": False}
    return HttpResponse(status, msgspec.json.encode(told), headers=headers)
