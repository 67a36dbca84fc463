"""Implements `ledger status`, `join` and `leave`: shows a ledger's committee, and joins or leaves it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from farflung.app.cli.ledger_init import say
from farflung.app.cli.network_client import client_on, network_on
from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import NS_SEAT, SigningKey
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.money import CREDIT
from farflung.ledger.validators import ValidatorJoin, ValidatorLeave, join_parts
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import serve_nothing
from farflung.peers.ledger_client.connect import validators_in
from farflung.peers.network.account import chosen_account
from farflung.peers.validator.config import ValidatorConfigFile, read_config
from farflung.peers.validator.requests import STANDING, ValidatorStatus
from farflung.peers.validator.service import ValidatorConfig

CONFIG = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
OWNER = click.option(
    "--owner",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Account that pays and signs. Default: this computer's.",
)

Places = Mapping[PeerId, tuple[str, int]]


@contextlib.asynccontextmanager
async def _asking() -> AsyncIterator[Endpoint]:
    """Questions go out under a key of this moment: the validator's own may be in use by its process."""
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, ByteCounter())
    try:
        yield endpoint
    finally:
        await endpoint.close()


def _everybody(written: ValidatorConfigFile, setting: ValidatorConfig, places: Places) -> dict[PeerId, tuple[str, int]]:
    return {setting.key.public: (written.host, written.port), **places}


async def _validator_status(
    endpoint: Endpoint, peer: PeerId, place: tuple[str, int]
) -> ValidatorStatus | FarflungError:
    try:
        connection = await endpoint.dial(peer, *place)
        return decode(await connection.call(STANDING, b"", timeout=5.0), ValidatorStatus, limits.CONTROL_BYTES)
    except FarflungError as error:
        return error


async def _validator_statuses(places: Places) -> dict[PeerId, ValidatorStatus | FarflungError]:
    async with _asking() as endpoint:
        said = await asyncio.gather(*(_validator_status(endpoint, peer, place) for peer, place in places.items()))
    return dict(zip(places, said, strict=True))


@click.command(epilog="Example: farflung ledger status my-ledger/validator-1/validator.toml")
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--on", metavar="NETWORK", help="Instead of CONFIG: a network's name, or an invitation.")
@JSON
def status(config: Path | None, on: str | None, as_json: bool) -> None:
    """Show how far each validator of a ledger is, and who does not answer.

    CONFIG: of one of its validators. Each line is that validator's own word.
    """
    if (config is None) == (on is None):
        raise click.UsageError("name CONFIG, a validator's file, or a network with --on")
    if on is not None:
        places: Places = {peer: (host, port) for peer, host, port in validators_in(network_on(on).ledger)}
    elif config is not None:
        places = _everybody(*read_config(config))
    found = asyncio.run(_validator_statuses(places))
    heard = {peer: said for peer, said in found.items() if isinstance(said, ValidatorStatus)}
    if not heard:
        raise NetworkError(
            "FF-APP-302",
            "no validator of this ledger answers",
            cause="; ".join(sorted({str(error)[:120] for error in found.values()})),
            hint=_way_out(found.values()),
        )
    top = max(said.height for said in heard.values())
    seats = [_facts(peer, found[peer], top) for peer in places]
    say(as_json, {"height": top, "validators": seats}, seat_lines(seats))


async def validator_statuses(places: Places) -> list[dict[str, Any]]:
    """How far each of these validators is, by its own word."""
    found = await _validator_statuses(places)
    top = max((said.height for said in found.values() if isinstance(said, ValidatorStatus)), default=0)
    return [_facts(peer, found[peer], top) for peer in places]


def seat_lines(seats: Iterable[dict[str, Any]]) -> list[str]:
    """The same for a person, a line each."""
    return [_line(each) for each in seats]


def _way_out(said: Iterable[ValidatorStatus | FarflungError]) -> str:
    """What to do where no validator answers as itself."""
    if any(isinstance(error, FarflungError) and error.code != "FF-NET-043" for error in said):
        return "something else answers there: see that CONFIG names this ledger's keys and ports"
    return "farflung ledger validator CONFIG starts one"


def _facts(peer: PeerId, said: ValidatorStatus | FarflungError, top: int) -> dict[str, Any]:
    if not isinstance(said, ValidatorStatus):
        return {"validator": peer.hex(), "answers": False, "why": f"{said.code} {said.message}"}
    return {
        "validator": peer.hex(),
        "answers": True,
        "height": said.height,
        "behind": top - said.height,
        "epoch": said.epoch,
        "view": said.view,
        "waiting": said.waiting,
        "finality_ms": said.finality_ms,
        "met": [each.hex() for each in said.met],
    }


def _line(facts: dict[str, Any]) -> str:
    name = facts["validator"][:8]
    if not facts["answers"]:
        return f"{name}  does not answer: {facts['why']}"
    behind = f", {facts['behind']} behind" if facts["behind"] else ""
    final = f"; final in {facts['finality_ms']} ms" if facts["finality_ms"] else ""
    return (
        f"{name}  block {facts['height']}{behind}; epoch {facts['epoch']}, view {facts['view']};"
        f" {facts['waiting']} waiting; connected to {len(facts['met'])}{final}"
    )


def _submit(config: Path, owner: SigningKey, is_joining: bool, stake: int, address: str) -> ValidatorConfig:
    written, setting, _ = read_config(config)
    key = setting.key
    network = network_on(str(config.absolute()))

    if is_joining:
        signature = key.sign(NS_SEAT, *join_parts(setting.genesis.chain, owner.public))
        said = address or f"{written.host}:{written.port}"
        op: ValidatorJoin | ValidatorLeave = ValidatorJoin(key.public, stake, said, signature)
    else:
        op = ValidatorLeave(key.public)

    async def work() -> None:
        async with client_on(network, owner) as (client, _):
            await client.submit(op)

    asyncio.run(work())
    return setting


@click.command(epilog="Example: farflung ledger join validator.toml --owner me.key --stake 100")
@CONFIG
@OWNER
@click.option("--stake", type=click.IntRange(0), required=True, help="Credits that are bonded.")
@click.option("--address", default="", metavar="HOST:PORT", help="Where others reach it. Default: CONFIG's.")
@JSON
def join(config: Path, owner: Path | None, stake: int, address: str, as_json: bool) -> None:
    """Ask for a seat in a ledger's committee, and bond a stake for it.

    CONFIG: of the validator, with the ledger's others under [validators].
    """
    account = chosen_account(owner)
    setting = _submit(config, account, True, stake * CREDIT, address)
    key = setting.key.public.hex()
    text = [
        f"Asked    a seat for {key}, with {stake} credits bonded",
        f"Next     farflung ledger validator {config}: it follows the ledger from now on",
        "Next     the owner of a seat moves that it is admitted, and owners of more than two thirds vote:",
        f"         farflung ledger motion admit {key} --on NETWORK",
        "         its seat begins at the next boundary of an epoch",
    ]
    say(as_json, {"validator": key, "owner": account.public.hex(), "stake": stake * CREDIT}, text)


@click.command(epilog="Example: farflung ledger leave validator.toml --owner me.key")
@CONFIG
@OWNER
@JSON
def leave(config: Path, owner: Path | None, as_json: bool) -> None:
    """Give a validator's seat back. Its stake stays bonded for a while.

    CONFIG: of the validator.
    """
    account = chosen_account(owner)
    setting = _submit(config, account, False, 0, "")
    days = setting.genesis.params.unbonding_ms // 86_400_000
    key = setting.key.public.hex()
    text = [
        f"Left     {key} has no seat from the next boundary of an epoch on: keep it running until then",
        f"Next     its stake is free {days} days after that",
    ]
    say(as_json, {"validator": key, "owner": account.public.hex()}, text)
