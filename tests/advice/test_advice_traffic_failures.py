"""Checkpoint intervals against the model that is played, and the research's table."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.traffic import failures
from farflung.core.errors import UsageError

costs, means = st.floats(0.1, 1e4), st.floats(10, 1e7)

# Cards; failures a card and day; hours between failures and of the interval (60 s to write); first-order waste.
TABLE = (
    (64, 1e-4, 3750, 11.2, 0.003),
    (64, 4.74e-4, 792, 5.1, 0.006),
    (1024, 1e-4, 234, 2.8, 0.012),
    (1024, 4.74e-4, 49.5, 1.28, 0.026),
    (16384, 1e-4, 14.6, 42 / 60, 0.048),
    (16384, 4.74e-4, 3.09, 19 / 60, 0.104),
    (100000, 1e-4, 2.4, 17 / 60, 0.118),
    (100000, 4.74e-4, 0.51, 7.8 / 60, 0.256),
)


@pytest.mark.parametrize(("cards", "rate", "hours", "interval", "waste"), TABLE)
def test_young_s_table_comes_out(cards: int, rate: float, hours: float, interval: float, waste: float) -> None:
    mean = failures.mean_time(cards, rate)
    assert mean / 3600 == pytest.approx(hours, rel=0.03)
    found, rare = failures.best(60.0, mean), 60.0 / mean  # the table is of first order in the root of this
    assert found.work / 3600 == pytest.approx(interval, rel=0.03 + rare**0.5)
    assert found.waste == pytest.approx(waste, abs=0.0006 + rare)


def test_five_minutes_to_write_cost_a_hundred_thousand_cards_nearly_half() -> None:
    assert failures.best(300.0, failures.mean_time(100_000, 4.74e-4)).waste == pytest.approx(0.470, abs=0.001)


@given(costs, means, st.floats(0.2, 5))
def test_no_other_interval_is_more_efficient(cost: float, mean: float, factor: float) -> None:
    found = failures.best(cost, mean)
    assert failures.efficiency(found.work * factor, cost, mean) <= found.efficiency * (1 + 1e-9) + 1e-300


@given(st.floats(0.01, 1), st.floats(1e4, 1e7))
def test_young_and_daly_are_near_the_best_where_failures_are_rare(cost: float, mean: float) -> None:
    found = failures.best(cost, mean)
    young, rare = math.sqrt(2 * cost * mean), cost / (2 * mean)
    assert young == pytest.approx(found.work, rel=0.02)
    assert young * (1 + math.sqrt(rare) / 3 + rare / 9) - cost == pytest.approx(found.work, rel=1e-4)


def test_the_exact_model_is_what_playing_it_gives() -> None:
    """Segments of work and checkpoint, each begun again until no failure falls into it."""
    work, cost, mean, restart = 900.0, 120.0, 1500.0, 60.0
    generator = np.random.default_rng(1)
    spent, done = 0.0, 0
    for _ in range(40_000):
        while (until := generator.exponential(mean)) < work + cost:
            spent += until
            while (again := generator.exponential(mean)) < restart:
                spent += again
            spent += restart
        spent += work + cost
        done += 1
    assert done * work / spent == pytest.approx(failures.efficiency(work, cost, mean, restart), rel=0.01)


def test_nothing_gets_done_where_a_checkpoint_never_ends() -> None:
    found = failures.best(1e6, 100.0)
    assert found.efficiency == 0.0
    assert found.work <= 100.0


def test_writing_for_nothing_is_done_after_every_step() -> None:
    found = failures.best(0.0, 1000.0, 10.0)
    assert found.work == 0.0
    assert found.efficiency == pytest.approx(math.exp(-0.01))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: failures.mean_time(0, 1e-4)),
        ("FF-PLAN-021", lambda: failures.mean_time(8, 0.0)),
        ("FF-PLAN-021", lambda: failures.best(-1.0, 10.0)),
        ("FF-PLAN-021", lambda: failures.best(1.0, 0.0)),
        ("FF-PLAN-021", lambda: failures.best(1.0, float("nan"))),
        ("FF-PLAN-021", lambda: failures.efficiency(0.0, 1.0, 10.0)),
    ],
)
def test_failures_that_make_no_sense_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
