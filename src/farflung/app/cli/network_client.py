"""Gives commands a network that they name by `--on`, or by an operator's folder, and a client of its ledger."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import click

from farflung.app.explorer.ledger_export import ChainBuilder
from farflung.app.explorer.sources import FileLedgerSource, LedgerSource, open_source
from farflung.core.crypto import SigningKey
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES
from farflung.ledger.block import Block, Genesis
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of, validators_in
from farflung.peers.network import operator_folder
from farflung.peers.network.join import join
from farflung.peers.network.network_file import remembered
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig
from farflung.peers.validator.config import read_config

ON = click.option(
    "--on",
    metavar="NETWORK",
    help="A name this computer knows, an invitation, or a validator's file. Default: the only one.",
)

ON_LEDGER = click.option("--on", metavar="NETWORK", help="Instead of --from: a network's name, or an invitation.")


class NamedNetwork(NamedTuple):
    """A network that a command is about."""

    name: str
    genesis: Genesis
    ledger: LedgerConfig


def network_on(name: str | None) -> NamedNetwork:
    """The network that `--on` names, or the only one that is known; its notes go to standard error.

    Raises UsageError FF-APP-546 where none or several are known, and as `join` and `read_config` do.
    """
    if name is not None and (name.endswith(".toml") or os.sep in name):
        return _network_of_validator(Path(name))
    if name is None:
        known = remembered()
        if len(known) != 1:
            raise UsageError(
                "FF-APP-546",
                "no network is named",
                cause=f"this computer knows {', '.join(known)}" if known else "this computer has joined no network",
                hint=f"--on {known[0]}" if known else "--on INVITE, with the invitation that its operator sent",
            )
        name = known[0]
    found = asyncio.run(join(name))
    sys.stderr.write("".join(f"{note}\n" for note in found.notes))
    return NamedNetwork(found.name, found.genesis, found.ledger)


def _network_of_validator(path: Path) -> NamedNetwork:
    """The ledger of a validator's configuration: its others, and itself where it is the only one."""
    written, setting, places = read_config(path)
    all_places = places or {setting.key.public: (written.host, written.port)}
    first, *rest = [ListenerConfig(peer=HexId(peer), host=host, port=port) for peer, (host, port) in all_places.items()]
    ledger = LedgerConfig(peer=first.peer, host=first.host, port=first.port, others=tuple(rest))
    return NamedNetwork(str(path), setting.genesis, ledger)


def network_of(folder: Path | None, on: str | None) -> NamedNetwork:
    """An operator's own network, or the one that `--on` names where no folder is named and none is there."""
    root = folder or operator_folder.default_folder()
    if on is None and (folder is not None or operator_folder.is_made(root)):
        found = operator_folder.read(root)
        return NamedNetwork(found.name, found.genesis, found.local)
    return network_on(on)


@contextlib.asynccontextmanager
async def client_on(
    network: NamedNetwork, key: SigningKey | None = None
) -> AsyncIterator[tuple[LedgerClient, Endpoint]]:
    """A client of the network's ledger that signs by `key` (None: it only asks), and its endpoint."""
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, ByteCounter())
    try:
        reaches = reaches_of(validators_in(network.ledger), endpoint)
        yield LedgerClient(reaches, key or SigningKey(secrets.token_bytes(ID_BYTES)), network.genesis), endpoint
    finally:
        await endpoint.close()


def source_on(name: str) -> FileLedgerSource:
    """The ledger of a network that `--on` names: all of its blocks, executed again here.

    Raises as `network_on` does, VerificationError, and RunError FF-LEDG codes for what blocks say wrongly.
    """
    network = network_on(name)

    async def fetched() -> list[Block]:
        async with client_on(network) as (client, _):
            return await client.blocks()

    growing = ChainBuilder(network.genesis)
    for block in asyncio.run(fetched()):
        growing.add(block)
    return FileLedgerSource(network.name, growing.chain, network.genesis.chain)


def source_of(place: str | None, on: str | None) -> LedgerSource:
    """What `--from` or `--on` names. Raises click.UsageError where both do."""
    if place is not None and on is not None:
        raise click.UsageError("--from and --on name two ledgers: choose one")
    return open_source(place) if on is None else source_on(on)
