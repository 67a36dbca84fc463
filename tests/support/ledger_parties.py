"""What a ledger's parties keep and sign: the rows of a receipt file, and marks under a job's end."""

from __future__ import annotations

from farflung.core.codec import encode
from farflung.core.crypto import NS_ATTEST, SigningKey
from farflung.core.ids import PeerId
from farflung.ledger.chain import Chain
from farflung.ledger.earnings_tally import OutputAttestation, PartySignature
from farflung.ledger.receipt_checks import LedgerReceipt, prove
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, LeaseRow, NodeRow


def party_receipts(chain: Chain, party: PeerId) -> tuple[LedgerReceipt, ...]:
    """Receipts at the chain's head of all that belongs into the party's file; nothing for a key without account."""
    state = chain.state
    leases = [row for row in state.rows(LeaseRow) if row.node == party]
    hired = {row.job for row in leases}
    jobs = [row for row in state.rows(JobRow) if row.requester == party or row.job in hired]
    held = (state.find(AccountRow, party), state.find(NodeRow, party) if leases else None)
    channels = [row for row in state.rows(ChannelRow) if party in (row.payer, row.relay)]
    rows = [*(row for row in held if row), *jobs, *leases, *channels]
    return tuple(prove(chain, row.TABLE, row.key) for row in rows)


def mark_attest(key: SigningKey, attest: OutputAttestation) -> PartySignature:
    """`key`'s word for a job's end."""
    return PartySignature(key.public, key.sign(NS_ATTEST, encode(attest)))
