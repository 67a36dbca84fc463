"""Runs a node's process: it becomes reachable, registers, works, and leaves when told."""

from __future__ import annotations

import os

from farflung.core.io.extras import require
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.peers.ledger_client.connect import any_of, client_in_run, reaches_of, validators_in
from farflung.peers.ledger_client.key_registry import KeyRegistryFollower
from farflung.peers.node.agent import NodeAgent
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.routes import NodeRole
from farflung.peers.process.channel import Channel, ChannelEmitter, by_name, report_end


async def lend(role: NodeRole, config: NodeConfig, channel: Channel) -> None:
    """A node's process: serves until the channel ends; registers when told (locally: in turn), or at once.

    Raises UsageError FF-CORE-120 before it registers: PyTorch is not installed.
    """
    require("torch")
    node, tasks = NodeAgent(config, channel, role), OwnedTasks()
    try:
        places = await node.reachability.open(config.relays)
        reaches = reaches_of(validators_in(config.ledger), node.endpoint)
        reach_ledger = any_of(reaches)
        client = client_in_run(reaches, config.key, config.genesis.genesis, ChannelEmitter(channel).emit)
        for each in (node.vouchers, node.tamper_watch, node.disputes, node.admission):
            each.follow(client)
        presence = node.presence(places, reach_ledger)
        node.reachability.follow(presence)
        place = {"host": places[0].host, "port": places[0].port}
        channel.report("ready", peer=config.key.public.hex(), **place, pid=os.getpid())
        follower = KeyRegistryFollower(reach_ledger, node.endpoint.admission.keyring, node.endpoint.recheck)
        for work in (node.watch(), node.disputes.stay(), follower.stay()):
            tasks.begin(work)

        async def register() -> None:
            await node.register(client)
            await presence.publish()
            tasks.begin(presence.stay())
            channel.report("registered")

        if config.registers:
            await register()
        while (said := await channel.next()) is not None:
            if said.get("do") == "register":
                await register()
            elif said.get("do") == "leave":
                await node.vouchers.claim_all()
                await node.disputes.clear()
                await client.leave()
                channel.report("left")
    finally:
        await tasks.close()
        await node.close()
    report_end(channel, config.name, by_name(node.counter))
