"""Chains that have a row in every table together: a round and its settlement, a node found out, one that denies it."""

from __future__ import annotations

from ledger_canary import perjury
from ledger_parties import mark_attest
from ledger_world import (
    BOND,
    CAPS,
    JOB,
    NODES,
    PARAMS,
    REQUESTER,
    ROOTS,
    SLOW_PARAMS,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
    genesis,
)
from msgspec.structs import replace

from farflung.core.crypto import NS_SEAT, SigningKey, local_key
from farflung.ledger import transactions
from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.chain import Chain
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.earnings_tally import JobAttest, OutputAttestation
from farflung.ledger.exclusions import Appeal, HostTampered
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.motions import AdmitValidator, AmendParams, Motion
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.validators import ValidatorAccuse, ValidatorJoin, ValidatorLeave
from farflung.ledger.votes import Vote, VoteKind, sign_vote


def signed(chain: Chain, key: SigningKey, *ops: transactions.Op, fee: int = 0) -> transactions.SignedTx:
    account = chain.state.find(AccountRow, key.public) or AccountRow(key.public)
    return transactions.sign_tx(key, transactions.make_tx(chain.id, key.public, account.nonce, *ops, fee=fee))


def rotated() -> tuple[transactions.Op, ...]:
    """A first node key in place of the account's own."""
    return transactions.KeyCertify(STRANGER.public, 1, 2_000_000_000, 1_900_000_000), transactions.KeyRevoke(0)


def batches() -> list[list[tuple[SigningKey, transactions.Op]]]:
    """The operations of each block."""
    world, (certified, revoked) = World(), rotated()
    carried = (world.passage(3, (NODES[0], 70, 9), (NODES[1], 8, 60), payer=NODES[2]),)
    return [
        [(key, world.register()) for key in NODES],
        [(REQUESTER, world.create()), (NODES[2], world.open_channel()), (NODES[0], certified)],
        [(REQUESTER, world.schedule(world.offer(NODES[0]), world.offer(NODES[1]))), (NODES[0], revoked)],
        [(REQUESTER, world.progress(0, (NODES[0], 10), (NODES[1], 20)))],
        [
            (REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS)),
            (VALIDATOR, transactions.ChannelClaim(NODES[2].public, carried)),
        ],
        [(REQUESTER, transactions.JobSettle(JOB)), (VALIDATOR, transactions.ChannelClose(NODES[2].public))],
    ]


def audited_batches() -> list[list[tuple[SigningKey, transactions.Op]]]:
    """The same with verifiers, one of whose findings costs the second node its stake, its pay and its place."""
    world, first = World(), batches()
    offers = [world.offer(key, stake=50, units=20, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
    return [
        [*first[0], *((key, world.register()) for key in VERIFIERS)],
        first[1],
        [*first[2], (REQUESTER, world.schedule(*offers))],
        [(REQUESTER, world.draw(0)), (REQUESTER, world.progress(0, (NODES[0], 10), (NODES[1], 20), (VERIFIERS[0], 5)))],
        [(VERIFIERS[0], world.accuse(NODES[1])), (NODES[0], HostTampered(JOB, ROOTS[2]))],
        [*first[4], (NODES[1], Appeal(BOND, ROOTS[1]))],
        first[5],
    ]


def disputed_batches() -> list[list[tuple[SigningKey, transactions.Op]]]:
    """The second node denies, and the jury believes it; the first one claims by a voucher what nobody recorded."""
    world = World(SLOW_PARAMS)
    offers = [world.offer(key, units=20) for key in NODES[:2]]
    offers += [world.offer(key, stake=50, units=20, role=transactions.LeaseRole.AUDIT) for key in VERIFIERS]
    attest = OutputAttestation(world.chain, JOB, ROOTS[0], CAPS)
    return [
        [(key, world.register()) for key in (*NODES[:2], *VERIFIERS)],
        [(REQUESTER, world.create()), (REQUESTER, world.schedule(*offers))],
        [(REQUESTER, world.progress(0, (NODES[1], 20), (VERIFIERS[0], 5)))],
        [(VERIFIERS[0], world.accuse(NODES[1])), (NODES[0], world.settle_many((NODES[0], 10)))],
        [(NODES[1], DisputeAnswer(JOB, BOND, ROOTS[1])), (REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS))],
        [(STRANGER, JobAttest(JOB, tuple(mark_attest(key, attest) for key in VERIFIERS)))],
        [(VALIDATOR, JuryVote(JOB, NODES[1].public, False)), (REQUESTER, transactions.JobSettle(JOB))],
    ]


def perjured_batches() -> list[list[tuple[SigningKey, transactions.Op]]]:
    """The same with verifiers, of whom one says that what the first node planted holds."""
    made, world = audited_batches(), World()
    made[4] = [(REQUESTER, perjury(world, VERIFIERS[0], NODES[0]))]
    return made


def governed_batches() -> list[list[tuple[SigningKey, transactions.Op]]]:
    """Validators that join and leave, motions that pass, a seat that contradicted itself; all in epoch 0."""
    chain = World().chain
    seat, other = (local_key(7, "seat", index) for index in range(2))
    joins = [
        ValidatorJoin(key.public, 300, "v.example:1", key.sign(NS_SEAT, chain, owner.public))
        for key, owner in ((seat, NODES[0]), (other, NODES[1]))
    ]
    votes = [sign_vote(VALIDATOR, 0, Vote(chain, 0, 7, VoteKind.NOTARIZE, block)) for block in ROOTS[:2]]
    admit, amend = (
        Motion(AdmitValidator(seat.public), 50_000),
        Motion(AmendParams(replace(PARAMS, fee_min=1)), 50_000),
    )
    return [
        [(NODES[0], joins[0]), (NODES[1], joins[1])],
        [(VALIDATOR, admit), (VALIDATOR, amend)],
        [(NODES[0], ValidatorLeave(seat.public)), (NODES[1], ValidatorLeave(other.public))],
        [(NODES[2], ValidatorAccuse(*votes))],
    ]


def history(made: list[list[tuple[SigningKey, transactions.Op]]] | None = None, params: LedgerParams = PARAMS) -> Chain:
    chain = Chain(genesis(params), VALIDATOR)
    for batch in made or batches():
        by_key: dict[SigningKey, list[transactions.Op]] = {}
        for key, op in batch:
            by_key.setdefault(key, []).append(op)
        txs = [signed(chain, key, *ops) for key, ops in by_key.items()]
        block, _ = chain.propose(txs, chain.head.time + LOGICAL_MS)
        chain.adopt(block)
    return chain


def contents(state: LedgerState) -> dict[str, object]:
    """All that a state holds, its indices too, in a form that can be compared."""
    return {
        name: (list(table.rows), [table.place(row.key) for row in table.rows], table.tree.root, table.soonest)
        for name, table in state.tables.items()
    }
