"""Sends what a node has earned on to its owner's account, so that one key holds what all of its nodes earned.

What stays with the node pays its next fees. A transfer costs a fee itself: less than ten fees wait for more.
"""

from __future__ import annotations

from typing import Final

from farflung.core.ids import PeerId
from farflung.ledger.transactions import Transfer
from farflung.peers.ledger_client.client import LedgerClient

WORTH_FEES: Final = 10  # a transfer moves more than so many fees


def surplus(balance: int, kept: int, fee: int) -> int:
    """Pico-credits that are sent on: what is left of `balance` with `kept` and this transfer's fee; 0: too little."""
    rest = balance - kept - fee
    return rest if rest > WORTH_FEES * fee else 0


async def send_on(client: LedgerClient, owner: PeerId, kept: int) -> int:
    """Sends the surplus of the client's key to `owner`; how much that was. Raises what the ledger's client raises."""
    fee = (await client.committee()).params.fee_min
    amount = surplus((await client.account(client.own)).balance, kept, fee)
    if amount:
        await client.submit(Transfer(owner, amount))
    return amount
