"""Signs, for a verifier, that it has nothing against a job's end: a quorum of these marks ends the window early.

The window is for claims (docs/protocol/ledger, "The window"). A node claims by its voucher a moment after it sees that
the ledger says less (node.vouchers), so a verifier signs when the job has been over for a little longer than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash
from farflung.ledger.earnings_tally import OutputAttestation, PartySignature, sign_output
from farflung.ledger.rules.jobs import ENDING
from farflung.ledger.table_rows import JobRow
from farflung.peers.node.vouchers import RECORD_SECONDS

CLAIM_SECONDS: Final = 2 * RECORD_SECONDS  # between a job's end and a verifier's mark

ReadJob = Callable[[Hash], Awaitable[JobRow | None]]


async def attest(
    key: SigningKey, chain: Hash, job: Hash, read: ReadJob, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> PartySignature:
    """The mark under what the ledger says of the job, CLAIM_SECONDS from now.

    `read`: the job's row. Raises PolicyError FF-APP-640 where the job goes on or is over for good, what `read` raises.
    """
    await _ended(job, read)
    await sleep(CLAIM_SECONDS)
    row = await _ended(job, read)
    return sign_output(key, OutputAttestation(chain, job, row.root, row.output))


async def _ended(job: Hash, read: ReadJob) -> JobRow:
    row = await read(job)
    if row is None or row.state not in ENDING:
        raise PolicyError(
            "FF-APP-640",
            "there is no end of this job to attest",
            cause=f"the job is {row.state.name.lower()} on the ledger"
            if row is not None
            else "the ledger has no such job of who asks",
            hint="ask once the job is finished or cancelled, and before it is settled",
        )
    return row
