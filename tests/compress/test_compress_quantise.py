"""Two-bit values: levels as a slow exact oracle computes them, and canonical planes."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.quantise import check_canonical, pack_levels, quantise, restore
from farflung.core.errors import ProtocolError

CASES = settings(max_examples=60, deadline=None)
VECTORS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)


def half(value):
    return struct.unpack("<e", struct.pack("<e", min(float(value), 65504.0)))[0]


def oracle(values):
    """The document's four steps, in exact fractions."""
    units = 26 - math.frexp(max(map(abs, values)))[1]
    m = [round(abs(Fraction(value)) * Fraction(2) ** units) for value in values]
    t = sum(m) // len(m)
    for step in range(4):
        low, high = [x for x in m if x <= t], [x for x in m if x > t]
        if not high:
            break
        if step < 3:
            t = (sum(low) * len(high) + sum(high) * len(low)) // (2 * len(low) * len(high))
    levels = [
        half(math.ldexp(float(Fraction(sum(c), len(c))), -units)) for c in ([low, high] if high else [low])
    ]
    return levels[0], levels[-1], [x > t and levels[0] < levels[-1] for x in m]


@CASES
@given(VECTORS)
def test_levels_and_classes_are_those_of_the_slow_oracle(values):
    quantised = quantise(np.array(values, np.float32))
    low, high, is_high = oracle(values)
    assert (quantised.low, quantised.high, quantised.is_high.tolist()) == (low, high, is_high)


@pytest.mark.parametrize("seed", range(5))
def test_every_move_of_the_split_counts_for_gaussian_values(seed):
    values = np.random.default_rng(seed).standard_normal(700).astype(np.float32)
    quantised = quantise(values)
    assert (quantised.low, quantised.high, quantised.is_high.tolist()) == oracle(values.tolist())


@CASES
@given(VECTORS)
def test_what_the_quantiser_makes_is_canonical_and_finite(values):
    quantised = quantise(np.array(values, np.float32))
    again = check_canonical(pack_levels(quantised), quantised.negative, quantised.is_high)
    restored = restore(again)
    assert restored.dtype == np.float32
    assert np.isfinite(restored).all()
    assert (np.signbit(restored) == quantised.negative).all()


@CASES
@given(VECTORS, st.randoms())
def test_the_order_of_the_values_does_not_change_the_levels(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = (quantise(np.array(v, np.float32)) for v in (values, shuffled))
    assert (first.low, first.high) == (second.low, second.high)


def test_gaussian_values_lose_no_more_than_the_best_four_level_quantiser_does():
    values = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    error = float(((restore(quantise(values)) - values) ** 2).mean())
    assert error < 0.1175 * 1.02  # Max 1960, table I, four levels


@pytest.mark.parametrize("levels", [(-0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_bad_levels_are_refused(levels):
    with pytest.raises(ProtocolError) as caught:
        check_canonical(struct.pack("<ee", *levels), np.zeros(2, bool), np.array([False, True]))
    assert caught.value.code == "FF-COMP-015"


@pytest.mark.parametrize(
    ("levels", "negative", "is_high"),
    [
        ((1.0, 1.0), [False, False], [False, True]),
        ((1.0, 2.0), [False, False], [False, False]),
        ((1.0, 2.0), [False, False], [True, True]),
        ((0.0, 2.0), [True, False], [False, True]),
        ((0.0, 0.0), [True, False], [False, False]),
    ],
    ids=["equal levels, a class", "no high", "no low", "minus zero", "minus zero among zeros"],
)
def test_two_ways_to_say_the_same_are_refused(levels, negative, is_high):
    with pytest.raises(ProtocolError) as caught:
        check_canonical(struct.pack("<ee", *levels), np.array(negative), np.array(is_high))
    assert caught.value.code == "FF-COMP-016"
