"""What scores do: who is not paid for harm, who is drawn for it, and that a reader finds every score that is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verify_story import KEYS, PEERS, SPEC, STRANGER, VERIFIERS, Story

from farflung.core.canon.program import CanonicalProgram
from farflung.core.crypto import digest
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.job.proof_class import ODDS, PROBE_SHARE, PROBE_WINDOWS, may_be_outcome, probe_of
from farflung.job.spec import AuditSpec, JobSpec, ModelSpec, SyncSpec
from farflung.ledger.transactions import Progress
from farflung.train.run_log import AcceptSetRecord, AuditsRecord
from farflung.train.scores import (
    ContributionScore,
    RoundScores,
    SignedRoundScores,
    order_of,
    seed_of,
    sign_scores,
    windows_of,
)
from farflung.verify.audit_accounts import AuditAccounts
from farflung.verify.run_replay import verify_run
from farflung.verify.score_rules import GROSS, MARGIN, RUN, LossStreaks, harmful, panel_of, unpaid

replace = msgspec.structs.replace
WIDE = replace(SPEC, batch=350)  # rounds of so many tokens that each of them is scored
A, B, C = (key.public for key in PEERS)
BEFORE = MARGIN * GROSS * 1000
Gains = Mapping[PeerId, tuple[int, int]]


def scores(gains: Gains, key: Any = VERIFIERS[0], before: int = BEFORE) -> RoundScores:
    each = tuple(ContributionScore(p, before - held, before, before - own) for p, (held, own) in sorted(gains.items()))
    return RoundScores(ZERO_HASH, ZERO_HASH, 0, ZERO_HASH, ZERO_HASH, key.public, before, each)


def signed(gains: Gains, key: Any = VERIFIERS[0]) -> SignedRoundScores:
    return sign_scores(key, scores(gains, key))


# Who is not paid


def test_harm_beyond_the_margin_is_not_paid_where_nothing_was_learnt_of_ones_own_data() -> None:
    edge = -BEFORE // MARGIN
    for held, own, is_harm in [
        (edge, 0, False), (edge - 1, 0, True), (edge - 1, 1, False), (-BEFORE // GROSS, 1, False),
        (-BEFORE // GROSS - 1, 10**6, True),
    ]:  # fmt: skip
        assert (A in harmful(scores({A: (held, own), B: (5, 5), C: (5, 5)}))) is is_harm, (held, own)


def test_where_the_windows_lie_badly_for_all_nobody_is_harmful() -> None:
    bad = -BEFORE // GROSS - 1
    assert harmful(scores({A: (bad, -1), B: (bad, -1), C: (bad, -1)})) == set()
    assert harmful(scores({A: (bad, -1), B: (5, 5)})) == {A}


@given(st.dictionaries(st.sampled_from([A, B, C]), st.tuples(*[st.integers(-(10**9), 10**9)] * 2)))
def test_who_makes_nothing_worse_is_never_harmful_and_more_than_half_never_are(gains: Gains) -> None:
    found = harmful(scores(gains))
    assert all(gains[peer][0] < 0 for peer in found)
    assert 2 * len(found) <= len(gains)


def test_no_lone_verifier_takes_pay_where_the_job_has_two() -> None:
    bad, good = {A: (-BEFORE, -1), B: (5, 5)}, {A: (5, 5), B: (5, 5)}
    one, other = VERIFIERS
    assert unpaid([signed(bad, one)], 2) == unpaid([signed(bad, one), signed(good, other)], 2) == set()
    assert unpaid([signed(bad, one), signed(bad, other)], 2) == {A}
    assert unpaid([signed(bad, one)], 1) == {A}
    assert unpaid([], 1) == set()


# Who is drawn


def folded(*rounds: Gains) -> LossStreaks:
    streaks = LossStreaks()
    for round, gains in enumerate(rounds):
        streaks.add(AuditsRecord(round, (), scores=(signed(gains),) if gains else ()))
    return streaks


def test_who_gains_no_more_on_its_own_data_than_on_others_several_times_in_a_row_is_suspected() -> None:
    odd, even, nothing = {A: (7, 7)}, {A: (6, 7)}, {A: (0, 0)}
    assert folded(*[odd] * (RUN - 1)).suspected == {}
    assert folded(*[odd] * RUN).suspected == {A: "probe"}
    assert folded(odd, even, *[odd] * (RUN - 1)).suspected == {}
    assert folded(*[odd] * RUN, even).suspected == {}
    # a round without scores, and one in which nothing moves (a phase of a method), say nothing of anybody
    assert folded(odd, {}, nothing, *[odd] * (RUN - 1)).suspected == {A: "probe"}


def test_where_two_verifiers_look_both_must_find_it_odd() -> None:
    streaks, (one, other) = LossStreaks(), VERIFIERS
    for round in range(RUN):
        streaks.add(AuditsRecord(round, (), scores=(signed({A: (7, 7)}, one), signed({A: (6, 7)}, other))))
    assert streaks.suspected == {}


# Which windows, which rounds, which verifiers


@given(st.integers(0, 2**64 - 1), st.integers(1, 500), st.integers(1, 64))
def test_windows_are_apart_and_all_there_are(seed: int, total: int, count: int) -> None:
    found = windows_of(seed, total, count)
    assert len(found) == count
    assert all(0 <= place < total for place in found)
    assert len(set(found)) == min(count, total)


def test_windows_lot_and_order_follow_from_the_beacon() -> None:
    first, other = digest("test/beacon/1", b"1"), digest("test/beacon/1", b"2")
    assert seed_of(first) != seed_of(other)
    ring = [digest("test/verifier/1", bytes([i])) for i in range(16)]
    verifiers = [PeerId(bytes(each)) for each in ring]
    assert order_of(first, verifiers) != order_of(other, verifiers) == order_of(other, verifiers[::-1])


def test_scoring_costs_no_more_than_its_share_and_small_rounds_are_drawn_for_it() -> None:
    spec, whole = JobSpec(batch=2, model=ModelSpec(context=64)), JobSpec(batch=8, model=ModelSpec(context=64))
    small = probe_of(replace(spec, audit=AuditSpec(proof="outcome")), is_proven=False)
    usual = probe_of(whole, is_proven=False)
    assert small is not None
    assert usual is not None
    assert (usual.windows, usual.odds) == (PROBE_WINDOWS, ODDS)
    looked_at = small.windows * spec.model.context * small.odds / ODDS
    assert looked_at <= spec.round_tokens / PROBE_SHARE < looked_at + 1
    beacons = [digest("test/beacon/1", i.to_bytes(4, "little")) for i in range(400)]
    drawn = sum(bool(panel_of(small, beacon, [A, B])) for beacon in beacons)
    assert abs(drawn / 400 - small.odds / ODDS) < 0.1


@pytest.mark.parametrize(
    ("audit", "is_proven", "is_on"),
    [({}, True, False), ({}, False, True), ({"probe": 64}, True, True), ({"rate": 0.0, "probation": 0}, False, False)],
)
def test_outcome_only_jobs_are_scored_and_others_where_they_ask(
    audit: dict[str, Any], is_proven: bool, is_on: bool
) -> None:
    found = probe_of(JobSpec(audit=AuditSpec(**audit)), is_proven=is_proven)
    assert (found is not None) is is_on


def test_a_plan_reckons_with_scores_where_a_job_may_be_outcome_only() -> None:
    own = ModelSpec(kind="module", module="m.py:f")
    assert not may_be_outcome(JobSpec())
    assert may_be_outcome(JobSpec(sync=SyncSpec(delay=1)))
    assert may_be_outcome(JobSpec(model=own))
    assert not may_be_outcome(JobSpec(model=own, audit=AuditSpec(proof="proven")))


# The second reader


def harming(peer: PeerId, who: tuple[int, ...] = (0, 1)) -> Callable[..., Any]:
    """The verifiers at these places find a peer's first contributions harmful."""
    return lambda truth, place, about, round: (
        (-(3 << 20), -5) if about == peer and place in who and round < 2 else truth
    )


def refused(story: Story, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_run(story.export())
    assert caught.value.code == code, caught.value.lines()


def test_a_scored_run_is_found_true_and_its_scorers_are_paid() -> None:
    story = Story(spec=WIDE)
    report, probe = verify_run(story.export()), probe_of(WIDE, is_proven=False)
    assert probe is not None
    assert (report.scores, report.unpaid) == (3 + 2 + 2, 0)
    audits = story.judged * WIDE.round_tokens // 3
    read = sum(probe.tokens(count, 8) for count in (3, 2, 2))
    assert report.paid == 7 * WIDE.round_tokens + audits + read


def test_harm_is_not_paid_and_costs_nothing_else() -> None:
    honest, story = (Story(lies, spec=WIDE, done=2) for lies in ({}, {"gains": harming(A)}))
    report = verify_run(story.export())
    assert (report.unpaid, report.slashed) == (2, 0)
    probe = probe_of(WIDE, is_proven=False)
    assert probe is not None
    more = probe.tokens(3, 8) + probe.tokens(2, 8)  # a second verifier read as much
    assert report.paid == verify_run(honest.export()).paid - 2 * WIDE.round_tokens + more


def test_harm_that_a_second_verifier_denies_is_paid() -> None:
    assert verify_run(Story({"gains": harming(A, (0,))}, spec=WIDE, done=1).export()).unpaid == 0


def test_in_a_proven_job_harm_is_paid_since_its_work_is_checked() -> None:
    story = Story({"gains": harming(A)}, spec=WIDE, done=1)
    proven = replace(story.terms, program=CanonicalProgram(graph=digest("test/graph")), unproven="")
    audited, accepted = (story.of_round(kind, 0) for kind in (AuditsRecord, AcceptSetRecord))
    assert A in AuditAccounts(proven, 2).add(accepted.contributions, audited, accepted.contributions)
    assert A not in AuditAccounts(story.terms, 2).add(accepted.contributions, audited, accepted.contributions)


def test_who_is_suspected_must_be_drawn() -> None:
    """The requester leaves out who its scores would have drawn: the reader draws it anyway."""
    spec = replace(WIDE, rounds=RUN + 2, audit=AuditSpec(rate=1e-9, probation=1))
    odd = {"gains": lambda truth, place, peer, round: (9, 9) if peer == A else truth}
    story = Story(odd, spec=spec, done=RUN + 2)
    verify_run(story.export())
    said = [v.verdict for r in story.records if isinstance(r, AuditsRecord) for v in r.verdicts]
    assert [v.round for v in said if v.node == A] == [0, RUN + 1]
    refused(Story({**odd, "flagged": lambda _: {}}, spec=spec, done=RUN + 2), "FF-VERI-036")


def said(change: Callable[[RoundScores], RoundScores], *, is_resigned: bool = True) -> dict[str, Any]:
    """The first round's scores, changed by somebody who may hold the verifier's key."""

    def lie(truth: tuple[SignedRoundScores, ...], round: int) -> tuple[SignedRoundScores, ...]:
        if round:
            return truth
        changed = change(truth[0].scores)
        again = sign_scores(KEYS[changed.verifier], changed) if is_resigned else replace(truth[0], scores=changed)
        return (again, *truth[1:])

    return {"scores": lie}


OTHER = Hash(digest("test/other/1"))


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        (said(lambda s: replace(s, held_before=s.held_before + 1), is_resigned=False), "FF-VERI-141"),
        (said(lambda s: replace(s, job=OTHER)), "FF-VERI-141"),
        (said(lambda s: replace(s, chain=OTHER)), "FF-VERI-141"),
        (said(lambda s: replace(s, round=1)), "FF-VERI-141"),
        (said(lambda s: replace(s, beacon=OTHER)), "FF-VERI-141"),
        (said(lambda s: replace(s, contributions=OTHER)), "FF-VERI-141"),
        (said(lambda s: replace(s, each=s.each[:-1])), "FF-VERI-141"),
        (said(lambda s: replace(s, each=s.each[::-1])), "FF-VERI-141"),
        (said(lambda s: replace(s, held_before=1 << 51)), "FF-VERI-141"),
        (said(lambda s: replace(s, verifier=STRANGER.public)), "FF-VERI-140"),
        ({"scores": lambda truth: (*truth, *truth)}, "FF-VERI-140"),
    ],
)
def test_a_reader_refuses_scores_that_are_none(lie: dict[str, Any], code: str) -> None:
    refused(Story(lie, spec=WIDE, done=1), code)


def test_scores_of_a_round_that_is_not_drawn_for_it_are_refused() -> None:
    taken = Story(spec=WIDE, done=1).of_round(AuditsRecord, 0).scores
    assert not any(r.scores for r in Story(done=1).records if isinstance(r, AuditsRecord))
    refused(Story({"scores": lambda truth, round: truth if round else taken}, done=1), "FF-VERI-140")


def test_a_requester_that_pays_otherwise_than_scores_say_is_refused() -> None:
    def paid(op: Progress) -> Progress:
        units = dict(op.units) | {A: WIDE.round_tokens}
        return replace(op, units=tuple(sorted(units.items())))

    lies = {"gains": harming(A), "progress": lambda op, round: paid(op) if round == 0 else op}
    refused(Story(lies, spec=WIDE, done=1), "FF-VERI-023")
