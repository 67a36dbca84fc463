"""The verb that checks a finished run: `verify-run`."""

from __future__ import annotations

import sys

import click
import msgspec

from farflung.app import asking, folder
from farflung.app.cli.completing import run_names
from farflung.app.local import chain_of
from farflung.core.money import format_credits
from farflung.verify.report import Report
from farflung.watch.text import say


@click.command("verify-run", epilog="Example: farflung verify-run runs/2026-01-31-local")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=run_names)
@click.option(
    "--parent",
    "parents",
    multiple=True,
    metavar="RUN",
    help="The run that it stands on; again for the one behind that.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify_run(name: str | None, parents: tuple[str, ...], as_json: bool) -> None:
    """Recompute a finished run from its exported log alone: merges, roots, signatures, receipts.

    RUN: its name or folder; the newest by default.
    """
    from farflung.app.export import read_export
    from farflung.app.standing import find_exported
    from farflung.verify.reader import verify_run as recompute

    run = folder.find(asking.runs_folder(), name)
    spec = asking.resolve_again(run).spec if run.identity_file.exists() else None
    chain = chain_of(run, spec) if spec is not None else None
    above = [read_export(find_exported(parent)) for parent in parents]
    report = recompute(read_export(run), chain, above)
    lines = [msgspec.json.encode(report).decode()] if as_json else words(report)
    sys.stdout.write("\n".join(lines) + "\n")


def words(report: Report) -> list[str]:
    """What was found true, for people."""
    return [
        f"Verify   {report.rounds} rounds: {report.merges} merges and {report.roots} roots recomputed",
        f"Verify   {report.commitments} payloads match their commitments; {report.signatures} signatures hold",
        f"Verify   {report.blocks} blocks with {report.transactions} transactions executed again",
        f"Verify   {report.receipts} receipts hold: paid {format_credits(report.paid)},"
        f" refunded {format_credits(report.refunded)}",
        *_standing(report),
        f"Result   model  {report.model_hash}",
        f"Result   ledger {report.ledger_root}, from genesis {report.genesis[:16]}",
        *say("Result", f"the work is {report.work}"),
    ]


def _standing(report: Report) -> list[str]:
    """On which runs it stands, and which of them were here to be checked."""
    told = [
        f"Stands   on job {job[:16]}: "
        + ("proved, and it begins where that ended" if place < report.parents else "not checked here")
        for place, job in enumerate(report.lineage)
    ]
    if report.parents < len(report.lineage):
        told.append("Stands   `--parent RUN`, nearest first, checks what it stands on")
    return told
