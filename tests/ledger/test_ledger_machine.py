"""Random histories: money is conserved, the naive ledger agrees, and the clock alone returns all but what is burnt."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledger_sums import check_sums
from ledger_world import (
    ACTORS,
    CAPS,
    EVIDENCE,
    JOB,
    NODES,
    OTHER_JOB,
    REQUESTER,
    ROOTS,
    STRANGER,
    VALIDATOR,
    VERIFIERS,
    World,
    genesis,
)
from naive_ledger import Naive

from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.ledger import tx
from farflung.ledger.results import Applied, Outcome
from farflung.ledger.rows import (
    AccountRow,
    ChannelRow,
    EpochRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    NodeState,
    channel_key,
    lease_key,
)
from farflung.ledger.state import State, apply_block, total_money
from farflung.ledger.statements import Entry, explained, opening

ANYONE = st.sampled_from((*ACTORS, STRANGER))
LENDER = st.sampled_from((*NODES, *VERIFIERS))
AUDITOR = st.sampled_from((*VERIFIERS, *VERIFIERS, NODES[2]))
ROLE = st.sampled_from(tx.Role)
OWNER = st.sampled_from((REQUESTER, REQUESTER, REQUESTER, NODES[0]))
JOBS = st.sampled_from((JOB, JOB, OTHER_JOB))
AMOUNT = st.sampled_from((0, 1, 50, 700, 999_000, 1_000_001))
SPAN = st.sampled_from((-1, 500, 20_000, 60_000, 150_000, 250_000))
SMALL = st.integers(0, 60)


def books(state: State) -> dict[str, object]:
    """What both ledgers must agree on."""
    return {
        "money": {row.owner: row.balance for row in state.rows(AccountRow) if row.balance},
        "nonce": {row.owner: row.nonce for row in state.rows(AccountRow) if row.nonce},
        "nodes": {
            row.node: (row.free, row.burnt, row.unit_price, row.expires, row.state == NodeState.ACTIVE)
            for row in state.rows(NodeRow)
        },
        "jobs": {
            row.job: (row.requester, row.escrow, row.state.name.lower(), row.round, row.slashed)
            for row in state.rows(JobRow)
        },
        "leases": {
            (row.job, row.node): (row.units, row.role, row.slashed, row.evidence != ZERO_HASH)
            for row in state.rows(LeaseRow)
        },
        "epochs": [(row.job, row.root, row.contributions) for row in sorted_epochs(state)],
        "channels": {
            (row.payer, row.relay): (row.opening, row.held, row.expires, row.price, row.is_open)
            for row in state.rows(ChannelRow)
        },
        "keys": {
            row.account: (
                (row.epoch, row.node),
                (row.previous_epoch, row.previous),
                (row.expires, row.until),
                row.void,
            )
            for row in state.rows(KeyRow)
        },
    }


def sorted_epochs(state: State) -> list[EpochRow]:
    return sorted(state.rows(EpochRow), key=lambda row: (row.job, row.round))


def naive_books(naive: Naive) -> dict[str, object]:
    return {
        "money": {owner: amount for owner, amount in naive.money.items() if amount},
        "nonce": {owner: nonce for owner, nonce in naive.nonce.items() if nonce},
        "nodes": {
            name: (node["free"], node["burnt"], node["price"], node["expires"], node["active"])
            for name, node in naive.nodes.items()
        },
        "jobs": {
            name: (
                job["owner"],
                job["escrow"],
                job["state"],
                len(job["roots"]),
                sum(lease["lost"] for lease in job["leases"].values()),
            )
            for name, job in naive.jobs.items()
        },
        "leases": {
            (job, node): (lease["units"], lease["role"], lease["lost"], lease["slashed"])
            for job, held in naive.jobs.items()
            for node, lease in held["leases"].items()
        },
        "epochs": [(job, *roots) for job in sorted(naive.jobs) for roots in naive.jobs[job]["roots"]],
        "channels": {
            names: (said["times"], said["left"], said["expires"], said["price"], said["open"])
            for names, said in naive.channels.items()
        },
        "keys": {account: tuple(said.values()) for account, said in naive.keys.items()},
    }


class Ledger(RuleBasedStateMachine):
    """All operations by several actors, likely and unlikely to succeed, several to a block."""

    def __init__(self) -> None:
        super().__init__()
        self.world, self.naive, self.block_size = World(), Naive(genesis()), 1
        self.waiting: list[tx.SignedTx] = []
        self.nonces: dict[bytes, int] = {}
        self.seen: list[tx.SignedTx] = []
        self.closed: dict[bytes, LeaseRow] = {}
        self.keys: dict[bytes, KeyRow] = {}
        self.entries: list[Entry] = list(opening(genesis()))

    def ask(self, key: SigningKey, *ops: tx.Op, fee: int = 0, expires: int = 0) -> None:
        nonce = self.nonces.get(key.public, self.world.account(key).nonce)
        self.nonces[key.public] = nonce + 1
        made = tx.make_tx(self.world.chain, key.public, nonce, *ops, fee=fee, expires=expires)
        self.waiting.append(tx.sign_tx(key, made))
        if len(self.waiting) >= self.block_size:
            self.seal(1000)

    @initialize(block_size=st.sampled_from((1, 1, 2, 4)))
    def choose(self, block_size: int) -> None:
        self.block_size = block_size

    def at(self, span: int) -> int:
        return max(0, self.world.state.time + span)

    @rule(key=ANYONE, to=ANYONE, amount=AMOUNT, fee=st.sampled_from((0, 0, 3, 10**7)), span=SPAN)
    def transfer(self, key: SigningKey, to: SigningKey, amount: int, fee: int, span: int) -> None:
        self.ask(key, tx.Transfer(to.public, amount), fee=fee, expires=self.at(span) if fee else 0)

    @rule(key=LENDER, stake=AMOUNT, span=SPAN)
    def register(self, key: SigningKey, stake: int, span: int) -> None:
        self.ask(key, self.world.register(stake, self.at(span)))

    @rule(key=LENDER)
    def leave(self, key: SigningKey) -> None:
        self.ask(key, tx.NodeLeave())

    @rule(key=OWNER, job=JOBS, escrow=AMOUNT, span=SPAN, rounds=st.integers(0, 3))
    def create(self, key: SigningKey, job: Hash, escrow: int, span: int, rounds: int) -> None:
        self.ask(key, self.world.create(job, escrow, rounds, self.at(span)))

    @rule(
        key=OWNER,
        job=JOBS,
        nodes=st.lists(LENDER, min_size=1, max_size=3),
        price=st.integers(0, 6),
        units=SMALL,
        stake=AMOUNT,
        span=SPAN,
        role=ROLE,
    )
    def schedule(
        self,
        key: SigningKey,
        job: Hash,
        nodes: list[SigningKey],
        price: int,
        units: int,
        stake: int,
        span: int,
        role: tx.Role,
    ) -> None:
        terms = (price, stake, units, self.at(span))
        offers = [self.world.offer(node, job, *terms, role=role) for node in nodes]
        self.ask(key, self.world.schedule(*offers, job=job))

    @rule(job=JOBS, stake=st.integers(0, 200), units=st.integers(1, 40), stage=st.integers(1, 4))
    def start(self, job: Hash, stake: int, units: int, stage: int) -> None:
        """A sequence that mostly succeeds, so that deep states are common."""
        self.seal(1000)
        for node in NODES[:2]:
            self.ask(node, self.world.register(max(stake, 100), self.at(30_000)))
        self.ask(REQUESTER, self.world.create(job, 900, 3, self.at(60_000)))
        offers = [self.world.offer(node, job, 5, stake, units, self.at(9_000)) for node in NODES[:2]]
        ops = [
            self.world.schedule(*offers, job=job),
            self.world.progress(0, (NODES[0], units), (NODES[1], 1), job=job),
            tx.JobFinish(job, ROOTS[0], CAPS),
            tx.JobSettle(job),
        ]
        self.ask(REQUESTER, *ops[:stage])
        self.seal(1000)

    @rule(
        key=OWNER,
        job=JOBS,
        skip=st.sampled_from((0, 0, -1, 1)),
        units=st.lists(st.tuples(LENDER, SMALL), max_size=3),
    )
    def progress(self, key: SigningKey, job: Hash, skip: int, units: list[tuple[SigningKey, int]]) -> None:
        row = self.world.state.find(JobRow, job)
        self.ask(key, self.world.progress(max(0, (row.round if row else 0) + skip), *units, job=job))

    @rule(
        job=JOBS,
        stake=st.integers(0, 200),
        verifiers=st.integers(0, 2),
        found=st.sampled_from((None, tx.Finding.FALSE, tx.Finding.WITHHELD)),
        stage=st.integers(2, 4),
    )
    def watched(self, job: Hash, stake: int, verifiers: int, found: tx.Finding | None, stage: int) -> None:
        """Audits that mostly succeed, a node that is mostly found out, and what becomes of the job then."""
        judges = VERIFIERS[:verifiers]
        for key in (*NODES[:2], *judges):
            self.ask(key, self.world.register(max(stake, 100), self.at(30_000)))
        self.ask(REQUESTER, self.world.create(job, 900, 3, self.at(60_000)))
        self.seal(1000)
        offers = [self.world.offer(key, job, 5, stake, 40, self.at(9_000)) for key in NODES[:2]]
        offers += [
            self.world.offer(key, job, 1, 30, 50, self.at(9_000), role=tx.Role.AUDIT) for key in judges
        ]
        units = [(NODES[0], 7), (NODES[1], 9), *((key, 3) for key in judges)]
        ops = [
            self.world.schedule(*offers, job=job),
            self.world.progress(0, *units, job=job),
            tx.JobFinish(job, ROOTS[0], CAPS),
            tx.JobSettle(job),
        ]
        self.ask(REQUESTER, *ops[:2])
        if found and judges:
            self.ask(REQUESTER, self.world.accuse(NODES[0], *judges, job=job, finding=found, excess=2001))
        self.seal(1000)
        if stage > 2:
            self.ask(REQUESTER, *ops[2:stage])

    @rule(
        sender=st.sampled_from((REQUESTER, REQUESTER, *VERIFIERS, NODES[1])),
        job=JOBS,
        node=st.sampled_from((*NODES, NODES[0], VERIFIERS[0])),
        verifiers=st.one_of(st.just(list(VERIFIERS)), st.lists(AUDITOR, max_size=3)),
        finding=st.sampled_from((*tx.Finding, tx.Finding.FALSE, tx.Finding.WITHHELD)),
        excess=st.sampled_from((0, 2000, 2001, 9000)),
        claimed=st.sampled_from((0, 0, 0, 1)),
    )
    def slash(
        self,
        sender: SigningKey,
        job: Hash,
        node: SigningKey,
        verifiers: list[SigningKey],
        finding: tx.Finding,
        excess: int,
        claimed: int,
    ) -> None:
        says = {"job": job, "finding": finding, "excess": excess}
        verdicts = tuple(self.world.verdict(key, node, **says) for key in verifiers)
        claim = self.world.claim(node, job, claimed)
        self.ask(sender, tx.JobSlash(job, node.public, claim, verdicts, EVIDENCE))

    @rule(job=JOBS, node=LENDER, over=st.integers(0, 1))
    def at_the_edge(self, job: Hash, node: SigningKey, over: int) -> None:
        """What is just allowed, or just not: units, escrow, an offer's last moment, the next round."""
        row = self.world.state.find(JobRow, job)
        if row is None:
            return
        lease = self.world.state.find(LeaseRow, lease_key(job, node.public))
        if lease:
            left = lease.units_max - lease.units
            self.ask(REQUESTER, self.world.progress(min(row.round, 7), (node, left + over), job=job))
        else:
            units = (row.escrow - row.reserved) // 5
            self.ask(node, self.world.register(100, self.at(50_000)))
            for terms in ({"units": units + over}, {"expires": self.at(1000 + 1 - over)}):
                offer = self.world.offer(node, job, **{"units": 1, "expires": self.at(9_000), **terms})
                self.ask(REQUESTER, self.world.schedule(offer, job=job))

    @rule(key=OWNER, job=JOBS, then_settle=st.booleans())
    def finish(self, key: SigningKey, job: Hash, then_settle: bool) -> None:
        row = self.world.state.find(JobRow, job)
        ops: list[tx.Op] = [tx.JobFinish(job, row.root if row else ROOTS[0], CAPS)]
        self.ask(key, *ops, *([tx.JobSettle(job)] if then_settle else []))

    @rule(key=OWNER, job=JOBS)
    def settle(self, key: SigningKey, job: Hash) -> None:
        self.ask(key, tx.JobSettle(job))

    @rule(key=OWNER, job=JOBS)
    def cancel(self, key: SigningKey, job: Hash) -> None:
        self.ask(key, tx.JobCancel(job))

    @rule(
        key=ANYONE,
        node=st.sampled_from((*ACTORS, STRANGER, None)),
        epoch=st.integers(0, 4) | st.sampled_from((2**32 - 1, 2**32)),
        expires=st.sampled_from((0, 1, 253_402_300_799, 253_402_300_800)),
        until=st.sampled_from((0, 7, 253_402_300_800)),
    )
    def certify(self, key: SigningKey, node: SigningKey | None, epoch: int, expires: int, until: int) -> None:
        public = PeerId(bytes(32)) if node is None else node.public
        self.ask(key, tx.KeyCertify(public, epoch, expires, until))

    @rule(key=ANYONE, epochs=st.lists(st.integers(0, 4) | st.just(2**32 - 1), min_size=1, max_size=2))
    def revoke(self, key: SigningKey, epochs: list[int]) -> None:
        self.ask(key, *(tx.KeyRevoke(epoch) for epoch in epochs))

    @rule(
        payer=OWNER,
        relay=st.sampled_from((NODES[2], NODES[2], REQUESTER, VERIFIERS[0])),
        amount=AMOUNT,
        price=st.sampled_from((1 << 30, 1 << 30, 0, 12_345)),
        span=SPAN,
    )
    def open_channel(self, payer: SigningKey, relay: SigningKey, amount: int, price: int, span: int) -> None:
        self.ask(payer, self.world.open_channel(relay, amount, price, self.at(span)))

    @rule(
        payer=OWNER,
        relay=st.sampled_from((NODES[2], NODES[2], VERIFIERS[0])),
        serials=st.lists(st.integers(0, 3), min_size=1, max_size=2),
        opening=st.sampled_from((1, 1, 1, 2)),
        said=st.lists(st.tuples(st.sampled_from(NODES), SMALL, SMALL), max_size=3),
        terms=st.sampled_from(
            ((1 << 40, 0), (1 << 40, 3), (10, 0), (10, 9), ((1 << 50) + 1, 0), (10, (1 << 50) + 1))
        ),
        signer=st.sampled_from((None, None, None, STRANGER)),
    )
    def claim(
        self,
        payer: SigningKey,
        relay: SigningKey,
        serials: list[int],
        opening: int,
        said: list[tuple[SigningKey, int, int]],
        terms: tuple[int, int],
        signer: SigningKey | None,
    ) -> None:
        fields = {"payer": payer, "relay": relay, "signer": signer, "opening": opening}
        quota, lost = terms
        passages = [self.world.passage(serial, *said, **fields, quota=quota, lost=lost) for serial in serials]
        self.ask(relay, tx.ChannelClaim(payer.public, tuple(passages)))

    @rule(stage=st.integers(1, 3), sizes=st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=3))
    def carried(self, stage: int, sizes: list[tuple[int, int]]) -> None:
        """A channel that is mostly opened, claimed from and closed."""
        relay, payer = NODES[2], REQUESTER
        self.ask(payer, self.world.open_channel(relay, 90, 1 << 30, self.at(30_000)))
        self.seal(1000)
        row = self.world.state.find(ChannelRow, channel_key(payer.public, relay.public))
        if row is None or not row.is_open:
            return
        terms = {"payer": payer, "relay": relay, "opening": row.opening}
        for number, (sent, got) in enumerate(sizes):
            said = ((NODES[0], sent, got), (NODES[1], got, sent))
            passage = self.world.passage(row.serial + number, *said, **terms)
            self.ask(relay, tx.ChannelClaim(payer.public, (passage,)))
        if stage == 3:
            self.ask(relay, tx.ChannelClose(payer.public))

    @rule(payer=OWNER, relay=st.sampled_from((NODES[2], NODES[2], REQUESTER)))
    def close_channel(self, payer: SigningKey, relay: SigningKey) -> None:
        self.ask(relay, tx.ChannelClose(payer.public))

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
        assert [type(outcome).__name__.lower() for outcome in outcomes] == naive
        included = [signed for signed, said in zip(self.waiting, naive, strict=True) if said != "rejected"]
        again, repeated = apply_block(state, state.time + wait, included, VALIDATOR.public)
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
            held = [row for row in self.world.state.rows(LeaseRow) if row.node == node.node and row.is_open]
            assert (node.leases, node.locked) == (len(held), sum(row.stake for row in held))

    @invariant()
    def what_is_reserved_fits_into_the_escrow(self) -> None:
        for job in self.world.state.rows(JobRow):
            held = [row for row in self.world.state.rows(LeaseRow) if row.job == job.job and row.is_open]
            reserved = sum(row.units_max * row.unit_price for row in held)
            assert reserved <= job.escrow
            assert not job.escrow or reserved == job.reserved

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
        """Paid, unlocked or slashed once: a row that is closed stays as it is."""
        for row in self.world.state.rows(LeaseRow):
            if not row.is_open:
                assert self.closed.setdefault(row.key, row) == row
                assert row.evidence == ZERO_HASH or row.paid == 0

    def teardown(self) -> None:
        """The clock alone: past every deadline, then past every expiry."""
        state = self.world.state
        for _ in range(3):
            state, _ = apply_block(state, state.time + 400_000, [], VALIDATOR.public)
        burnt = sum(row.burnt for row in state.rows(NodeRow))
        assert sum(row.balance for row in state.rows(AccountRow)) + burnt == state.law.minted
        assert total_money(state) == state.law.minted
        assert burnt == sum(row.burnt for row in self.world.state.rows(NodeRow))
        assert not any(row.stake for row in state.rows(NodeRow))
        assert not any(row.money for row in state.rows(JobRow))
        assert not any(row.is_open for row in state.rows(LeaseRow))
        assert not any(row.is_open or row.money for row in state.rows(ChannelRow))


def count(outcomes: tuple[Outcome, ...]) -> int:
    return sum(isinstance(outcome, Applied) for outcome in outcomes)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=80, stateful_step_count=40)
