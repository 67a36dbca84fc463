"""Pairs of updates: neither blocks nor the margin change what is found, and many peers need no memory of their own."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.norm_clip import sum_of_squares
from farflung.core.canon.float_operations import to_fixed
from farflung.core.tensor_layout import Float32
from farflung.verify import duplicate_updates
from farflung.verify.duplicate_updates import duplicates


def found(values: list[Float32], *, is_chosen: bool = True) -> list[int]:
    return duplicates(values, [sum_of_squares(to_fixed(each)) for each in values], is_chosen=is_chosen)


def slow(values: list[Float32]) -> list[int]:
    """In whole numbers, pair by pair."""
    rows = [[int(x) for x in to_fixed(each)] for each in values]
    near: set[int] = set()
    for i, left in enumerate(rows):
        for j, right in enumerate(rows[:i]):
            dot = sum(a * b for a, b in zip(left, right, strict=True))
            squares = sum(a * a for a in left) * sum(b * b for b in right)
            chosen = {k for k, a in enumerate(left) if a}, {k for k, b in enumerate(right) if b}
            is_same = chosen[0] == chosen[1] and 0 < 2 * len(chosen[0]) <= len(left)
            if is_same or (dot > 0 and 10_000 * dot * dot > 9_801 * squares):
                near |= {i, j}
    return sorted(near)


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 3, 7, 1 << 22]), st.integers(0, 6))
def test_pairs_are_those_of_whole_numbers_whatever_the_blocks(seed: int, block: int, count: int) -> None:
    random = np.random.default_rng(seed)
    base = random.standard_normal(12)
    values = []
    for _ in range(count):
        each = base * random.choice([1.0, 1e-6, 30.0]) + random.choice([0, 0.05, 0.14, 3]) * random.normal(size=12)
        each[random.random(12) < random.choice([0.0, 0.6])] = 0.0
        values.append(each.astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicate_updates, "_BLOCK", block)
        assert found(values) == slow(values)


def test_a_cosine_that_floating_point_cannot_tell_is_judged_in_integers() -> None:
    """cos = 99 / 100 exactly is no duplicate; one unit more is."""
    layout = [np.zeros(4, np.float32) for _ in range(3)]
    unit = 2.0**-24
    layout[0][0] = 100 * unit
    layout[1][:2] = 99 * unit, 0.0
    layout[1][1:3] = 14 * unit, np.float32(unit)  # 99² + 14² + 1² = 9998: a little beyond
    layout[2][:4] = 99 * unit, 14 * unit, unit, np.float32(2 * unit)  # 10002: a little below
    assert found([layout[0], layout[1]], is_chosen=False) == [0, 1]
    assert found([layout[0], layout[2]], is_chosen=False) == []


def test_many_peers_need_blocks_and_no_copies_of_their_updates() -> None:
    """A checker that ran out of memory over honest work would end the run."""
    values = [np.random.default_rng(i).standard_normal(1 << 17).astype(np.float32) for i in range(24)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicate_updates, "_BLOCK", 1 << 15)
        tracemalloc.start()
        found(values)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < (1 << 17) * 40  # one update in fixed point, by this test; not 24 of them
