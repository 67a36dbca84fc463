"""`farflung check --net`: connections to other computers, line by line, each with whose side it is on."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app import probing
from farflung.app.cli import findings_shown
from farflung.app.cli.relaying import read_or_make_key
from farflung.app.probing_relay import Named
from farflung.core.crypto import SigningKey
from farflung.core.ids import ID_BYTES, PeerId
from farflung.host import doctor_net
from farflung.host.findings import Finding, Side, State
from farflung.host.netseen import NetSeen

FORMAT: Final = 1  # of the JSON object
MOST: Final = 8  # relays at a time
_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:,\[\]]{1,253})):(\d{1,5})(?:,([0-9a-fA-F]{64}))?")


def place(text: str) -> Named:
    """`HOST:PORT` or `HOST:PORT,KEY`; an IPv6 address in brackets. Raises click.BadParameter."""
    match = _PLACE.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise click.BadParameter(
            f"{text!r} is not HOST:PORT or HOST:PORT,KEY, with a key of {2 * ID_BYTES} hex digits"
        )
    key = PeerId(bytes.fromhex(match[4])) if match[4] else None
    return Named(match[1] or match[2], int(match[3]), key)


def places(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[Named, ...]:
    """The relays of a command line. Raises click.BadParameter."""
    if len(texts) > MOST:
        raise click.BadParameter(f"at most {MOST} at a time")
    return tuple(place(text) for text in texts)


def examine(relays: tuple[Named, ...], listen: int | None, key: Path | None, as_json: bool) -> list[Finding]:
    """Measures, judges, and says what it found. `key`: the file of the key to call relays with."""
    own = read_or_make_key(key) if key is not None else SigningKey(secrets.token_bytes(ID_BYTES))
    talk = _Talk()
    try:
        seen = asyncio.run(probing.look(probing.Asked(own, relays, listen), talk.say))
    finally:
        talk.end()
    findings = doctor_net.examine(seen)
    if as_json:
        shown = [msgspec.json.encode(_facts(findings, seen)).decode()]
    else:
        shown = findings_shown.lines(findings)
        shown += ["", *textwrap.wrap(_summary(findings, seen), findings_shown.width())]
    sys.stdout.write("\n".join(shown) + "\n")
    return findings


class _Talk:
    """What is being done, on one line of a terminal that is wiped afterwards; nothing elsewhere."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(f"\r\033[K{text[: findings_shown.width() - 4]} ...")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def _facts(findings: Sequence[Finding], seen: NetSeen) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "is_whole": not seen.is_cut,
        "faults": [
            {"fault": one.fault, "line": one.name, "state": one.state, "side": one.side}
            for one in findings
            if one.fault
        ],
        "findings": findings,
        "readings": seen,
    }


def _summary(findings: Sequence[Finding], seen: NetSeen) -> str:
    counted = findings_shown.counted(findings)
    failing = [one for one in findings if one.state is State.FAILS]
    if seen.is_cut:
        counted = f"not all was measured within {probing.SECONDS:.0f} s; {counted}"
    if failing:
        sides = list(
            dict.fromkeys(one.side.value for one in failing if one.side not in (Side.NONE, Side.UNKNOWN))
        )
        return f"{counted}: to be mended at {', '.join(sides)}" if sides else counted
    if not any(one.is_met for one in seen.relays):
        return f"{counted}: more is known with a relay"
    return f"{counted}: this computer can take part"
