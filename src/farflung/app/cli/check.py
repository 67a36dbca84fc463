"""Implements the command `check`, which probes this computer: one line each, with cause and remedy."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from farflung.app.cli import check_net, check_text
from farflung.app.cli.job_options import ledger_address
from farflung.app.netcheck.relay import RelayAddress
from farflung.core.ids import PeerId
from farflung.core.release import VERSION
from farflung.core.units import format_seconds
from farflung.host import doctor, machine_readings
from farflung.host.findings import FindingDetail, FindingState, ProbeFinding
from farflung.host.io import doctor_probes as probing

# What no tier changes: a sandbox protects the host from the tenant, never the tenant from the host's root.
ROOT_SEES: Final = (
    "the worker's memory: model, data and keys in clear, while it computes on them (ptrace, /proc/PID/mem)",
    "the memory of the graphics card",
    "sizes and times of everything that is computed, stored and sent",
    "all of it unnoticed: root can switch off any tripwire, or run the agent in a virtual machine",
)
FORMAT: Final = 1  # of the JSON object
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _host() -> ProbeFinding:
    said = "whoever is root on the computer that computes can still see:"
    return ProbeFinding(
        "host", FindingState.NOTE, said, details=tuple(FindingDetail("sees", thing) for thing in ROOT_SEES)
    )


def _summary(findings: Sequence[ProbeFinding], seconds: float | None) -> str:
    failing = {one.name for one in findings if one.state == FindingState.FAILS}
    if failing == {"port"}:
        end = "this computer can run farflung, but not on that port"
    elif failing:
        end = "`farflung run` will not work here until that is fixed"
    else:
        end = "this computer can run farflung"
        end += f"; the default run would take about {format_seconds(seconds)}" if seconds is not None else ""
    return f"{check_text.counted(findings)}: {end}"


def _facts(
    findings: Sequence[ProbeFinding], found: Mapping[str, machine_readings.Reading], seconds: float | None
) -> dict[str, Any]:
    """The JSON object: findings, the readings they come from by name, and the sandbox as it always stood there."""
    facts: dict[str, Any] = {
        "sandbox": None,
        "tiers": [],
        "format": FORMAT,
        "program": VERSION,
        "can_run": all(one.state != FindingState.FAILS for one in findings if one.name != "port"),
        "default_run_seconds": seconds,
        "findings": findings,
        "readings": found,
        "root_sees": ROOT_SEES,
    }
    seen = found.get("sandbox")
    if isinstance(seen, machine_readings.SandboxReading):
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


@click.command(epilog="Example: farflung check --net --relay relay.example:4510")
@click.option("--port", type=check_net.PORT, metavar="N", help="Also try whether this port is free.")
@click.option("--net", is_flag=True, help="Look at connections to others instead; the rest is for it.")
@click.option(
    "--relay",
    "relays",
    multiple=True,
    callback=check_net.places,
    metavar="HOST:PORT[,KEY]",
    help="Measure to this relay; may be given again.",
)
@click.option("--listen", type=check_net.PORT, metavar="N", help="Let a relay try to reach this port.")
@click.option("--peer", callback=check_net.key, metavar="KEY", help="Look for this peer; needs --ledger.")
@click.option("--ledger", callback=ledger_address, metavar="HOST:PORT,KEY", help="Whose directory knows the peer.")
@click.option(
    "--theirs",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="What `check --net --json` said on the other side.",
)
@click.option(
    "--as",
    "own",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Our key's file; a new key without it.",
)
@_JSON
def check(
    port: int | None,
    net: bool,
    relays: tuple[RelayAddress, ...],
    listen: int | None,
    peer: PeerId | None,
    ledger: RelayAddress | None,
    theirs: Path | None,
    own: Path | None,
    as_json: bool,
) -> None:
    """Look whether this computer can run farflung, within 10 seconds: all that a run needs is tried.

    What is slow or fails says why, and what to do next. The sandbox of other people's code and its gaps are shown.
    Only --net contacts other computers, those you name. Exit status 1 when something fails.
    """
    if net:
        findings = check_net.examine(check_net.NetCheckOptions(relays, listen, peer, ledger, theirs, own), as_json)
    elif relays or any(word is not None for word in (listen, peer, ledger, theirs, own)):
        raise click.UsageError("--relay, --listen, --peer, --ledger, --theirs and --as go with --net")
    else:
        findings = _computer(port, as_json)
    if any(one.state == FindingState.FAILS for one in findings):
        sys.exit(1)


def _computer(port: int | None, as_json: bool) -> list[ProbeFinding]:
    """Looks at this computer, and says what it found."""
    # Not rundir.runs.runs_folder: it refuses what is to be told.
    runs = Path(os.environ.get("FARFLUNG_RUNS") or "runs")
    found = probing.measure(probing.probes(runs, port))
    terminal = check_text.terminal()
    if terminal is not None and doctor.judge("terminal", terminal).state != FindingState.OK:
        found["terminal"] = terminal
    findings = doctor.examine(found)
    seconds = doctor.seconds(found)
    if as_json:
        lines = [msgspec.json.encode(_facts(findings, found, seconds)).decode()]
    else:
        lines = check_text.lines([*findings, _host()])
        lines += ["", *textwrap.wrap(_summary(findings, seconds), check_text.width())]
    sys.stdout.write("\n".join(lines) + "\n")
    return findings
