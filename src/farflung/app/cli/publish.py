"""Implements `publish`: puts a finished, proven run's model on the network where it was made."""

from __future__ import annotations

import asyncio
import sys

import click
import msgspec

from farflung.app.cli.completion import run_names
from farflung.app.cli.network_client import ON, network_on
from farflung.core.units import format_bytes
from farflung.local.model import load
from farflung.local.model.publication import publish_run
from farflung.peers.network.published_model import PREFIX


@click.command(epilog="Example: farflung publish --name my-model --licence MIT")
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=run_names)
@ON
@click.option("--name", required=True, help="Lower-case letters, digits, hyphens; it is yours for good.")
@click.option("--licence", required=True, metavar="SPDX", help="Under which others may use it, like CC-BY-4.0.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def publish(run_name: str | None, on: str | None, name: str, licence: str, as_json: bool) -> None:
    """Publish a finished run's model on the network where it was trained: others start
    from it by model.start = "net:NAME".

    The run is recomputed from its log first. Weights, settings and licence become
    public, and cannot be taken back.
    """
    run = load.finished(run_name)
    network = network_on(on)
    record = asyncio.run(publish_run(run, network.genesis, network.ledger, name, licence))
    account, size = record.account.hex(), record.manifest.size
    start = f"{PREFIX}{account[:16]}/{name}"
    facts = {
        "name": name, "account": account, "network": network.name, "start": start,
        "root": record.root.hex(), "licence": licence, "bytes": size,
    }  # fmt: skip
    lines = [
        f"{PREFIX}{name} is on {network.name}: {format_bytes(size)}, root {record.root.hex()[:16]}, licence {licence}",
        f"next  farflung run job.toml --on {network.name} --set model.start={PREFIX}{name}",
        f"      where another account has the name, too: {start}",
    ]
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else "\n".join(lines)) + "\n")
