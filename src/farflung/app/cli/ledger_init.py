"""Implements `ledger init` and `ledger validator`: creates a private ledger and runs one of its validators."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from farflung.app.cli.money_options import CreditsParam
from farflung.core.errors import UsageError
from farflung.core.io.durable_files import write_atomic
from farflung.core.money import CREDIT, MAX_CREDITS
from farflung.ledger import genesis_file
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.keys.files import new_account, new_key
from farflung.peers.network.operator_folder import write_seat
from farflung.peers.process.channel import LogChannel
from farflung.peers.process.config import read_role_config
from farflung.peers.validator.config import PORT, ValidatorConfigFile
from farflung.peers.validator.main import main

_JSON = click.option("--json", "as_json", is_flag=True, help="JSON objects on stdout.")


def say(as_json: bool, facts: dict[str, Any], text: list[str]) -> None:
    """An answer, as an object or as lines."""
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else "\n".join(text)) + "\n")
    sys.stdout.flush()


@click.command(epilog="Example: farflung ledger init my-ledger --validators 4")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--validators", type=click.IntRange(1, 100), default=1, show_default=True, help="Seats.")
@click.option("--host", multiple=True, help="Of each validator in turn. Default: 127.0.0.1.")
@click.option("--port", type=click.IntRange(1, 65000), default=PORT, show_default=True, help="Of the first.")
@click.option("--name", default="ledger", show_default=True, help="Of the ledger.")
@click.option(
    "--credits",
    "money",
    type=click.IntRange(1, MAX_CREDITS // CREDIT),
    default=1_000_000,
    show_default=True,
    help="In all.",
)
@click.option("--fee", type=CreditsParam(most=CREDIT), default="0.00001", show_default=True, help="Least, credits.")
@_JSON
def init(
    folder: Path, validators: int, host: tuple[str, ...], port: int, name: str, money: int, fee: int, as_json: bool
) -> None:
    """Write a new ledger: its genesis, a treasury that owns its credits, and
    a folder with key and configuration for each validator.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(
            "FF-APP-301",
            f"{folder} is not empty",
            cause="a genesis is written once, and keys are never written over",
            hint="name a new folder",
        )
    hosts = [host[i % len(host)] if host else LOOPBACK for i in range(validators)]
    folder.mkdir(parents=True, exist_ok=True)
    keys = [new_key() for _ in hosts]
    treasury = new_account(folder / "treasury.key")
    given = CREDIT if money > validators else 0
    seats = tuple((key.public, given) for key in keys if given)
    genesis = Genesis(
        name,
        int(time.time() * 1000),
        ((treasury.public, money * CREDIT - given * validators), *seats),
        tuple(key.public for key in keys),
        LedgerParams(fee_min=fee),
    )
    places = {key.public: f"{hosts[i]}:{port + i}" for i, key in enumerate(keys)}
    for i, key in enumerate(keys):
        others = {peer.hex(): place for peer, place in places.items() if peer != key.public}
        values = {"host": hosts[i], "port": port + i, "readers": 0, "validators": others}
        write_seat(folder / f"validator-{i + 1}", key, genesis, values)
    write_atomic(folder / "genesis.bin", genesis_file.write(genesis), "ledger.init")
    facts = {"chain": genesis.chain.hex(), "validators": [key.public.hex() for key in keys]}
    start = f"farflung ledger validator {folder}/validator-1/validator.toml"
    text = [f"Ledger   {name}, chain {genesis.chain.hex()}"]
    text += [f"Seat     {key.public.hex()} at {places[key.public]}" for key in keys]
    text += [
        f"Money    {money} credits, owned by {folder}/treasury.key (keep it safe)"
        + (", but one for each seat's fees" if given else ""),
        f"Next     {start}" + (", and each other folder on its own computer" if validators > 1 else ""),
    ]
    say(as_json, facts, text)


@click.command(epilog="Example: farflung ledger validator my-ledger/validator-1/validator.toml")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@_JSON
def validator(config: Path, as_json: bool) -> None:
    """Run a validator, until Ctrl-C.

    CONFIG: its TOML file, as `farflung ledger init` writes it.
    """
    channel = _ValidatorChannel(as_json)
    asyncio.run(channel.run(main(read_role_config(config, ValidatorConfigFile), channel)))


class _ValidatorChannel(LogChannel):
    """Says where the validator is, in the command's way."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def report(self, kind: str, **facts: Any) -> None:
        """Its first words on standard output, its talk with others on the other."""
        if kind == "note":
            super().report(kind, **facts)
        elif kind == "ready":
            key = facts.pop("peer")
            text = [f"validator {key}", f"at        {facts['host']}:{facts['port']}, block {facts['height']}"]
            text += [f"readers   {facts['readers']}"] if facts["readers"] else []
            say(self._as_json, {"validator": key, **facts}, [*text, "Ctrl-C ends it."])
