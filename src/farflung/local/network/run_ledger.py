"""Opens the ledger of a run's network for the requester's own account, outside of the run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of, validators_in
from farflung.peers.network.account import own_account
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.network_record import NetworkRecord, read_genesis


@contextlib.asynccontextmanager
async def ledger_of(run: RunFolder, record: NetworkRecord) -> AsyncIterator[LedgerClient]:
    """A client for this user's account. Raises NetworkError where no validator answers, and what key files raise."""
    account = own_account()
    endpoint = Endpoint(account, serve_nothing, ByteCounter())
    try:
        yield LedgerClient(reaches_of(validators_in(record.ledger), endpoint), account, read_genesis(run))
    finally:
        await endpoint.close()
