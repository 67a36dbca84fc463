"""CenteredClip: equal to an oracle in fractions, free of order, and what a third of the peers can do is bounded."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import centered_clip
from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.norm_clip import BLOCK, clip, sum_of_squares
from farflung.core import limits
from farflung.core.canon.float_operations import to_fixed
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout

LAYOUT = TensorLayout.of({"a": (3,), "b": (2, 2)})
UNIT = 1 << 24
PEERS, ATTACKERS = 16, 5
NUMBERS = st.one_of(st.floats(-2, 2, width=32), st.sampled_from([0.0, 64.0, -64.0, 1e30, 3 * 2.0**-25]))


def part(index, values, weight=1):
    return WeightedUpdate(PeerId(index.to_bytes(32, "big")), weight, np.array(values, np.float32))


def oracle(rows, weights):
    """The page of compress.centered_clip, in integers and fractions, of one tensor's rows in fixed point."""
    whole, centre = sum(weights), [0] * len(rows[0])
    for step in range(centered_clip.STEPS):
        offs = [[x - v for x, v in zip(row, centre, strict=True)] for row in rows]
        squares = [sum(d * d for d in off) for off in offs]
        radius = sorted(squares)[(len(rows) - 1) // 2]
        sums = [0] * len(centre)
        for off, square, weight in zip(offs, squares, weights, strict=True):
            is_far = square > radius
            factor = Fraction(math.isqrt(radius * 2**60 // square), 2**30) if is_far else Fraction(1)
            sums = [s + weight * round(d * factor) for s, d in zip(sums, off, strict=True)]
        if step + 1 == centered_clip.STEPS:
            return [whole * v + s for v, s in zip(centre, sums, strict=True)]
        # The whole total is divided, not what is added to the centre: the same number, as the centre is whole.
        centre = [round(Fraction(whole * v + s, whole)) for v, s in zip(centre, sums, strict=True)]
    raise AssertionError


@st.composite
def some_parts(draw):
    size = st.lists(NUMBERS, min_size=LAYOUT.size, max_size=LAYOUT.size)
    weights = st.one_of(st.integers(1, 9), st.just(limits.WEIGHT))
    return [part(i, draw(size), draw(weights)) for i in range(draw(st.integers(1, 5)))]


@settings(max_examples=60)
@given(some_parts())
def test_the_centred_merge_is_the_slow_oracle(parts):
    merged = merge(LAYOUT, parts, "centered")
    wanted = []
    for _, place in LAYOUT.slices():
        voting = [p for p in parts if to_fixed(p.values[place]).any()]
        rows = [to_fixed(p.values[place]).tolist() for p in voting]
        wanted += oracle(rows, [p.weight for p in voting]) if voting else [0] * (place.stop - place.start)
    assert merged.total.tolist() == wanted


@pytest.mark.parametrize("rule", ["clip", "centered"])
def test_any_order_gives_the_same_bits(rule):
    random = np.random.default_rng(2)
    parts = [part(i, random.standard_normal(LAYOUT.size) * 10.0**i, i + 1) for i in range(5)]
    wanted = merge(LAYOUT, parts, rule).total.tobytes()
    assert {merge(LAYOUT, order, rule).total.tobytes() for order in itertools.permutations(parts)} == {wanted}


def test_tensors_longer_than_a_block_are_the_same_as_whole_ones():
    layout, random = TensorLayout.of({"w": (2 * BLOCK + 5,)}), np.random.default_rng(3)
    parts = [part(i, random.standard_normal(layout.size) * 2.0**i, i + 1) for i in range(4)]
    rows, weights = [to_fixed(p.values) for p in parts], [p.weight for p in parts]
    centre = np.zeros(layout.size, np.int64)
    for step in range(centered_clip.STEPS):
        squares = [sum_of_squares(row - centre) for row in rows]
        radius = sorted(squares)[(len(rows) - 1) // 2]
        clipped = [clip(row - centre, square, radius) for row, square in zip(rows, squares, strict=True)]
        total = sum(weights) * centre + sum(w * y for w, y in zip(weights, clipped, strict=True))
        if step + 1 < centered_clip.STEPS:
            centre = np.array([round(Fraction(int(t), sum(weights))) for t in total])
    assert merge(layout, parts, "centered").total.tolist() == total.tolist()


def test_one_step_is_the_clip_to_the_median_norm(monkeypatch):
    monkeypatch.setattr(centered_clip, "STEPS", 1)
    random = np.random.default_rng(4)
    parts = [part(i, random.standard_normal(LAYOUT.size) * 3.0**i) for i in range(5)]
    assert np.array_equal(merge(LAYOUT, parts, "centered").total, merge(LAYOUT, parts).total)


def test_the_fullest_round_that_the_limits_allow_does_not_overflow():
    layout = TensorLayout.of({"w": (2,)})
    ids = range(limits.PEERS)
    parts = [part(i, [3e38, -3e38] if i % 2 else [-3e38, 3e38], limits.WEIGHT) for i in ids]
    assert merge(layout, parts, "centered").total.tolist() == [0, 0]
    same = [part(i, [3e38, -3e38], limits.WEIGHT) for i in ids]
    top = limits.PEERS * limits.WEIGHT << 30
    assert merge(layout, same, "centered").total.tolist() == [top, -top]


def test_equal_contributions_are_their_own_centre():
    parts = [part(i, [0.5, -3 / UNIT, 1, 2, 3, 4, 5], 3) for i in range(4)]
    assert mean(merge(LAYOUT, parts, "centered")).tolist() == parts[0].values.tolist()


# What a third of the peers can do: the attacks of bench/robust.py on updates of a known direction.

WIDE = TensorLayout.of({"embed": (40, 50), "block": (30, 40), "norm": (60,)})


def updates(seed, kept):
    """The true direction, and what each peer saw of it; `kept`: the share of elements that are sent."""
    random = np.random.default_rng(seed)
    true = random.standard_normal(WIDE.size) * 10.0 ** random.uniform(-3, -1, WIDE.size)
    seen = [true + 0.5 * np.abs(true).mean() * random.standard_normal(WIDE.size) for _ in range(PEERS)]
    for each in seen:
        each[np.argsort(-np.abs(each))[int(kept * WIDE.size) :]] = 0.0
    return true, seen


def merged(seen, attack, rule):
    """The merged update when the first ATTACKERS send what `attack` makes of the honest and their own."""
    honest, own = seen[ATTACKERS:], seen[:ATTACKERS]
    sent = [*attack(np.array(honest), own), *honest]
    return mean(merge(WIDE, [part(i, each) for i, each in enumerate(sent)], rule)), np.mean(honest, axis=0)


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


NONE, HUGE = (lambda _, own: own), (lambda _, own: [-1000 * each for each in own])
FLIP = lambda _, own: [-each for each in own]  # noqa: E731
ALIE = lambda honest, own: [honest.mean(0) - 0.35 * honest.std(0)] * len(own)  # noqa: E731
IPM = lambda honest, own: [-2 * honest.mean(0)] * len(own)  # noqa: E731


@pytest.mark.parametrize("rule", ["clip", "centered"])
@pytest.mark.parametrize("kept", [1.0, 0.05])
def test_without_an_attack_nothing_honest_is_lost(rule, kept):
    true, seen = updates(1, kept)
    plain, _ = merged(seen, NONE, "mean")
    found, _ = merged(seen, NONE, rule)
    assert cosine(found, true) >= 0.9 * cosine(plain, true)
    assert np.linalg.norm(found) >= 0.9 * np.linalg.norm(plain)


@pytest.mark.parametrize("rule", ["clip", "centered"])
@pytest.mark.parametrize("kept", [1.0, 0.05])
def test_a_third_that_shouts_turns_nothing_round_and_the_plain_mean_shows_what_it_would_do(rule, kept):
    true, seen = updates(2, kept)
    plain, wanted = merged(seen, HUGE, "mean")
    assert cosine(plain, true) < 0
    assert np.linalg.norm(plain) > 100 * np.linalg.norm(wanted)
    found, _ = merged(seen, HUGE, rule)
    assert cosine(found, true) > 0.5 * cosine(wanted, true)
    assert np.linalg.norm(found) < 2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("rule", ["clip", "centered"])
@pytest.mark.parametrize("attack", [FLIP, ALIE, IPM], ids=["flip", "alie", "ipm"])
def test_a_third_that_acts_together_at_an_honest_size_is_bounded_and_not_stopped(rule, attack):
    """The limit that the page states: no rule takes such updates out, and the merged one is shorter for it."""
    true, seen = updates(3, 1.0)
    found, wanted = merged(seen, attack, rule)
    assert 0 < cosine(found, true) <= cosine(wanted, true) + 0.01
    assert np.linalg.norm(found) < 1.1 * np.linalg.norm(wanted)


def test_later_steps_leave_an_attacker_less_than_the_first():
    _, seen = updates(5, 1.0)
    clipped, wanted = merged(seen, HUGE, "clip")
    centred, _ = merged(seen, HUGE, "centered")
    assert np.linalg.norm(centred - wanted) < np.linalg.norm(clipped - wanted)
