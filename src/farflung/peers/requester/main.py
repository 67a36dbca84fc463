"""Runs the requester's process: coordinates one job from the run's folder, wherever its log ends.

It may be killed at any moment. Whoever is started next takes the run log over (one coordinator at a time) and goes
on from it. What happens goes up the channel: a supervisor keeps the journal, measures loss, and shows it all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.job.spec import JobTerms
from farflung.net.certificates import Credential
from farflung.net.counters import ByteCounter
from farflung.net.io.listen_errors import LOOPBACK
from farflung.net.io.tcp_listener import ListenConfig
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import any_of, client_in_run, places_of, reaches_of, validators_in
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower
from farflung.peers.ledger_client.quorum_read import Reach
from farflung.peers.process.channel import (
    REQUESTER,
    Channel,
    ChannelEmitter,
    by_name,
    report_end,
    run_role,
    until_let_go,
)
from farflung.peers.process.config import (
    Count,
    GenesisFile,
    HexId,
    KeyFile,
    LedgerConfig,
    ListenerConfig,
    Money,
    Port,
    RoleConfig,
)
from farflung.peers.requester.conclusion import JobConclusion
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
from farflung.train.blobs import parts_of
from farflung.train.public_state import PublicState


class LineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lines that the plan counts on, as `plan.link_syntax` reads them."""

    member: str
    requester: str
    relay: str


class RequesterConfig(RoleConfig, frozen=True):
    """What a requester is told: its keys and its run, where ledger and relays are, and what it may spend.

    `relayed`: all providers stay at relays. `attaches`: so does the requester, whom nobody can dial. `deadline`: of
    the job, in the ledger's time. `answer_seconds`: that a provider has to answer in. `parties`: the other accounts of
    a network that this job has to itself, by name. Sums are pico-credits.
    """

    FILES: ClassVar[Mapping[str, str]] = {"key": "account.key", "genesis": "genesis.bin"}

    key: SigningKey
    genesis: GenesisFile
    root: Path
    ledger: LedgerConfig
    lines: LineConfig
    unit_price: Money
    escrow: Money
    memory_bytes: Count
    dataset_bytes: Count
    deadline: Count
    answer_seconds: float
    parties: dict[str, HexId] = msgspec.field(default_factory=dict)
    node: KeyFile | None = None
    name: str = REQUESTER
    host: str = LOOPBACK
    port: Port = 0
    relays: tuple[ListenerConfig, ...] = ()
    relayed: bool = False
    attaches: bool = False
    relay_price: Money = 0
    relay_funds: Money = 0
    relay_most: Money = 0

    @property
    def budget(self) -> LeaseBudget:
        """What it may spend, and what it asks of providers."""
        return LeaseBudget(
            unit_price=Credits(self.unit_price),
            escrow=Credits(self.escrow),
            memory_bytes=self.memory_bytes,
            deadline=self.deadline,
            dataset_bytes=self.dataset_bytes,
            answer=Seconds(self.answer_seconds),
        )

    @property
    def assumptions(self) -> NetworkAssumptions:
        """What is known of the lines, and which relays may serve the job's group."""
        member, own = link_syntax.parse(self.lines.member), link_syntax.parse(self.lines.requester)
        if not self.relays:
            return NetworkAssumptions(member, own)
        relay = link_syntax.parse(self.lines.relay)
        return NetworkAssumptions(member, own, relay, places_of(self.relays), self.relayed)

    @property
    def fee(self) -> RelayFee:
        """What the plan pays relays."""
        return RelayFee(self.relay_price, self.relay_funds, places_of(self.relays), self.relay_most)

    @property
    def others(self) -> dict[str, PeerId]:
        """The other parties' accounts by name."""
        return {name: PeerId(bytes(key)) for name, key in self.parties.items()}

    @property
    def credential(self) -> Credential:
        """What the machine proves."""
        return Credential(self.key) if self.node is None else self.node.credential


def keep_last(folder: RunFolder, terms: JobTerms, public: PublicState) -> None:
    """The supervisor measures the final loss from the stored state, however early the run was stopped."""
    path = folder.snapshot(public.round)
    if not path.exists():
        write_atomic(path, iter(parts_of(public_state.pieces(public, terms.layout))), "run.snapshot")


def report_outcome(channel: Channel, outcome: JobOutcome) -> None:
    """How the job ended, for the result."""
    finished = outcome.finished
    channel.report(
        "outcome",
        rounds=finished.rounds,
        root=finished.root.hex(),
        reason=finished.reason,
        escrow=outcome.escrow,
        paid=outcome.paid,
        refunded=outcome.refunded,
        burnt=outcome.burnt,
        output=outcome.output.hex(),
    )


async def follow(channel: Channel, requester: Requester, concluding: asyncio.Event) -> None:
    """Passes on what the supervisor says, until the channel ends. `concluding`: it said that all nodes have left."""
    while (order := await channel.next()) is not None:
        match order.get("do"):
            case "stop":
                requester.stop(str(order["reason"]))
            case "lost":
                requester.lost(PeerId(bytes.fromhex(order["peer"])), str(order["reason"]))
            case "back":
                requester.back(PeerId(bytes.fromhex(order["peer"])))
            case "conclude":
                concluding.set()


async def main(config: RequesterConfig, channel: Channel) -> None:
    """Does the job and tells how it ended; when told, ends it on the ledger; stays until the channel ends."""
    key, folder, emitter = config.key, RunFolder(config.root), ChannelEmitter(channel)

    def tell_closed(_: PublicState, counter: ByteCounter) -> None:
        channel.report("bytes", **by_name(counter))  # a killed process has told of nearly all that it sent

    await folder.lock_coordinator()
    terms = read_terms(folder, resolve_again(folder).spec)
    job = JobContext.open(key, config.genesis.genesis.chain, terms, folder, emitter)
    listen = ListenConfig(config.host, config.port, allow_remote=config.host != LOOPBACK)
    requester = Requester(job, listen, config.credential, config.assumptions, config.fee, tell_closed)
    reaches = reaches_of(validators_in(config.ledger), requester.endpoint)
    reach_ledger, concluding = any_of(reaches), asyncio.Event()

    def client_of(reaches: Sequence[Reach]) -> LedgerClient:
        return client_in_run(reaches, key, config.genesis.genesis, emitter.emit)

    async def work() -> None:
        ledger = client_of(reaches)
        await ledger.head()  # it may be on its way back, too
        outcome = await requester.run(ledger, reach_ledger, config.budget)
        keep_last(folder, terms, outcome.public)
        report_outcome(channel, outcome)
        await concluding.wait()
        end = JobConclusion(job, config.genesis.genesis, client_of(reaches), places_of(config.relays), config.others)
        if config.relay_price:
            await end.pay_relays(requester.endpoint)
        found = await end.conclude()
        if len(reaches) > 1 and config.parties:
            await end.compare_validators(reaches, client_of)
        tell_closed(outcome.public, requester.counter)
        channel.report("concluded", ledger_root=found.ledger_root, sum=found.sum)

    await requester.open(places_of(config.relays) if config.attaches else ())
    endpoint = requester.endpoint
    following = asyncio.create_task(
        KeyRegistryFollower(reach_ledger, endpoint.admission.keyring, endpoint.recheck).stay()
    )
    try:
        host, port = requester.endpoint.address
        channel.report("ready", peer=key.public.hex(), host=host, port=port, pid=os.getpid())
        await until_let_go(work(), follow(channel, requester, concluding))
    finally:
        following.cancel()
        await requester.close()
        report_end(channel, config.name, by_name(requester.counter))


if __name__ == "__main__":
    run_role(main, RequesterConfig)
