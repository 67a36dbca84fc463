"""Implements the commands `status`, `stop` and `version`, which inspect or end runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

import click
import msgspec

import farflung
from farflung.app.cli.completion import run_names
from farflung.core.errors import RunError, UsageError
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count
from farflung.host.io import torch_setup
from farflung.peers.rundir import folder
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import command_name, resolve_again, runs_folder
from farflung.train.rounds import REASON_DIVERGED
from farflung.watch import job_class_text
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import clean

_RUN = click.argument("name", metavar="[RUN]", required=False, shell_complete=run_names)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _say(as_json: bool, facts: dict[str, Any], text: list[str]) -> None:
    lines = [msgspec.json.encode(facts).decode()] if as_json else text
    sys.stdout.write("\n".join(lines) + "\n")


def _state(run: RunFolder, timeline: RunTimeline) -> str:
    if run.owner() is not None:
        return "running"
    if timeline.result is not None:
        return "finished"
    return "failed" if timeline.failed is not None else "interrupted"


def _row(run: RunFolder, timeline: RunTimeline) -> dict[str, Any]:
    """One run as a line of `farflung status`. Money in pico-credits, bytes, nats per token."""
    last, result = timeline.last_round, timeline.result
    return {
        "run": run.name,
        "state": _state(run, timeline),
        "round": last.round + 1 if last is not None else 0,
        "rounds": last.rounds if last is not None else 0,
        "loss": timeline.losses[max(timeline.losses)] if timeline.losses else None,
        "sent": timeline.bytes_sent(),
        "paid": result.paid if result else 0,
    }


def _listed(run: RunFolder) -> dict[str, Any]:
    """A run among others: one that cannot be read hides none of them."""
    try:
        return _row(run, read_timeline(run))
    except RunError:
        return _row(run, RunTimeline()) | {"state": "unreadable"}


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 3] + "..."


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """At most 100 columns."""
    width = min(40, max(3, *(len(row["run"]) for row in rows)))
    lines = [f"{'run':<{width}}  state        round    loss   sent      paid (credits)"]
    for row in rows:
        loss = f"{row['loss']:.3f}" if row["loss"] is not None else "-"
        lines.append(
            f"{_cut(row['run'], width):<{width}}  {row['state']:<11}  {row['round']:>3}/{row['rounds']:<3}"
            f"  {loss:<5}  {format_bytes(row['sent']):<8}  {format_credits(row['paid'])}"
        )
    return lines


NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ("watch", "stop"),
    "finished": ("sample", "fetch", "verify-run"),
    "failed": ("resume",),
    "interrupted": ("resume",),
}


def _next(run: RunFolder, timeline: RunTimeline, state: str) -> list[str]:
    word = command_name(run)
    more = []
    if timeline.result is not None and state == "finished":
        spec = resolve_again(run).spec
        is_early, has_diverged = timeline.result.rounds < spec.rounds, timeline.result.reason == REASON_DIVERGED
        more = [f"resume {word}" if is_early else f"resume {word} --rounds +{timeline.result.rounds}"]
        if has_diverged:
            return [
                f"resume {word} --set optimizer.lr={spec.optimizer.lr / 10:g}",
                *(f"{v} {word}" for v in NEXT[state]),
            ]
    return [*(f"{verb} {word}" for verb in NEXT[state]), *more]


def _more(run: RunFolder, timeline: RunTimeline, row: dict[str, Any]) -> dict[str, Any]:
    """What is said of one run alone: where it lies, its model, its hashes, and what can be done next."""
    model, result, failed = resolve_again(run).spec.model, timeline.result, timeline.failed
    layers = "1 layer" if model.layers == 1 else f"{model.layers} layers"
    sizes = f"{layers}, width {model.width}, {model.heads} heads, "
    return row | {
        "folder": str(run.root),
        "model": f"{model.module if model.kind == 'module' else 'gpt, ' + sizes.strip(', ')}, context {model.context}",
        "class": job_class_text.fact(timeline),
        "parameters": timeline.plan.parameters if timeline.plan else None,
        "stands_on": list(timeline.stands_on.jobs) if timeline.stands_on else [],
        "model_hash": result.model_hash if result else None,
        "ledger_root": result.ledger_root if result else None,
        "error": f"{failed.code}: {failed.message}" if failed and not result else None,
        "next": [f"farflung {step}" for step in _next(run, timeline, row["state"])],
    }


def _details(facts: dict[str, Any]) -> list[str]:
    count = facts["parameters"]
    lines = [
        f"Run      {facts['run']}, {facts['state']}",
        f"Folder   {facts['folder']}",
        f"Model    {facts['model']}" + (f"; {format_count(count)} parameters" if count else ""),
        *([f"Work     {facts['class']}"] if facts["class"] else []),
        *(f"Stands   on job {clean(job, 64)}" for job in facts["stands_on"]),
        f"Round    {facts['round']} of {facts['rounds']}",
    ]
    if facts["loss"] is not None:
        lines.append(f"Loss     {facts['loss']:.4f} nats per validation token")
    lines.append(f"Sent     {format_bytes(facts['sent'])}; paid {format_credits(facts['paid'])} credits")
    if facts["error"]:
        lines.append(f"Error    {facts['error']}")
    if facts["model_hash"]:
        lines += [f"Hashes   model  {facts['model_hash']}", f"         ledger {facts['ledger_root']}"]
    return [*lines, *(f"{'Next' if not i else '':<8} {step}" for i, step in enumerate(facts["next"]))]


@click.command(epilog="Example: farflung status")
@_RUN
@_JSON
def status(name: str | None, as_json: bool) -> None:
    """Show all runs of yours: where each stands, what it sent and paid.

    Those in `runs` or FARFLUNG_RUNS; without FARFLUNG_RUNS also those made elsewhere.

    With RUN, a name or folder, also where it lies, its model, its hashes, and what can be done next.
    """
    base = runs_folder()
    if name is not None:
        run = folder.find(base, name)
        timeline = read_timeline(run)
        one = _more(run, timeline, _row(run, timeline))
        _say(as_json, {"runs": [one]}, _details(one))
        return
    runs = folder.all_known(base)
    rows = [_listed(run) for run in runs]
    if not rows:
        _say(as_json, {"runs": []}, [f"no runs in {base}; start one with `farflung run`"])
        return
    away = [f"{run.name} is in {run.root}" for run in runs if run.root.parent.resolve() != base.resolve()]
    _say(as_json, {"runs": rows}, [*_table(rows), *away])


@click.command(epilog="Example: farflung stop")
@_RUN
@click.option("--now", is_flag=True, help="Do not finish the open round; `farflung resume` goes on later.")
@_JSON
def stop(name: str | None, now: bool, as_json: bool) -> None:
    """Let a running run finish its open round and settle, as the first Ctrl-C does.

    RUN: its name or folder; by default the one that runs. --now is the second Ctrl-C.
    """
    base = runs_folder()
    running = [r for r in folder.all_known(base) if r.owner() is not None] if name is None else []
    run = running[-1] if running else folder.find(base, name)
    owner = run.owner()
    if owner is None:
        state = _state(run, read_timeline(run))
        raise UsageError(
            "FF-APP-015",
            f"run {run.name} is not running",
            cause=f"it is {state}: no process holds it",
            hint=f"farflung {NEXT[state][0]} {command_name(run)}",
        )
    if not run.is_owner_here():
        raise UsageError(
            "FF-APP-497",
            f"run {run.name} is running in another container",
            cause=f"its process {owner} has that number there; here it may be another program's",
            hint=f"run farflung stop {command_name(run)} in that container",
        )
    has_begun = _listed(run)["round"] > 0
    os.kill(owner, signal.SIGTERM if now else signal.SIGINT)
    how = "stops now" if now else "finishes its round and settles" if has_begun else "ends what it began, and settles"
    _say(as_json, {"run": run.name, "pid": owner, "now": now}, [f"run {run.name} (process {owner}) {how}"])


@click.command(epilog="Example: farflung version --json")
@_JSON
def version(as_json: bool) -> None:
    """Print the versions of farflung, Python and PyTorch."""
    import platform
    from importlib.metadata import version as of

    facts = {
        "farflung": farflung.__version__,
        "python": platform.python_version(),
        "torch": torch_setup.installed() or "not installed: farflung setup",
        "numpy": of("numpy"),
        "system": platform.platform(),
    }
    _say(as_json, facts, [f"{key:<9} {value}" for key, value in facts.items()])
