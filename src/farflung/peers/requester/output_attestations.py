"""Collects the marks of a job's verifiers under its end, so that nobody waits for the whole verification window.

One mark is never enough where the job has two verifiers (ledger.rules.verifiers). A verifier that is away, refuses or
signs something else only means that the window takes its time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.ledger.earnings_tally import JobAttest, OutputAttestation, PartySignature, is_signed_by
from farflung.ledger.rules.verifiers import quorum_of
from farflung.ledger.table_rows import JobRow
from farflung.ledger.transactions import LeaseRole
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import Dial

ANSWER_SECONDS: Final = 20.0  # for one verifier, which waits for claims first


async def verifiers_of(ledger: LedgerClient, row: JobRow) -> list[PeerId]:
    """Who may attest the end of this job now."""
    leases = await ledger.leases(row.job)
    return sorted(lease.node for lease in leases if lease.role is LeaseRole.AUDIT and lease.is_open)


async def collect(ledger: LedgerClient, row: JobRow, dial: Dial) -> JobAttest | None:
    """What ends the job's window, once enough of its verifiers signed; None: they did not."""
    verifiers = await verifiers_of(ledger, row)
    said = OutputAttestation(ledger.chain, row.job, row.root, row.output)
    found = await asyncio.gather(*(_mark(verifier, said, dial) for verifier in verifiers))
    marks = tuple(mark for mark in found if mark is not None)[: limits.AUDITORS]
    return JobAttest(row.job, marks) if len(marks) >= quorum_of(len(verifiers)) else None


async def _mark(verifier: PeerId, said: OutputAttestation, dial: Dial) -> PartySignature | None:
    body = encode(messages.OutputAttestRequest(said.job))
    try:
        answer = await (await dial(verifier)).call(messages.ATTEST, body, timeout=ANSWER_SECONDS)
        mark = decode(answer, PartySignature, limits.CONTROL_BYTES)
    except FarflungError:
        return None
    return mark if mark.signer == verifier and is_signed_by(mark, said) else None
