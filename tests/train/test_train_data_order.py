"""Data order: a pure function of the seed and the place in the run."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.canon.window_order import starts
from farflung.core.errors import SpecError
from farflung.job.spec import JobSpec, ModelSpec
from farflung.train import data_order

SPEC = JobSpec(seed=3, batch=4, model=ModelSpec(context=8))
TOKENS = np.arange(200, dtype=np.uint16)

small = st.integers(0, 1 << 20)


@settings(max_examples=50)
@given(small, small, small, small, st.integers(1, 1 << 40))
def test_starts_lie_inside_the_training_part(seed, round, member, step, places):
    assert all(0 <= s < places for s in starts(seed, round, member, step, 5, places))


@settings(max_examples=50)
@given(small, small, small, st.integers(1, 8))
def test_a_row_does_not_depend_on_how_many_rows_follow(round, member, step, rows):
    assert starts(1, round, member, step, rows, 997) == starts(1, round, member, step, 8, 997)[:rows]


def test_known_starts_are_the_same_on_every_machine():
    assert starts(1, 2, 3, 4, 4, 10_000_000) == KNOWN


KNOWN = [9332344, 4323781, 3251879, 1472811]


def test_every_argument_changes_the_draw():
    base = starts(1, 1, 1, 1, 8, 1 << 40)
    others = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
    drawn = [tuple(base), *(tuple(starts(*other, 8, 1 << 40)) for other in others)]
    assert len(set(drawn)) == len(drawn)


def test_starts_are_uniform():
    counts = np.bincount(starts(5, 0, 0, 0, 20_000, 20), minlength=20)
    expected = 1000.0
    assert float(((counts - expected) ** 2 / expected).sum()) < 50  # chi-square, 19 degrees: p = 1e-4 at 49.6


def test_targets_are_the_inputs_one_place_later():
    x, y = data_order.batch(TOKENS, SPEC, 0, 0, 0)
    assert x.shape == y.shape == (4, 8)
    assert x.dtype == y.dtype == np.int64
    assert (y == x + 1).all()


def test_the_last_window_can_be_drawn_and_none_behind_it():
    shortest = TOKENS[:9]
    x, y = data_order.batch(shortest, SPEC, 0, 0, 0)
    assert (x == np.arange(8)).all()
    assert (y[:, -1] == 8).all()


def test_too_little_data_is_refused():
    with pytest.raises(SpecError, match="FF-TRAIN-060"):
        data_order.batch(TOKENS[:8], SPEC, 0, 0, 0)
    with pytest.raises(SpecError, match="FF-TRAIN-061"):
        data_order.windows(TOKENS[:8], 8, 100)


def test_windows_do_not_overlap_and_stop_at_the_limit():
    x, y = data_order.windows(TOKENS, 8, 50)
    assert x.shape == (6, 8)
    assert (x.reshape(-1) == np.arange(48)).all()
    assert (y.reshape(-1) == np.arange(1, 49)).all()
    assert data_order.windows(TOKENS, 8, 1 << 30)[0].shape == (24, 8)
    assert np.shares_memory(x, TOKENS)
    assert np.shares_memory(y, TOKENS)


def test_members_see_different_tokens():
    spec = msgspec.structs.replace(SPEC, batch=8)
    assert not np.array_equal(data_order.batch(TOKENS, spec, 0, 0, 0)[0], data_order.batch(TOKENS, spec, 0, 1, 0)[0])
