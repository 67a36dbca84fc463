"""Verbs that look at runs, check them or end them: `status`, `stop`, `verify-run`, `version`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click
import msgspec

import farflung
from farflung.app import asking, folder
from farflung.app.folder import RunFolder
from farflung.app.journal import read_timeline
from farflung.app.local import genesis_of
from farflung.core.errors import UsageError
from farflung.core.money import format_credits
from farflung.core.units import format_bytes
from farflung.watch.fold import Timeline

_RUN = click.argument("name", metavar="[RUN]", required=False)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def _say(as_json: bool, facts: dict[str, Any], text: list[str]) -> None:
    lines = [msgspec.json.encode(facts).decode()] if as_json else text
    sys.stdout.write("\n".join(lines) + "\n")


def _state(run: RunFolder, timeline: Timeline) -> str:
    if run.owner() is not None:
        return "running"
    if timeline.result is not None:
        return "finished"
    return "failed" if timeline.failed is not None else "interrupted"


@click.command(epilog="Example: farflung status")
@_RUN
@_JSON
def status(name: str | None, as_json: bool) -> None:
    """Show all runs, or one: where it stands, what it sent and paid."""
    base = asking.runs_folder()
    runs = [folder.find(base, name)] if name else folder.all_runs(base)
    if not runs:
        _say(as_json, {"runs": []}, [f"no runs in {base}; start one with `farflung run`"])
        return
    rows, text = [], []
    for run in runs:
        timeline = read_timeline(run)
        last = timeline.last_round
        done = last.round + 1 if last is not None else 0
        total = last.rounds if last is not None else 0
        state = _state(run, timeline)
        loss = timeline.losses.get(max(timeline.losses)) if timeline.losses else None
        paid = timeline.result.paid if timeline.result else 0
        sent = timeline.bytes_sent()
        rows.append(
            {
                "run": run.name,
                "state": state,
                "round": done,
                "rounds": total,
                "loss": loss,
                "sent": sent,
                "paid": paid,
            }
        )
        shown = f"loss {loss:.3f}" if loss is not None else "no loss yet"
        text.append(
            f"{run.name:<28} {state:<12} round {done}/{total}  {shown}  sent {format_bytes(sent)}"
            f"  paid {format_credits(paid)}"
        )
    _say(as_json, {"runs": rows}, text)


@click.command(epilog="Example: farflung stop")
@_RUN
@click.option("--now", is_flag=True, help="Do not finish the open round; `farflung resume` goes on later.")
@_JSON
def stop(name: str | None, now: bool, as_json: bool) -> None:
    """Let a running run finish its open round and settle."""
    run = folder.find(asking.runs_folder(), name)
    owner = run.owner()
    if owner is None:
        raise UsageError(
            "FF-APP-015",
            f"run {run.name} is not running",
            cause="no process holds it",
            hint="`farflung status`",
        )
    os.kill(owner, signal.SIGTERM if now else signal.SIGINT)
    how = "stops now" if now else "finishes its round and settles"
    _say(as_json, {"run": run.name, "pid": owner, "now": now}, [f"run {run.name} (process {owner}) {how}"])


@click.command("verify-run", epilog="Example: farflung verify-run runs/2026-01-31-local")
@_RUN
@_JSON
def verify_run(name: str | None, as_json: bool) -> None:
    """Recompute a finished run from its exported log alone: merges, roots, signatures, receipts."""
    from farflung.app.export import read_export
    from farflung.verify.reader import verify_run as recompute

    run = folder.find(asking.runs_folder(), name)
    spec = asking.resolve_again(run).spec if run.identity_file.exists() else None
    report = recompute(read_export(run), genesis_of(spec).chain if spec is not None else None)
    facts = msgspec.structs.asdict(report)
    text = [
        f"Verify   {report.rounds} rounds: {report.merges} merges and {report.roots} roots recomputed",
        f"Verify   {report.commitments} payloads match their commitments; {report.signatures} signatures hold",
        f"Verify   {report.blocks} blocks with {report.transactions} transactions executed again",
        f"Verify   {report.receipts} receipts hold: paid {format_credits(report.paid)},"
        f" refunded {format_credits(report.refunded)}",
        f"Result   model  {report.model_hash}",
        f"Result   ledger {report.ledger_root}, from genesis {report.genesis[:16]}",
        "Result   everything that this run says of itself is true",
    ]
    _say(as_json, facts, text)


@click.command(epilog="Example: farflung version --json")
@_JSON
def version(as_json: bool) -> None:
    """Print the versions of farflung, Python and PyTorch."""
    import importlib.metadata
    import platform

    facts = {
        "farflung": farflung.__version__,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "numpy": importlib.metadata.version("numpy"),
        "system": platform.platform(),
    }
    _say(as_json, facts, [f"{key:<9} {value}" for key, value in facts.items()])
