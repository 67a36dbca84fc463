"""Implements `network status` and `network nodes`: shows a network as its seats, directory and ledger say it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import click

from farflung.app.cli.ledger_seats import seat_lines, validator_statuses
from farflung.app.cli.network_client import ON, NamedNetwork, client_on, network_of
from farflung.app.cli.network_open import FOLDER, JSON, WORTH, say
from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import ZERO_HASH, Hash, PeerId, short
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_seconds, format_share
from farflung.ledger.table_rows import JobRow, JobState, LeaseRow, NodeRow
from farflung.ledger.transactions import LeaseRole
from farflung.net.endpoint_records import DIRECT
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import any_of, reaches_of, validators_in
from farflung.peers.network.card import CARD, NetworkCard, read_card
from farflung.peers.protocol.directory import LIST, Advertisement, DirectoryListing, sound
from farflung.peers.protocol.online_share import ONLINE, OnlineListing
from farflung.watch.phrases import many

_ROLES = {LeaseRole.TRAIN: "trains", LeaseRole.AUDIT: "audits"}


@click.command(epilog="Example: farflung network status", short_help="Show how a network is.")
@FOLDER
@ON
@JSON
def status(folder: Path | None, on: str | None, as_json: bool) -> None:
    """Show a network's seats, relays, nodes and faucet: of FOLDER, or of the one --on names."""
    network = network_of(folder, on)
    facts = asyncio.run(_status(network))
    lines = [f"Network  {network.name}, chain {network.genesis.chain.hex()[:12]}"]
    lines += [f"Seat     {line}" for line in seat_lines(facts["seats"])]
    lines += [
        f"Relay    {each['key'][:8]} at {each['host']}:{each['port']}: {each['why'] or 'answers'}"
        for each in facts["relays"]
    ]
    if facts["newest"]:
        lines += [f"Version  farflung {facts['newest']}; {facts['least']} or newer takes part"]
    lines += [f"Nodes    {facts['nodes']} registered, {facts['online']} online"]
    if (given := facts["faucet"]) is not None:
        lines += [
            f"Faucet   {format_credits(given['grant'])} credits to a new account, "
            f"{format_credits(given['day'])} a day in all"
        ]
    lines += [f"Message  {facts['message']}"] if facts["message"] else []
    say(as_json, facts, [*lines, f"Note     {WORTH}"])


async def _status(network: NamedNetwork) -> dict[str, Any]:
    seats = await validator_statuses({peer: (host, port) for peer, host, port in validators_in(network.ledger)})
    if not any(seat["answers"] for seat in seats):
        raise NetworkError(
            "FF-APP-547",
            f"no seat of {network.name} answers",
            cause="; ".join(sorted({seat["why"] for seat in seats})),
            hint="farflung network open FOLDER starts your own again; else ask its operator",
        )
    async with client_on(network) as (client, endpoint):
        nodes, listed = await client.nodes(), await _listed(network, endpoint)
        card = await _card(network, endpoint)
        relays = (
            [] if card is None else await asyncio.gather(*(_relay(endpoint, card, i) for i in range(len(card.relays))))
        )
    online = {each.endpoint.peer for each in listed}
    return {
        "name": network.name,
        "chain": network.genesis.chain.hex(),
        "seats": seats,
        "relays": list(relays),
        "nodes": len(nodes),
        "online": sum(node.node in online for node in nodes),
        "faucet": None
        if card is None or not card.faucet.grant
        else {name: getattr(card.faucet, name) for name in card.faucet.__struct_fields__},
        "least": card.least if card is not None else "",
        "newest": card.newest if card is not None else "",
        "message": card.message if card is not None else "",
    }


async def _card(network: NamedNetwork, endpoint: Endpoint) -> NetworkCard | None:
    """The card of the first seat that gives one."""
    for peer, host, port in validators_in(network.ledger):
        with contextlib.suppress(FarflungError):
            connection = await endpoint.dial(peer, host, port)
            return read_card(await connection.call(CARD, b""), peer, network.genesis.chain)
    return None


async def _relay(endpoint: Endpoint, card: NetworkCard, number: int) -> dict[str, Any]:
    relay, why = card.relays[number], ""
    try:
        async with asyncio.timeout(limits.HANDSHAKE_SECONDS):
            await endpoint.dial(relay.key, relay.host, relay.port)
    except (FarflungError, TimeoutError) as error:
        why = f"{error.code} {error.message}" if isinstance(error, FarflungError) else "no answer"
    return {"key": relay.key.hex(), "host": relay.host, "port": relay.port, "price": relay.price, "why": why}


async def _listed(network: NamedNetwork, endpoint: Endpoint) -> list[Advertisement]:
    """What the directory lists now."""
    reach = any_of(reaches_of(validators_in(network.ledger), endpoint))
    said = await (await reach()).call(LIST, b"")
    return list(sound(decode(said, DirectoryListing, limits.CONTROL_BYTES), time.time()))


@click.command(epilog="Example: farflung network nodes --on commons", short_help="List a network's nodes.")
@FOLDER
@ON
@JSON
def nodes(folder: Path | None, on: str | None, as_json: bool) -> None:
    """List the nodes that may be hired: what the ledger and the directory say of each.

    Memory and speed are each node's own word, of its last start; price, stake
    and rounds are the ledger's. Which share of the last seven days each was online,
    or since it joined, is a seat's word, in slots of ten minutes.
    """
    network = network_of(folder, on)
    found = asyncio.run(_nodes(network))
    lines = [line for each in found for line in (_line(each), *_record_lines(each))] or [
        "no node is registered: farflung lend INVITE registers one"
    ]
    say(as_json, {"name": network.name, "nodes": found}, lines)


async def _nodes(network: NamedNetwork) -> list[dict[str, Any]]:
    async with client_on(network) as (client, endpoint):
        listed = {each.endpoint.peer: each for each in await _listed(network, endpoint)}
        online = await _online(network, endpoint)
        return [
            await _facts(client, row, listed.get(row.node)) | online.get(row.node, {}) for row in await client.nodes()
        ]


async def _online(network: NamedNetwork, endpoint: Endpoint) -> dict[PeerId, dict[str, int]]:
    """How much each node was online, by the seat that remembers most; a seat of an older version remembers nothing."""
    found: dict[PeerId, dict[str, int]] = {}
    for reach in reaches_of(validators_in(network.ledger), endpoint):
        with contextlib.suppress(FarflungError):
            said = await (await reach()).call(ONLINE, b"")
            for each in decode(said, OnlineListing, limits.CONTROL_BYTES).shares:
                if each.counted > found.get(each.node, {}).get("slots_counted", 0):
                    facts = {"slots_online": each.online, "slots_counted": each.counted, "slots_seconds": each.seconds}
                    found[each.node] = facts
    return found


async def _facts(client: LedgerClient, row: NodeRow, said: Advertisement | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "node": row.node.hex(),
        "unit_price": row.unit_price,
        "stake": row.free + row.locked,
        "leases": row.leases,
        "expires": row.expires,
        "online": said is not None,
    }
    if said is not None:
        able = said.capabilities
        facts |= {
            "version": said.version,
            "job_formats": said.formats,
            "role": _ROLES[said.role],
            "owner": said.owner.account.hex() if said.owner is not None else "",
            "seconds": max(0, int(time.time()) - said.endpoint.issued),
            "told": said.endpoint.issued,
            "relayed": all(place.relay != DIRECT for place in said.endpoint.places),
            "places": [f"{place.host}:{place.port}" for place in said.endpoint.places],
            "cores": able.cores,
            "memory_bytes": able.memory_bytes,
            "flops": able.flops,
            "system": f"{able.system} {able.machine}",
            "torch": able.torch,
            **await _record(client, row.node),
        }
    return facts


async def _record(client: LedgerClient, node: PeerId) -> dict[str, int]:
    """What the ledger holds of a node's work: its jobs, rounds that counted and rounds without it, convictions."""
    leases, jobs = await client.node_leases(node), dict[Hash, JobRow | None]()
    for job in {lease.job for lease in leases}:
        jobs[job] = await client.job(job)
    rounds = [rounds_of(lease, row) for lease in leases if (row := jobs[lease.job]) is not None]
    accepted, missed = (sum(each[i] for each in rounds) for i in range(2))
    convicted = sum(lease.evidence != ZERO_HASH for lease in leases)
    return {"jobs": len(leases), "accepted": accepted, "missed": missed, "convicted": convicted}


def rounds_of(lease: LeaseRow, job: JobRow) -> tuple[int, int]:
    """Rounds of a job that were recorded with a node's work, and without it. A provider's lease bounds its units by
    what all rounds hold; a verifier's is of what is drawn, and a lease that ended early says nothing of later rounds.
    """
    share = lease.units_max // job.rounds if lease.role is LeaseRole.TRAIN else 0
    if not share:
        return 0, 0
    accepted = min(lease.units // share, job.round)
    is_whole = lease.is_open or job.state is JobState.SETTLED
    return accepted, job.round - accepted if is_whole and lease.evidence == ZERO_HASH else 0


def _record_lines(facts: dict[str, Any]) -> list[str]:
    """Where an online node is, what it is, how its rounds went; and of any node how much it was online."""
    lines = [f"          {line}" for line in _online_lines(facts)]
    if not facts["online"]:
        return lines
    where = f"relay {facts['places'][0]}" if facts["relayed"] else facts["places"][0]
    worked = many(facts["jobs"], "job")
    if facts["role"] == _ROLES[LeaseRole.TRAIN]:
        worked += f", {many(facts['accepted'], 'round')} accepted, {facts['missed']} missed"
    able = f"{format_bytes(facts['memory_bytes'])}, {facts['flops'] / 1e9:.0f} GFLOPS"
    made = f"{facts['system']}, torch {facts['torch']}, farflung {facts['version']}"
    said = [f"{able}; {made}", f"{where}; {worked}"]
    if facts["owner"]:
        said.append(f"owner {facts['owner'][:8]}")
    if facts["convicted"]:
        said.append(f"convicted {many(facts['convicted'], 'time')}")
    return [*(f"          {line}" for line in said), *lines]


def _online_lines(facts: dict[str, Any]) -> list[str]:
    """Which share of the time a node was online, and of how long that is said."""
    if not (counted := facts.get("slots_counted", 0)):
        return []
    share = format_share(facts["slots_online"] / counted)
    return [f"online {share} of the last {format_seconds(facts['slots_seconds'])}"]


def _line(facts: dict[str, Any]) -> str:
    """A node's terms; of usual ones in at most 80 columns."""
    name = short(PeerId(bytes.fromhex(facts["node"])))
    price, stake = format_credits(facts["unit_price"]), format_credits(facts["stake"])
    held = f"{price}/token, {stake} at stake, {many(facts['leases'], 'lease')}"
    if not facts["online"]:
        return f"{name}  offline  {held}"
    return f"{name}  {facts['role']}  {held}; seen {format_seconds(facts['seconds'])} ago"
