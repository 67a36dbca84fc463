"""Random jobs, and nodes that are found out."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from ledger_world import CAPS, EVIDENCE, NODES, OTHER_JOB, PROGRAM, REQUESTER, REST, ROOTS, VERIFIERS
from machine_base import AMOUNT, AUDITOR, JOBS, LENDER, OWNER, ROLE, SMALL, SPAN, Machine

from farflung.core.crypto import SigningKey
from farflung.core.ids import Hash
from farflung.ledger import transactions
from farflung.ledger.table_rows import JobRow, KeyRow, LeaseRow, lease_key


class JobRules(Machine):
    """Jobs, and nodes that are found out."""

    @rule(key=OWNER, job=JOBS, escrow=AMOUNT, span=SPAN, rounds=st.integers(0, 3))
    def create(self, key: SigningKey, job: Hash, escrow: int, span: int, rounds: int) -> None:
        self.ask(key, self.world.create(job, escrow, rounds, self.at(span)))

    @rule(
        key=OWNER,
        job=JOBS,
        nodes=st.lists(LENDER, min_size=1, max_size=3),
        price=st.sampled_from((5, 5, 5, 0, 1, 6)),
        units=SMALL,
        stake=AMOUNT,
        span=SPAN,
        role=ROLE,
        setter=st.one_of(st.none(), LENDER),
        named=ROLE,
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
        role: transactions.LeaseRole,
        setter: SigningKey | None,
        named: transactions.LeaseRole,
    ) -> None:
        terms = (price, stake, units, self.at(span))
        offers = [self.world.offer(node, job, *terms, role=role) for node in nodes]
        op = self.world.schedule(*offers, job=job)
        if setter:
            op = transactions.JobSchedule(job, op.offers, (transactions.ClearingPrice(named, setter.public),))
        self.ask(key, op)

    @rule(job=JOBS, stake=st.integers(0, 200), units=st.integers(1, 40), stage=st.integers(1, 5))
    def start(self, job: Hash, stake: int, units: int, stage: int) -> None:
        """A sequence that mostly succeeds, so that deep states are common."""
        self.seal(1000)
        for node in NODES[:2]:
            self.ask(node, self.world.register(max(stake, 100), self.at(30_000)))
        self.ask(REQUESTER, self.world.create(job, 900, 3, self.at(60_000)))
        offers = [self.world.offer(node, job, 5, stake, units, self.at(9_000)) for node in NODES[:2]]
        ops = [
            self.world.schedule(*offers, job=job),
            self.world.draw(0, job),
            self.world.progress(0, (NODES[0], units), (NODES[1], 1), job=job),
            transactions.JobFinish(job, ROOTS[0], CAPS),
            transactions.JobSettle(job),
        ]
        self.ask(REQUESTER, *ops[:stage])
        self.seal(1000)

    @rule(
        key=OWNER, job=JOBS, skip=st.sampled_from((0, 0, -1, 1)), units=st.lists(st.tuples(LENDER, SMALL), max_size=3)
    )
    def progress(self, key: SigningKey, job: Hash, skip: int, units: list[tuple[SigningKey, int]]) -> None:
        row = self.world.state.find(JobRow, job)
        self.ask(key, self.world.progress(max(0, (row.round if row else 0) + skip), *units, job=job))

    @rule(
        key=OWNER,
        job=JOBS,
        skips=st.sampled_from(([0], [0, 0], [0, 0, 0], [-1], [1], [0, 0, -1], [0, 1])),
        said=st.sampled_from(ROOTS),
    )
    def draw(self, key: SigningKey, job: Hash, skips: list[int], said: Hash) -> None:
        """Rounds one behind the other in one transaction, up to the last and beyond, or one that is not the next."""
        if self.world.state.find(JobRow, job) is None:
            self.start(job, 100, 9, 2)
        row = self.world.state.find(JobRow, job)
        first = row.drawn if row else 0
        rounds = [max(0, first + place + skip) for place, skip in enumerate(skips)]
        self.ask(key, *(self.world.draw(number, job, said) for number in rounds))

    @rule(
        job=JOBS,
        stake=st.integers(0, 200),
        verifiers=st.integers(0, 2),
        found=st.sampled_from((None, transactions.VerdictFinding.FALSE, transactions.VerdictFinding.WITHHELD)),
        stage=st.integers(3, 5),
    )
    def watched(
        self, job: Hash, stake: int, verifiers: int, found: transactions.VerdictFinding | None, stage: int
    ) -> None:
        """Audits that mostly succeed, a node that is mostly found out, and what becomes of the job then."""
        judges = VERIFIERS[:verifiers]
        for key, price in (*((key, 5) for key in NODES[:2]), *((key, 1) for key in judges)):
            self.ask(key, self.world.register(max(stake, 100), self.at(30_000), price))
        self.ask(REQUESTER, self.world.create(job, 900, 3, self.at(60_000)))
        self.seal(1000)
        offers = [self.world.offer(key, job, 5, stake, 40, self.at(9_000)) for key in NODES[:2]]
        offers += [
            self.world.offer(key, job, 1, 30, 50, self.at(9_000), role=transactions.LeaseRole.AUDIT) for key in judges
        ]
        units = [(NODES[0], 7), (NODES[1], 9), *((key, 3) for key in judges)]
        ops = [
            self.world.schedule(*offers, job=job),
            self.world.draw(0, job),
            self.world.progress(0, *units, job=job),
            transactions.JobFinish(job, ROOTS[0], CAPS),
            transactions.JobSettle(job),
        ]
        self.ask(REQUESTER, *ops[:3])
        if found and judges:
            self.ask(REQUESTER, self.world.accuse(NODES[0], *judges, job=job, finding=found, excess=2001))
        self.seal(1000)
        if stage > 3:
            self.ask(REQUESTER, *ops[3:stage])

    @rule(
        sender=st.sampled_from((REQUESTER, REQUESTER, *VERIFIERS, NODES[1])),
        job=JOBS,
        node=st.sampled_from((*NODES, NODES[0], VERIFIERS[0])),
        verifiers=st.one_of(st.just(list(VERIFIERS)), st.lists(AUDITOR, max_size=3)),
        finding=st.sampled_from(
            (*transactions.VerdictFinding, transactions.VerdictFinding.FALSE, transactions.VerdictFinding.WITHHELD)
        ),
        excess=st.sampled_from((0, 2000, 2001, 9000)),
        claimed=st.sampled_from((0, 0, 0, 1)),
        opens=st.booleans(),
    )
    def slash(
        self,
        sender: SigningKey,
        job: Hash,
        node: SigningKey,
        verifiers: list[SigningKey],
        finding: transactions.VerdictFinding,
        excess: int,
        claimed: int,
        opens: bool,
    ) -> None:
        says = {"job": job, "finding": finding, "excess": excess}
        verdicts = tuple(self.world.verdict(key, node, **says) for key in verifiers)
        claim = self.world.claim(node, job, claimed)
        opening = (REST, PROGRAM) if opens else ()
        self.ask(sender, transactions.JobSlash(job, node.public, claim, verdicts, EVIDENCE, *opening))

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
        ops: list[transactions.Op] = [transactions.JobFinish(job, row.root if row else ROOTS[0], CAPS)]
        self.ask(key, *ops, *([transactions.JobSettle(job)] if then_settle else []))

    @rule(key=OWNER, job=JOBS)
    def settle(self, key: SigningKey, job: Hash) -> None:
        self.ask(key, transactions.JobSettle(job))

    @rule(key=OWNER, step=st.sampled_from((0, 1, 1, 2)), mark=st.sampled_from((1, 2, 0)))
    def coordinate(self, key: SigningKey, step: int, mark: int) -> None:
        """Of one job alone: the others would be stopped by it."""
        job = OTHER_JOB
        row = self.world.state.find(KeyRow, transactions.coordinator_of(job))
        said = transactions.JobCoordinate(job, (row.epoch if row else 0) + step, Hash(bytes([mark]) * 32))
        self.ask(key, said, transactions.JobCancel(job))

    @rule(key=LENDER, job=JOBS)
    def leave_job(self, key: SigningKey, job: Hash) -> None:
        self.ask(key, transactions.JobLeave(job))

    @rule(job=JOBS, rounds=st.sampled_from((2, 2, 2, 1, 3)), wait=st.sampled_from((1000, 45_000, 45_000)))
    def leave_going_job(self, job: Hash, rounds: int, wait: int) -> None:
        """Work, notice, the rounds after it, and the second time: where an hour ends meanwhile, the node has left."""
        self.start(job, 100, 9, 3)
        self.ask(NODES[0], transactions.JobLeave(job))
        for number in range(1, 1 + rounds):
            self.ask(REQUESTER, self.world.progress(number, (NODES[1], 0), job=job))
        self.seal(wait)
        self.ask(NODES[0], transactions.JobLeave(job))

    @rule(key=OWNER, job=JOBS)
    def cancel(self, key: SigningKey, job: Hash) -> None:
        self.ask(key, transactions.JobCancel(job))
