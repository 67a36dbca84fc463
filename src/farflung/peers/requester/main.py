"""Runs the requester's process: coordinates one job from the run's folder, wherever its log ends.

It may be killed at any moment. Whoever is started next takes the run log over (one coordinator at a time) and goes
on from it. What happens goes up the leash: the supervisor keeps the journal, measures loss, and shows it all.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.job.spec import JobTerms
from farflung.ledger.block import Genesis
from farflung.net.counters import ByteCounter
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.connect import any_of, client_in_run, places_of, reaches_of, validators_in
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower, credential_in
from farflung.peers.process.channel import (
    RELAY,
    REQUESTER,
    ControlChannel,
    Report,
    ReportingEmitter,
    by_name,
    report,
    report_end,
    run_role,
)
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.lease_negotiation import LeaseBudget
from farflung.peers.requester.payload_exchange import NetworkAssumptions
from farflung.peers.requester.relay_fees import RelayFee
from farflung.peers.requester.requester import JobOutcome, Requester
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import read_terms
from farflung.peers.rundir.runs import resolve_again
from farflung.plan import link_syntax
from farflung.train import public_state
from farflung.train.public_state import PublicState


def budget_of(config: Report) -> LeaseBudget:
    """What the supervisor's plan allows."""
    return LeaseBudget(
        unit_price=Credits(int(config["unit_price"])),
        escrow=Credits(int(config["escrow"])),
        memory_bytes=int(config["memory_bytes"]),
        deadline=int(config["deadline"]),
        dataset_bytes=int(config["dataset_bytes"]),
        answer=Seconds(float(config["answer_seconds"])),
    )


def assumptions_of(config: Report) -> NetworkAssumptions:
    """What the supervisor knows of the lines, and which relays may serve the job's group."""
    member, own, relay = (
        link_syntax.parse(config["lines"][name]) for name in ("provider-0", REQUESTER, RELAY)
    )
    found = places_of(config["relays"])
    return (
        NetworkAssumptions(member, own, relay, found, bool(config["relayed"]))
        if found
        else NetworkAssumptions(member, own)
    )


def fee_of(config: Report) -> RelayFee:
    """What the supervisor's plan pays relays."""
    price, funds, most = (int(config[name]) for name in ("relay_price", "relay_funds", "relay_most"))
    return RelayFee(price, funds, places_of(config["relays"]), most)


def tell_closed(_: PublicState, counter: ByteCounter) -> None:
    """After each round: a process that is killed has told of nearly all that it sent."""
    report("bytes", **by_name(counter))


def keep_last(folder: RunFolder, terms: JobTerms, public: PublicState) -> None:
    """The supervisor measures the final loss from the stored state, however early the run was stopped."""
    path = folder.snapshot(public.round)
    if not path.exists():
        write_atomic(path, public_state.pack(public, terms.layout), "run.snapshot")


def report_outcome(outcome: JobOutcome) -> None:
    """How the job ended, for the result."""
    finished = outcome.finished
    report(
        "outcome",
        rounds=finished.rounds,
        root=finished.root.hex(),
        reason=finished.reason,
        escrow=outcome.escrow,
        paid=outcome.paid,
        refunded=outcome.refunded,
        output=outcome.output.hex(),
    )


async def follow(orders: ControlChannel, requester: Requester) -> None:
    """Passes on what the supervisor says, until it closes the leash."""
    while (order := await orders.next()) is not None:
        match order.get("do"):
            case "stop":
                requester.stop()
            case "lost":
                requester.lost(PeerId(bytes.fromhex(order["peer"])), str(order["reason"]))
            case "back":
                requester.back(PeerId(bytes.fromhex(order["peer"])))


async def main(orders: ControlChannel) -> None:
    """Does the job, tells how it ended, and stays until the supervisor closes the leash."""
    config = await orders.next()
    if config is None:
        return
    key = SigningKey(bytes.fromhex(config["key"]))
    genesis = decode(bytes.fromhex(config["genesis"]), Genesis, limits.TX_BYTES)
    folder = RunFolder(Path(config["root"]))
    await folder.lock_coordinator()
    terms = read_terms(folder, resolve_again(folder).spec)
    job = JobContext.open(key, genesis.chain, terms, folder, ReportingEmitter())
    listen = ListenConfig(config["host"], int(config["port"]), config["remote"])
    machine = credential_in(config, key)
    requester = Requester(job, listen, machine, assumptions_of(config), fee_of(config), tell_closed)
    reaches = reaches_of(validators_in(config["ledger"]), requester.endpoint)
    reach_ledger = any_of(reaches)

    async def work() -> None:
        ledger = client_in_run(reaches, key, genesis, ReportingEmitter().emit)
        await ledger.head()  # it may be on its way back, too
        outcome = await requester.run(ledger, await reach_ledger(), budget_of(config))
        keep_last(folder, terms, outcome.public)
        report_outcome(outcome)

    await requester.open()
    endpoint = requester.endpoint
    following = asyncio.create_task(
        KeyRegistryFollower(reach_ledger, endpoint.admission.keyring, endpoint.recheck).stay()
    )
    try:
        host, port = requester.endpoint.address
        report("ready", peer=key.public.hex(), host=host, port=port, pid=os.getpid())
        await _until_let_go(asyncio.create_task(work()), asyncio.create_task(follow(orders, requester)))
    finally:
        following.cancel()
        await requester.close()
        report_end(str(config["name"]), requester.counter)


async def _until_let_go(work: asyncio.Task[None], leash: asyncio.Task[None]) -> None:
    """Until the leash is closed; raises what the work failed with."""
    try:
        await asyncio.wait({work, leash}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        await leash
    finally:
        work.cancel()
        leash.cancel()
        await asyncio.gather(work, leash, return_exceptions=True)


if __name__ == "__main__":
    run_role(main)
