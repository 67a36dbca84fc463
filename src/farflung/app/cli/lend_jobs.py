"""Implements `lend jobs`: the jobs that look for nodes, what each would pay here, and why it cannot be taken."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from farflung.app.cli.network_client import NamedNetwork, client_on, network_on
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import short
from farflung.core.money import MICRO, format_credits, rounded_credits
from farflung.core.units import Seconds, format_seconds
from farflung.host.io import machine_probe
from farflung.ledger.transactions import LeaseRole
from farflung.peers.ledger_client.connect import reaches_of, validators_in
from farflung.peers.node import home as homes
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.control import ask
from farflung.peers.node.job_fit import NodeTerms, obstacle, pay
from farflung.peers.process.config import read_role_config
from farflung.peers.protocol.job_notices import JobNotice, PostedNotice, read_notices
from farflung.watch.phrases import many

_GB = 10**9


def show_jobs(name: str, *, audit: bool, as_json: bool, slot: int = 1) -> None:
    """Lists them. Raises what `network_on` raises, NetworkError FF-APP-623 where no seat answers."""
    network = network_on(name or None)
    lender = _lender(network.name, slot, audit=audit)
    found = [_facts(each, lender) for each in asyncio.run(_posted(network))]
    if as_json:
        sys.stdout.write(msgspec.json.encode({"network": network.name, "jobs": found}).decode() + "\n")
        return
    lines = [line for facts in found for line in _lines(facts)]
    if not lines:
        lines = [f"no job on {network.name} looks for nodes now; a node that lends is found without this list"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


async def _posted(network: NamedNetwork) -> list[PostedNotice]:
    """What all seats that answer list, once an account."""
    found, why = dict[bytes, PostedNotice](), None
    async with client_on(network) as (_, endpoint):
        reached = 0
        for reach in reaches_of(validators_in(network.ledger), endpoint):
            try:
                found |= {each.requester: each for each in await read_notices(await reach())}
                reached += 1
            except FarflungError as error:
                why = error
    if not reached:
        raise NetworkError("FF-APP-623", f"no seat of {network.name} lists jobs", cause=str(why)[:300])
    return [found[key] for key in sorted(found)]


def _lender(network: str, slot: int, *, audit: bool) -> NodeTerms:
    """This computer, as its node here is configured, or as it would be by default."""
    home = homes.home_of(network, homes.ROLES[audit], slot)
    role = LeaseRole.AUDIT if audit else LeaseRole.TRAIN
    memory, free = machine_probe.memory_bytes(), machine_probe.disk_bytes(home if home.is_dir() else Path.home())
    flags = ("--audit " if audit else "") + (f"--slot {slot} " if slot > 1 else "")
    busy = f"no node runs: farflung lend {flags}{network}"
    with contextlib.suppress(FarflungError):
        said = ask(home / homes.SOCKET, {"do": "status"})
        state = str(said.get("state"))
        busy = "" if state == "waiting" else f"this node is {state}" + (f" on {said['job'][:8]}" if said["job"] else "")
    if not (home / homes.CONFIG).is_file():
        flops = int(machine_probe.sgemm_flops()) * machine_probe.cores()
        return NodeTerms(role, flops, memory, free, 2 * _GB, MICRO, allow_modules=False, busy=busy)
    config = read_role_config(home / homes.CONFIG, NodeConfig)
    given = min(memory, config.memory_bytes or memory)
    flops = (config.flops or int(machine_probe.sgemm_flops())) * config.threads
    asked = config.unit_price, config.allow_modules, busy, config.drawn_only, config.prices
    return NodeTerms(role, flops, given, free, config.disk_floor, *asked)


def _facts(each: PostedNotice, lender: NodeTerms) -> dict[str, Any]:
    job, paid = each.notice, pay(each.notice, lender)
    facts = {"requester": each.requester.hex(), **{name: getattr(job, name) for name in job.__struct_fields__}}
    facts |= {"class": _class_of(job), "ask": lender.ask(job), "obstacle": obstacle(job, lender)}
    if paid is not None:
        facts |= {"hour_least": paid.least, "hour_most": paid.most, "hours": round(paid.hours, 3)}
    return facts


def _class_of(job: JobNotice) -> str:
    """What a node's asks tell apart."""
    return "foreign Python" if job.is_module else "outcome only" if job.is_outcome else "proven"


def _lines(facts: dict[str, Any]) -> list[str]:
    """A job in lines of 79 columns at most."""
    if "hours" in facts:
        least, most = rounded_credits(facts["hour_least"]), rounded_credits(facts["hour_most"])
        span = most if least == most else f"{least} to {most}"
        rate = f"{span} credits an hour here, for {format_seconds(Seconds(3600 * facts['hours']))}"
    else:
        rate = f"up to {format_credits(facts['unit_price_max'])} credits a token"
    head = f"{short(bytes.fromhex(facts['requester']))}  {rate}"
    wanted = f"          wants {many(facts['providers'], 'provider')}, {many(facts['verifiers'], 'verifier')}"
    asks = f"{facts['class']}: you ask {format_credits(facts['ask'])} a token"
    wanted += f" (named by the requester: no stake)\n          {asks}" if facts["is_named"] else f"; {asks}"
    return [head, wanted, f"          {'cannot take it: ' + facts['obstacle'] if facts['obstacle'] else 'can take it'}"]
