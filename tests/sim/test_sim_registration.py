"""A node's client registers it once, again after its registration ran out, and not where it left by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sim_ledger import STAKE, MemoryLedger

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, digest, local_key
from farflung.ledger import queries
from farflung.ledger.table_rows import NodeState
from farflung.ledger.transactions import JobCancel, NodeLeave
from farflung.peers.ledger_client.client import LedgerClient

REQUESTER, NODE = local_key(12, "requester"), local_key(12, "node")
JOB, CAPS = digest("test/job"), digest(NS_SPEC, b"caps")


class Near:
    """A connection whose other end is the law in this process."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._chain = ledger._chain

    async def call(self, _method: str, body: bytes, **_: Any) -> bytes:
        query = queries.read_query(body)
        if not isinstance(query, queries.SubmitRequest):
            return encode(queries.reply(self._chain, query))
        block, results = self._chain.propose(query.txs, self._chain.head.time + 1)
        self._chain.adopt(block)
        return encode(queries.SubmitReply(results))


def client(ledger: MemoryLedger) -> LedgerClient:
    async def reach() -> Any:
        return Near(ledger)

    return LedgerClient(reach, NODE, ledger._chain.genesis)


@pytest.mark.parametrize(
    ("ends", "after"), [("never", NodeState.ACTIVE), ("expired", NodeState.ACTIVE), ("left", NodeState.LEFT)]
)
def test_who_registers_again(ends: str, after: NodeState) -> None:
    ledger = MemoryLedger(REQUESTER, JOB, 3, [NODE], [], 10)
    if ends != "never":
        ledger.apply(REQUESTER, JobCancel(JOB))
    if ends == "left":
        ledger.apply(NODE, NodeLeave())
    if ends == "expired":
        block, _ = ledger._chain.propose([], ledger.node(NODE.public).expires)
        ledger._chain.adopt(block)
    was = ledger.node(NODE.public)
    assert was.state is (NodeState.ACTIVE if ends == "never" else NodeState.LEFT)
    until = ledger._chain.head.time + 10**6
    asyncio.run(client(ledger).register(CAPS, 9, STAKE, until))
    now = ledger.node(NODE.public)
    assert (now.state, now.unit_price) == (after, 9 if ends == "expired" else was.unit_price)
