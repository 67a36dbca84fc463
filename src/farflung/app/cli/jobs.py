"""Implements the commands `jobs` and `cancel`: what this user's runs on networks hold, and how to get it back."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click
import msgspec

from farflung.app.cli.completion import run_names
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import short
from farflung.core.money import Credits, format_credits
from farflung.core.units import Seconds, format_seconds
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import JobCancel, JobSettle
from farflung.local.network.run_ledger import ledger_of
from farflung.peers.rundir import folder
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import read_terms
from farflung.peers.rundir.network_record import NetworkRecord, read_network
from farflung.peers.rundir.runs import command_name, resolve_again, runs_folder

_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
ENDED = (JobState.SETTLED, JobState.CANCELLED, JobState.EXPIRED)


@click.command(epilog="Example: farflung jobs")
@_JSON
def jobs(as_json: bool) -> None:
    """Show what your runs on networks hold there: state on the ledger, credits that are locked, deadline."""
    found = [run for run in folder.all_known(runs_folder()) if run.network_file.exists()]
    rows = [asyncio.run(_row(run)) for run in found]
    text = _table(rows) if rows else ["no run of yours is on a network; start one: farflung run --on NETWORK"]
    sys.stdout.write((msgspec.json.encode({"jobs": rows}).decode() if as_json else "\n".join(text)) + "\n")


@click.command(epilog="Example: farflung cancel 2026-01-31-local")
@click.argument("name", metavar="RUN", shell_complete=run_names)
@_JSON
def cancel(name: str, as_json: bool) -> None:
    """End the job of a stopped run on a network: what was recorded is paid, the
    rest of the escrow comes back. It cannot be resumed afterwards.
    """
    run = folder.find(runs_folder(), name)
    record, word = read_network(run), command_name(run)
    if record is None:
        raise UsageError(
            "FF-APP-566",
            f"run {run.name} is on no network of others",
            cause="its ledger is in its own folder, and holds no money of anybody else",
            hint=f"farflung stop {word}, if it runs",
        )
    if run.owner() is not None:
        raise UsageError(
            "FF-APP-567",
            f"run {run.name} is at work",
            cause="a running job is stopped first",
            hint=f"farflung stop {word}",
        )
    row = asyncio.run(_cancelled(run, record))
    facts = {"run": run.name, "state": row.state.name.lower(), "paid": row.paid, "refunded": row.refunded}
    facts["burnt"] = row.burnt
    text = [
        f"Job      {short(row.job)} is {row.state.name.lower()}: paid {format_credits(Credits(row.paid))} credits,"
        f" returned {format_credits(Credits(row.refunded))}"
        + (f", pay burnt {format_credits(Credits(row.burnt))}" if row.burnt else "")
    ]
    if row.state not in ENDED:
        left = max(0, row.until - round(1000 * time.time()))
        text.append(
            f"Next     farflung cancel {word}, in {format_seconds(Seconds(left / 1000))}: its verification window"
        )
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else "\n".join(text)) + "\n")


async def _cancelled(run: RunFolder, record: NetworkRecord) -> JobRow:
    """The job's row after this. Raises UsageError FF-APP-568 (nothing to cancel), RunError FF-APP-070."""
    terms = read_terms(run, resolve_again(run).spec)
    async with ledger_of(run, record) as ledger:
        row = await ledger.job(terms.id)
        if row is None or row.state in ENDED:
            raise UsageError(
                "FF-APP-568",
                f"the job of run {run.name} holds no money",
                cause="the ledger does not know it" if row is None else f"it is {row.state.name.lower()}",
                hint="farflung jobs shows all",
            )
        if row.requester != ledger.own:
            raise UsageError(
                "FF-APP-569",
                f"the job of run {run.name} is another account's",
                cause=f"it is of {short(row.requester)}, this computer's account is {short(ledger.own)}",
                hint="cancel it where that account's key is",
            )
        await ledger.coordinate(terms.id)  # whatever process had it, on whatever computer
        await ledger.submit(JobSettle(row.job) if row.state is JobState.OUTPUT else JobCancel(row.job))
        return await ledger.job(terms.id) or row


async def _row(run: RunFolder) -> dict[str, Any]:
    """One run's job. Money in pico-credits, `deadline` in ms since 1970. One that cannot be read hides none."""
    said: dict[str, Any] = {"run": run.name, "network": "?", "deadline": 0}
    try:
        record = read_network(run)
        assert record is not None
        said |= {"network": record.name, "deadline": record.deadline}
        terms = read_terms(run, resolve_again(run).spec)
        async with ledger_of(run, record) as ledger:
            row = await ledger.job(terms.id)
    except FarflungError as error:
        return said | {"state": f"unknown ({error.code})", "locked": None, "round": None}
    if row is None:
        return said | {"state": "not funded", "locked": 0, "round": 0}
    return said | {"state": row.state.name.lower(), "locked": row.held, "round": row.round}


def _table(rows: list[dict[str, Any]]) -> list[str]:
    width = min(40, max(len(row["run"]) for row in rows))
    lines = [f"{'run':<{width}}  network       state        round  locked (credits)  ends in"]
    now = round(1000 * time.time())
    for row in rows:
        locked = "-" if row["locked"] is None else format_credits(Credits(row["locked"]))
        left = format_seconds(Seconds(max(0, row["deadline"] - now) / 1000)) if row["locked"] else "-"
        number = "-" if row["round"] is None else row["round"]
        named = f"{row['run'][:width]:<{width}}  {row['network'][:12]:<12}  {row['state']:<11}"
        lines.append(f"{named}  {number:>5}  {locked:<16}  {left}")
    return lines
