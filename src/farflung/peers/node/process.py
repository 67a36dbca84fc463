"""Runs a node's process: it becomes reachable, registers, works, and leaves when told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError, NetworkError, UsageError
from farflung.core.ids import Hash, PeerId
from farflung.core.io.extras import require
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.ledger.table_rows import HOLDS_MONEY, JobState, LeaseRow, lease_key
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.messages import RemoteError
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.connect import any_of, client_in_run, reaches_of, validators_in
from farflung.peers.ledger_client.key_registry import IDLE_SECONDS, LOOK_SECONDS, KeyRegistryFollower
from farflung.peers.node import earnings, registration
from farflung.peers.node.agent import NodeAgent
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.job_departure import PendingLeave
from farflung.peers.node.routes import NodeRole
from farflung.peers.process.channel import Channel, ChannelEmitter, by_name, report_end
from farflung.peers.protocol.directory import DirectoryPublisher

AGAIN_SECONDS: Final = 5.0  # between tries of a node without a supervisor
PAY_SECONDS: Final = 2.0  # between two looks at what a lease has earned
SWEEP_SECONDS: Final = 3600.0  # between two sweeps of what jobs left
BEHIND, AHEAD = "FF-NET-110", "FF-NET-111"  # what the directory says of a record by a wrong clock


async def lend(role: NodeRole, config: NodeConfig, channel: Channel) -> None:
    """A node's process: serves until the channel ends; registers when told (locally: in turn), or at once.

    Raises UsageError FF-CORE-120 before it registers: PyTorch is not installed; FF-APP-577: nobody could reach it.
    """
    require("torch")
    if config.genesis.genesis.time and not (config.relays or config.host):
        raise UsageError(
            "FF-APP-577",
            "nobody could reach this node",
            cause="it is at no relay, and would publish 127.0.0.1",
            hint="name [[relays]], or the public address of this computer as host",
        )
    node, tasks = NodeAgent(config, channel, role), OwnedTasks()
    process = _NodeProcess(node, config, channel)
    try:
        places = await process.reachable()
        reaches = reaches_of(validators_in(config.ledger), node.endpoint)
        reach_ledger = any_of(reaches)
        client = client_in_run(reaches, config.key, config.genesis.genesis, ChannelEmitter(channel).emit)
        for each in (
            node.vouchers,
            node.voucher_bound,
            node.tamper_watch,
            node.disputes,
            node.admission,
            node.departure,
        ):
            each.follow(client)
        presence = node.presence(places, reach_ledger)
        node.reachability.follow(presence)
        place = {"host": places[0].host, "port": places[0].port, "relayed": bool(config.relays)}
        channel.report("ready", peer=config.key.public.hex(), **place, pid=os.getpid())
        follower = KeyRegistryFollower(reach_ledger, node.endpoint.admission.keyring, node.endpoint.recheck)
        for work in (node.watch(), node.disputes.stay(), follower.stay(lambda: _pause(node, client))):
            tasks.begin(work)
        if config.registers:
            tasks.begin(process.sweep(client))
            await process.register(client, presence, tasks)
        while (said := await channel.next()) is not None:
            match said.get("do"):
                case "register":
                    await process.register(client, presence, tasks)
                case "leave":
                    await process.leave(client)
                case "close":
                    node.close_slot(str(said.get("why")))
                case "open":
                    node.open_slot()
                case "finish":
                    node.close_slot(str(said.get("why")))
                    await node.idle()
                    if said.get("leaves"):
                        await process.give_notice()
                    await process.see_audits(client)
                    channel.report("finished")
    finally:
        await tasks.close()
        await node.close()
    report_end(channel, config.name, by_name(node.counter))


def _pause(node: NodeAgent, client: LedgerClient) -> float:
    """How often the registry of keys is asked: seldom where nobody has leased this node."""
    return LOOK_SECONDS if node.is_leased or client.counts_blocks else IDLE_SECONDS


class _NodeProcess:
    """What one process does beside the leases. Without a supervisor it waits where it would end with an error."""

    def __init__(self, node: NodeAgent, config: NodeConfig, channel: Channel) -> None:
        self._node, self._config, self._channel = node, config, channel

    def _warn(self, error: FarflungError) -> None:
        text = f"{self._config.name}: {error.message}" + (f" ({error.cause})" if error.cause else "")
        self._channel.report("warning", code=error.code, message=text[:300])

    async def reachable(self) -> tuple[EndpointAddress, ...]:
        """Where the node is reached, for the directory."""
        while True:
            try:
                return await self._node.reachability.open(self._config.relays, self._config.host)
            except NetworkError as error:
                if not self._config.registers or not self._config.relays:
                    raise
                self._warn(error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def register(self, client: LedgerClient, presence: DirectoryPublisher, tasks: OwnedTasks) -> None:
        """On the ledger and in its directory, from now on."""
        await self._node.register(client)
        await self._publish(presence)
        tasks.begin(presence.stay())
        if not client.counts_blocks:
            tasks.begin(self.pay(client))
            tasks.begin(registration.stay(client, self._node.wanted, lambda: int(time.time() * 1000), self._warn))
        self._channel.report("registered")

    async def _publish(self, presence: DirectoryPublisher) -> None:
        """Once a clock that is wrong is set right. Raises NetworkError FF-APP-093."""
        while True:
            try:
                await presence.publish()
                return
            except RemoteError as error:
                if error.code not in (BEHIND, AHEAD) or not self._config.registers:
                    raise
                text = f"this computer's clock is {_how_far(error)}: set it by NTP (timedatectl set-ntp true)"
                self._warn(NetworkError("FF-APP-580", text, cause="this node tries again by itself"))
            await asyncio.sleep(AGAIN_SECONDS)

    async def give_notice(self) -> None:
        """Says on the ledger that this node leaves its jobs; `leave` does so again where it cannot be said now."""
        try:
            await self._node.departure.give_notice()
        except FarflungError as error:
            self._warn(error)

    def _waits(self, pending: PendingLeave) -> None:
        facts = {"last": pending.last, "recorded": pending.recorded, "seconds": (pending.begins - pending.now) // 1000}
        self._channel.report("leaving", job=pending.job.hex(), is_recorded=pending.is_recorded, **facts)

    async def leave(self, client: LedgerClient) -> None:
        """Takes the stake back, when all jobs are left. Where no supervisor hears of it, a refusal is told and the node
        stays.
        """
        try:
            await self._node.vouchers.claim_all()
            if self._config.registers:
                await self._node.departure.finish(self._waits, self._warn)
            await self._node.disputes.clear()
            await client.leave()
        except FarflungError as error:
            if not self._config.registers:
                raise
            self._warn(error)
            self._channel.report("stayed", why=error.cause or error.message)
            return
        try:
            await self.send_on(client, 0)
        except FarflungError as error:  # the stake is back, and lies in the node's own account
            self._warn(error)
        self._channel.report("left")

    async def see_audits(self, client: LedgerClient) -> None:
        """Stays until the audits of the last round here are over: a round is on the ledger when they are. Who is away
        before that is found to withhold. limits.OWED_SECONDS at most: the job may have stopped.
        """
        if (owed := self._node.owed) is None or await self._is_recorded(client, *owed):
            return
        job, round = owed
        self._channel.report("owed", job=job.hex(), round=round, seconds=limits.OWED_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.OWED_SECONDS):
                while not await self._is_recorded(client, job, round):  # noqa: ASYNC110 - the ledger tells of no event
                    await asyncio.sleep(PAY_SECONDS)

    async def _is_recorded(self, client: LedgerClient, job: Hash, round: int) -> bool:
        """Whether a round is recorded, or its job or the own lease is over; a ledger that is away says neither."""
        try:
            row, lease = await client.job(job), await client.row(LeaseRow, lease_key(job, client.own))
        except FarflungError:
            return False
        if row is None or lease is None:
            return True
        return row.state is not JobState.RUNNING or not lease.is_open or row.round > round

    async def pay(self, client: LedgerClient) -> None:
        """Says what the ledger holds of each lease taken here, when that has changed.

        What a job left here is removed when it is over.
        """
        known: dict[Hash, tuple[int, int]] = {}
        while True:
            await asyncio.sleep(PAY_SECONDS)
            with contextlib.suppress(FarflungError):
                for job in sorted(self._node.worked):
                    lease, row = await client.row(LeaseRow, lease_key(job, client.own)), await client.job(job)
                    if lease is not None and (lease.earned, lease.paid) != known.get(job, (0, 0)):
                        known[job] = lease.earned, lease.paid
                        self._node.voucher_bound.credit(job, lease.earned)
                        owed = lease.earned * lease.unit_price
                        self._channel.report("pay", job=job.hex(), units=lease.earned, owed=owed, paid=lease.paid)
                    if row is not None and row.state not in HOLDS_MONEY:
                        self._node.worked.discard(job)
                        known.pop(job, None)
                        if not self._node.worked:
                            self._node.know(())  # nobody is a fellow member any more
                        await self._node.sweep(self._warn)
                        await self.send_on(client, self._config.fees)

    async def send_on(self, client: LedgerClient, kept: int) -> None:
        """Sends what was earned to the owner's account, but for `kept`. Raises what the ledger's client raises."""
        if (owner := self._config.owner) is not None:
            amount = await earnings.send_on(client, PeerId(bytes(owner)), kept)
            if amount:
                self._channel.report("sent", amount=amount, owner=owner.hex())

    async def sweep(self, client: LedgerClient) -> None:
        """Once an hour: leaves jobs whose requesters have vanished, removes what jobs left here that are over, and
        sends on what was earned since.
        """
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._node.sweep(self._warn)
            try:
                await self.send_on(client, self._config.fees)
            except FarflungError as error:
                self._warn(error)


def _how_far(error: RemoteError) -> str:
    """By how much this clock differs from that of whoever refused a record made a moment ago."""
    found = re.search(r"(\d+) s", error.cause)
    if found is None:
        return "another than the ledger's"
    if error.code == AHEAD:
        return f"{found[1]} s ahead of the ledger's"
    return f"{int(found[1]) + limits.RECORD_SECONDS} s behind the ledger's"
