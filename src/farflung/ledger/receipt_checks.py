"""Builds receipts from a chain, and verifies them for a reader who knows its genesis.

The genesis names the first committee; each later one is reached by one step (ledger.light_client), so that a receipt of
epoch e is trusted with the e steps before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.ledger import light_client
from farflung.ledger.block import Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.row_receipt import LedgerReceipt, prove_row, read_row
from farflung.ledger.table_rows import AccountRow, ChannelRow, EpochRow, JobRow, KeyRow, LeaseRow, NodeRow, Row

__all__ = [
    "AccountRow",
    "ChannelRow",
    "EpochRow",
    "JobRow",
    "KeyRow",
    "LeaseRow",
    "LedgerReceipt",
    "NodeRow",
    "check_receipt",
    "prove",
    "read_row",
]


def prove(chain: Chain, table: str, key: bytes) -> LedgerReceipt:
    """The receipt of the row under `key` (see ledger.table_rows) at the chain's head.

    Raises PolicyError FF-LEDG-070 when there is no such table or row.
    """
    return prove_row(chain.state, chain.head, chain.certificate, table, key)


def check_receipt(receipt: LedgerReceipt, genesis: Genesis, steps: Sequence[LedgerReceipt] = ()) -> Row:
    """The row that the receipt proves, by `steps` from the genesis to its epoch.

    Raises VerificationError FF-LEDG-071 to -076 and -253 as ledger.light_client.
    """
    return light_client.check(
        light_client.follow_steps(light_client.trust_in(genesis), steps, receipt.header.epoch), receipt
    )
