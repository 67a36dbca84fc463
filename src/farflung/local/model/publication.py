"""Proves a finished run from its log and publishes its model on the network that it was made on."""

from __future__ import annotations

import asyncio

from farflung.core.errors import UsageError
from farflung.ledger.block import Genesis
from farflung.peers.network import model_transfer
from farflung.peers.network.account import own_account
from farflung.peers.network.model_transfer import ModelSource
from farflung.peers.network.published_model import PublishedModelRecord, check_licence, check_name
from farflung.peers.process.config import LedgerConfig
from farflung.peers.rundir.export import read_export
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.network_record import read_genesis, read_network
from farflung.verify.run_replay import prove_base


async def publish_run(
    run: RunFolder, genesis: Genesis, ledger: LedgerConfig, name: str, licence: str
) -> PublishedModelRecord:
    """Raises UsageError FF-APP-652 (name), FF-APP-645 (licence), FF-APP-651 (made elsewhere), VerificationError where
    its log does not prove it, and what model_transfer.publish raises.
    """
    check_name(name)
    check_licence(licence)
    if read_network(run) is None or read_genesis(run).chain != genesis.chain:
        raise UsageError(
            "FF-APP-651",
            f"run {run.name} was not made on this network",
            cause="the network's ledger must know its job: that is the proof which others check",
            hint="train it there (farflung run job.toml --on NETWORK), then publish it there",
        )
    proven = await asyncio.to_thread(lambda: prove_base(read_export(run), genesis.chain))
    source = ModelSource(genesis, ledger, own_account())
    return await model_transfer.publish(source, name, licence, proven.terms, proven.public, run.root)
