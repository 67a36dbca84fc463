"""Implements `network upgrade`: says who runs which farflung, and brings an operator's seat to the installed one.

Nothing is restarted before the installed program has executed the network's whole chain and come to the same rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from farflung.app.cli.network_client import NamedNetwork, client_on
from farflung.app.cli.network_open import FOLDER, JSON, say
from farflung.app.cli.systemd_unit import installed_unit
from farflung.app.explorer.ledger_export import ChainBuilder
from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import FarflungError, NetworkError, RunError
from farflung.core.ids import PeerId
from farflung.core.release import JOB_FORMAT, LAW, VERSION, format_list
from farflung.ledger.block import Block
from farflung.ledger.io.file_audit import audit
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.net.io.endpoint import Endpoint
from farflung.peers.network import operator_folder
from farflung.peers.network.card import CARD, NetworkCard, read_card, version_order
from farflung.peers.network.operator_folder import OperatorFolder
from farflung.peers.protocol.directory import LIST, DirectoryListing, shown_version, sound, unread_versions
from farflung.peers.validator.config import read_config
from farflung.watch.phrases import many

_SECONDS: Final = 120  # for systemd to end the old processes and start the new ones


@click.command(epilog="Example: farflung network upgrade --require", short_help="Go on with the installed version.")
@FOLDER
@click.option("--require", is_flag=True, help="Let no older farflung join from now on.")
@JSON
def upgrade(folder: Path | None, require: bool, as_json: bool) -> None:
    """Bring the seat in FOLDER to the farflung that is installed now.

    Says which version each seat and node runs and which law holds, executes the
    whole chain with this version first, and restarts the service if there is one.
    """
    found = operator_folder.read(folder or operator_folder.default_folder())
    facts = asyncio.run(_looked_at(found))
    facts["blocks"] = check_chain(found, facts.pop("chain"))
    if require:
        operator_folder.require_version(found.root, VERSION)
    unit = installed_unit(f"farflung-network-{found.name}")
    if unit is not None:
        _restart(unit)
    facts |= {"required": require, "restarted": unit is not None}
    say(as_json, facts, lines(facts))


async def _looked_at(found: OperatorFolder) -> dict[str, Any]:
    """Versions of seats and nodes, and the chain where a seat gives it: blocks as bytes, or why there are none."""
    network, chain, law = NamedNetwork(found.name, found.genesis, found.local), None, 0
    nodes: Counter[str] = Counter()
    left_out = 0
    async with client_on(network) as (client, endpoint):
        seats = await _seats(found, endpoint)
        with contextlib.suppress(NetworkError):
            said = await (await endpoint.dial(found.seat.key, found.local.host, found.local.port)).call(LIST, b"")
            listing = decode(said, DirectoryListing, limits.CONTROL_BYTES)
            online = list(sound(listing, time.time()))
            nodes.update(shown_version(each.version) for each in online)
            left_out = sum(JOB_FORMAT not in each.formats for each in online)
            nodes += Counter(unread_versions(listing))
            law = await client.law()
            chain = await client.blocks()
    return {
        "name": found.name,
        "installed": VERSION,
        "job_format": JOB_FORMAT,
        "seats": seats,
        "nodes": dict(sorted(nodes.items())),
        "left_out": left_out,
        "law": law,
        "known_law": LAW,
        "chain": chain,
    }


async def _seats(found: OperatorFolder, endpoint: Endpoint) -> list[dict[str, Any]]:
    """What each seat that the own one knows runs, by its card."""
    own = await _card(found, endpoint, found.seat.key, (found.local.host, found.local.port))
    others = own.seats if isinstance(own, NetworkCard) else ()
    cards: dict[PeerId, NetworkCard | FarflungError] = {found.seat.key: own}
    for seat in others:
        if seat.key not in cards:
            cards[seat.key] = await _card(found, endpoint, seat.key, (seat.host, seat.port))
    return [
        {"seat": key.hex(), "version": said.newest if isinstance(said, NetworkCard) else "", "why": _why(said)}
        for key, said in cards.items()
    ]


async def _card(
    found: OperatorFolder, endpoint: Endpoint, key: PeerId, place: tuple[str, int]
) -> NetworkCard | FarflungError:
    try:
        async with asyncio.timeout(limits.HANDSHAKE_SECONDS):
            connection = await endpoint.dial(key, *place)
            return read_card(await connection.call(CARD, b""), key, found.genesis.chain)
    except FarflungError as error:
        return error
    except TimeoutError:
        return NetworkError("FF-APP-290", "no answer yet")


def _why(said: NetworkCard | FarflungError) -> str:
    return "" if isinstance(said, NetworkCard) else f"{said.code} {said.message}"


def check_chain(found: OperatorFolder, chain: Sequence[Block] | None) -> int:
    """Executes the chain with this program: `chain`, or where no seat runs, the blocks in the seat's own file.

    The number of blocks. Raises RunError FF-APP-690 where this program comes to other rows than the network.
    """
    if chain is not None:
        return _executed(found, lambda: _grown(found, chain))
    _, setting, _ = read_config(found.root / operator_folder.SEAT)
    store = LedgerStore.open(setting.folder / "chain.db", setting.genesis)
    try:
        return _executed(found, lambda: audit(store, store.load()))
    finally:
        store.close()


def _grown(found: OperatorFolder, chain: Sequence[Block]) -> int:
    growing = ChainBuilder(found.genesis)
    for block in chain:
        growing.add(block)
    return len(chain)


def _executed(found: OperatorFolder, execute: Callable[[], int]) -> int:
    try:
        return execute()
    except FarflungError as error:
        raise RunError(
            "FF-APP-690",
            f"farflung {VERSION} cannot continue the chain of {found.name}",
            cause=str(error)[:300],
            hint="nothing was restarted: install the version that the seat ran before, and report this",
        ) from error


def _restart(unit: tuple[str, bool]) -> None:
    name, is_users = unit
    command = ["systemctl", *(["--user"] if is_users else []), "restart", name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        why = "" if ended.returncode == 0 else ended.stderr.strip()[:200] or f"exit code {ended.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)[:200]
    if why:
        raise RunError("FF-APP-691", f"the service {name} was not restarted", cause=why, hint=" ".join(command))


def lines(facts: Mapping[str, Any]) -> list[str]:
    """The same for a person."""
    told = [f"Program  farflung {facts['installed']}, which takes jobs of format {format_list([facts['job_format']])}"]
    told += [f"Seat     {each['seat'][:8]} {_running(each, facts['installed'])}" for each in facts["seats"]]
    told += [f"Nodes    {many(count, 'node')} with farflung {each}" for each, count in facts["nodes"].items()]
    if facts["left_out"]:
        told.append(f"         {many(facts['left_out'], 'node')} of them take no job of this format until upgraded")
    told.append(f"Chain    {many(facts['blocks'], 'block')} executed again: this program comes to the same rows")
    told += law_lines(facts["law"], facts["known_law"])
    if facts["required"]:
        told.append(f"Card     no farflung before {facts['installed']} joins once the seat has restarted")
    if facts["restarted"]:
        return [*told, "Service  restarted: its card names this version from now on"]
    return [*told, "Next     end farflung network open (Ctrl-C) and start it again: then its card names this version"]


def law_lines(held: int, known: int) -> list[str]:
    """Which law holds, and how a newer one begins; `held` 0: no seat says."""
    if not held or held >= known:
        return [f"Law      {held} holds, and this program knows {known}"] if held else []
    told = f"Law      {held} holds, and this program knows {known}: when all seats and most nodes run it,"
    return [told, f"         farflung ledger motion law {held + 1} moves that the next one begins"]


def _running(seat: Mapping[str, Any], installed: str) -> str:
    if seat["why"]:
        return f"does not say its version: {seat['why']}"
    behind = version_order(seat["version"]) < version_order(installed)
    return f"runs farflung {seat['version']}" + (": its operator upgrades it" if behind else "")
