"""Implements `network backup` and `network restore`: an operator's folder as one file, and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from farflung.app.cli.network_client import client_on, network_of
from farflung.app.cli.network_open import JSON, say
from farflung.ledger.block import Block
from farflung.peers.network import operator_backup
from farflung.peers.network.operator_folder import default_folder

_FOLDER = click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
_FILE = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.command(epilog="Example: farflung network backup commons.backup")
@_FILE
@_FOLDER
@JSON
def backup(file: Path, folder: Path | None, as_json: bool) -> None:
    """Copy the network in FOLDER into FILE: keys, files, the faucet's log, the ledger.

    The network may run meanwhile. FILE holds the treasury's key, unencrypted: only you
    may read it (mode 0600). Keep it on another computer.
    """
    root = folder or default_folder()
    blocks = asyncio.run(_blocks(root)) if operator_backup.is_running(root) else None
    found = operator_backup.write_backup(root, file, blocks)
    facts = {"file": str(file), "name": found.name, "chain": found.genesis.chain.hex(), "bytes": file.stat().st_size}
    say(as_json, facts, [f"Copied   {found.name} to {file}: mode 0600, not encrypted"])


async def _blocks(root: Path) -> list[Block]:
    """All blocks of a network that runs, from its own seat."""
    async with client_on(network_of(root, None)) as (client, _):
        return await client.blocks()


@click.command(epilog="Example: farflung network restore commons.backup commons")
@_FILE
@_FOLDER
@JSON
def restore(file: Path, folder: Path | None, as_json: bool) -> None:
    """Bring a network's folder back from FILE. `network open FOLDER` then goes on.

    What happened after the backup is gone, and whoever saw it is told so. Never run
    both: two seats of one key can be shown to contradict each other.
    """
    root = folder or default_folder()
    found = operator_backup.restore(file, root)
    facts = {"folder": str(root), "name": found.name, "chain": found.genesis.chain.hex()}
    say(as_json, facts, [f"Restored {found.name} in {root}", f"Next     farflung network open {root}"])
