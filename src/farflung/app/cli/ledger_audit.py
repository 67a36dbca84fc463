"""Implements `ledger audit`, which checks that a validator's file is unchanged since it was written."""

from __future__ import annotations

from pathlib import Path

import click

from farflung.app.cli.ledger_init import say
from farflung.ledger.io.file_audit import audit as look
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.peers.validator.config import read_config


@click.command(epilog="Example: farflung ledger audit my-ledger/validator-1/validator.toml")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def audit(config: Path, as_json: bool) -> None:
    """Check a stopped validator's chain: every block, certificate and row.

    CONFIG: its TOML file. Blocks are executed again, unless old ones were pruned or it began from a snapshot.
    """
    _, setting, _ = read_config(config)
    store = LedgerStore.open(setting.folder / "chain.db", setting.genesis)
    try:
        chain = store.load()
        executed = look(store, chain)
    finally:
        store.close()
    height, root = chain.head.height, chain.state.root.hex()
    facts = {"height": height, "first": store.first, "executed": executed, "state": root}
    text = [f"height    {height}", f"state     {root}", f"executed  {executed} of {height} blocks: all is as it was"]
    say(as_json, facts, text)
