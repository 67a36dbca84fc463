"""Implements `publish`: puts a finished, proven run's model on the network where it was made, or takes one back."""

from __future__ import annotations

import asyncio
import sys

import click
import msgspec

from farflung.app.cli.completion import run_names
from farflung.app.cli.network_client import ON, NamedNetwork, network_on
from farflung.core.ids import short
from farflung.core.units import format_bytes
from farflung.local.model import load
from farflung.local.model.publication import publish_run
from farflung.peers.network import model_transfer
from farflung.peers.network.account import own_account
from farflung.peers.network.model_transfer import ModelSource
from farflung.peers.network.published_model import PREFIX, check_name
from farflung.watch.phrases import many


@click.command(epilog="Example: farflung publish --name my-model --licence MIT")
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=run_names)
@ON
@click.option("--name", help="Lower-case letters, digits, hyphens. One job, one name.")
@click.option("--licence", metavar="SPDX", help="Under which others may use it, like CC-BY-4.0.")
@click.option("--withdraw", metavar="NAME", help="Instead: take your model of that name back.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def publish(
    run_name: str | None, on: str | None, name: str | None, licence: str | None, withdraw: str | None, as_json: bool
) -> None:
    """Publish a finished run's model on the network where it was trained: others start
    from it by model.start = "net:NAME".

    The run is recomputed from its log first. Weights, settings and licence become
    public. --withdraw frees the name and deletes them from the network's seats, not
    what others have fetched before.
    """
    if withdraw is not None:
        if run_name or name or licence:
            raise click.UsageError("--withdraw names a model, and goes with --on alone")
        _withdraw(network_on(on), withdraw, as_json)
        return
    if name is None or licence is None:
        raise click.UsageError(f"Missing option '{'--name' if name is None else '--licence'}'.")
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


def _withdraw(network: NamedNetwork, name: str, as_json: bool) -> None:
    """Raises UsageError FF-APP-652 (no name), PolicyError FF-APP-654 (it has no such model), NetworkError."""
    check_name(name)
    source = ModelSource(network.genesis, network.ledger, own_account())
    done, away = asyncio.run(model_transfer.withdraw(source, name))
    facts = {
        "withdrawn": name, "network": network.name,
        "seats": [peer.hex() for peer in done], "away": [peer.hex() for peer in away],
    }  # fmt: skip
    lines = [f"{PREFIX}{name} is deleted from {many(len(done), 'seat')} of {network.name}; what others fetched stays"]
    if away:
        lines.append(f"did not answer, and may keep it: {', '.join(short(peer) for peer in away)}; type it again later")
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else "\n".join(lines)) + "\n")
