"""The cosine transform: equal to whole numbers in any order, close to the textbook, and chosen where it keeps more."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.transform import SIDES, basis, choose, forward, inverse
from farflung.core.errors import SpecError

CASES = settings(max_examples=40)
LARGEST = 3.4028234663852886e38


def textbook(side):
    """The orthonormal DCT-II matrix in float64."""
    k = np.arange(side)
    matrix = np.sqrt(2 / side) * np.cos(np.pi * k[:, None] * (2 * k[None] + 1) / (2 * side))
    matrix[0] /= math.sqrt(2)
    return matrix


@st.composite
def blocks(draw, chunk=None):
    """A few chunks and a short one, of every size and kind of value."""
    chunk = chunk or draw(st.sampled_from(sorted(SIDES)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    size = draw(st.integers(0, 3)) * chunk + draw(st.integers(0, chunk - 1))
    values = random.standard_normal(size) * 10.0 ** random.uniform(-3, 3, size)
    kept = random.random(size) < draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    scale = 2.0 ** draw(st.sampled_from([-140, -110, -96, -60, 0, 0, 0, 60, 110]))
    with np.errstate(over="ignore"):
        return chunk, np.clip(values * kept * scale, -LARGEST, LARGEST).astype(np.float32)


def whole_numbers(values, chunk, way, order):
    """The module's page in Python integers, each sum in the order `order`; one block at a time."""
    side = SIDES[chunk]
    matrix = basis(side).astype(int).tolist()
    matrix = matrix if way is forward else [list(column) for column in zip(*matrix, strict=True)]

    def integers(rows):
        largest = max(abs(x) for row in rows for x in row)
        if largest < Fraction(2) ** -96:
            return [[0] * side for _ in rows], 0
        exponent = -200
        while Fraction(2) ** exponent <= largest:
            exponent += 1
        unit = Fraction(2) ** (exponent - 24)
        return [[round(x / unit) for x in row] for row in rows], exponent - 24

    def times(rows):
        """Each row of the result is the matrix applied to a row of `rows`."""
        return [[sum(entry[j] * row[j] for j in order) for entry in matrix] for row in rows]

    result = []
    for start in range(0, len(values) - chunk + 1, chunk):
        block = [Fraction(float(x)) for x in values[start : start + chunk]]
        rows, first = integers([block[side * i : side * (i + 1)] for i in range(side)])
        turned = [list(column) for column in zip(*times(rows), strict=True)]
        columns, second = integers([[Fraction(x) for x in row] for row in turned])
        scale = Fraction(2) ** (first + second - 50)
        out = [[x * scale for x in row] for row in times(columns)]
        for row in zip(*out, strict=True):
            result += [x if abs(x) >= Fraction(2) ** -126 else 0 for x in row]
    result = [float(np.float32(max(-LARGEST, min(LARGEST, float(x))))) for x in result]
    return result + values[len(result) :].tolist()


@settings(max_examples=25)
@given(blocks(256), st.randoms(), st.sampled_from([forward, inverse]))
def test_every_order_of_summation_gives_the_same_bits(case, random, way):
    chunk, values = case
    order = list(range(SIDES[chunk]))
    random.shuffle(order)
    assert way(values, chunk).tolist() == whole_numbers(values, chunk, way, order)


@pytest.mark.parametrize("way", [forward, inverse])
@pytest.mark.parametrize("chunk", sorted(SIDES))
def test_larger_blocks_are_whole_numbers_too(chunk, way):
    values = np.random.default_rng(chunk).standard_normal(chunk + 5).astype(np.float32)
    assert way(values, chunk).tolist() == whole_numbers(values, chunk, way, range(SIDES[chunk]))


@pytest.mark.parametrize("chunk", sorted(SIDES))
def test_int64_gives_the_same_products_at_the_limit(chunk):
    """The largest integers with the signs of each basis row: no partial sum leaves float64's 53 bits."""
    matrix = basis(SIDES[chunk])
    for left in (matrix, matrix.T):
        rows = np.sign(left) * 2.0**24
        assert np.array_equal(rows @ left.T, rows.astype(np.int64) @ left.T.astype(np.int64))
        assert int(np.abs(left.astype(np.int64)).sum(axis=1).max()) <= 1 << 28


@pytest.mark.parametrize("side", sorted(SIDES.values()))
def test_the_basis_is_the_textbooks_rounded(side):
    exact = textbook(side) * 2.0**25
    assert np.abs(basis(side) - exact).max() < 0.5 + 1e-6
    digest = hashlib.sha256(basis(side).astype("<i8").tobytes()).hexdigest()[:16]
    assert digest == {16: "be714da2fa9e56cb", 32: "8afd59ea1f4a3007", 64: "7ac56da7158272cf"}[side]
    assert not basis(side).flags.writeable


@CASES
@given(blocks())
def test_the_result_is_the_textbooks_within_the_bound(case):
    chunk, values = case
    side = SIDES[chunk]
    matrix = textbook(side)
    full = values.size // chunk * chunk
    x = values[:full].reshape(-1, side, side).astype(float)
    with np.errstate(under="ignore"):
        for way, left in ((forward, matrix), (inverse, matrix.T)):
            found = way(values, chunk)
            assert np.isfinite(found).all()
            assert found[full:].tobytes() == values[full:].tobytes()
            wanted = np.clip(left @ x @ left.T, -LARGEST, LARGEST)
            error = np.linalg.norm(found[:full].reshape(x.shape) - wanted, axis=(1, 2))
            floor = 2.0**-96 * side + 2.0**-126 * side
            assert (error <= side * 2.0**-22 * np.linalg.norm(x, axis=(1, 2)) + floor).all()


@pytest.mark.parametrize("chunk", sorted(SIDES))
@pytest.mark.parametrize("seed", range(3))
def test_there_and_back_is_where_it_started(chunk, seed):
    values = np.random.default_rng(seed).standard_normal(5 * chunk + 17).astype(np.float32)
    error = np.linalg.norm(inverse(forward(values, chunk), chunk) - values)
    assert error < 4e-7 * np.linalg.norm(values)


@CASES
@given(blocks())
def test_there_and_back_keeps_to_the_bound(case):
    chunk, values = case
    side = SIDES[chunk]
    values = np.clip(values, -(2.0**120), 2.0**120)
    back = inverse(forward(values, chunk), chunk)
    full = values.size // chunk * chunk
    x = values[:full].reshape(-1, chunk).astype(float)
    error = np.linalg.norm(back[:full].reshape(-1, chunk) - x, axis=1)
    assert (error <= side * 2.0**-21 * np.linalg.norm(x, axis=1) + side * 2.0**-94).all()


@CASES
@given(blocks(), st.integers(1, 3))
def test_a_chunk_depends_on_itself_alone(case, count):
    chunk, values = case
    tail = values[values.size // chunk * chunk :]
    joined = np.concatenate([values[: values.size - tail.size]] * count + [tail])
    for way in (forward, inverse):
        once = way(values, chunk)
        assert way(joined, chunk).tobytes() == once[: values.size - tail.size].tobytes() * count + tail.tobytes()


@pytest.mark.parametrize("chunk", sorted(SIDES))
def test_a_sparse_set_of_coefficients_is_a_sum_of_waves(chunk):
    side = SIDES[chunk]
    matrix = textbook(side)
    coefficients = np.zeros(chunk, np.float32)
    for place, value in ((0, 2.0), (side + 3, -0.5), (chunk - 1, 0.125)):
        coefficients[place] = value
    waves = [
        value * np.outer(matrix[place // side], matrix[place % side])
        for place, value in ((0, 2.0), (side + 3, -0.5), (chunk - 1, 0.125))
    ]
    assert np.abs(inverse(coefficients, chunk).reshape(side, side) - sum(waves)).max() < 2e-7


def test_a_constant_block_is_one_coefficient():
    coefficients = forward(np.full(4096, 0.5, np.float32), 4096)
    assert coefficients[0] == 32.0
    assert np.abs(coefficients[1:]).max() < 1e-5


@pytest.mark.parametrize("way", [forward, inverse])
def test_nothing_short_and_zero_blocks_stay_what_they_are(way):
    for size in (0, 1, 255):
        values = np.arange(size, dtype=np.float32)
        assert way(values, 256).tobytes() == values.tobytes()
    zeros = np.zeros(512, np.float32)
    assert way(zeros, 256).tobytes() == way(-zeros, 256).tobytes() == zeros.tobytes()


@pytest.mark.parametrize("way", [forward, inverse])
def test_huge_values_saturate_and_denormals_vanish(way):
    huge = np.full(256, LARGEST, np.float32)
    assert np.isfinite(way(huge, 256)).all()
    assert np.abs(way(huge, 256)).max() == np.float32(LARGEST)
    for tiny in (2.0**-149, 2.0**-127, 2.0**-97):
        assert not way(np.full(256, tiny, np.float32), 256).any()


def test_coefficients_become_zero_rather_than_denormal():
    wave = textbook(64)[1]  # orthogonal to the rest of the basis: the other coefficients are small
    noise = 1 + np.random.default_rng(3).standard_normal(4096) * 2.0**-22
    values = (np.outer(wave, wave).reshape(-1) * noise * 2.0**-30).astype(np.float32)
    raised = forward(values, 4096)
    assert ((raised != 0) & (np.abs(raised) < 2.0**-66)).any()
    lowered = forward(values * np.float32(2.0**-60), 4096)
    assert lowered.tolist() == np.where(np.abs(raised) < 2.0**-66, 0, raised * 2.0**-60).tolist()


@pytest.mark.parametrize("way", [forward, inverse])
def test_chunks_that_are_no_known_square_are_refused(way):
    for chunk in (0, 1, 64, 128, 512, 2048, 8192):
        with pytest.raises(SpecError) as caught:
            way(np.zeros(16384, np.float32), chunk)
        assert caught.value.code == "FF-COMP-032"


ENERGIES = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


@CASES
@given(ENERGIES, ENERGIES, st.randoms())
def test_the_choice_does_not_depend_on_the_order(raw, transformed, random):
    first = choose(np.array(raw, np.float32), np.array(transformed, np.float32))
    random.shuffle(raw)
    random.shuffle(transformed)
    assert choose(np.array(raw, np.float32), np.array(transformed, np.float32)) == first


@CASES
@given(ENERGIES, ENERGIES)
def test_the_side_with_clearly_more_energy_is_chosen(raw, transformed):
    energies = [sum(Fraction(value) ** 2 for value in side) for side in (raw, transformed)]
    chosen = choose(np.array(raw, np.float32), np.array(transformed, np.float32))
    if max(energies) < Fraction(2) ** -160:
        return
    if energies[1] > energies[0] * Fraction(1001, 1000):
        assert chosen
    if energies[0] > energies[1] * Fraction(1001, 1000):
        assert not chosen


def test_a_tie_stays_raw():
    kept = np.array([1.0, -2.0], np.float32)
    assert not choose(kept, -kept[::-1])
    assert not choose(kept[:0], kept[:0])
    assert not choose(np.zeros(3, np.float32), np.zeros(3, np.float32))


def test_waves_are_sent_transformed_and_spikes_raw():
    random = np.random.default_rng(7)
    row = np.sin(np.arange(4096) / 300).astype(np.float32)
    spikes = np.where(random.random(4096) < 0.01, random.standard_normal(4096), 0).astype(np.float32)
    for values, wanted in ((row, True), (spikes, False)):
        raw, waves = (np.sort(np.abs(v))[-32:] for v in (values, forward(values, 4096)))
        assert choose(raw, waves) is wanted


def test_energies_of_a_full_slab_do_not_overflow():
    one, other = np.full(1 << 20, LARGEST, np.float32), np.full(1 << 20, LARGEST, np.float32)
    assert not choose(one, other)
    one[0] = 0
    assert choose(one, other)
