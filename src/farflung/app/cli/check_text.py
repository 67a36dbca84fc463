"""Formats the findings of `farflung check` as text, with cause and remedy below each bad one."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from farflung.host import machine_readings
from farflung.host.findings import FindingDetail, FindingState, ProbeFinding

WIDEST: Final = 100  # columns
NARROWEST: Final = 40
INDENT: Final = 20  # of a line's text: state, name, two spaces each
COLOURS: Final = {
    FindingState.OK: "green",
    FindingState.SLOW: "yellow",
    FindingState.WARN: "yellow",
    FindingState.FAILS: "red",
    FindingState.UNKNOWN: "magenta",
}


def terminal() -> machine_readings.TerminalReading | None:
    """What this terminal shows; None where text goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    return machine_readings.TerminalReading(columns(), sys.stdout.encoding, sys.getfilesystemencoding())


def columns() -> int:
    """Columns of this terminal."""
    return shutil.get_terminal_size((WIDEST, 24)).columns


def width() -> int:
    """Columns that text is wrapped at."""
    return max(NARROWEST, min(WIDEST, columns()))


def lines(findings: Sequence[ProbeFinding]) -> list[str]:
    """All of them, in colour where a terminal shows it."""
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    shown: list[str] = []
    last = ("", "")
    for one in findings:
        said = (one.cause, one.step)
        is_same = said == last and said != ("", "")  # one cause of many lines is told once
        shown += _shown(msgspec.structs.replace(one, cause="", step="") if is_same else one, width(), colours)
        last = said
    return shown


def counted(findings: Sequence[ProbeFinding]) -> str:
    """How many there are of each state, and which."""
    count = Counter(one.state for one in findings)
    told = [f"{count[FindingState.OK]} ok", _named(findings, FindingState.SLOW, "slow")]
    if count[FindingState.WARN]:
        told.append(_named(findings, FindingState.WARN, "warn"))
    if count[FindingState.UNKNOWN]:
        told.append(_named(findings, FindingState.UNKNOWN, "unknown"))
    told.append(_named(findings, FindingState.FAILS, "fails" if count[FindingState.FAILS] == 1 else "fail"))
    return ", ".join(told)


def _named(findings: Sequence[ProbeFinding], state: FindingState, word: str) -> str:
    names = [one.name for one in findings if one.state == state]
    return f"{len(names)} {word}" + (f" ({', '.join(names)})" if names else "")


def _line(head: str, word: str, text: str, width: int, colour: str | None = None) -> list[str]:
    """`head word text`, broken at words; a command (`try`) only between one and the next, so that it can be copied."""
    start = f"{head:<7}  {word:<9}  "[:INDENT].ljust(INDENT)
    if word == "try":
        steps = text.split("; ") if len(text) > width - INDENT else [text]
        return [start + steps[0], *(" " * INDENT + step for step in steps[1:])]
    pieces = textwrap.wrap(text, width - INDENT, break_long_words=False, break_on_hyphens=False) or [""]
    first = click.style(start[:7], fg=colour) + start[7:] if colour else start
    return [first + pieces[0]] + [" " * INDENT + piece for piece in pieces[1:]]


def _shown(finding: ProbeFinding, width: int, colours: bool) -> list[str]:
    colour = COLOURS.get(finding.state) if colours else None
    measured = f"{finding.code}: {finding.measured}" if finding.code else finding.measured
    shown = _line(finding.state.value, finding.name, measured, width, colour)
    below = [FindingDetail("cause", finding.cause)] if finding.cause else []
    below += [FindingDetail("try", finding.step)] if finding.step else []
    for detail in [*below, *finding.details]:
        shown += _line("", detail.word, detail.text, width)
    if finding.side:
        shown += _line("", "side", finding.side.value, width)
    return shown
