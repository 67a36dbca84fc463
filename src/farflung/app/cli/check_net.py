"""Implements `farflung check --net`: prints each connection to other computers, and which side causes a fault."""

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

from farflung.app.cli import check_text
from farflung.app.cli.job_options import relay_address
from farflung.app.cli.relay import read_or_make_key
from farflung.app.netcheck import check
from farflung.app.netcheck.relay import RelayAddress
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.file_header import FileFormat, check_json
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.limits import MIB
from farflung.core.release import VERSION
from farflung.host import doctor_net_report
from farflung.host.findings import FaultSide, FindingState, ProbeFinding
from farflung.host.net_readings import NetReadings

FORMAT: Final = 1  # of the JSON object
_FORM: Final = FileFormat("check-net", FORMAT, "check there once more with this one")
MOST: Final = 8  # relays at a time
MOST_BYTES: Final = MIB  # of another check's words
PORT: Final = click.IntRange(1, 65535)
_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")


def places(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[RelayAddress, ...]:
    """The relays of a command line. Raises click.BadParameter."""
    if len(texts) > MOST:
        raise click.BadParameter(f"at most {MOST} at a time")
    return tuple(relay_address(text) for text in texts)


def key(context: click.Context, option: click.Parameter, text: str | None) -> PeerId | None:
    """A peer's key. Raises click.BadParameter."""
    if text is None:
        return None
    if _KEY.fullmatch(text) is None:
        raise click.BadParameter(f"a key is {2 * ID_BYTES} hex digits")
    return PeerId(bytes.fromhex(text))


class NetCheckOptions(NamedTuple):
    """What was asked for. `theirs`: a file with what another computer's check said; `own`: the file of our key."""

    relays: tuple[RelayAddress, ...]
    listen: int | None
    peer: PeerId | None
    ledger: RelayAddress | None
    theirs: Path | None
    own: Path | None


def examine(words: NetCheckOptions, as_json: bool) -> list[ProbeFinding]:
    """Measures, judges, and says what it found. Raises UsageError FF-APP-182 for a file that no check wrote."""
    if (words.peer is None) != (words.ledger is None):
        raise click.UsageError("--peer and --ledger go together")
    theirs = read_theirs(words.theirs) if words.theirs is not None else None
    own = read_or_make_key(words.own) if words.own is not None else SigningKey(secrets.token_bytes(ID_BYTES))
    asked = check.NetCheckRequest(own, words.relays, words.listen, words.peer, words.ledger)
    talk = _StatusLine()
    try:
        seen = asyncio.run(check.look(asked, talk.say))
    finally:
        talk.end()
    seen = msgspec.structs.replace(seen, theirs=theirs)
    findings = doctor_net_report.examine(seen)
    if as_json:
        shown = [msgspec.json.encode(_facts(findings, seen)).decode()]
    else:
        shown = check_text.lines(findings)
        shown += ["", *textwrap.wrap(_summary(findings, seen), check_text.width())]
    sys.stdout.write("\n".join(shown) + "\n")
    return findings


def read_theirs(path: Path) -> NetReadings:
    """The readings of a check that was made elsewhere. Raises UsageError FF-APP-182, VersionError FF-CORE-095."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
        check_json(_FORM, data)
        told = msgspec.json.decode(data, type=_NetCheckOutput).readings
        doctor_net_report.examine(told)  # so that nothing in it is met later that no check writes
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise UsageError(
            "FF-APP-182",
            f"{path} is not what a check said",
            cause=str(error)[:200],
            hint="on the other computer, farflung check --net --relay HOST:PORT,KEY --json > theirs.json",
        ) from None
    return told


class _NetCheckOutput(msgspec.Struct, frozen=True):
    """What is read of the JSON object of a check."""

    readings: NetReadings


class _StatusLine:
    """What is being done, on one line of a terminal that is wiped afterwards; nothing elsewhere."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(f"\r\033[K{text[: check_text.width() - 4]} ...")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def _facts(findings: Sequence[ProbeFinding], seen: NetReadings) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "program": VERSION,
        "is_whole": not seen.is_cut,
        "faults": [
            {"fault": one.fault, "line": one.name, "state": one.state, "side": one.side}
            for one in findings
            if one.fault
        ],
        "findings": findings,
        "readings": seen,
    }


def _summary(findings: Sequence[ProbeFinding], seen: NetReadings) -> str:
    counted = check_text.counted(findings)
    failing = [one for one in findings if one.state is FindingState.FAILS]
    if seen.is_cut:
        counted = f"not all was measured within {check.SECONDS:.0f} s; {counted}"
    if failing:
        sides = list(
            dict.fromkeys(one.side.value for one in failing if one.side not in (FaultSide.NONE, FaultSide.UNKNOWN))
        )
        return f"{counted}: fix on {', '.join(sides)}" if sides else counted
    if not any(one.is_met for one in seen.relays):
        return f"{counted}: more is known with a relay"
    return f"{counted}: this computer can take part"
