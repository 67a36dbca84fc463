"""Random canaries: verifiers that say that planted work holds, and nodes that plant."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from ledger_canary import perjury, plant
from ledger_world import BOND, CAPS, NODES, REQUESTER, ROOTS, STRANGER, VALIDATOR, VERIFIERS
from machine_base import Machine
from msgspec.structs import replace

from farflung.core.crypto import NS_SPEC, SigningKey, digest
from farflung.core.ids import Hash
from farflung.ledger import transactions
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.table_rows import JobRow, LeaseRow

ODD = (None, None, None, None, "round", "trace", "job", "plant", "finding")


class CanaryRules(Machine):
    """Whose stake pays for a guess."""

    @rule(
        sender=st.sampled_from((REQUESTER, REQUESTER, NODES[0], VERIFIERS[1], STRANGER)),
        place=st.integers(0, 3),
        node=st.sampled_from((NODES[0], NODES[0], NODES[1], VERIFIERS[0])),
        verifier=st.sampled_from((*VERIFIERS, *VERIFIERS, NODES[1])),
        odd=st.sampled_from(ODD),
        finding=st.sampled_from(transactions.VerdictFinding),
    )
    def perjure(
        self,
        sender: SigningKey,
        place: int,
        node: SigningKey,
        verifier: SigningKey,
        odd: str | None,
        finding: transactions.VerdictFinding,
    ) -> None:
        """Of a job that somebody audits, and now and then wrong in one thing."""
        leases = [row for row in self.world.state.rows(LeaseRow) if row.is_open]
        open_ = [row.job for row in leases if row.role == transactions.LeaseRole.AUDIT]
        if open_:
            job = open_[place % len(open_)]
            other = {"round": {"round": 1}, "trace": {"trace": ROOTS[6]}, "job": {"job": ROOTS[5]}}
            change = other.get(odd or "", {"finding": finding} if odd == "finding" else {})
            made = plant(node, job=ROOTS[5] if odd == "plant" else job)
            said = perjury(self.world, verifier, node, made, **({"job": job} | change))
            self.ask(sender, replace(said, job=job))

    @rule(
        stake=st.integers(0, 200),
        accused=st.sampled_from((None, "before", "after", "after")),
        stage=st.integers(0, 4),
        ends=st.sampled_from((None, "finish", "cancel")),
        guilty=st.booleans(),
        heard=st.integers(0, 3),
    )
    def caught(self, stake: int, accused: str | None, stage: int, ends: str | None, guilty: bool, heard: int) -> None:
        """A perjury that mostly comes in; the node that planted is accused itself; answers, votes, the job's end."""
        self.seal(1000)
        job = digest(NS_SPEC, b"canary", bytes([len(self.world.state.rows(JobRow))]))
        for key, price in (*((key, 5) for key in NODES[:2]), *((key, 1) for key in VERIFIERS)):
            self.ask(key, self.world.register(300, self.at(30_000), price))
        self.ask(REQUESTER, self.world.create(job, 900, 3, self.at(60_000)))
        self.seal(1000)
        self._hire(job, stake)
        if accused == "before":
            self.ask(VERIFIERS[1], self.world.accuse(NODES[1], *VERIFIERS, job=job))
        self.ask(REQUESTER, self._perjury(job))
        if accused == "after":  # of all that audit still
            self.ask(VERIFIERS[1], self.world.accuse(NODES[0], VERIFIERS[1], job=job))
        if ends:
            named = transactions.JobCancel(job) if ends == "cancel" else transactions.JobFinish(job, ROOTS[0], CAPS)
            self.ask(REQUESTER, named, *([transactions.JobSettle(job)] if ends == "finish" else []))
        if stage > 1:
            self.ask(VERIFIERS[0], DisputeAnswer(job, BOND, ROOTS[1]))
        if stage > 2:
            self.ask(NODES[0], DisputeAnswer(job, BOND, ROOTS[2]))
        for juror in (VALIDATOR, STRANGER, NODES[2])[:heard]:
            self.ask(juror, JuryVote(job, VERIFIERS[0].public, guilty))
            if stage > 3:
                self.ask(juror, JuryVote(job, NODES[0].public, not guilty))
        self.seal(1000)

    def _hire(self, job: Hash, stake: int) -> None:
        """Two that train and two that audit; one round is recorded."""
        trains = [self.world.offer(key, job, 5, stake, 40, self.at(9_000)) for key in NODES[:2]]
        audits = [
            self.world.offer(key, job, 1, stake // 2, 50, self.at(9_000), role=transactions.LeaseRole.AUDIT)
            for key in VERIFIERS
        ]
        units = [(NODES[0], 7), (NODES[1], 9), *((key, 3) for key in VERIFIERS)]
        hired = self.world.schedule(*trains, *audits, job=job)
        self.ask(REQUESTER, hired, self.world.progress(0, *units, job=job))

    def _perjury(self, job: Hash) -> transactions.JobPerjury:
        return perjury(self.world, VERIFIERS[0], NODES[0], plant(NODES[0], job=job), job=job)
