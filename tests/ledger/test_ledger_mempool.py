"""What waits at a validator: order, bounds, replacement, and that nothing useless stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledger_world import ACTORS, NODES, REQUESTER, STRANGER, World, genesis

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash
from farflung.ledger import transactions
from farflung.ledger.mempool import CheckedTxCache, Mempool, MempoolLimits
from farflung.ledger.rules.accounts import unsound
from farflung.ledger.state_transition import LedgerState, apply_block, genesis_state
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.tx_results import RejectedResult

CHAIN = genesis().chain
ALICE, BOB, CAROL = NODES
ALL = 1 << 20


def sound(signed: transactions.SignedTx) -> tuple[str, str] | None:
    return unsound(CHAIN, signed)


def pay(key: SigningKey, nonce: int, fee: int = 1, amount: int = 1, expires: int = 0) -> transactions.SignedTx:
    op = transactions.Transfer(REQUESTER.public, amount)
    return transactions.sign_tx(key, transactions.make_tx(CHAIN, key.public, nonce, op, fee=fee, expires=expires))


def code(refused: RejectedResult | None) -> str:
    return refused.code if refused is not None else "ok"


def pool_of(*signed: transactions.SignedTx, bounds: MempoolLimits | None = None) -> Mempool:
    pool = Mempool(sound, bounds or MempoolLimits())
    for each in signed:
        assert code(pool.offer(each, genesis_state(genesis()), 0)) == "ok"
    return pool


def taken(pool: Mempool, state: LedgerState, count: int = ALL, size: int = ALL) -> tuple[transactions.SignedTx, ...]:
    return pool.take(state, state.time + 1, count, size)


def test_a_sender_s_nonces_enter_in_order_and_the_higher_fee_goes_first():
    first, second, third = pay(ALICE, 0, 5), pay(ALICE, 1, 90), pay(BOB, 0, 50)
    pool = pool_of(second, third, first)
    assert taken(pool, World().state) == (third, first, second)


def test_of_equal_fees_the_first_that_came_is_the_first_in():
    all_ = [pay(key, 0) for key in (CAROL, ALICE, BOB)]
    assert taken(pool_of(*all_), World().state) == tuple(all_)


def test_what_lacks_the_nonce_before_it_waits():
    world, late = World(), pay(ALICE, 1)
    pool = pool_of(late)
    assert taken(pool, world.state) == ()
    world.send(pay(ALICE, 0))
    assert taken(pool, world.state) == (late,)


def test_a_block_s_bounds_are_kept_and_nothing_of_a_sender_is_skipped():
    small, large, last = pay(ALICE, 0), pay(ALICE, 1, amount=1 << 40), pay(ALICE, 2)
    pool, room = pool_of(small, large, last), len(pool_bytes(small))
    assert taken(pool, World().state, count=1) == (small,)
    assert taken(pool, World().state, size=2 * room) == (small,)


def pool_bytes(signed: transactions.SignedTx) -> bytes:
    return encode(signed)


def test_the_same_nonce_is_replaced_by_a_higher_fee_only():
    low, same, high = pay(ALICE, 0, 5), pay(ALICE, 0, 5, amount=2), pay(ALICE, 0, 6, amount=3)
    pool, state = pool_of(low), World().state
    assert code(pool.offer(same, state, 0)) == "FF-LEDG-352"
    assert code(pool.offer(low, state, 0)) == "ok"  # it waits already
    assert code(pool.offer(high, state, 0)) == "ok"
    assert pool.of(ALICE.public) == (high,)
    assert len(pool) == 1


def test_the_fees_of_all_that_wait_can_be_paid():
    state = World().state
    pool = pool_of(pay(ALICE, 0, 600_000))
    assert code(pool.offer(pay(ALICE, 1, 400_001), state, 0)) == "FF-LEDG-353"
    assert code(pool.offer(pay(ALICE, 1, 400_000), state, 0)) == "ok"
    assert code(pool.offer(pay(ALICE, 0, 600_001), state, 0)) == "FF-LEDG-353"
    assert code(pool.offer(pay(STRANGER, 0, 1), state, 0)) == "FF-LEDG-006"


def test_what_can_never_enter_is_not_taken():
    world, pool = World(), pool_of()
    used = pay(ALICE, 0)
    world.send(used)
    wrong = transactions.SignedTx(pay(BOB, 0).tx, pay(ALICE, 0).signature)
    assert code(pool.offer(used, world.state, 0)) == "FF-LEDG-004"
    assert code(pool.offer(wrong, world.state, 0)) == "FF-LEDG-002"
    assert code(pool.offer(pay(BOB, 0, expires=world.state.time), world.state, 0)) == "FF-LEDG-005"
    assert code(pool.offer(pay(BOB, 4096), world.state, 0)) == "FF-LEDG-351"
    assert code(pool.offer(pay(BOB, 4095), world.state, 0)) == "ok"


def test_a_full_pool_lets_go_of_what_pays_the_least_and_of_what_waits_behind_it():
    least, behind, kept = pay(ALICE, 0, 2), pay(ALICE, 1, 100), pay(BOB, 0, 5)
    pool, state = pool_of(least, behind, kept, bounds=MempoolLimits(count=3)), World().state
    assert code(pool.offer(pay(CAROL, 0, 2), state, 0)) == "FF-LEDG-350"
    assert len(pool) == 3
    rich = pay(CAROL, 0, 3)
    assert code(pool.offer(rich, state, 0)) == "ok"
    assert set(pool.all) == {kept, rich}


def test_a_newcomer_never_drives_out_what_it_waits_for():
    first = pay(ALICE, 0, 1)
    pool = pool_of(first, bounds=MempoolLimits(count=1))
    assert code(pool.offer(pay(ALICE, 1, 9), World().state, 0)) == "FF-LEDG-350"
    assert pool.all == (first,)


def test_what_a_block_made_void_is_let_go():
    world = World()
    mine, rival, poor = pay(ALICE, 0), pay(ALICE, 0, 1, amount=9), pay(ALICE, 1, 500_000)
    ends, old = pay(BOB, 0, expires=world.state.time + 1000), pay(CAROL, 0)
    pool = pool_of(mine, poor, ends, old)
    world.send(pay(ALICE, 0, 1, amount=600_000))
    assert pool.settled((rival,), world.state, 1) == 3
    assert pool.all == (old,)
    assert pool.settled((), world.state, 600_000) == 1
    assert (len(pool), pool.size) == (0, 0)


def test_a_transaction_is_judged_once_whatever_stands_beside_its_id():
    asked: list[transactions.SignedTx] = []

    def judge(signed: transactions.SignedTx) -> tuple[str, str] | None:
        asked.append(signed)
        return sound(signed)

    verdicts, good = CheckedTxCache(judge), pay(ALICE, 0)
    wrong = transactions.SignedTx(good.tx, pay(BOB, 0).signature)
    assert verdicts(wrong) is not None
    assert verdicts(good) is None
    assert verdicts(good) is None
    assert asked == [wrong, good]
    assert verdicts.knows(good)
    assert not verdicts.knows(wrong)


def test_remembered_verdicts_are_bounded():
    verdicts = CheckedTxCache(lambda _: None, most=2)
    three = [pay(ALICE, nonce) for nonce in range(3)]
    assert [verdicts(each) for each in three] == [None] * 3
    assert [verdicts.knows(each) for each in three] == [False, True, True]


SOME = st.sampled_from(ACTORS[:3])
OFFERS = st.lists(st.tuples(SOME, st.integers(0, 3), st.integers(0, 4)), max_size=12)


@given(OFFERS, st.integers(0, 6))
@settings(max_examples=60)
def test_whatever_is_taken_may_enter_that_block(offers: list[tuple[SigningKey, int, int]], count: int):
    pool, state = Mempool(sound, MempoolLimits(count=6)), World().state
    for key, nonce, fee in offers:
        pool.offer(pay(key, nonce, fee), state, 0)
    outcomes = apply_block(state, state.time + 1, taken(pool, state, count), ACTORS[0].public)[1]
    assert len(outcomes) <= count
    assert not [each for each in outcomes if isinstance(each, RejectedResult)]


class PoolMachine(RuleBasedStateMachine):
    """A pool beside a chain that moves on, with and without it."""

    bounds = MempoolLimits(count=8, size=1500, sender=4, ms=50)

    @initialize()
    def start(self) -> None:
        self.world, self.pool, self.now = World(), Mempool(sound, self.bounds), 0

    @rule(key=SOME, ahead=st.integers(-1, 4), fee=st.sampled_from((0, 1, 2, 5, 400_000)), ends=st.booleans())
    def offer(self, key: SigningKey, ahead: int, fee: int, ends: bool) -> None:
        nonce = max(0, self.world.account(key).nonce + ahead)
        expires = self.world.state.time + 3000 if ends else 0
        signed = pay(key, nonce, fee, expires=expires)
        before = self.pool.all
        refused = self.pool.offer(signed, self.world.state, self.now)
        assert (signed in self.pool.all) == (refused is None)
        if refused is not None:
            assert self.pool.all == before

    @rule(count=st.integers(0, 5))
    def block(self, count: int) -> None:
        txs = self.pool.take(self.world.state, self.world.state.time + 1000, count, 1 << 20)
        assert not [each for each in self.world.send(*txs) if isinstance(each, RejectedResult)]
        self.settle(txs)

    @rule(key=SOME, amount=st.sampled_from((1, 300_000)))
    def elsewhere(self, key: SigningKey, amount: int) -> None:
        signed = pay(key, self.world.account(key).nonce, 0, amount)
        self.world.send(signed)
        self.settle((signed,))

    def settle(self, txs: tuple[transactions.SignedTx, ...]) -> None:
        self.now += 10
        self.pool.settled(txs, self.world.state, self.now)
        for signed in self.pool.all:
            row = self.world.state.find(AccountRow, signed.tx.sender)
            assert row is not None
            assert signed.tx.nonce >= row.nonce
            assert not 0 < signed.tx.expires <= self.world.state.time

    @invariant()
    def bounds_hold(self) -> None:
        pool = getattr(self, "pool", None)
        if pool is None:
            return
        assert len(pool) == len(pool.all) <= self.bounds.count
        assert pool.size == sum(len(pool_bytes(each)) for each in pool.all) <= self.bounds.size
        for key in ACTORS[:3]:
            mine = pool.of(key.public)
            assert len({each.tx.nonce for each in mine}) == len(mine) <= self.bounds.sender
            assert sum(each.tx.fee for each in mine) <= self.world.balance(key)
        assert all(transactions.tx_id(each) in pool for each in pool.all)
        assert Hash(bytes(32)) not in pool


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20)
TestPool = PoolMachine.TestCase
