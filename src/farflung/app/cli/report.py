"""Implements the command `report`, which writes a run as one page to read, print and share."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from farflung.app.views import report_page as page
from farflung.peers.rundir import folder
from farflung.peers.rundir.runs import runs_folder


@click.command(epilog="Example: farflung report --out my-run.html")
@click.argument("name", metavar="[RUN]", required=False)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Default: report.html in the run's folder."
)
@click.option("--open", "shows", is_flag=True, help="Also open it in the browser.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def report(name: str | None, out: Path | None, shows: bool, as_json: bool) -> None:
    """Write a run's report.html: one file without scripts that asks nothing of any network.

    RUN: its name or folder; the newest by default. A run that still goes on is shown so far.
    """
    run = folder.find(runs_folder(), name)
    written = page.write(run, out)
    facts = {"run": run.name, "report": str(written), "bytes": written.stat().st_size}
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else str(written)) + "\n")
    if shows:
        click.launch(str(written))
