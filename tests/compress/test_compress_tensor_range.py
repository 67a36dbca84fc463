"""Means of changes of any size: no digit is lost to fixed point, and nobody's size costs the others theirs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from farflung.compress.merge import Rule, WeightedUpdate, mean, merge
from farflung.compress.norm_clip import BLOCK
from farflung.compress.tensor_range import LARGEST, LEAST, ranged_mean
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout

LAYOUT = TensorLayout.of({"a": (40, 5), "b": (7,)})
RULES: tuple[Rule, ...] = ("mean", "clip", "centered")


def part(index: int, values: Float32, weight: int = 1) -> WeightedUpdate:
    return WeightedUpdate(PeerId(bytes([index + 1]) * 32), weight, values.astype(np.float32))


def drawn(seed: int, size: float) -> Float32:
    values = np.random.default_rng(seed).uniform(-1, 1, LAYOUT.size)
    return (values * size).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e-6, 0.01, 1.0, 300.0, 1e12, 1e35])
def test_a_mean_is_as_exact_at_every_size(rule: Rule, size: float) -> None:
    parts = [part(i, drawn(i, size), i + 1) for i in range(3)]
    found = ranged_mean(LAYOUT, parts, rule).values
    like = ranged_mean(LAYOUT, [part(i, drawn(i, 0.5), i + 1) for i in range(3)], rule).values
    assert np.abs(found / np.float32(size) - like / np.float32(0.5)).max() < 2e-5
    assert ranged_mean(LAYOUT, parts[::-1], rule).values.tobytes() == found.tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_what_fixed_point_holds_is_merged_as_it_is(rule: Rule) -> None:
    for size in (LEAST * 4, 1.0, LARGEST / 2):
        parts = [part(i, drawn(i, size)) for i in range(4)]
        assert ranged_mean(LAYOUT, parts, rule).values.tobytes() == mean(merge(LAYOUT, parts, rule)).tobytes()


@pytest.mark.parametrize("rule", ["clip", "centered"])
@pytest.mark.parametrize("is_fine", [False, True])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
@pytest.mark.parametrize("shout", [1e2, 1e9, 1e30])
def test_who_shouts_takes_nothing_from_the_others(rule: Rule, is_fine: bool, size: float, shout: float) -> None:
    honest = [part(i, drawn(i, size)) for i in range(3)]
    loud = part(9, drawn(9, size) * np.float32(shout))
    as_large = part(9, drawn(9, size) * np.float32(1.5))  # the clip brings both to the same norm
    found = ranged_mean(LAYOUT, [*honest, loud], rule, is_fine=is_fine).values
    like = ranged_mean(LAYOUT, [*honest, as_large], rule, is_fine=is_fine).values
    if rule == "clip":
        assert np.abs(found - like).max() < 1e-4 * size
    assert np.linalg.norm(found) < 2 * max(np.linalg.norm(each.values) for each in honest)
    assert np.abs(found).max() > 0.1 * size


def test_a_tensor_is_brought_to_its_own_range() -> None:
    sizes = {"a": 1e8, "b": 1e-12}
    parts = []
    for i in range(3):
        values = drawn(i, 1.0)
        for tensor, place in LAYOUT.slices():
            values[place] *= np.float32(sizes[tensor.name])
        parts.append(part(i, values))
    found = ranged_mean(LAYOUT, parts, "mean").values
    wanted = np.mean([each.values for each in parts], axis=0, dtype=np.float64)
    assert np.allclose(found, wanted, rtol=1e-5, atol=0) or np.abs(found / wanted - 1).max() < 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_who_trained_a_tensor_still_weighs_where_nothing_of_it_is_left(rule: Rule) -> None:
    layout = TensorLayout.of({"w": (2,)})
    two = [part(0, np.array([1e30, 0.0])), part(1, np.array([1e-30, 0.0]))]
    found = ranged_mean(layout, two, "mean").values
    assert found[0] == pytest.approx(5e29)
    absent = ranged_mean(layout, [two[0], part(1, np.zeros(2))], rule).values
    assert absent[0] == pytest.approx(1e30)
    nobody = ranged_mean(layout, [part(0, np.zeros(2)), part(1, np.zeros(2))], rule).values
    assert not nobody.view(np.uint32).any()


def test_all_orders_give_the_same_bits_where_sizes_lie_far_apart() -> None:
    parts = [part(i, drawn(i, 10.0 ** (9 * i - 18)), i + 1) for i in range(4)]
    for rule in RULES:
        found = {ranged_mean(LAYOUT, order, rule).values.tobytes() for order in itertools.permutations(parts)}
        assert len(found) == 1


@pytest.mark.parametrize("is_fine", [False, True])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_it_is_told_what_the_clip_takes_of_whom(is_fine: bool, size: float) -> None:
    """The share of the length, over all tensors: of a contribution three times as long as the median two thirds."""
    same = drawn(1, size)
    parts = [part(0, same), part(1, same), part(2, np.float32(3) * same), part(3, np.zeros(LAYOUT.size))]
    one = np.float32(3) * same
    one[-7:] = 0.0
    for loud in (parts[2], part(2, one)):
        found = ranged_mean(LAYOUT, [*parts[:2], loud, parts[3]], "clip", is_fine=is_fine).clipped
        assert found == {loud.peer: pytest.approx(2 / 3, rel=1e-3)}
    assert ranged_mean(LAYOUT, parts, "mean", is_fine=is_fine).clipped == {}


@pytest.mark.parametrize("rule", RULES)
def test_a_long_tensor_is_merged_in_stretches_to_the_bits_of_the_whole(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = TensorLayout.of({"long": (3 * BLOCK + 5,), "short": (7,)})
    generator = np.random.default_rng(4)
    parts = [part(each, generator.standard_normal(layout.size), each + 1) for each in range(3)]
    parts[1].values[:BLOCK] = 0.0  # the largest value of each block is its own
    whole = mean(merge(layout, parts, rule))
    monkeypatch.setattr("farflung.compress.merge.STRETCH", BLOCK)
    assert ranged_mean(layout, parts, rule).values.tobytes() == whole.tobytes()
