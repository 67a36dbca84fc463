"""Implements the command `watch`: shows a run live or replayed, and the details of one round or one dispute."""

from __future__ import annotations

import sys

import click
import msgspec

from farflung.app.cli.run_display import surface
from farflung.app.views.replay import replay
from farflung.app.views.terminal import is_screen, print_rows, size_of
from farflung.core.errors import UsageError
from farflung.core.events import AuditEndEvent
from farflung.core.ids import PeerId
from farflung.local.jobs import resolve
from farflung.peers.requester.audits import evidence_file
from farflung.peers.rundir import attestations, folder
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import command_name, runs_folder
from farflung.watch import detail_rows, phrases
from farflung.watch.attestation_table import node_rows
from farflung.watch.event_lines import say
from farflung.watch.fold import RunTimeline
from farflung.watch.row_layout import ScreenRow
from farflung.watch.screen import COLUMNS

OLD_SPEED = 10.0  # a run of two minutes is told in a dozen seconds
LEAVES = ("Ctrl-C leaves; the run goes on", "Ctrl-C leaves")


def _speed(text: str | None, is_running: bool) -> float | None:
    """How fast; None: at once. What runs is caught up with at once, and on a pipe nobody waits."""
    if text is None:
        return None if is_running or not is_screen(sys.stdout) else OLD_SPEED
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= 1_000_000:
        raise UsageError(
            "FF-APP-150",
            f"no speed: {text[:20]!r}",
            cause="it is how many seconds of the run pass in one second, `0` or `max` for everything immediately",
            hint="farflung watch --speed 10",
        )
    return speed or None


def _note(speed: float | None, is_running: bool) -> tuple[str, ...]:
    if speed is None:
        return LEAVES if is_running else ("replay", "replay")
    pace = f"replay at {speed:g} x, long silences cut"
    return (pace, f"replay at {speed:g} x", "replay")


def _show(run: RunFolder, speed_text: str | None, as_json: bool) -> None:
    is_running = run.owner() is not None
    speed = _speed(speed_text, is_running)
    note, name = _note(speed, is_running), resolve.must_be_named(run)
    with surface(as_json, name, note=note, speed=speed or 1.0, tells_errors=True) as on:
        timeline = replay(run, on, speed=speed, follow=is_running)
    is_told = as_json or is_screen(sys.stdout) or timeline.result is not None or timeline.failed is not None
    if not is_told and run.owner() is None:
        sys.stdout.write("\n".join(say("Result", phrases.UNFINISHED, f"farflung resume {command_name(run)}")) + "\n")


def _columns() -> int:
    return min(COLUMNS, size_of(sys.stdout)[0]) if is_screen(sys.stdout) else COLUMNS


def _print(rows: list[ScreenRow], facts: object, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
    else:
        print_rows(rows, sys.stdout)


def _show_round(run: RunFolder, t: RunTimeline, number: int, as_json: bool) -> None:
    if number not in t.rounds:
        last = t.last_round
        there = f"0 to {last.round} are closed" if last is not None else "none is closed yet"
        what = f"round {number} is not closed yet" if number in t.openings else f"run {run.name} has no round {number}"
        raise UsageError(
            "FF-APP-151",
            what,
            cause=f"rounds are counted from 0, as in the event log; {there}",
            hint=f"farflung watch {run.name}" + (f" --round {last.round}" if last is not None else ""),
        )
    _print(detail_rows.round_rows(t, number, _columns()), detail_rows.round_facts(t, number), as_json)


def _evidence(run: RunFolder, audit: AuditEndEvent) -> str:
    """The file that was kept of an audit, as a path in the run's folder; empty when there is none."""
    try:
        file = evidence_file(run.evidence, audit.round, PeerId(bytes.fromhex(audit.peer)))
    except ValueError:  # no key: a log is not vouched for
        return ""
    return str(file.relative_to(run.root)) if file.is_file() else ""


def _show_dispute(run: RunFolder, t: RunTimeline, number: int, as_json: bool) -> None:
    found = phrases.disputes(t)
    if not 1 <= number <= len(found):
        count = "is 1" if len(found) == 1 else f"are {len(found)}"
        held = f"{phrases.many(len(t.audits), 'audit')}, nobody's work was contested"
        there = f"there {count}, counted from 1" if found else held
        raise UsageError(
            "FF-APP-152",
            f"run {run.name} has no dispute {number}",
            cause=there,
            hint=f"farflung watch {run.name}" + (" --dispute 1" if found else ""),
        )
    audit = found[number - 1]
    name = _evidence(run, audit)
    _print(
        detail_rows.dispute_rows(t, number, _columns(), evidence=name, run=run.name),
        detail_rows.dispute_facts(t, number, evidence=name),
        as_json,
    )


def _show_nodes(run: RunFolder, as_json: bool) -> None:
    stated = attestations.read(run)
    if not stated:
        raise UsageError(
            "FF-APP-418",
            f"run {run.name} has nobody's attestation",
            cause="no node was hired yet, or the folder was removed",
            hint=f"farflung watch {run.name}",
        )
    _print(node_rows(stated, _columns()), {"nodes": stated}, as_json)


@click.command(epilog="Example: farflung watch --speed 20")
@click.argument("name", metavar="[RUN]", required=False)
@click.option("--speed", metavar="N", help="Seconds of the run in one second; 0 or max: at once. Old runs: 10.")
@click.option("--round", "number", type=int, metavar="N", help="One round: who took how long for what.")
@click.option("--dispute", type=int, metavar="N", help="One contested audit: who claimed what, what was found.")
@click.option("--nodes", "is_nodes", is_flag=True, help="What each node says it runs. Not a proof of work.")
@click.option("--json", "as_json", is_flag=True, help="The events, or the detail, as JSON.")
def watch(
    name: str | None, speed: str | None, number: int | None, dispute: int | None, is_nodes: bool, as_json: bool
) -> None:
    """Watch a run: one that runs now, or an old one again, from its event log.

    RUN: its name or folder; the newest by default.
    """
    run = folder.find(runs_folder(), name)
    if (number is not None) + (dispute is not None) + is_nodes > 1:
        raise UsageError(
            "FF-APP-153",
            "a round, a dispute or the nodes, and another of them at the same time",
            cause="each fills the screen",
            hint=f"farflung watch {run.name} --nodes",
        )
    if not run.events_file.exists() and run.owner() is None:
        raise UsageError(
            "FF-APP-154",
            f"run {run.name} has no event log",
            cause="it ended before it began, or the file was removed",
            hint=f"farflung resume {run.name}",
        )
    if is_nodes:
        _show_nodes(run, as_json)
    elif number is not None:
        _show_round(run, read_timeline(run), number, as_json)
    elif dispute is not None:
        _show_dispute(run, read_timeline(run), dispute, as_json)
    else:
        _show(run, speed, as_json)
