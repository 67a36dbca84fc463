"""The requester's process: coordinates one job from the run's folder, wherever its log ends.

It may be killed at any moment. Whoever is started next takes the run log over (one coordinator at a time) and goes
on from it. What happens goes up the leash: the supervisor keeps the journal, measures loss, and shows it all.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from farflung.app import preparation
from farflung.app.asking import resolve_again
from farflung.app.engagement import Outcome, Requester
from farflung.app.exchange import Outlook
from farflung.app.fares import Fare
from farflung.app.folder import RunFolder
from farflung.app.hiring import Budget
from farflung.app.housing import RELAY, REQUESTER
from farflung.app.leash import Orders, Report, ReportingEmitter, by_name, report, report_end, run_role
from farflung.app.quarters import places_of
from farflung.app.registry import Follower, credential_in
from farflung.app.ways_to_ledger import any_of, client_in_run, reaches_of, validators_in
from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.core.io.durable import write_atomic
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.job.spec import Terms
from farflung.ledger.block import Genesis
from farflung.net.counters import Counter
from farflung.plan import links
from farflung.train import snapshot
from farflung.train.snapshot import PublicState


def budget_of(config: Report) -> Budget:
    """What the supervisor's plan allows."""
    return Budget(
        unit_price=Credits(int(config["unit_price"])),
        escrow=Credits(int(config["escrow"])),
        memory_bytes=int(config["memory_bytes"]),
        deadline=int(config["deadline"]),
        dataset_bytes=int(config["dataset_bytes"]),
        answer=Seconds(float(config["answer_seconds"])),
    )


def outlook_of(config: Report) -> Outlook:
    """What the supervisor knows of the lines, and which relays may serve the job's group."""
    member, own, relay = (links.parse(config["lines"][name]) for name in ("provider-0", REQUESTER, RELAY))
    found = places_of(config["relays"])
    return Outlook(member, own, relay, found, bool(config["relayed"])) if found else Outlook(member, own)


def fare_of(config: Report) -> Fare:
    """What the supervisor's plan pays relays."""
    price, funds, most = (int(config[name]) for name in ("relay_price", "relay_funds", "relay_most"))
    return Fare(price, funds, places_of(config["relays"]), most)


def tell_closed(_: PublicState, counter: Counter) -> None:
    """After each round: a process that is killed has told of nearly all that it sent."""
    report("bytes", **by_name(counter))


def keep_last(folder: RunFolder, terms: Terms, public: PublicState) -> None:
    """The supervisor measures the final loss from the stored state, however early the run was stopped."""
    path = folder.snapshot(public.round)
    if not path.exists():
        write_atomic(path, snapshot.pack(public, terms.layout), "run.snapshot")


def report_outcome(outcome: Outcome) -> None:
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


async def follow(orders: Orders, requester: Requester) -> None:
    """Passes on what the supervisor says, until it closes the leash."""
    while (order := await orders.next()) is not None:
        match order.get("do"):
            case "stop":
                requester.stop()
            case "lost":
                requester.lost(PeerId(bytes.fromhex(order["peer"])), str(order["reason"]))
            case "back":
                requester.back(PeerId(bytes.fromhex(order["peer"])))


async def main(orders: Orders) -> None:
    """Does the job, tells how it ended, and stays until the supervisor closes the leash."""
    config = await orders.next()
    if config is None:
        return
    key = SigningKey(bytes.fromhex(config["key"]))
    genesis = decode(bytes.fromhex(config["genesis"]), Genesis, limits.TX_BYTES)
    folder = RunFolder(Path(config["root"]))
    await folder.lock_coordinator()
    terms = preparation.read_terms(folder, resolve_again(folder).spec)
    requester = Requester(
        key,
        folder,
        terms,
        ReportingEmitter(),
        tell_closed,
        int(config["port"]),
        host=config["host"],
        allow_remote=config["remote"],
        machine=credential_in(config, key),
        outlook=outlook_of(config),
        fare=fare_of(config),
    )
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
    following = asyncio.create_task(Follower(reach_ledger, endpoint.keyring, endpoint.recheck).stay())
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
