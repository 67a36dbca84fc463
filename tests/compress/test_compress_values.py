"""Values of 1 to 32 bits: bounds, canonical symbols, and the same bits from slow exact oracles."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import values as sut
from farflung.compress.values import BITS, check_canonical, levels_bytes, quantise, restore
from farflung.core.errors import ProtocolError, SpecError, VerificationError

CASES = settings(max_examples=80)
NUMBERS = st.one_of(
    st.floats(-2, 2, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-126), 2.0**-127, 3.4028234663852886e38, 0.5, 1.5, 2.5]),
)
VECTORS = st.lists(NUMBERS, max_size=60)
SCALED = (4, 8)
TOP = {4: 7, 8: 127}
BLOCKS = st.sampled_from([None, 1, 2, 7, 16, 128])


def array(values):
    return np.array(values, np.float32)


def rows(values, block):
    block = block or max(len(values), 1)
    return [values[i : i + block] for i in range(0, len(values), block)]


def bf16(value):
    """The nearest number with 8 significant bits, ties to the even one; `value` is a float32 in the normal range."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(Fraction(mantissa) * 256), exponent - 8)


@CASES
@given(VECTORS, st.sampled_from(BITS), BLOCKS)
def test_what_is_made_is_canonical_and_has_the_promised_form(values, bits, block):
    x = array(values)
    levels, symbols, alphabet = quantise(x, bits, block)
    assert len(levels) == levels_bytes(x.size, bits, block)
    assert symbols.shape == x.shape
    assert symbols.dtype == {16: np.uint16, 32: np.uint32}.get(bits, np.uint8)
    assert alphabet == sut.alphabet(bits)
    check_canonical(levels, symbols, bits, block)
    restored = restore(levels, symbols, bits, block)
    assert restored.dtype == np.float32
    assert restored.shape == x.shape
    assert np.isfinite(restored).all()
    assert np.array_equal(x, array(values), equal_nan=True)


@CASES
@given(VECTORS, BLOCKS)
def test_every_value_lies_within_its_bound(values, block):
    x = array(values)
    for bits in BITS:
        restored = restore(*quantise(x, bits, block)[:2], bits, block).astype(float)
        error = np.abs(restored - x.astype(float))
        size = np.abs(x.astype(float))
        if bits <= 2:
            bound = np.maximum(size, np.abs(restored).max(initial=0))
        elif bits in SCALED:
            scales = [np.abs(row).max() / TOP[bits] for row in rows(restored, block)]
            bound = np.concatenate(
                [np.full(len(row), scale) for row, scale in zip(rows(x, block), scales, strict=True)] or [size]
            )
            bound = bound / 2 * (1 + 2.0 ** (-20 if bits == 4 else -16))
            bound[bound == 0] = TOP[bits] * 2.0**-126
        else:
            bound = np.maximum(size * 2.0**-8, 2.0**-134) if bits == 16 else 0
        assert (error <= bound).all()


@CASES
@given(VECTORS, st.sampled_from(SCALED), BLOCKS)
def test_scales_and_codes_are_those_of_the_slow_oracle(values, bits, block):
    x, top = array(values), TOP[bits]
    levels, symbols, _ = quantise(x, bits, block)
    scales, codes = [], []
    for row in rows(x, block):
        largest = float(np.abs(row).max())
        scale = bf16(float(np.float32(largest) / np.float32(top))) if largest >= top * 2.0**-126 else 0.0
        scales.append(scale)
        for value in row:
            quotient = round(float(value / np.float32(scale))) if scale else 0
            codes.append(max(-top, min(top, quotient)))
    found = (np.frombuffer(levels, "<u2").astype(np.uint32) << 16).view(np.float32)
    assert found.tolist() == scales
    assert (symbols.astype(int) - top).tolist() == codes


@CASES
@given(VECTORS, st.sampled_from((4, 8, 16, 32)), BLOCKS)
def test_quantising_what_was_restored_changes_nothing(values, bits, block):
    first = quantise(array(values), bits, block)
    again = quantise(restore(first.levels, first.symbols, bits, block), bits, block)
    assert first.levels == again.levels
    assert np.array_equal(first.symbols, again.symbols)


@CASES
@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_one_bit_is_the_sign_and_the_mean_magnitude(values):
    levels, symbols, _ = quantise(array(values), 1)
    units = 26 - math.frexp(max(map(abs, values)))[1]
    total = sum(round(abs(Fraction(value)) * Fraction(2) ** units) for value in values)
    exact = min(math.ldexp(total / len(values), -units), 65504.0)
    (level,) = struct.unpack("<e", levels)
    assert level == struct.unpack("<e", struct.pack("<e", exact))[0]
    assert symbols.tolist() == [int(value >= 0 or level == 0) for value in values]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@CASES
@given(values=st.lists(NUMBERS, min_size=2, max_size=40))
def test_symbols_ascend_with_the_value(bits, values):
    restored = restore(*quantise(array(values), bits, None)[:2], bits, None)
    symbols = quantise(array(values), bits, None).symbols
    order = np.argsort(symbols, kind="stable")
    assert (np.diff(restored[order]) >= 0).all()


def test_zeros_restore_to_zeros(subtests):
    for bits in BITS:
        for count in [0, 1, 127, 128, 129, 300]:
            with subtests.test(bits=bits, count=count):
                x = np.zeros(count, np.float32)
                levels, symbols, _ = quantise(x, bits)
                assert not any(levels)
                assert restore(levels, symbols, bits).tobytes() == x.tobytes()


@pytest.mark.parametrize("bits", BITS)
def test_what_is_not_finite_is_refused(bits):
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(VerificationError) as caught:
            quantise(array([1.0, bad, 2.0]), bits)
        assert caught.value.code == "FF-COMP-035"


@pytest.mark.parametrize("bits", [0, 3, 5, 64, -1])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises(SpecError) as caught:
        quantise(array([1.0]), bits)
    assert caught.value.code == "FF-COMP-033"


def test_halves_of_a_bf16_go_to_the_even_side():
    x = array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 1 + 2.0**-8 + 2.0**-23])
    assert restore(*quantise(x, 16)[:2], 16).tolist() == [1.0, 1 + 2.0**-6, -1.0, 1 + 2.0**-7]


@pytest.mark.parametrize("bits", BITS)
def test_symbols_outlive_the_values(bits):
    x = np.random.default_rng(4).standard_normal(200).astype(np.float32)
    made = quantise(x, bits)
    before = made.symbols.copy()
    x -= restore(made.levels, made.symbols, bits)
    assert np.array_equal(made.symbols, before)


def test_a_value_whose_level_is_zero_has_no_sign():
    for values in ([-1e-12, 1.0], [-1e-12, -1.0], [-1e-12]):
        levels, symbols, _ = quantise(array(values), 2)
        assert symbols[0] == 2
        check_canonical(levels, symbols, 2)
    assert quantise(array([-1e-12]), 1).symbols.tolist() == [1]


def test_blocks_do_not_touch_each_other():
    x = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    x[150] = 1e30
    whole = restore(*quantise(x, 8)[:2], 8)
    for start in (0, 128, 256):
        part = x[start : start + 128]
        assert restore(*quantise(part, 8)[:2], 8).tobytes() == whole[start : start + 128].tobytes()
    assert np.abs(whole[:128] - x[:128]).max() < 0.02


def test_small_gradients_keep_their_precision():
    """fp16 scales would be one or two units here, and half of the error would be theirs."""
    x = np.random.default_rng(2).standard_normal(128 * 50).astype(np.float32)
    for factor in (1.0, 2.0**-20, 2.0**-60, 2.0**60):
        small = x * np.float32(factor)
        error = restore(*quantise(small, 8)[:2], 8) - small.astype(float)
        assert np.linalg.norm(error) < 0.0068 * np.linalg.norm(small.astype(float))


@pytest.mark.parametrize(("bits", "worst"), [(1, 0.3634), (2, 0.1175), (4, 0.0143), (8, 4.4e-5)])
def test_gaussian_errors_are_those_of_theory(bits, worst):
    """1 and 2 bits: Max 1960, table I. 4 and 8: step² / 12; the largest of 128 values is 2.9 (mean square)."""
    x = np.random.default_rng(3).standard_normal(128 * 800).astype(np.float32)
    error = float(((restore(*quantise(x, bits)[:2], bits) - x) ** 2).mean())
    assert error < worst * 1.05


def refused(levels, symbols, bits, block=None):
    with pytest.raises(ProtocolError) as caught:
        check_canonical(levels, np.array(symbols, {16: np.uint16, 32: np.uint32}.get(bits, np.uint8)), bits, block)
    return caught.value.code


def halves(*values):
    return struct.pack(f"<{len(values)}e", *values)


def brains(*values):
    return b"".join(struct.pack("<f", value)[2:] for value in values)


@pytest.mark.parametrize(("bits", "symbol"), [(1, 2), (2, 4), (4, 15), (8, 255)])
def test_symbols_outside_the_alphabet_are_refused(bits, symbol):
    levels = quantise(array([1.0, -1.0, 0.5]), bits, None).levels
    assert refused(levels, [0, symbol, 1], bits) == "FF-COMP-034"


@pytest.mark.parametrize(
    ("levels", "symbols", "code"),
    [
        (halves(-1.0), [0, 1], "FF-COMP-015"),
        (halves(-0.0), [1, 1], "FF-COMP-015"),
        (halves(math.inf), [0, 1], "FF-COMP-015"),
        (halves(math.nan), [0, 1], "FF-COMP-015"),
        (halves(0.0), [0, 1], "FF-COMP-016"),
        (halves(1.0), [], "FF-COMP-016"),
    ],
)
def test_one_bit_that_the_encoder_could_not_make_is_refused(levels, symbols, code):
    assert refused(levels, symbols, 1) == code


@pytest.mark.parametrize(
    ("levels", "symbols", "code"),
    [
        (halves(2.0, 1.0), [0, 1], "FF-COMP-015"),
        (halves(0.5, math.inf), [0, 1], "FF-COMP-015"),
        (halves(-0.0, 1.0), [0, 2], "FF-COMP-015"),
        (halves(0.0, 1.0), [0, 1], "FF-COMP-016"),
        (halves(1.0, 1.0), [0, 1], "FF-COMP-016"),
        (halves(1.0, 2.0), [1, 2], "FF-COMP-016"),
        (halves(1.0, 2.0), [0, 3], "FF-COMP-016"),
        (halves(1.0, 2.0), [], "FF-COMP-016"),
    ],
)
def test_two_bits_that_the_encoder_could_not_make_are_refused(levels, symbols, code):
    assert refused(levels, symbols, 2) == code


def test_scales_that_the_encoder_could_not_make_are_refused(subtests):
    for bits in SCALED:
        for scale, code in [
            (-1.0, "FF-COMP-015"),
            (-0.0, "FF-COMP-015"),
            (math.nan, "FF-COMP-015"),
            (math.inf, "FF-COMP-015"),
            (2.0**-127, "FF-COMP-015"),
            (2.0**127, "FF-COMP-015"),
            (0.0, "FF-COMP-016"),
        ]:
            with subtests.test(bits=bits, scale=scale, code=code):
                assert refused(brains(scale), [0, 2 * TOP[bits], TOP[bits]], bits) == code


@pytest.mark.parametrize("bits", SCALED)
def test_a_block_must_reach_its_largest_code(bits):
    top = TOP[bits]
    assert refused(brains(1.0), [top, top + top - 1], bits) == "FF-COMP-016"
    assert refused(brains(1.0, 1.0), [0, top, top, top], bits, 2) == "FF-COMP-016"
    check_canonical(brains(1.0, 0.0), np.array([0, top, top, top], np.uint8), bits, 2)


def test_floats_that_are_not_finite_are_refused():
    for bits, bad in ((16, 0x7F80), (16, 0xFFC0), (32, 0x7F800000), (32, 0xFF800001)):
        assert refused(b"", [0, bad], bits) == "FF-COMP-017"


@CASES
@given(st.sampled_from([1, 2, 4, 8]), st.binary(min_size=4, max_size=4), st.lists(st.integers(0, 255), max_size=6))
def test_whatever_arrives_is_refused_or_restored_to_finite_values(bits, noise, symbols):
    levels = noise[: levels_bytes(len(symbols), bits, None)]
    foreign = np.array(symbols, np.uint8) % 3 * (sut.alphabet(bits) // 2)
    try:
        check_canonical(levels, foreign, bits, None)
    except ProtocolError:
        return
    restored = restore(levels, foreign, bits, None)
    assert np.isfinite(restored).all()
    if bits in SCALED:
        again = quantise(restored, bits, None)
        assert (again.levels, again.symbols.tolist()) == (levels, foreign.tolist())
