"""Canaries in a finished run: each is proved again, pay and stakes follow from them, and nobody can add or drop one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from verify_story import KEYS, LOST_IN, PEERS, REQUESTER, SPEC, VERIFIERS, Lies, Story

from farflung.core.commitments import BorderRoots
from farflung.core.crypto import NS_STATE, digest
from farflung.core.errors import VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.ledger import transactions
from farflung.ledger.canaries import planted_root, source_of
from farflung.ledger.table_rows import LeaseRow, lease_key
from farflung.ledger.transactions import Canary, Verdict, VerdictFinding, sign_verdict
from farflung.train.contribution_trace import ContributionTrace, TrainingStatistics
from farflung.train.run_log import AcceptSetRecord, AuditsRecord, CommitmentsRecord, Contribution, Record
from farflung.verify import audit_sample
from farflung.verify.audit_verdict import EXCESS_CAP, conclusions
from farflung.verify.commitment_check import plant
from farflung.verify.disqualified_verifiers import LAG, DisqualifiedVerifiers
from farflung.verify.replay_report import ReplayReport
from farflung.verify.run_replay import verify_run

replace = msgspec.structs.replace

JACKPOT = 3
PROBED = replace(
    SPEC, sync=replace(SPEC.sync, steps=4), audit=replace(SPEC.audit, rate=1.0, canaries=0.5, jackpot=JACKPOT)
)
GUESSER, LOOKER = (key.public for key in VERIFIERS)
A, B, C = (key.public for key in PEERS)
CAP = {
    VerdictFinding.HOLDS: 3,
    VerdictFinding.FALSE: EXCESS_CAP - 1,
    VerdictFinding.UNPAID: 1500,
    VerdictFinding.WITHHELD: 0,
}


class Probed(Story):
    """A run in which each drawn contribution is planted in. `says`: what a verifier finds in a round."""

    def __init__(
        self,
        lies: Lies | None = None,
        says: Callable[[PeerId, int], VerdictFinding] = lambda verifier, round: VerdictFinding.FALSE,
        spec: Any = PROBED,
    ) -> None:
        self.says, self.disqualified = says, DisqualifiedVerifiers()
        super().__init__(lies, spec=spec)

    def trace(self, c: Contribution, round: int) -> ContributionTrace:
        """A trace of its own for each contribution."""

        def root(what: str, index: int) -> Hash:
            return digest(NS_STATE, what.encode(), bytes([round, index]), c.peer)

        count = self.terms.spec.segments
        borders = [
            BorderRoots(round, i, 4 * round + i, root("params", i), root("optimizer", i), root("residual", 0))
            for i in range(count + 1)
        ]
        return ContributionTrace(tuple(borders), TrainingStatistics((0.5,) * count, 0.1, c.weight), c.payload)

    def contribution(self, key: Any, round: int) -> Contribution:
        made = super().contribution(key, round)
        return replace(made, trace=self.trace(made, round).root)

    def asked(self, round: int) -> list[PeerId]:
        return [v for v in super().asked(round) if v not in self.disqualified.unasked(round)]

    def say(self, point: str, record: Record, *about: Any) -> None:
        if isinstance(record, AuditsRecord):
            record = replace(record, canaries=self.tests(record))
            verdicts = [signed.verdict for signed in record.verdicts]
            self.disqualified.note(record, conclusions(verdicts, min(2, len(self.asked(record.round))), is_proven=True))
        super().say(point, record, *about)

    def tests(self, record: AuditsRecord) -> tuple[Canary, ...]:
        """One of everybody who is judged and was accepted."""
        accepted = {c.peer for c in self.of_round(AcceptSetRecord, record.round).contributions}
        nodes = sorted({v.verdict.node for v in record.verdicts} & accepted)
        return tuple(self.told("canary", self.test(node, record.round), node, record.round) for node in nodes)

    def test(self, node: PeerId, round: int, salt: int = 0, verifier: PeerId | None = None) -> Canary:
        """What one verifier, the first if no other is named, says of a plant."""
        (c,) = [c for c in self.of_round(CommitmentsRecord, round).promised if c.peer == node]
        segment = audit_sample.segment_of(self.luck(round), node, self.terms.spec.segments)
        segment = (segment + salt) % self.terms.spec.segments
        made = plant(KEYS[node], self.terms.id, round, self.trace(c, round), segment)
        first = audit_sample.verifier_order(self.luck(round), node, self.asked(round))[0]
        finding = self.says(verifier or first, round)
        about = (self.genesis.chain, self.terms.id, round, node, segment, planted_root(made))
        judge = verifier or first
        result = digest(NS_STATE, b"result", node)
        return Canary(made, sign_verdict(KEYS[judge], Verdict(*about, judge, finding, CAP[finding], result)))

    def lease(self, node: PeerId) -> LeaseRow:
        row = self.chain.state.find(LeaseRow, lease_key(self.job, node))
        assert row is not None
        return row


def read(story: Story) -> ReplayReport:
    """What the reader makes of the export."""
    return verify_run(story.export())


def refused(story: Story, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        read(story)
    assert caught.value.code == code, caught.value.lines()


def guessing(first: int = 0) -> Callable[[PeerId, int], VerdictFinding]:
    """One verifier says that all holds, from round `first` on."""
    return lambda verifier, round: (
        VerdictFinding.HOLDS if verifier == GUESSER and round >= first else VerdictFinding.FALSE
    )


def records(story: Story) -> list[AuditsRecord]:
    return [r for r in story.records if isinstance(r, AuditsRecord)]


def only(round: int, change: Callable[[AuditsRecord], Any]) -> Lies:
    return {"audited": lambda truth, told: change(truth) if told == round else truth}


# What holds


def test_canaries_that_were_found_are_proved_again_and_paid_with_the_jackpot() -> None:
    story = Probed()
    report = read(story)
    assert report.canaries == sum(len(r.canaries) for r in records(story)) > 3
    assert (report.guessed, report.slashed) == (0, 0)
    spec, earned = story.terms.spec, dict.fromkeys([key.public for key in VERIFIERS], 0)
    for record in records(story):
        for signed in record.verdicts:
            earned[signed.verdict.verifier] += spec.step_tokens  # a segment is one step
        for canary in record.canaries:
            earned[canary.verdict.verdict.verifier] += (1 + JACKPOT) * spec.step_tokens
    for verifier, units in earned.items():
        assert (story.lease(verifier).earned, story.lease(verifier).slashed) == (units, 0)


def test_who_says_that_a_planted_segment_holds_loses_stake_and_pay_and_judges_no_more() -> None:
    story = Probed(says=guessing())
    report = read(story)
    assert (report.guessed, report.slashed) == (1, 0)
    lease = story.lease(GUESSER)
    assert (lease.is_open, lease.paid, lease.earned, lease.slashed) == (False, 0, 0, lease.stake)
    assert all(story.lease(node).slashed == 0 for node in (A, B, C, LOOKER))
    late = [v for r in records(story)[LAG:] for v in r.verdicts]
    assert late
    assert GUESSER not in {signed.verdict.verifier for signed in late}


def test_what_a_verifier_earned_before_it_guessed_is_forfeited() -> None:
    story = Probed(says=lambda verifier, round: VerdictFinding.HOLDS if round == 2 else VerdictFinding.FALSE)
    read(story)
    leases = [story.lease(verifier) for verifier in story.disqualified.found]
    assert any(lease.earned for lease in leases)
    assert all((lease.paid, lease.slashed) == (0, lease.stake) for lease in leases)


def test_who_is_found_out_in_the_last_round_loses_its_stake_as_well() -> None:
    story = Probed(says=lambda verifier, round: VerdictFinding.HOLDS if round == 2 else VerdictFinding.FALSE)
    found = story.disqualified.found
    assert found
    assert read(story).guessed == len(found)
    assert not any(story.lease(verifier).is_open for verifier in found)


def test_who_planted_and_is_found_out_before_the_ledger_hears_of_it_has_nobodys_stake() -> None:
    planter = Probed(says=guessing()).disqualified.found[GUESSER].planter

    def lying(truth: VerdictFinding, place: int, node: PeerId, round: int) -> VerdictFinding:
        return VerdictFinding.FALSE if (node, round) == (planter, 1) else truth

    story = Probed({"finding": lying}, guessing())
    assert story.disqualified.found[GUESSER].planter == planter
    report = read(story)
    assert (report.guessed, report.slashed) == (0, 1)
    assert (story.lease(GUESSER).slashed, story.lease(planter).slashed) == (0, 1000)


def test_a_canary_of_work_that_is_found_false_punishes_nobody() -> None:
    planter = Probed(says=guessing()).disqualified.found[GUESSER].planter

    def lying(truth: VerdictFinding, place: int, node: PeerId, round: int) -> VerdictFinding:
        return VerdictFinding.FALSE if (node, round) == (planter, 0) else truth

    story = Probed({"finding": lying}, guessing())
    perjury = story.disqualified.found.get(GUESSER)
    assert perjury is None or perjury.planter != planter
    read(story)


@pytest.mark.parametrize("finding", [VerdictFinding.UNPAID, VerdictFinding.WITHHELD])
def test_who_is_unsure_of_a_planted_segment_loses_nothing_and_is_not_paid_for_it(finding: VerdictFinding) -> None:
    story = Probed(says=lambda verifier, round: finding)
    assert (read(story).guessed, story.disqualified.found) == (0, {})
    judged = [signed.verdict.verifier for record in records(story) for signed in record.verdicts]
    for key in VERIFIERS:
        due = judged.count(key.public) * story.terms.spec.step_tokens
        assert story.lease(key.public).earned == due


def test_a_job_without_canaries_reads_as_before() -> None:
    assert read(Story()).canaries == 0


# What is seen


def test_a_perjury_that_the_ledger_never_heard_of_is_seen() -> None:
    refused(Probed({"perjury": lambda truth: []}, guessing()), "FF-VERI-138")


def test_a_verifier_that_is_punished_for_a_canary_that_is_in_no_log_is_seen() -> None:
    """The requester keeps it for the ledger alone: others would see that it proves nothing, or that it was paid for."""
    story: list[Probed] = []

    class Hiding(Probed):
        def send(self, key: Any, point: str, op: transactions.Op, *about: Any) -> None:
            super().send(key, point, op, *about)
            if point == "progress" and about == (2,):
                story.append(self)
                self.says = guessing()
                canary = self.test(A, 1, verifier=GUESSER)
                super().send(REQUESTER, "perjury", transactions.JobPerjury(self.job, canary))

    refused(Hiding(), "FF-VERI-138")
    assert story


def test_pay_for_who_was_found_out_is_seen() -> None:
    def paid(op: transactions.Progress, round: int) -> transactions.Progress:
        units = dict(op.units) | ({GUESSER: 4} if not round else {})
        return replace(op, units=tuple(sorted(units.items())))

    refused(Probed({"progress": paid}, guessing()), "FF-VERI-023")


def test_pay_for_a_canary_that_is_in_no_record_is_seen() -> None:
    def paid(op: transactions.Progress, round: int) -> transactions.Progress:
        more = {} if round else {LOOKER: dict(op.units).get(LOOKER, 0) + (1 + JACKPOT) * PROBED.step_tokens}
        return replace(op, units=tuple(sorted((dict(op.units) | more).items())))

    dropped = only(0, lambda record: replace(record, canaries=()))
    read(Probed(dropped))
    refused(Probed(dropped | {"progress": paid}), "FF-VERI-023")


def _other_plant(story: Probed, canary: Canary) -> Canary:
    """Planted in another trace than the one that is in the log, with all signatures of it."""
    said = canary.verdict.verdict
    (c,) = [c for c in story.of_round(CommitmentsRecord, said.round).promised if c.peer == said.node]
    trace = story.trace(c, said.round)
    borders = list(trace.borders)
    source = source_of(said.segment, len(borders) - 1)
    borders[source] = replace(borders[source], params=digest(NS_STATE, b"wherever the verifier ended"))
    made = plant(KEYS[said.node], story.terms.id, said.round, replace(trace, borders=tuple(borders)), said.segment)
    verdict = replace(said, trace=planted_root(made))
    return Canary(made, sign_verdict(KEYS[said.verifier], verdict))


def _resigned(story: Probed, canary: Canary, **changes: Any) -> Canary:
    said = replace(canary.verdict.verdict, **changes)
    return replace(canary, verdict=sign_verdict(KEYS[said.verifier], said))


CHANGES: dict[str, Callable[[Probed, Canary], Canary]] = {
    "another trace": _other_plant,
    "another segment": lambda s, c: s.test(A, 0, salt=1),
    "another chain": lambda s, c: _resigned(s, c, chain=Hash(bytes(32))),
    "a finding that is none": lambda s, c: _resigned(s, c, finding=VerdictFinding.HOLDS, excess=5000),
    "an unsigned verdict": lambda s, c: replace(
        c, verdict=replace(c.verdict, signature=s.test(B, 0).verdict.signature)
    ),
    "an unsigned plant": lambda s, c: replace(c, plant=replace(c.plant, nonce=Hash(bytes(32)))),
    "the true end": lambda s, c: replace(c, plant=replace(c.plant, source=c.plant.end)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_canary_that_proves_nothing_is_seen(what: str) -> None:
    class Lying(Probed):
        def tests(self, record: AuditsRecord) -> tuple[Canary, ...]:
            found = super().tests(record)
            change = CHANGES[what]
            is_first = record.round == 0
            return tuple(change(self, c) if is_first and c.verdict.verdict.node == A else c for c in found)

        def book(self) -> None:
            first = records(self)[0]
            self.records[self.records.index(first)] = replace(first, canaries=())
            super().book()
            self.records[self.records.index(replace(first, canaries=()))] = first

    refused(Lying(), "FF-VERI-136")


def test_a_canary_for_another_than_the_first_verifier_is_seen() -> None:
    class Choosing(Probed):
        def test(self, node: PeerId, round: int, salt: int = 0, verifier: PeerId | None = None) -> Canary:
            order = audit_sample.verifier_order(self.luck(round), node, self.asked(round))
            return super().test(node, round, salt, order[-1])

    refused(Choosing(), "FF-VERI-137")


def test_canaries_where_the_terms_have_none_are_seen() -> None:
    refused(Probed(spec=replace(PROBED, audit=replace(PROBED.audit, canaries=0.0))), "FF-VERI-135")


def test_a_canary_that_is_told_twice_or_of_work_that_is_owed_is_seen() -> None:
    twice = only(0, lambda record: replace(record, canaries=record.canaries[:1] * 2))
    refused(Probed(twice), "FF-VERI-135")

    class Owing(Probed):
        def tests(self, record: AuditsRecord) -> tuple[Canary, ...]:
            found = super().tests(record)
            return (*found, self.test(C, LOST_IN)) if record.round == LOST_IN else found

    refused(Owing(), "FF-VERI-135")


def test_a_round_that_is_judged_by_who_was_found_out_is_seen() -> None:
    class Forgiving(Probed):
        def asked(self, round: int) -> list[PeerId]:
            return [GUESSER] if round >= LAG else super().asked(round)

    refused(Forgiving(says=guessing()), "FF-VERI-139")
