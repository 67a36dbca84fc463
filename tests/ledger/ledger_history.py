"""Two chains with at least one row in every table: one round and settlement, with and without a node found out."""

from __future__ import annotations

from ledger_world import CAPS, JOB, NODES, REQUESTER, ROOTS, STRANGER, VALIDATOR, VERIFIERS, World, genesis

from farflung.core.crypto import SigningKey
from farflung.ledger import tx
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.rows import AccountRow


def signed(chain: Chain, key: SigningKey, *ops: tx.Op, fee: int = 0) -> tx.SignedTx:
    account = chain.state.find(AccountRow, key.public) or AccountRow(key.public)
    return tx.sign_tx(key, tx.make_tx(chain.id, key.public, account.nonce, *ops, fee=fee))


def rotated() -> tuple[tx.Op, ...]:
    """A first node key in place of the account's own."""
    return tx.KeyCertify(STRANGER.public, 1, 2_000_000_000, 1_900_000_000), tx.KeyRevoke(0)


def batches() -> list[list[tuple[SigningKey, tx.Op]]]:
    """The operations of each block."""
    world, (certified, revoked) = World(), rotated()
    carried = (world.passage(3, (NODES[0], 70, 9), (NODES[1], 8, 60), payer=NODES[2]),)
    return [
        [(key, world.register()) for key in NODES],
        [(REQUESTER, world.create()), (NODES[2], world.open_channel()), (NODES[0], certified)],
        [(REQUESTER, world.schedule(world.offer(NODES[0]), world.offer(NODES[1]))), (NODES[0], revoked)],
        [(REQUESTER, world.progress(0, (NODES[0], 10), (NODES[1], 20)))],
        [
            (REQUESTER, tx.JobFinish(JOB, ROOTS[0], CAPS)),
            (VALIDATOR, tx.ChannelClaim(NODES[2].public, carried)),
        ],
        [(REQUESTER, tx.JobSettle(JOB)), (VALIDATOR, tx.ChannelClose(NODES[2].public))],
    ]


def audited_batches() -> list[list[tuple[SigningKey, tx.Op]]]:
    """The same with verifiers, one of whose findings costs the second node its stake and its pay."""
    world, first = World(), batches()
    offers = [world.offer(key, stake=50, units=20, role=tx.Role.AUDIT) for key in VERIFIERS]
    return [
        [*first[0], *((key, world.register()) for key in VERIFIERS)],
        first[1],
        [*first[2], (REQUESTER, world.schedule(*offers))],
        [(REQUESTER, world.progress(0, (NODES[0], 10), (NODES[1], 20), (VERIFIERS[0], 5)))],
        [(VERIFIERS[0], world.accuse(NODES[1]))],
        *first[4:],
    ]


def history(made: list[list[tuple[SigningKey, tx.Op]]] | None = None) -> Chain:
    chain = Chain(genesis(), VALIDATOR)
    for batch in made or batches():
        by_key: dict[SigningKey, list[tx.Op]] = {}
        for key, op in batch:
            by_key.setdefault(key, []).append(op)
        txs = [signed(chain, key, *ops) for key, ops in by_key.items()]
        block, _ = chain.propose(txs, chain.head.time + LOGICAL_MS)
        chain.adopt(block)
    return chain
