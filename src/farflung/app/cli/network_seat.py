"""Implements `network seat`: prepares one more seat of a network on this computer, and asks the committee for it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import click

from farflung.app.cli.network_client import NamedNetwork, client_on
from farflung.app.cli.network_open import FOLDER, JSON, say
from farflung.core.crypto import NS_SEAT, SigningKey
from farflung.core.money import CREDIT, format_credits
from farflung.ledger.validators import ValidatorJoin, join_parts
from farflung.peers.network import operator_folder
from farflung.peers.network.account import chosen_account
from farflung.peers.network.join import join
from farflung.peers.network.operator_folder import NetworkPlaces, default_folder, listen_at
from farflung.peers.validator.config import PORT


@click.command(epilog="Example: farflung network seat INVITE --host b.example", short_help="Add a seat of a network.")
@click.argument("invitation", metavar="INVITE")
@FOLDER
@click.option("--host", required=True, help="Name or address that others reach.")
@click.option("--port", type=click.IntRange(1, 65534), default=PORT, show_default=True, help="That others reach.")
@click.option("--stake", type=click.IntRange(0), default=1, show_default=True, help="Credits that are bonded.")
@click.option(
    "--key", "file", type=click.Path(path_type=Path), metavar="FILE", help="Account that pays. Default: yours."
)
@JSON
def seat(
    invitation: str, folder: Path | None, host: str, port: int, stake: int, file: Path | None, as_json: bool
) -> None:
    """Make a seat of another operator's network in FOLDER, and ask for its admission.

    Whoever owns more than two thirds of the seats admits it by a motion; until then it
    follows the ledger. `farflung network open FOLDER` runs it.
    """
    root, owner = folder or default_folder(), chosen_account(file)
    network = asyncio.run(join(invitation))
    sys.stderr.write("".join(f"{note}\n" for note in network.notes))
    places = NetworkPlaces(network.card.name, host, listen_at(host), port)
    key = operator_folder.make_seat(root, places, network.genesis, network.seats, network.relays)
    named = NamedNetwork(network.name, network.genesis, network.ledger)
    try:
        asyncio.run(_ask(named, owner, key, stake * CREDIT, f"{host}:{port}"))
    except BaseException:
        shutil.rmtree(root)  # it was new: the same command can be given again
        raise
    facts = {"validator": key.public.hex(), "owner": owner.public.hex(), "stake": stake * CREDIT, "folder": str(root)}
    text = [
        f"Asked    a seat for {key.public.hex()}, with {format_credits(stake * CREDIT)} credits bonded",
        f"Next     farflung network open {root}: it follows the ledger from now on",
        "Next     the owners of more than two thirds of the seats admit it:",
        f"         farflung ledger motion admit {key.public.hex()} --owner seat/validator.key --on {network.name}",
        "         seat/validator.key is in the folder of a founder",
    ]
    say(as_json, facts, text)


async def _ask(network: NamedNetwork, owner: SigningKey, key: SigningKey, stake: int, address: str) -> None:
    signature = key.sign(NS_SEAT, *join_parts(network.genesis.chain, owner.public))
    async with client_on(network, owner) as (client, _):
        await client.submit(ValidatorJoin(key.public, stake, address, signature))
