"""Reads a dispute from the ledger, in proved rows."""

from __future__ import annotations

from farflung.core.ids import Hash, PeerId
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.table_rows import lease_key
from farflung.peers.ledger_client.client import LedgerClient


async def dispute_of(ledger: LedgerClient, job: Hash, node: PeerId) -> DisputeRow | None:
    """What a node is or was accused of in a job; None where nobody accused it under `dispute_ms`."""
    return await ledger.row(DisputeRow, lease_key(job, node))
