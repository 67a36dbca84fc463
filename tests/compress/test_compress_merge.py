"""The one merge: equal to a slow exact oracle, free of order, and nobody's norm buys influence."""

import itertools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from farflung.compress import merge as merging
from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.norm_clip import clip, sum_of_squares
from farflung.core import limits
from farflung.core.canon.float_operations import to_fixed
from farflung.core.errors import VerificationError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout

LAYOUT = TensorLayout.of({"a": (3,), "b": (2, 2), "c": (1,)})
CASES = settings(max_examples=60)
UNIT = 1 << 24


def peer(index):
    return PeerId(bytes([index]) * 32)


def part(index, values, weight=1):
    return WeightedUpdate(peer(index), weight, np.array(values, np.float32))


def fixed(value):
    return max(-(1 << 30), min(1 << 30, round(Fraction(float(value)) * UNIT)))


def oracle(layout, parts):
    """Module `merge`'s page, in Python integers and fractions, element by element."""
    total = []
    for _, place in layout.slices():
        rows = [[fixed(x) for x in p.values[place]] for p in parts]
        squares = [sum(x * x for x in row) for row in rows]
        voting = sorted(square for square in squares if square) or [0]
        median = voting[(len(voting) - 1) // 2]
        sums = [0] * (place.stop - place.start)
        for p, row, square in zip(parts, rows, squares, strict=True):
            factor = Fraction(1)
            if square > median:
                factor = Fraction(math.isqrt(median * 2**60 // square), 2**30)
            sums = [s + p.weight * round(x * factor) for s, x in zip(sums, row, strict=True)]
        total += sums
    return total


NUMBERS = st.one_of(
    st.floats(-2, 2, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 64.0, -64.0, 2.0**-25, 3 * 2.0**-25, 1.0]),
)


@st.composite
def some_parts(draw):
    size = st.lists(NUMBERS, min_size=LAYOUT.size, max_size=LAYOUT.size)
    count = draw(st.integers(1, 5))
    return [part(i, draw(size), draw(st.integers(1, limits.WEIGHT))) for i in range(count)]


@CASES
@given(some_parts())
def test_the_merge_is_the_slow_oracle(parts):
    merged = merge(LAYOUT, parts)
    assert merged.total.dtype == np.int64
    assert merged.total.tolist() == oracle(LAYOUT, parts)
    for (_, place), (known, weight) in zip(LAYOUT.slices(), merged.weights, strict=True):
        bits = [p.values[place].view(np.uint32) for p in parts]
        assert known == place
        assert weight == sum(p.weight for p, own in zip(parts, bits, strict=True) if own.any())


def test_all_orders_give_the_same_bits():
    random = np.random.default_rng(2)
    parts = [part(i, random.standard_normal(LAYOUT.size) * 10.0**i, i + 1) for i in range(5)]
    wanted = merge(LAYOUT, parts)
    for order in itertools.permutations(parts):
        merged = merge(LAYOUT, order)
        assert merged.total.tobytes() == wanted.total.tobytes()
        assert mean(merged).tobytes() == mean(wanted).tobytes()


def test_one_part_is_its_own_mean_up_to_the_fixed_point():
    values = np.random.default_rng(3).standard_normal(LAYOUT.size)
    for weight in (1, 7, limits.WEIGHT):
        assert np.abs(mean(merge(LAYOUT, [part(1, values, weight)])) - values).max() < 2.0**-23


def test_weights_weigh():
    layout = TensorLayout.of({"w": (2,)})
    merged = merge(layout, [part(1, [3, 4], 1), part(2, [4, 3], 3)])
    assert mean(merged).tolist() == [3.75, 3.25]


def test_values_saturate_instead_of_wrapping():
    layout = TensorLayout.of({"w": (1,)})
    merged = merge(layout, [part(i, [3e38], limits.WEIGHT) for i in range(5)])
    assert merged.total.tolist() == [5 * limits.WEIGHT * (1 << 30)]
    assert mean(merged).tolist() == [64.0]


def test_the_fullest_round_that_the_limits_allow_does_not_overflow():
    layout = TensorLayout.of({"w": (2,)})
    values = np.array([3e38, -3e38], np.float32)
    ids = [PeerId(i.to_bytes(32, "big")) for i in range(limits.PEERS)]
    merged = merge(layout, [WeightedUpdate(who, limits.WEIGHT, values) for who in ids])
    top = limits.PEERS * limits.WEIGHT << 30
    assert merged.total.tolist() == [top, -top]
    assert top < 1 << 62


def spread(liar_values, honest=4):
    random = np.random.default_rng(4)
    layout = TensorLayout.of({"w": (200,)})
    parts = [part(i, random.standard_normal(200) * 1e-3) for i in range(honest)]
    if liar_values is not None:
        parts.append(part(99, liar_values))
    return layout, parts


@pytest.mark.parametrize("size", [1.0, 1e3, 1e30])
def test_one_huge_peer_moves_the_mean_by_no_more_than_an_honest_norm(size):
    layout, parts = spread(np.full(200, size))
    total = merge(layout, parts).total
    alone = merge(layout, parts[:-1]).total
    largest = max(sum_of_squares(np.rint(p.values.astype(np.float64) * UNIT).astype(np.int64)) for p in parts[:-1])
    # its own clipped part, and what the median's shift changes in the honest ones (each at most one norm)
    moved = math.sqrt(sum(int(x) ** 2 for x in total - alone))
    assert moved <= 2 * math.sqrt(largest) + 200


def test_without_clipping_the_huge_peer_would_win(monkeypatch):
    layout, parts = spread(np.full(200, 1e3))
    clipped = np.abs(mean(merge(layout, parts))).max()
    monkeypatch.setattr(merging._TensorUpdate, "scale", lambda share, ceiling: 1 << merging.FACTOR_BITS)
    assert np.abs(mean(merge(layout, parts))).max() > 1000 * clipped


def test_nobody_is_scaled_up_and_equal_norms_are_left_alone():
    layout = TensorLayout.of({"w": (2,)})
    merged = merge(layout, [part(1, [0.25, 0]), part(2, [0, 3]), part(3, [3, 0])])
    assert merged.total.tolist() == [3.25 * UNIT, 3 * UNIT]


def test_of_an_even_number_the_lower_middle_norm_is_the_ceiling():
    layout = TensorLayout.of({"w": (1,)})
    merged = merge(layout, [part(i, [value]) for i, value in enumerate([1, 2, 4, 8])])
    assert merged.total.tolist() == [(1 + 2 + 2 + 2) * UNIT]


def test_peers_that_did_not_train_a_tensor_neither_scale_others_up_nor_silence_them():
    layout = TensorLayout.of({"w": (1,)})
    assert merge(layout, [part(0, [0.0]), part(1, [1.0]), part(2, [2.0])]).total.tolist() == [2 * UNIT]
    assert merge(layout, [part(0, [0.0]), part(1, [0.0]), part(2, [2.0])]).total.tolist() == [2 * UNIT]


def test_peers_that_trust_each_other_add_up_unclipped():
    layout = TensorLayout.of({"w": (2,)})
    parts = [part(0, [1, 2], 3), part(1, [50, -50]), part(2, [0, 1])]
    assert merge(layout, parts, "mean").total.tolist() == [53 * UNIT, -43 * UNIT]


def test_each_tensor_is_clipped_by_itself():
    layout = TensorLayout.of({"a": (1,), "b": (1,)})
    merged = merge(layout, [part(0, [1, 8]), part(1, [1, 1]), part(2, [8, 1])])
    assert merged.total.tolist() == [3 * UNIT, 3 * UNIT]


@CASES
@given(st.lists(st.integers(-(1 << 30), 1 << 30), min_size=1, max_size=30), st.integers(0, 1 << 70))
def test_clipping_is_exact_in_64_bits(values, ceiling):
    x = np.array(values, np.int64)
    square = sum_of_squares(x)
    assert square == sum(value * value for value in values)
    clipped = clip(x, square, ceiling)
    if square <= ceiling:
        assert clipped.tolist() == values
        return
    factor = Fraction(math.isqrt((ceiling << 60) // square), 1 << 30)
    assert clipped.tolist() == [round(value * factor) for value in values]
    assert math.sqrt(sum_of_squares(clipped)) <= math.sqrt(ceiling) + math.sqrt(len(values))


def test_halves_are_rounded_to_even_when_clipping():
    x = np.array([1, 2, 3, 5, -1, -3, -5], np.int64)
    square = sum_of_squares(x) * 4
    # a claimed square four times the ceiling: the factor is exactly one half
    assert clip(x, square, square // 4).tolist() == [0, 1, 2, 2, 0, -2, -2]


def test_squares_of_a_long_tensor_at_the_limit_are_exact():
    x = np.full((1 << 20) + 3, -(1 << 30), np.int64)
    assert sum_of_squares(x) == x.size << 60


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], "FF-COMP-040"),
        ([part(1, range(8)), part(1, range(8))], "FF-COMP-041"),
        ([part(1, range(8), 0)], "FF-COMP-042"),
        ([part(1, range(8), -1)], "FF-COMP-042"),
        ([part(1, range(8), limits.WEIGHT + 1)], "FF-COMP-042"),
        ([part(1, range(7))], "FF-COMP-043"),
        ([WeightedUpdate(peer(1), 1, np.zeros(8))], "FF-COMP-043"),
        ([part(1, [math.nan] * 8)], "FF-COMP-044"),
        ([part(1, [math.inf] * 8)], "FF-COMP-044"),
    ],
)
def test_what_cannot_be_merged_is_refused(parts, code):
    with pytest.raises(VerificationError) as caught:
        merge(LAYOUT, parts)
    assert caught.value.code == code


def test_more_peers_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "PEERS", 2)
    with pytest.raises(VerificationError) as caught:
        merge(LAYOUT, [part(i, range(8)) for i in range(3)])
    assert caught.value.code == "FF-COMP-040"


BLOCK = merging._BLOCK


def slow(layout, parts):
    """The definition with `to_fixed` and `clip`, whole tensors in int64."""
    total = np.zeros(layout.size, np.int64)
    for _, place in layout.slices():
        rows = [to_fixed(p.values[place]) for p in parts]
        squares = [sum(int(x) ** 2 for x in row[row != 0]) for row in rows]
        voting = sorted(square for square in squares if square) or [0]
        median = voting[(len(voting) - 1) // 2]
        for p, row, square in zip(parts, rows, squares, strict=True):
            total[place] += p.weight * clip(row, square, median)
    return total


@st.composite
def long_parts(draw):
    """Tensors longer than a block; dense, sparse and empty stretches; magnitudes that need each way of adding."""
    layout = TensorLayout.of({"a": (BLOCK + 7,), "b": (5,), "c": (300,)})
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    parts = []
    for index in range(draw(st.integers(1, 5))):
        size = 10.0 ** random.uniform(-9, 3, layout.size)
        density = draw(st.sampled_from([0.0, 0.001, 0.05, 0.125, 0.5, 1.0]))
        kept = random.random(layout.size) < density
        values = np.where(kept, random.standard_normal(layout.size) * size, 0.0)
        values[: draw(st.sampled_from([0, 0, BLOCK]))] = 0.0
        parts.append(part(index, values * draw(st.sampled_from([1.0, 1e-6, 1e3])), draw(WEIGHTS)))
    return layout, parts


WEIGHTS = st.one_of(st.integers(1, 5000), st.just(limits.WEIGHT))


@settings(max_examples=25)
@given(long_parts())
def test_blocks_and_zeros_change_no_bit(case):
    layout, parts = case
    assert np.array_equal(merge(layout, parts).total, slow(layout, parts))


@settings(max_examples=10)
@given(long_parts(), st.randoms())
def test_any_order_of_arrival_gives_the_same_bits(case, random):
    layout, parts = case
    wanted = merge(layout, parts)
    random.shuffle(parts)
    found = merge(layout, parts)
    assert found.total.tobytes() == wanted.total.tobytes()
    assert mean(found).tobytes() == mean(wanted).tobytes()


def test_sums_beyond_53_bits_are_exact_too():
    layout = TensorLayout.of({"w": (3,)})
    values = np.array([63.999996, 2.0**-24, -63.999996], np.float32)
    ids = [PeerId(i.to_bytes(32, "big")) for i in range(limits.PEERS)]
    parts = [WeightedUpdate(who, limits.WEIGHT - 1, values) for who in ids]
    weight = limits.PEERS * (limits.WEIGHT - 1)
    assert merge(layout, parts).total.tolist() == [weight * x for x in (1073741760, 1, -1073741760)]
    assert weight * 1073741760 > 1 << 53


def test_products_beyond_53_bits_are_rounded_right():
    """x f lies one unit above a half: float64 would see the half itself, and go to the even side."""
    found = 0
    for scale in range((1 << 30) - 1, (1 << 30) - 2001, -2):
        y = ((1 << 23) + 1) * pow(scale, -1, 1 << 24) % (1 << 24)
        x = y << 6
        wanted = round(Fraction(x * scale, 1 << 30))
        found += int(np.rint(np.float64(x) * (scale * 2.0**-30))) != wanted
        assert int(merging._clipped(np.array([x], np.float32), x, scale)[0]) == wanted
    assert found > 100


@CASES
@given(st.lists(NUMBERS, min_size=1, max_size=50))
def test_fixed_point_in_float32_is_that_of_canon(values):
    x = np.array(values, np.float32)
    assert merging._fixed(x).astype(np.int64).tolist() == to_fixed(x).tolist()


@pytest.mark.parametrize("size", [1, 1 << 18, 1 << 19, (1 << 24) - 1, (1 << 30) - 1, 1 << 30])
def test_squares_are_exact_around_every_limit(size):
    x = np.full(BLOCK + 9, -size, np.int64)
    x[::3] = size - 1
    assert sum_of_squares(x) == sum(int(v) ** 2 for v in x)


@settings(max_examples=20)
@given(some_parts(), st.sets(st.sampled_from("abc"), min_size=1))
def test_a_fragment_merges_to_its_part_of_the_whole(parts, names):
    whole = merge(LAYOUT, parts)
    fragment = TensorLayout.of({tensor.name: tensor.shape for tensor in LAYOUT.tensors if tensor.name in names})
    places = [place for tensor, place in LAYOUT.slices() if tensor.name in names]
    taken = [WeightedUpdate(p.peer, p.weight, np.concatenate([p.values[at] for at in places])) for p in parts]
    merged = merge(fragment, taken)
    assert merged.total.tolist() == np.concatenate([whole.total[at] for at in places]).tolist()
    taken = [weight for place, weight in whole.weights if place in places]
    assert [weight for _, weight in merged.weights] == taken


@CASES
@given(
    st.lists(st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4), min_size=2, max_size=4),
    st.lists(NUMBERS, min_size=4, max_size=4),
    st.integers(1, 100),
)
def test_one_attacker_among_three_moves_no_tensor_by_more_than_its_share_of_an_honest_norm(honest, lies, weight):
    """The attacker's own part of the total: at most weight * (largest honest norm + rounding), whatever it sends, where
    two others at least trained the tensor.
    """
    layout = TensorLayout.of({"w": (4,)})
    parts = [part(i, values, weight) for i, values in enumerate(honest)]
    everybody = [*parts, part(99, lies, weight)]
    squares = [sum_of_squares(to_fixed(p.values)) for p in everybody]
    assume(sum(square > 0 for square in squares[:-1]) >= 2)
    voting = sorted(square for square in squares if square)
    ceiling = voting[(len(voting) - 1) // 2]
    assert ceiling <= max(squares[:-1])
    clipped = [clip(to_fixed(p.values), s, ceiling) for p, s in zip(everybody, squares, strict=True)]
    assert merge(layout, everybody).total.tolist() == (weight * sum(clipped)).tolist()
    assert math.sqrt(sum_of_squares(clipped[-1])) <= math.sqrt(max(squares[:-1])) + 2


def test_merging_needs_memory_for_its_result_and_a_block_however_many_parts_there_are():
    layout = TensorLayout.of({"w": (1 << 20,)})
    random = np.random.default_rng(8)
    parts = [part(i, random.standard_normal(layout.size)) for i in range(6)]
    tracemalloc.start()
    merge(layout, parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 9 * layout.size + (4 << 20)
