"""The second reader and audits that lie: a draw that was not kept to, verdicts that nobody gave, pay for what is false.

One case for each check of verify.audit_replay, and for what verify.ledger_replay makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from verify_story import (
    ESCROW,
    EXCESS,
    KEYS,
    LOST_IN,
    NO_AUDITS,
    PEERS,
    PRICE,
    REQUESTER,
    SPEC,
    STRANGER,
    VERIFIERS,
    Story,
    replace,
)

from farflung.core.crypto import digest
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job.spec import AuditSpec
from farflung.ledger import transactions
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules import settlement
from farflung.ledger.table_rows import JobRow, JobState, LeaseRow
from farflung.ledger.transactions import SignedVerdict, VerdictFinding, sign_verdict
from farflung.train.run_log import AcceptSetRecord, AuditsRecord, Record, RoundStartRecord
from farflung.verify import audit_sample
from farflung.verify.replay_report import ReplayReport
from farflung.verify.run_replay import verify_run

OTHER = digest("test/other/1")
A, B, C = (key.public for key in PEERS)
V, W = (key.public for key in VERIFIERS)
SEGMENT = SPEC.round_tokens // 3
EVERYBODY = replace(SPEC, audit=AuditSpec(rate=1.0))
Lie = Callable[..., Any]


def refused(story: Story, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_run(story.export())
    assert caught.value.code == code, caught.value.lines()


def only(round: int, lie: Lie) -> Lie:
    """A lie that is told in one round."""
    return lambda truth, now: lie(truth) if now == round else truth


def found(finding: VerdictFinding, peer: PeerId = A, round: int = 0, *, by: int = 2) -> dict[str, Lie]:
    """The first `by` verifiers of the order find this of one contribution."""

    def lie(truth: VerdictFinding, place: int, about: PeerId, now: int) -> VerdictFinding:
        return finding if (about, now) == (peer, round) and place < by else truth

    return {"finding": lie}


def lease(story: Story, node: PeerId) -> LeaseRow:
    return next(row for row in story.chain.state.rows(LeaseRow) if row.node == node)


def read(story: Story) -> ReplayReport:
    return verify_run(story.export())


# What is true is accepted


def test_a_run_without_audits_has_no_records_of_them() -> None:
    story = Story(spec=replace(SPEC, audit=NO_AUDITS))
    assert not [r for r in story.records if isinstance(r, AuditsRecord)]
    assert (read(story).audits, read(story).paid) == (0, 7 * SPEC.round_tokens)


def test_every_contribution_is_audited_at_a_rate_of_one() -> None:
    report = read(Story(spec=EVERYBODY))
    # One was lost before it showed anything: it is judged, and not paid.
    assert (report.audits, report.owed, report.verdicts) == (8, 1, 8)
    assert report.paid == 7 * SPEC.round_tokens + 8 * SEGMENT


@pytest.mark.parametrize("finding", [VerdictFinding.FALSE, VerdictFinding.WITHHELD])
def test_who_is_found_guilty_by_two_is_out_and_loses_pay_and_stake(finding: VerdictFinding) -> None:
    story = Story(found(finding), spec=EVERYBODY)
    report = read(story)
    members = [{m.peer for m in r.members} for r in story.records if isinstance(r, RoundStartRecord)]
    assert members == [{A, B, C}, {A, B, C}, {B}]
    assert (lease(story, A).paid, report.slashed) == (0, 1)
    assert lease(story, A).slashed == (1000 if finding is VerdictFinding.FALSE else 500)
    # Who saw nothing ran nothing again.
    reruns = (2 + 5) * SEGMENT if finding is VerdictFinding.FALSE else 5 * SEGMENT
    assert report.paid == (2 + 1 + 1) * SPEC.round_tokens + reruns


def test_work_that_lies_between_one_and_two_tolerances_is_unpaid_and_nothing_more() -> None:
    story = Story(found(VerdictFinding.UNPAID))
    report = read(story)
    assert (report.slashed, lease(story, A).units) == (0, 2 * SPEC.round_tokens)
    assert report.paid == 6 * SPEC.round_tokens + story.judged * SEGMENT


@pytest.mark.parametrize("finding", [VerdictFinding.FALSE, VerdictFinding.WITHHELD])
def test_an_accusation_that_the_second_verifier_denies_costs_its_maker_the_fee(finding: VerdictFinding) -> None:
    story = Story(found(finding, by=1))
    report = read(story)
    assert (report.slashed, report.verdicts) == (0, story.judged)
    assert report.paid == 7 * SPEC.round_tokens + (story.judged - 1) * SEGMENT


def test_who_is_out_is_not_judged_for_the_round_that_was_under_way() -> None:
    story = Story(found(VerdictFinding.FALSE), spec=EVERYBODY)
    second = next(r for r in story.records if isinstance(r, AuditsRecord) and r.round == 1)
    assert A not in {v.verdict.node for v in second.verdicts}
    assert lease(story, A).units == 0


def test_earlier_earnings_of_the_guilty_are_forfeited() -> None:
    story = Story(found(VerdictFinding.FALSE, B, 1), spec=EVERYBODY)
    report = read(story)
    assert (lease(story, B).units, lease(story, B).paid, report.slashed) == (SPEC.round_tokens, 0, 1)
    assert report.burnt == SPEC.round_tokens * PRICE  # the job has no graph
    assert report.paid + report.refunded + report.burnt == ESCROW


def test_a_law_that_refunds_what_is_to_be_burnt_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = settlement.close

    def close(draft: StateDraft, job: JobRow, target: JobState) -> None:
        honest(draft, job, target)
        row = draft.find(JobRow, job.job)
        assert row is not None
        settlement.deposit(draft, row.requester, row.escrow)
        draft.put(replace(row, escrow=0, refunded=row.refunded + row.escrow))

    monkeypatch.setattr(settlement, "close", close)
    refused(Story(found(VerdictFinding.FALSE, B, 1), spec=EVERYBODY), "FF-VERI-170")


# The place of the records


def moved(kind: type[Record], number: int, by: int) -> Lie:
    def alter(story: Story) -> None:
        places = [i for i, r in enumerate(story.records) if isinstance(r, kind)]
        record = story.records.pop(places[number])
        story.records.insert(places[number] + by, record)

    return alter


def without(number: int) -> Lie:
    def alter(story: Story) -> None:
        places = [i for i, r in enumerate(story.records) if isinstance(r, AuditsRecord)]
        story.records.pop(places[number])

    return alter


@pytest.mark.parametrize(
    ("alter", "code"),
    [
        (moved(AuditsRecord, 0, 1), "FF-VERI-033"),  # after the round opened that it decides on
        (moved(AuditsRecord, 0, -1), "FF-VERI-033"),
        (moved(AuditsRecord, 0, -4), "FF-VERI-033"),  # before the round after its own
        (moved(AuditsRecord, 1, 1), "FF-VERI-033"),
        (without(0), "FF-VERI-033"),
        (without(1), "FF-VERI-033"),
        (without(2), "FF-VERI-033"),
    ],
)
def test_an_audit_out_of_its_place_is_refused(alter: Lie, code: str) -> None:
    story = Story()
    alter(story)
    with pytest.raises(VerificationError) as caught:
        verify_run(story.export())
    assert caught.value.code in (code, "FF-VERI-011")


def test_the_audits_of_a_round_are_due_before_the_next_but_one_opens() -> None:
    """Written at the end all together, nobody would ever have been out."""
    story = Story()
    audits = [r for r in story.records if isinstance(r, AuditsRecord)]
    rest = [r for r in story.records if not isinstance(r, AuditsRecord)]
    story.records[:] = [*rest[:-1], *audits, rest[-1]]
    refused(story, "FF-VERI-033")


def test_an_audit_of_a_job_without_audits_is_refused() -> None:
    story = Story(spec=replace(SPEC, audit=NO_AUDITS))
    story.records.insert(-1, AuditsRecord(0, ()))
    refused(story, "FF-VERI-033")


def test_who_was_found_false_and_still_takes_part_is_seen() -> None:
    class Lenient(Story):
        def audit(self, round: int) -> None:
            super().audit(round)
            self.out = frozenset()

    refused(Lenient(found(VerdictFinding.FALSE, A, 0), spec=EVERYBODY), "FF-VERI-034")


# The draw


def test_a_drawn_contribution_that_nobody_judged_is_seen() -> None:
    lie = {"audited": only(0, lambda record: replace(record, verdicts=record.verdicts[1:]))}
    refused(Story(lie), "FF-VERI-036")


def test_a_drawn_contribution_that_its_round_went_on_without_is_owed_and_has_to_be_judged() -> None:
    """Were it not, whoever is drawn would die, or be said to have died."""

    def forgiven(record: AuditsRecord) -> AuditsRecord:
        return replace(record, verdicts=tuple(v for v in record.verdicts if v.verdict.node != C))

    assert C not in {c.peer for c in Story(spec=EVERYBODY).of_round(AcceptSetRecord, LOST_IN).contributions}
    refused(Story({"audited": only(LOST_IN, forgiven)}, spec=EVERYBODY), "FF-VERI-036")


def test_who_owes_an_opening_and_is_found_guilty_loses_pay_and_stake() -> None:
    story = Story(found(VerdictFinding.WITHHELD, C, LOST_IN), spec=EVERYBODY)
    assert (read(story).slashed, lease(story, C).slashed, lease(story, C).paid) == (1, 500, 0)


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        (lambda record: replace(record, promised=record.promised[:-1]), "FF-VERI-130"),
        (lambda record: replace(record, promised=record.promised[::-1]), "FF-VERI-130"),
        (lambda record: replace(record, promised=_with_last(record.promised, trace=ZERO_HASH)), "FF-VERI-131"),
        (lambda record: replace(record, promised=_with_last(record.promised, nonce=ZERO_HASH)), "FF-VERI-131"),
    ],
)
def test_a_log_that_does_not_say_what_was_committed_to_is_refused(lie: Lie, code: str) -> None:
    """Nobody could be judged by it who then shows nothing, or anybody by the work of another."""
    refused(Story({"committed": only(LOST_IN, lie)}, spec=EVERYBODY), code)


def _with_last(promised: tuple[Any, ...], **fields: Any) -> tuple[Any, ...]:
    return (*promised[:-1], replace(promised[-1], **fields))


def test_a_contribution_that_was_not_drawn_and_is_judged_is_seen() -> None:
    """Its verifier would be paid for it."""

    class Eager(Story):
        def drawn(self, round: int) -> tuple[audit_sample.AuditSample, ...]:
            return tuple(
                audit_sample.AuditSample(c.peer, 0, "for the fee")
                for c in self.of_round(AcceptSetRecord, round).contributions
            )

    eager = replace(SPEC, audit=AuditSpec(segments=1, rate=0.0))
    refused(Eager(spec=eager), "FF-VERI-036")


def test_a_flag_that_no_payload_bears_out_draws_nobody() -> None:
    lie = {"flagged": only(2, lambda _: {A: "norm", B: "norm"})}
    refused(Story(lie, spec=replace(SPEC, audit=AuditSpec(rate=1e-9, probation=1))), "FF-VERI-036")


def test_a_suspicious_payload_has_to_be_audited() -> None:
    """B sends nothing but zeros in a round in which it is not drawn."""
    story_of: dict[str, Story] = {}

    class Idle(Story):
        def __init__(self, flagged: dict[PeerId, str]) -> None:
            story_of["it"] = self
            super().__init__({"flagged": only(2, lambda _: flagged), "payload": zeros}, spec=dense)

    def zeros(truth: bytes, peer: PeerId, round: int) -> bytes:
        story = story_of["it"]
        if (peer, round) != (B, 2):
            return truth
        nothing = story.public.params * 0
        about = story.sync.about(story.public, story.layout, peer)
        return story.sync.codec(0).encode(None, nothing, story.layout, about)[1]

    sync = replace(SPEC.sync, method="diloco", codec="dense", value_bits=32)
    dense = replace(SPEC, sync=sync, audit=AuditSpec(rate=0.0, probation=1))
    refused(Idle({}), "FF-VERI-036")
    assert read(Idle({B: "zero"})).audits == 4


@pytest.mark.parametrize("field", ["chain", "job", "round", "segment", "trace"])
def test_a_verdict_on_something_else_is_refused(field: str) -> None:
    def lie(record: AuditsRecord) -> AuditsRecord:
        first = record.verdicts[0].verdict
        value = getattr(first, field)
        verdict = replace(first, **{field: (value + 1) % 3 if isinstance(value, int) else OTHER})
        forged = sign_verdict(KEYS[verdict.verifier], verdict)
        return replace(record, verdicts=(forged, *record.verdicts[1:]))

    refused(Story({"audited": only(0, lie)}), "FF-VERI-038")


@pytest.mark.parametrize(
    ("finding", "excess", "result"),
    [
        (VerdictFinding.HOLDS, 1001, OTHER),
        (VerdictFinding.HOLDS, 0, ZERO_HASH),
        (VerdictFinding.UNPAID, 2001, OTHER),
        (VerdictFinding.UNPAID, 0, ZERO_HASH),
    ],
)
def test_a_finding_that_contradicts_itself_is_refused(finding: VerdictFinding, excess: int, result: Any) -> None:
    def lie(record: AuditsRecord) -> AuditsRecord:
        changed = replace(record.verdicts[0].verdict, finding=finding, excess=excess, result=result)
        return replace(record, verdicts=(sign_verdict(KEYS[changed.verifier], changed), *record.verdicts[1:]))

    refused(Story({"audited": only(0, lie)}), "FF-VERI-038")


def test_a_false_finding_within_twice_the_tolerance_is_refused() -> None:
    def lie(record: AuditsRecord) -> AuditsRecord:
        small = [replace(v.verdict, excess=2000) for v in record.verdicts[:2]]
        told = tuple(sign_verdict(KEYS[v.verifier], v) for v in small)
        return replace(record, verdicts=(*told, *record.verdicts[2:]))

    lies = {**found(VerdictFinding.FALSE), "audited": only(0, lie), "slash": lambda op: []}
    refused(Story(lies, spec=EVERYBODY), "FF-VERI-038")


# Who judges


def test_an_accusation_that_nobody_confirmed_is_refused() -> None:
    class Hasty(Story):
        def verdicts(self, *about: Any) -> list[SignedVerdict]:
            return super().verdicts(*about)[:1]

    refused(Hasty(found(VerdictFinding.FALSE)), "FF-VERI-043")


@pytest.mark.parametrize("key", [REQUESTER, STRANGER, PEERS[1]], ids=["requester", "stranger", "a trainer"])
def test_a_verdict_of_who_is_no_verifier_of_the_job_is_refused(key: Any) -> None:
    def lie(record: AuditsRecord) -> AuditsRecord:
        told = tuple(sign_verdict(key, replace(v.verdict, verifier=key.public)) for v in record.verdicts)
        return replace(record, verdicts=told)

    refused(Story({"audited": only(0, lie), "progress": units_of_peers}), "FF-VERI-037")


def units_of_peers(op: transactions.Progress) -> transactions.Progress:
    return replace(op, units=tuple(u for u in op.units if u[0] in (A, B, C, V, W)))


def test_a_verdict_that_its_verifier_did_not_sign_is_refused() -> None:
    def lie(record: AuditsRecord) -> AuditsRecord:
        first = record.verdicts[0]
        forged = SignedVerdict(first.verdict, sign_verdict(REQUESTER, first.verdict).signature)
        return replace(record, verdicts=(forged, *record.verdicts[1:]))

    refused(Story({"audited": only(0, lie)}), "FF-VERI-037")


@pytest.mark.parametrize("order", [lambda x: (*x, x[-1]), lambda x: x[::-1]], ids=["twice", "reversed"])
def test_verdicts_twice_or_out_of_order_are_refused(order: Lie) -> None:
    lie = {"audited": only(0, lambda record: replace(record, verdicts=order(record.verdicts)))}
    refused(Story(lie), "FF-VERI-035")


# Pay and punishment


def test_who_is_found_guilty_and_not_slashed_is_seen() -> None:
    refused(Story({**found(VerdictFinding.FALSE), "slash": lambda op: []}, spec=EVERYBODY), "FF-VERI-039")


def test_who_is_slashed_and_was_not_found_guilty_is_seen() -> None:
    """The verifiers sign for the ledger what they did not sign for the log."""

    def lie(op: transactions.Progress, now: int) -> list[transactions.Op]:
        story = story_of["it"]
        if now != LOST_IN - 1:
            return [op]
        accepted = story.of_round(AcceptSetRecord, now)
        c = next(c for c in accepted.contributions if c.peer == C)
        verdicts = tuple(story.verdict(c, now, 0, key.public, VerdictFinding.FALSE) for key in VERIFIERS)
        return [op, story.slash(accepted, C, now, verdicts)]

    story_of: dict[str, Story] = {}

    class Conspiring(Story):
        def __init__(self) -> None:
            story_of["it"] = self
            super().__init__({"progress": lie})

    refused(Conspiring(), "FF-VERI-039")


def test_pay_for_what_was_found_false_is_seen() -> None:
    def lie(op: transactions.Progress) -> transactions.Progress:
        return replace(op, units=tuple(sorted((*op.units, (A, SPEC.round_tokens)))))

    refused(Story({**found(VerdictFinding.UNPAID), "progress": only(0, lie)}), "FF-VERI-023")


@pytest.mark.parametrize("more", [1, -1, SEGMENT])
def test_a_verifier_that_is_paid_for_more_or_less_than_it_ran_again_is_seen(more: int) -> None:
    def lie(op: transactions.Progress) -> transactions.Progress:
        return replace(op, units=tuple((p, n + more) if p in (V, W) else (p, n) for p, n in op.units))

    refused(Story({"progress": only(0, lie)}), "FF-VERI-023")


def test_every_finding_has_an_excess_in_the_story() -> None:
    assert EXCESS.keys() == set(VerdictFinding)
