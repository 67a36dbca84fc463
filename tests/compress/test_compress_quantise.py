"""Levels of one and two bits: those of a slow exact oracle, and the same in any order."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.quantise import check_symbols, from_symbols, to_symbols

CASES = settings(max_examples=60)
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
    levels = [half(math.ldexp(float(Fraction(sum(c), len(c))), -units)) for c in ([low, high] if high else [low])]
    return levels[0], levels[-1], [x > t and levels[0] < levels[-1] for x in m]


def found(values):
    """Levels, and who is in the upper class."""
    levels, symbols = to_symbols(np.array(values, np.float32), 2)
    return *struct.unpack("<ee", levels), [symbol in (0, 3) for symbol in symbols.tolist()]


@CASES
@given(VECTORS)
def test_levels_and_classes_are_those_of_the_slow_oracle(values):
    assert found(values) == oracle(values)


@pytest.mark.parametrize("seed", range(5))
def test_every_move_of_the_split_counts_for_gaussian_values(seed):
    values = np.random.default_rng(seed).standard_normal(700).astype(np.float32)
    assert found(values) == oracle(values.tolist())


def test_values_beyond_one_block_count_as_well():
    """Loops work on blocks of 2^15 values; the levels are those of all."""
    values = np.repeat(np.array([1.0, -3.0, 2.0, 10.0], np.float32), 1 << 14)
    assert found(values) == oracle(values.tolist())


def restored_from(levels, symbols):
    values = np.full(symbols.size, np.nan, np.float32)
    from_symbols(levels, symbols, values)
    return values


@CASES
@given(VECTORS, st.sampled_from([1, 2]))
def test_what_is_restored_is_a_level_with_the_sign_of_the_value(values, bits):
    levels, symbols = to_symbols(np.array(values, np.float32), bits)
    check_symbols(levels, symbols)
    restored = restored_from(levels, symbols)
    steps = np.frombuffer(levels, "<f2").astype(np.float32)
    assert restored.dtype == np.float32
    assert np.isin(np.abs(restored), steps).all()
    negative = (np.array(values) < 0) & (restored != 0)
    assert (np.signbit(restored) == negative).all()


@CASES
@given(VECTORS, st.randoms(), st.sampled_from([1, 2]))
def test_the_order_of_the_values_does_not_change_the_levels(values, random, bits):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = (to_symbols(np.array(v, np.float32), bits)[0] for v in (values, shuffled))
    assert first == second


@pytest.mark.parametrize("bits", [1, 2])
def test_no_values_have_zero_levels(bits):
    levels, symbols = to_symbols(np.empty(0, np.float32), bits)
    assert levels == bytes(2 * bits)
    assert restored_from(levels, symbols).size == symbols.size == 0
    check_symbols(levels, symbols)


def test_levels_saturate_at_the_largest_half():
    for bits in (1, 2):
        restored = restored_from(*to_symbols(np.array([3e38, -3e38, 1.0], np.float32), bits))
        assert restored.max() == 65504.0
        assert restored.min() == -65504.0
