"""Random histories: how they are made, and what must hold after each step and at the end."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledger_powers import check_powers
from ledger_sums import check_sums
from ledger_world import (
    ACTORS,
    JOB,
    NODES,
    OTHER_JOB,
    PARAMS,
    REQUESTER,
    SLOW_PARAMS,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
    genesis,
)
from machine_books import books, naive_books
from msgspec.structs import replace
from naive_ledger import Naive

from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH
from farflung.ledger import transactions
from farflung.ledger.account_statement import StatementEntry, explained, opening
from farflung.ledger.disputes import DisputeRow, DisputeState
from farflung.ledger.exclusions import ExclusionRow
from farflung.ledger.ledger_state import params_of
from farflung.ledger.params import HOUR_MS, LedgerParams
from farflung.ledger.rules.disputes import is_locked
from farflung.ledger.state_transition import LedgerState, apply_block, total_money
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, KeyRow, LeaseRow, NodeRow
from farflung.ledger.tx_results import AppliedResult, Outcome
from farflung.ledger.validators import ValidatorRow, ValidatorState

ANYONE = st.sampled_from((*ACTORS, STRANGER))
LENDER = st.sampled_from((*NODES, *VERIFIERS))
AUDITOR = st.sampled_from((*VERIFIERS, *VERIFIERS, NODES[2]))
ROLE = st.sampled_from(transactions.LeaseRole)
OWNER = st.sampled_from((REQUESTER, REQUESTER, REQUESTER, NODES[0]))
JOBS = st.sampled_from((JOB, JOB, OTHER_JOB))
AMOUNT = st.sampled_from((0, 1, 50, 700, 999_000, 1_000_001))
SPAN = st.sampled_from((-1, 500, 20_000, 60_000, 150_000, 250_000))
SMALL = st.integers(0, 60)
SHORT = {"epoch_blocks": 3, "unbonding_ms": 50_000, "motion_ms": 60_000, "appeal_ms": 15_000}
OUT = st.sampled_from((0, 9_000, 9_000, 30_000))
LAWS = st.sampled_from(
    [
        replace(params, **SHORT)
        for params in (
            PARAMS,
            SLOW_PARAMS,
            SLOW_PARAMS,
            replace(SLOW_PARAMS, window_ms=0),
            replace(SLOW_PARAMS, dispute_ms=0),
        )
    ]
)
JURIES = st.sampled_from(((VALIDATOR,), (VALIDATOR, STRANGER, NODES[2], VERIFIERS[0])))


class Machine(RuleBasedStateMachine):
    """All operations by several actors, likely and unlikely to succeed, several to a block."""

    def __init__(self) -> None:
        super().__init__()
        self.world, self.naive, self.block_size = World(), Naive(genesis()), 1
        self.before = self.world.state
        self.entries: list[StatementEntry] = []
        self.waiting: list[transactions.SignedTx] = []
        self.nonces: dict[bytes, int] = {}
        self.seen: list[transactions.SignedTx] = []
        self.closed: dict[bytes, LeaseRow] = {}
        self.keys: dict[bytes, KeyRow] = {}

    def ask(self, key: SigningKey, *ops: transactions.Op, fee: int = 0, expires: int = 0) -> None:
        nonce = self.nonces.get(key.public, self.world.account(key).nonce)
        self.nonces[key.public] = nonce + 1
        made = transactions.make_tx(self.world.chain, key.public, nonce, *ops, fee=fee, expires=expires)
        self.waiting.append(transactions.sign_tx(key, made))
        if len(self.waiting) >= self.block_size:
            self.seal(1000)

    @initialize(block_size=st.sampled_from((1, 1, 2, 4)), params=LAWS, jury=JURIES, out=OUT, late=st.booleans())
    def choose(self, block_size: int, params: LedgerParams, jury: tuple[SigningKey, ...], out: int, late: bool) -> None:
        params = replace(params, exclusion_ms=out)
        start = genesis(params, validators=jury)
        self.world, self.naive, self.block_size = World(params, validators=jury), Naive(start), block_size
        self.entries = list(opening(start))
        if late:  # an hour of ledger time ends soon: nodes may leave jobs that go on
            self.seal(HOUR_MS - 40_000 - self.world.state.time)
        self.before = self.world.state

    def at(self, span: int) -> int:
        return max(0, self.world.state.time + span)

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        if self.seen:
            self.waiting.append(data.draw(st.sampled_from(self.seen)))

    @rule(wait=st.sampled_from((1, 1000, 20_000, 60_000)))
    def close_block(self, wait: int) -> None:
        self.seal(wait)

    def seal(self, wait: int) -> None:
        state = self.world.state
        outcomes = self.world.send(*self.waiting, after=wait)
        naive = self.naive.block(state.time + wait, self.waiting, VALIDATOR.public)
        assert [outcome.__struct_config__.tag for outcome in outcomes] == naive
        included = [signed for signed, said in zip(self.waiting, naive, strict=True) if said != "rejected"]
        again, repeated = apply_block(state, state.time + wait, included, VALIDATOR.public, see=check_powers)
        assert again.root == self.world.state.root, "a rejected transaction left a trace"
        assert count(repeated) == count(outcomes)
        told, entries = explained(state, state.time + wait, self.waiting, VALIDATOR.public)
        assert told.root == again.root
        self.entries += entries
        check_sums(self.entries, told)
        self.seen += self.waiting
        self.waiting, self.nonces = [], {}

    @invariant()
    def both_agree(self) -> None:
        assert books(self.world.state) == naive_books(self.naive)

    @invariant()
    def nodes_know_their_locks(self) -> None:
        for node in self.world.state.rows(NodeRow):
            leases = [row for row in self.world.state.rows(LeaseRow) if row.node == node.node]
            held = [row for row in leases if is_locked(self.world.state, row)]
            assert (node.leases, node.locked) == (len(held), sum(row.stake for row in held))

    @invariant()
    def what_is_reserved_fits_into_the_escrow(self) -> None:
        for job in self.world.state.rows(JobRow):
            leases = [row for row in self.world.state.rows(LeaseRow) if row.job == job.job]
            reserved = sum(row.units_max * row.unit_price for row in leases if row.is_open)
            burnt = self.naive.jobs[job.job]["burnt"]
            assert reserved + burnt <= job.escrow
            assert not job.held or reserved + burnt == job.reserved
            assert job.held or job.burnt == burnt

    @invariant()
    def epochs_and_revocations_of_keys_only_grow(self) -> None:
        for row in self.world.state.rows(KeyRow):
            old = self.keys.get(row.account, row)
            assert (row.epoch, row.void) >= (old.epoch, old.void)
            assert row.void >= old.void
            assert row.epoch > old.epoch or row.node == old.node
            self.keys[row.account] = row

    @invariant()
    def a_relay_is_paid_for_what_was_billed_and_no_more(self) -> None:
        for row in self.world.state.rows(ChannelRow):
            assert row.paid * (1 << 30) <= row.carried * row.price

    @invariant()
    def a_closed_lease_never_changes(self) -> None:
        """Paid, unlocked or slashed once: a row that is closed, and in no dispute, stays as it is."""
        disputed = {row.key for row in self.world.state.rows(DisputeRow) if row.is_pending}
        for row in self.world.state.rows(LeaseRow):
            if row.is_open or row.disputes or row.key in disputed:
                assert row.key not in self.closed
            else:
                assert self.closed.setdefault(row.key, row) == row
                assert row.evidence == ZERO_HASH or row.paid == 0 or self.has_accused(row)
            assert row.earned <= row.units_max
            assert row.paid <= row.units_max * row.unit_price

    def has_accused(self, row: LeaseRow) -> bool:
        """It may lose its stake for that after it was paid."""
        return any(row.job == said.job and row.node in said.accusers for said in self.world.state.rows(DisputeRow))

    @invariant()
    def no_dispute_lasts_longer_than_it_may(self) -> None:
        state = self.world.state
        for row in state.rows(DisputeRow):
            job = state.find(JobRow, row.job)
            assert job is not None
            assert row.deadline <= row.opened + 2 * params_of(state, job.terms).dispute_ms
            assert not row.is_pending or state.time < row.deadline

    @invariant()
    def an_excluded_node_takes_no_lease(self) -> None:
        leases = {row.key for row in self.world.state.rows(LeaseRow)}
        out = [row.node for row in self.before.rows(ExclusionRow) if self.world.state.time < row.until]
        still = {row.node for row in self.world.state.rows(ExclusionRow) if row.until}
        made = leases - {row.key for row in self.before.rows(LeaseRow)}
        assert not [key for key in made if key[32:] in out and key[32:] in still]
        self.before = self.world.state

    def teardown(self) -> None:
        """The clock alone: past every deadline, then past every expiry."""
        state = self.world.state
        for _ in range(8):
            state, _ = apply_block(state, state.time + 400_000, [], VALIDATOR.public)
        burnt = sum(row.burnt for row in state.rows(NodeRow))
        pay = sum(row.burnt for row in state.rows(JobRow))
        seats = [row for row in state.rows(ValidatorRow) if row.state == ValidatorState.ADMITTED]
        bonded = sum(row.stake for row in seats) + sum(row.burnt for row in state.rows(ValidatorRow))
        silent = [row for row in self.world.state.rows(DisputeRow) if row.state == DisputeState.OPEN]
        lost = sum(row.taken - rewarded(self.world.state, row) for row in silent)
        assert sum(row.balance for row in state.rows(AccountRow)) + burnt + pay + bonded == state.law.minted
        assert total_money(state) == state.law.minted
        assert burnt == lost + sum(row.burnt for row in self.world.state.rows(NodeRow))
        assert not any(row.stake for row in state.rows(NodeRow))
        assert not any(row.stake for row in state.rows(ValidatorRow) if row not in seats)
        assert not any(row.held for row in state.rows(JobRow))
        assert not any(row.is_open or row.disputes for row in state.rows(LeaseRow))
        assert not any(row.money for row in state.rows(DisputeRow))
        assert not any(row.money for row in state.rows(ExclusionRow))
        assert not any(row.is_open or row.money for row in state.rows(ChannelRow))


def rewarded(state: LedgerState, row: DisputeRow) -> int:
    """What the accusers get of a dispute that nobody answers: nothing where it was not the whole stake (silence)."""
    lease = state.find(LeaseRow, row.key)
    assert lease is not None
    return len(row.accusers) * (row.taken // 2 // len(row.accusers)) if row.taken == lease.stake else 0


def count(outcomes: tuple[Outcome, ...]) -> int:
    return sum(isinstance(outcome, AppliedResult) for outcome in outcomes)
