"""The cheat `skip`: every second step is left out, and counted."""

from __future__ import annotations

import pytest
from cheat_play import SEEDS, SHORT, SPEC, assert_found_and_nobody_else, is_measured, loosened, play, tolerance
from msgspec.structs import replace

from farflung.job.spec import AuditSpec
from farflung.ledger.transactions import VerdictFinding


@pytest.mark.guarantee
@pytest.mark.whole
@pytest.mark.parametrize("seed", SEEDS)
def test_who_skips_steps_is_found_false_and_nobody_else(seed: int) -> None:
    run = play(seed, "skip", spec=SHORT)
    assert_found_and_nobody_else(run)
    assert is_measured(run)


@pytest.mark.slow
def test_who_was_found_false_is_out_of_the_round_after_the_next() -> None:
    run = play(3, "skip", spec=replace(SPEC, rounds=4))
    assert [round for round, peer in run.findings if peer == run.cheater] == [0, 1, 2]
    assert run.accepted[run.cheater] == 3


@pytest.mark.slow
def test_without_audits_it_is_not_found() -> None:
    run = play(3, "skip", spec=replace(SHORT, audit=AuditSpec(segments=2, rate=0.0, probation=0)))
    assert not run.findings


@pytest.mark.slow
def test_probation_alone_does_not_find_who_begins_to_cheat_after_it() -> None:
    run = play(3, "skip", spec=replace(SHORT, audit=AuditSpec(segments=2, rate=0.0, probation=1)))
    assert set(run.findings.values()) == {VerdictFinding.HOLDS}


@pytest.mark.slow
def test_a_learning_rate_that_is_one_percent_off_is_found_because_tolerances_are_as_tight_as_they_are() -> None:
    """A thousand times looser they would let it pass."""
    twisted = replace(SPEC.optimizer, lr=SPEC.optimizer.lr * 1.01)
    once = replace(SPEC, rounds=1)
    run = play(5, twisted=twisted, spec=once)
    assert run.guilty == {run.cheater}
    loose = play(5, twisted=twisted, spec=once, limits=loosened(tolerance(), 1000))
    assert not loose.guilty


def test_half_of_the_steps_pass_when_tolerances_are_a_hundred_thousand_times_looser() -> None:
    assert not play(3, "skip", spec=SHORT, limits=loosened(tolerance(), 100_000)).guilty
