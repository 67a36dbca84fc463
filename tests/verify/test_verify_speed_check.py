"""Claimed speed: who cannot have trained in the time is suspected, nobody who can, and every reader finds the same."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verify_story import PEERS, SPEC, Story

from farflung.core.errors import SpecError, VerificationError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.gpt_shapes import gpt_products, gpt_shapes
from farflung.job.spec import AuditSpec, JobSpec, ModelSpec, SyncSpec
from farflung.job.spec_checks import check
from farflung.train.run_log import CommitmentsRecord, CommitmentTiming
from farflung.verify.run_replay import verify_run
from farflung.verify.speed_check import FLOP, SPEED, flop, is_timed, is_too_fast, suspected

replace = msgspec.structs.replace
MODEL = ModelSpec(layers=1, width=8, heads=1, context=8, vocabulary=16)
RARE = AuditSpec(rate=2.0**-33, probation=1, speed=1.3)  # but for its first contribution nobody is drawn by chance
TIMED = replace(SPEC, model=MODEL, audit=RARE)
FAST, SLOW = CommitmentTiming(1, 1000), CommitmentTiming(10**9, 1000)
LAST = PEERS[0].public

FIGURES = st.integers(0, 2**63 - 1)
SPEEDS = st.floats(1, 100)
TOKENS = st.integers(1, 10**9)


def spec_of(speed: float) -> JobSpec:
    return JobSpec(model=MODEL, audit=AuditSpec(speed=speed))


def test_a_tokens_work_is_its_products_with_all_weights_but_the_table_of_positions() -> None:
    width, vocabulary, layers = 8, 16, 1
    assert gpt_products(MODEL) == vocabulary * width + 12 * layers * width**2
    assert flop(spec_of(1.3), 5) == FLOP * 5 * gpt_products(MODEL)


@given(speed=SPEEDS, flops=st.integers(1, 10**18), tokens=TOKENS, slack=st.floats(1, 1000))
def test_nobody_is_suspected_who_can_have_done_the_work(speed: float, flops: int, tokens: int, slack: float) -> None:
    """At its benchmark's full rate and whatever comes on top; the coordinator rounds up."""
    spec = spec_of(speed)
    seconds = Fraction(flop(spec, tokens), flops) * Fraction(slack)
    assert not is_too_fast(spec, CommitmentTiming(-(-seconds * 1000 // 1), flops), tokens)


@given(speed=SPEEDS, timed=st.builds(CommitmentTiming, FIGURES, FIGURES), tokens=TOKENS, more=st.integers(1, 1000))
def test_who_took_longer_or_offers_more_or_did_less_is_less_suspicious(
    speed: float, timed: CommitmentTiming, tokens: int, more: int
) -> None:
    spec = spec_of(speed)
    if not is_too_fast(spec, timed, tokens):
        assert not is_too_fast(spec, replace(timed, took=timed.took + more), tokens) or not timed.took
        assert not is_too_fast(spec, replace(timed, flops=timed.flops + more), tokens) or not timed.flops
        assert not is_too_fast(spec, timed, max(1, tokens - more))


@given(speed=SPEEDS, timed=st.builds(CommitmentTiming, FIGURES, FIGURES), tokens=TOKENS)
def test_what_is_not_known_is_not_held_against_anybody(speed: float, timed: CommitmentTiming, tokens: int) -> None:
    assert not is_too_fast(spec_of(speed), replace(timed, took=0), tokens)
    assert not is_too_fast(spec_of(speed), replace(timed, flops=0), tokens)
    assert not is_too_fast(spec_of(0.0), timed, tokens)


@pytest.mark.parametrize(("share", "is_found"), [(1.31, True), (1.29, False)])
def test_the_limit_is_the_jobs_multiple_of_the_benchmark(share: float, is_found: bool) -> None:
    spec = spec_of(1.3)
    millis = int(flop(spec, 10**6) / share)
    assert is_too_fast(spec, CommitmentTiming(millis, 1000), 10**6) is is_found


def test_only_accepted_work_is_suspected_and_another_reason_stands_before() -> None:
    story = Story({"committed": lambda r: timed(r, FAST, FAST)}, spec=TIMED, layout=TensorLayout.of(gpt_shapes(MODEL)))
    committed = story.of_round(CommitmentsRecord, 0)
    shown = [c for c in committed.promised if c.peer != LAST]
    found = suspected(TIMED, committed, shown, {shown[0].peer: "norm"})
    assert list(found) == sorted(found) == sorted(c.peer for c in shown)
    assert sorted(found.values()) == ["norm", SPEED]


def timed(record: CommitmentsRecord, of_one: CommitmentTiming, of_all: CommitmentTiming = SLOW) -> CommitmentsRecord:
    """A record that times the first peer's commitment so, and all others' otherwise."""
    return replace(record, timed=tuple(of_one if c.peer == LAST else of_all for c in record.commitments))


def story_of(flagged: Any, of_one: CommitmentTiming = FAST, **lies: Any) -> Story:
    said = {"committed": lambda r: timed(r, of_one), "flagged": flagged, **lies}
    return Story(said, spec=TIMED, layout=TensorLayout.of(gpt_shapes(MODEL)))


def test_verify_run_draws_whoever_cannot_have_trained_in_the_logged_time() -> None:
    honest, other = story_of(lambda f: {LAST: SPEED}), story_of(lambda f: f, of_one=SLOW)
    assert verify_run(honest.export()).audits > verify_run(other.export()).audits
    with pytest.raises(VerificationError, match="does not judge exactly whom its draw names"):
        verify_run(story_of(lambda f: f).export())
    with pytest.raises(VerificationError, match="does not judge exactly whom its draw names"):
        verify_run(story_of(lambda f: {LAST: SPEED}, of_one=SLOW).export())


@pytest.mark.parametrize(
    "lie",
    [
        lambda r: replace(r, timed=()),
        lambda r: replace(r, timed=r.timed[:-1]),
        lambda r: replace(r, timed=(*r.timed, SLOW)),
        lambda r: timed(r, CommitmentTiming(-1, 1000)),
        lambda r: timed(r, CommitmentTiming(1, -1000)),
    ],
)
def test_a_round_that_times_too_few_or_too_many_or_impossibly_is_refused(lie: Any) -> None:
    told = story_of(lambda f: f, of_one=SLOW, committed=lambda r: lie(timed(r, SLOW)))
    with pytest.raises(VerificationError) as refused:
        verify_run(told.export())
    assert refused.value.code == "FF-VERI-145"


def test_nothing_is_timed_where_speed_is_not_judged() -> None:
    record = Story().of_round(CommitmentsRecord, 0)
    assert is_timed(SPEC, record)
    assert not is_timed(SPEC, timed(record, SLOW))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (JobSpec(audit=AuditSpec(speed=0.5)), "at least 1"),
        (JobSpec(audit=AuditSpec(rate=0.0, probation=0, speed=1.3)), "nothing is audited"),
        (JobSpec(audit=AuditSpec(speed=1.3), model=ModelSpec(kind="module", module="m.py:make")), "unknown"),
        (JobSpec(audit=AuditSpec(speed=1.3), sync=SyncSpec(delay=1)), "before the clock begins"),
    ],
)
def test_a_job_whose_speed_cannot_be_judged_says_so(spec: JobSpec, why: str) -> None:
    with pytest.raises(SpecError, match=r"audit\.speed") as refused:
        check(spec)
    assert why in refused.value.cause
