"""The verb that looks at this computer: `check`. One line a probe; below what is not good, why and what next."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.core.units import format_seconds
from farflung.host import doctor, readings
from farflung.host.findings import Detail, Finding, State
from farflung.host.io import doctor as probing

# What no tier changes: a sandbox protects the host from the tenant, never the tenant from the host's root.
ROOT_SEES: Final = (
    "the worker's memory: model, data and keys in clear, while it computes on them (ptrace, /proc/PID/mem)",
    "the memory of the graphics card",
    "sizes and times of everything that is computed, stored and sent",
    "all of it unnoticed: root can switch off any tripwire, or run the agent in a virtual machine",
)
FORMAT: Final = 1  # of the JSON object
WIDEST: Final = 100  # columns
NARROWEST: Final = 40
INDENT: Final = 20  # of a line's text: state, name, two spaces each
COLOURS: Final = {
    State.OK: "green",
    State.SLOW: "yellow",
    State.WARN: "yellow",
    State.FAILS: "red",
    State.UNKNOWN: "magenta",
}
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _terminal() -> readings.Terminal | None:
    """What this terminal shows; None where text goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    return readings.Terminal(_columns(), sys.stdout.encoding, sys.getfilesystemencoding())


def _columns() -> int:
    return shutil.get_terminal_size((WIDEST, 24)).columns


def _host() -> Finding:
    said = "whoever is root on the computer that computes can still see:"
    return Finding("host", State.NOTE, said, details=tuple(Detail("sees", thing) for thing in ROOT_SEES))


def _line(head: str, word: str, text: str, width: int, colour: str | None = None) -> list[str]:
    """`head word text`, broken at words; a command (`try`) is never broken, so that it can be copied."""
    start = f"{head:<7}  {word:<9}  "[:INDENT].ljust(INDENT)
    if word == "try":
        return [start + text]
    pieces = textwrap.wrap(text, width - INDENT, break_long_words=False, break_on_hyphens=False) or [""]
    first = click.style(start[:7], fg=colour) + start[7:] if colour else start
    return [first + pieces[0]] + [" " * INDENT + piece for piece in pieces[1:]]


def _shown(finding: Finding, width: int, colours: bool) -> list[str]:
    colour = COLOURS.get(finding.state) if colours else None
    measured = f"{finding.code}: {finding.measured}" if finding.code else finding.measured
    shown = _line(finding.state.value, finding.name, measured, width, colour)
    below = [Detail("cause", finding.cause)] if finding.cause else []
    below += [Detail("try", finding.step)] if finding.step else []
    for detail in [*below, *finding.details]:
        shown += _line("", detail.word, detail.text, width)
    return shown


def _summary(findings: Sequence[Finding], seconds: float | None) -> str:
    count = Counter(one.state for one in findings)
    told = [f"{count[State.OK]} ok", _named(findings, State.SLOW, "slow")]
    if count[State.WARN]:
        told.append(_named(findings, State.WARN, "warn"))
    if count[State.UNKNOWN]:
        told.append(_named(findings, State.UNKNOWN, "unknown"))
    told.append(_named(findings, State.FAILS, "fails" if count[State.FAILS] == 1 else "fail"))
    failing = {one.name for one in findings if one.state == State.FAILS}
    if failing == {"port"}:
        end = "this computer can run farflung, but not on that port"
    elif failing:
        end = "`farflung run` will not work here until that is mended"
    else:
        end = "this computer can run farflung"
        end += f"; the default run would take about {format_seconds(seconds)}" if seconds is not None else ""
    return f"{', '.join(told)}: {end}"


def _named(findings: Sequence[Finding], state: State, word: str) -> str:
    names = [one.name for one in findings if one.state == state]
    return f"{len(names)} {word}" + (f" ({', '.join(names)})" if names else "")


def _facts(
    findings: Sequence[Finding], found: Mapping[str, readings.Reading], seconds: float | None
) -> dict[str, Any]:
    """The JSON object: findings, the readings they come from by name, and the sandbox as it always stood there."""
    facts: dict[str, Any] = {
        "sandbox": None,
        "tiers": [],
        "format": FORMAT,
        "can_run": all(one.state != State.FAILS for one in findings if one.name != "port"),
        "default_run_seconds": seconds,
        "findings": findings,
        "readings": found,
        "root_sees": ROOT_SEES,
    }
    seen = found.get("sandbox")
    if isinstance(seen, readings.Sandbox):
        gaps = {one.tier.name: one.tier.gaps for one in seen.tiers}
        facts["sandbox"] = {"tier": seen.chosen or None, "not_stopped": gaps.get(seen.chosen, ())}
        facts["tiers"] = [
            {
                "tier": one.tier.name,
                "works": not one.why,
                "why_not": one.why,
                "command": one.command,
                "not_stopped": one.tier.gaps,
            }
            for one in seen.tiers
        ]
    return facts


@click.command(epilog="Example: farflung check --port 7475")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Also try whether this port is free."
)
@click.option("--net", is_flag=True, help="Also look at what connections to other computers get here.")
@_JSON
def check(port: int | None, net: bool, as_json: bool) -> None:
    """Look whether this computer can run farflung: each thing that a run needs is tried, in 10 seconds.

    What is slow or fails says why, and what to do next. Also shown: which sandbox other people's code gets here,
    and what it does not stop. Nothing outside this computer is asked. Exit status 1 when something fails.
    """
    runs = Path(
        os.environ.get("FARFLUNG_RUNS") or "runs"
    )  # not asking.runs_folder: it refuses what is to be told
    asked = probing.probes(runs, port) + (probing.net_probes() if net else [])
    found = probing.measure(asked)
    terminal = _terminal()
    if terminal is not None and doctor.judge("terminal", terminal).state != State.OK:
        found["terminal"] = terminal
    findings = doctor.examine(found)
    seconds = doctor.seconds(found)
    if as_json:
        lines = [msgspec.json.encode(_facts(findings, found, seconds)).decode()]
    else:
        colours = terminal is not None and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = max(NARROWEST, min(WIDEST, _columns()))
        lines = [line for one in [*findings, _host()] for line in _shown(one, width, colours)]
        lines += ["", *textwrap.wrap(_summary(findings, seconds), width)]
    sys.stdout.write("\n".join(lines) + "\n")
    if any(one.state == State.FAILS for one in findings):
        sys.exit(1)
