"""Receipts of a chain, and what they prove to who knows its genesis.

The genesis names the first committee; each later one is reached by one step (ledger.light), so that a receipt of
epoch e is believed with the e steps before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.ledger import light
from farflung.ledger.block import Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.proof import Receipt, prove_row, read_row
from farflung.ledger.rows import (
    AccountRow,
    ChannelRow,
    EpochRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    Row,
)

__all__ = [
    "AccountRow",
    "ChannelRow",
    "EpochRow",
    "JobRow",
    "KeyRow",
    "LeaseRow",
    "NodeRow",
    "Receipt",
    "check_receipt",
    "prove",
    "read_row",
]


def prove(chain: Chain, table: str, key: bytes) -> Receipt:
    """The receipt of the row under `key` (see ledger.rows) at the chain's head.

    Raises PolicyError FF-LEDG-070 when there is no such table or row.
    """
    return prove_row(chain.state, chain.head, chain.certificate, table, key)


def check_receipt(receipt: Receipt, genesis: Genesis, steps: Sequence[Receipt] = ()) -> Row:
    """The row that the receipt proves, by `steps` from the genesis to its epoch.

    Raises VerificationError FF-LEDG-071 to -076 and -253 as ledger.light.
    """
    return light.check(light.walk(light.trust_in(genesis), steps, receipt.header.epoch), receipt)
