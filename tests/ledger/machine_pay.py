"""Random vouchers, attestations and disputes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from ledger_parties import mark_attest
from ledger_world import BOND, CAPS, JOB, NODES, REQUESTER, ROOTS, STRANGER, VALIDATOR, VERIFIERS
from machine_base import ANYONE, Machine
from msgspec.structs import replace

from farflung.core.crypto import NS_SPEC, SigningKey, digest
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger import transactions
from farflung.ledger.disputes import DisputeAnswer, DisputeRow, JuryVote
from farflung.ledger.earnings_tally import JobAttest, OutputAttestation
from farflung.ledger.table_rows import HOLDS_MONEY, JobRow, LeaseRow

WHO_SIGNS = st.sampled_from(
    (
        (REQUESTER,),
        (REQUESTER,),
        (REQUESTER,),
        VERIFIERS,
        VERIFIERS,
        VERIFIERS[:1],
        (),
        (NODES[0],),
        (*VERIFIERS, NODES[2]),
    )
)
PLACE = st.integers(0, 3)
LENDERS = [*NODES, *VERIFIERS]
JUROR = st.sampled_from((VALIDATOR, VALIDATOR, STRANGER, NODES[2], VERIFIERS[0], REQUESTER))
ACCUSED = st.sampled_from((NODES[0], NODES[0], NODES[1]))


class PayRules(Machine):
    """Who is paid without being recorded, and who keeps what it is said to have lost."""

    @rule(
        key=ANYONE,
        place=PLACE,
        earned=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 45)), min_size=1, max_size=2),
        by=WHO_SIGNS,
        odd=st.sampled_from((None, None, None, "units", "units", "node", "chain", "none", "many")),
    )
    def settle_many(
        self, key: SigningKey, place: int, earned: list[tuple[int, int]], by: tuple[SigningKey, ...], odd: str | None
    ) -> None:
        """Mostly for nodes that have a lease in the job."""
        job, chain = self._job(place), ROOTS[7] if odd == "chain" else None
        named = [(self._holder(job, number), units) for number, units in earned]
        op = self.world.settle_many(*named, by=by, job=job, chain=chain)
        last = op.vouchers[-1].credit
        if odd in ("units", "node"):
            last = replace(last, **({"units": last.units + 1} if odd == "units" else {"node": NODES[1].public}))
        vouchers = (*op.vouchers[:-1], replace(op.vouchers[-1], credit=last))
        count = {"none": 0, "many": 257}.get(odd or "", 1)
        self.ask(key, replace(op, vouchers=vouchers * count))

    def _job(self, place: int) -> Hash:
        """One that holds money, or that a pending dispute is about; JOB where there is none."""
        disputed = {row.job for row in self.world.state.rows(DisputeRow) if row.is_pending}
        rows = self.world.state.rows(JobRow)
        open_ = [row.job for row in rows if row.state in HOLDS_MONEY or row.job in disputed]
        return open_[place % len(open_)] if open_ else JOB

    def _holder(self, job: Hash, place: int) -> SigningKey:
        """One that has a lease in the job; any lender where there are fewer."""
        rows = [row.node for row in self.world.state.rows(LeaseRow) if row.job == job]
        keys = [key for key in LENDERS if key.public in rows] or LENDERS
        return keys[place % len(keys)] if place < 4 else LENDERS[-1]

    @rule(place=PLACE, how=st.sampled_from(("finish", "settle", "cancel")))
    def end_job(self, place: int, how: str) -> None:
        """By its requester, whether it may or not."""
        job = self._job(place)
        row = self.world.state.find(JobRow, job)
        if row:
            ends = {"settle": transactions.JobSettle(job), "cancel": transactions.JobCancel(job)}
            self.ask(REQUESTER, ends.get(how) or transactions.JobFinish(job, row.root, CAPS))

    @rule(place=PLACE, by=WHO_SIGNS, odd=st.sampled_from((None, None, None, "root", "output")))
    def attest(self, place: int, by: tuple[SigningKey, ...], odd: str | None) -> None:
        job = self._job(place)
        row = self.world.state.find(JobRow, job)
        if row:
            said = OutputAttestation(self.world.chain, job, row.root, row.output)
            said = replace(said, **{odd: ROOTS[7]}) if odd else said
            self.ask(STRANGER, JobAttest(job, tuple(mark_attest(key, said) for key in by)))

    @rule(
        place=PLACE,
        key=ACCUSED,
        bond=st.sampled_from((BOND, 99, BOND - 1, 10**7)),
        evidence=st.sampled_from((ROOTS[1], ROOTS[1], ROOTS[1], ZERO_HASH)),
    )
    def answer(self, place: int, key: SigningKey, bond: int, evidence: Hash) -> None:
        self.ask(key, DisputeAnswer(self._job(place), bond, evidence))

    @rule(place=PLACE, node=ACCUSED, jurors=st.lists(JUROR, min_size=1, max_size=3), guilty=st.booleans())
    def vote(self, place: int, node: SigningKey, jurors: list[SigningKey], guilty: bool) -> None:
        for juror in jurors:
            self.ask(juror, JuryVote(self._job(place), node.public, guilty))

    @rule(
        stake=st.integers(0, 200),
        hired=st.integers(1, 2),
        both=st.booleans(),
        ends=st.sampled_from((None, "finish", "cancel")),
        stage=st.sampled_from((0, 0, 1, 2, 2, 3, 4, 5)),
        guilty=st.booleans(),
    )
    def disputed(self, stake: int, hired: int, both: bool, ends: str | None, stage: int, guilty: bool) -> None:
        """An accusation that mostly comes in, an answer, votes, and the end of the job before or after them."""
        self.seal(1000)
        job = digest(NS_SPEC, b"job", bytes([len(self.world.state.rows(JobRow))]))
        judges = VERIFIERS[:hired]
        for key, price in (*((key, 5) for key in NODES[:2]), *((key, 1) for key in judges)):
            self.ask(key, self.world.register(300, self.at(30_000), price))
        self.ask(REQUESTER, self.world.create(job, 900, 3, self.at(60_000)))
        self.seal(1000)
        offers = [self.world.offer(key, job, 5, stake, 40, self.at(9_000)) for key in NODES[:2]]
        offers += [
            self.world.offer(key, job, 1, 31, 50, self.at(9_000), role=transactions.LeaseRole.AUDIT) for key in judges
        ]
        units = [(NODES[0], 7), (NODES[1], 9), *((key, 3) for key in judges)]
        self.ask(REQUESTER, self.world.schedule(*offers, job=job), self.world.progress(0, *units, job=job))
        for key in NODES[: 1 + both] if stage else ():
            self.ask(judges[0], self.world.accuse(key, *judges, job=job))
        if ends == "finish":
            self.ask(REQUESTER, transactions.JobFinish(job, ROOTS[0], CAPS), transactions.JobSettle(job))
        elif ends == "cancel":
            self.ask(REQUESTER, transactions.JobCancel(job))
        if stage > 1:
            self.ask(NODES[0], DisputeAnswer(job, BOND, ROOTS[1]))
        if stage > 2:
            self.ask(NODES[0], self.world.settle_many((NODES[0], 33), job=job))
        for juror in (VALIDATOR, STRANGER, NODES[2])[: 2 * stage - 6 if stage > 3 else 0]:
            self.ask(juror, JuryVote(job, NODES[0].public, guilty))
        self.seal(1000)

    @rule()
    def wait_for_a_dispute(self) -> None:
        """To the next deadline of a dispute, exactly."""
        pending = [row.deadline for row in self.world.state.rows(DisputeRow) if row.is_pending]
        self.seal(min(pending) - self.world.state.time if pending else 1000)
