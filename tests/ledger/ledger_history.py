"""A chain with at least one row in every table: two nodes work, one round, settlement."""

from __future__ import annotations

from ledger_world import CAPS, JOB, NODES, REQUESTER, ROOTS, VALIDATOR, World, genesis

from farflung.core.crypto import SigningKey
from farflung.ledger import tx
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.rows import AccountRow


def signed(chain: Chain, key: SigningKey, *ops: tx.Op, fee: int = 0) -> tx.SignedTx:
    account = chain.state.find(AccountRow, key.public) or AccountRow(key.public)
    return tx.sign_tx(key, tx.make_tx(chain.id, key.public, account.nonce, *ops, fee=fee))


def batches() -> list[list[tuple[SigningKey, tx.Op]]]:
    """The operations of each block."""
    world = World()
    return [
        [(key, world.register()) for key in NODES],
        [(REQUESTER, world.create())],
        [(REQUESTER, world.schedule(world.offer(NODES[0]), world.offer(NODES[1])))],
        [(REQUESTER, world.progress(0, (NODES[0], 10), (NODES[1], 20)))],
        [(REQUESTER, tx.JobFinish(JOB, ROOTS[0], CAPS))],
        [(REQUESTER, tx.JobSettle(JOB))],
    ]


def history() -> Chain:
    chain = Chain(genesis(), VALIDATOR)
    for batch in batches():
        txs = [signed(chain, key, op) for key, op in batch]
        block, _ = chain.propose(txs, chain.head.time + LOGICAL_MS)
        chain.adopt(block)
    return chain
