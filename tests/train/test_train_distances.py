"""How far two ends of a segment lie apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.tensor_layout import TensorLayout
from farflung.train import segments

LAYOUT = TensorLayout.of({"a": (3, 4), "b": (5,)})


def vector(seed):
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.floats(1e-6, 1e3))
def test_distances_are_relative_per_tensor(seed, factor):
    start, step = vector(seed), vector(seed + 1)
    mine = {"params": start + step, "mean": vector(seed + 2)}
    a, b = (place for _, place in LAYOUT.slices())
    claimed = {name: v.copy() for name, v in mine.items()}
    claimed["params"][b] += np.float32(factor) * step[b]
    claimed["mean"][a] *= np.float32(1 + factor)
    apart = segments.distances(LAYOUT, start, mine, claimed)
    assert apart["params"].shape == apart["mean"].shape == (2,)
    assert apart["params"][0] == apart["mean"][1] == 0.0
    assert apart["params"][1] == pytest.approx(factor, rel=0.05, abs=1e-5)
    assert apart["mean"][0] == pytest.approx(factor, rel=0.05, abs=1e-6)


def test_a_unit_of_zero_gives_a_finite_distance():
    start = vector(1)
    zero = np.zeros_like(start)
    claimed = {"params": start + 1, "mean": vector(2)}
    apart = segments.distances(LAYOUT, start, {"params": start, "mean": zero}, claimed)
    assert set(apart["params"]) == set(apart["mean"]) == {segments.UNBOUNDED}
    same = segments.distances(LAYOUT, start, {"params": start, "mean": zero}, {"params": start, "mean": zero})
    assert set(same["params"]) == set(same["mean"]) == {0.0}
    far = segments.distances(LAYOUT, zero, {"params": zero + 1e-30}, {"params": zero + 1e30})
    assert set(far["params"]) == {segments.UNBOUNDED}
