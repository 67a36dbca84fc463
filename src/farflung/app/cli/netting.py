"""`farflung check --net`: connections to other computers, line by line, each with whose side it is on."""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from farflung.app import probing
from farflung.app.cli import findings_shown
from farflung.app.cli.placing import place
from farflung.app.cli.relaying import read_or_make_key
from farflung.app.probing_relay import Named
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.limits import MIB
from farflung.host import doctor_net
from farflung.host.findings import Finding, Side, State
from farflung.host.netseen import NetSeen

FORMAT: Final = 1  # of the JSON object
MOST: Final = 8  # relays at a time
MOST_BYTES: Final = MIB  # of another check's words
PORT: Final = click.IntRange(1, 65535)
_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")


def places(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[Named, ...]:
    """The relays of a command line. Raises click.BadParameter."""
    if len(texts) > MOST:
        raise click.BadParameter(f"at most {MOST} at a time")
    return tuple(place(text) for text in texts)


def key(context: click.Context, option: click.Parameter, text: str | None) -> PeerId | None:
    """A peer's key. Raises click.BadParameter."""
    if text is None:
        return None
    if _KEY.fullmatch(text) is None:
        raise click.BadParameter(f"a key is {2 * ID_BYTES} hex digits")
    return PeerId(bytes.fromhex(text))


class Words(NamedTuple):
    """What was asked for. `theirs`: a file with what another computer's check said; `own`: the file of our key."""

    relays: tuple[Named, ...]
    listen: int | None
    peer: PeerId | None
    ledger: Named | None
    theirs: Path | None
    own: Path | None


def examine(words: Words, as_json: bool) -> list[Finding]:
    """Measures, judges, and says what it found. Raises UsageError FF-APP-182 for a file that no check wrote."""
    if (words.peer is None) != (words.ledger is None):
        raise click.UsageError("--peer and --ledger go together")
    theirs = read_theirs(words.theirs) if words.theirs is not None else None
    own = read_or_make_key(words.own) if words.own is not None else SigningKey(secrets.token_bytes(ID_BYTES))
    asked = probing.Asked(own, words.relays, words.listen, words.peer, words.ledger)
    talk = _Talk()
    try:
        seen = asyncio.run(probing.look(asked, talk.say))
    finally:
        talk.end()
    seen = msgspec.structs.replace(seen, theirs=theirs)
    findings = doctor_net.examine(seen)
    if as_json:
        shown = [msgspec.json.encode(_facts(findings, seen)).decode()]
    else:
        shown = findings_shown.lines(findings)
        shown += ["", *textwrap.wrap(_summary(findings, seen), findings_shown.width())]
    sys.stdout.write("\n".join(shown) + "\n")
    return findings


def read_theirs(path: Path) -> NetSeen:
    """The readings of a check that was made elsewhere. Raises UsageError FF-APP-182."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
        told = msgspec.json.decode(data, type=_Told).readings
        doctor_net.examine(told)  # so that nothing in it is met later that no check writes
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise UsageError(
            "FF-APP-182",
            f"{path} is not what a check said",
            cause=str(error)[:200],
            hint="on the other computer, farflung check --net --relay HOST:PORT,KEY --json > theirs.json",
        ) from None
    return told


class _Told(msgspec.Struct, frozen=True):
    """What is read of the JSON object of a check."""

    readings: NetSeen


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
