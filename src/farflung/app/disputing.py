"""What a ledger says of a dispute, in proved rows."""

from __future__ import annotations

from farflung.app.ledger_client import LedgerClient
from farflung.core.ids import Hash, PeerId
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.rows import lease_key


async def dispute_of(ledger: LedgerClient, job: Hash, node: PeerId) -> DisputeRow | None:
    """What a node is or was accused of in a job; None where nobody accused it under `dispute_ms`."""
    return await ledger.row(DisputeRow, lease_key(job, node))
