"""Layouts, roots and canonical arithmetic: bit for bit, on every machine."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import tensor_layout as layouts
from farflung.core.canon.float_operations import FRACTION_BITS, SATURATION, apply_outer, mean_from_fixed, to_fixed
from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import ROOT_CHUNK, TensorLayout, TensorSpec, state_root, tensor_root

FEW = settings(max_examples=40)
SHAPES = st.dictionaries(
    st.text("abcdef.", min_size=1, max_size=6),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    min_size=1,
    max_size=5,
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def vector(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@given(shapes=SHAPES)
@FEW
def test_flatten_and_unflatten_are_inverse_and_sorted_by_name(shapes: dict[str, tuple[int, ...]]) -> None:
    layout = TensorLayout.of(shapes)
    assert [t.name for t in layout.tensors] == sorted(shapes)
    assert layout.size == sum(math.prod(shape) for shape in shapes.values())
    flat = vector(layout.size)
    named = layout.unflatten(flat)
    assert {name: array.shape for name, array in named.items()} == shapes
    backwards = dict(reversed(list(named.items())))
    assert layout.flatten(backwards).tobytes() == flat.tobytes()
    assert all(np.shares_memory(array, flat) for array in named.values())


def test_a_missing_or_reshaped_tensor_is_refused() -> None:
    layout = TensorLayout.of({"a": (2, 3), "b": (4,)})
    good = {"a": np.zeros((2, 3)), "b": np.zeros(4)}
    for bad in ({"a": good["a"]}, {**good, "a": np.zeros((3, 2))}, {**good, "b": np.zeros((4, 1))}):
        with pytest.raises(ProtocolError, match="FF-CORE-041"):
            layout.flatten(bad)


BAD_LAYOUTS = [
    (),
    (TensorSpec("b", (1,)), TensorSpec("a", (1,))),
    (TensorSpec("a", (1,)), TensorSpec("a", (1,))),
    (TensorSpec("", (1,)),),
    (TensorSpec("x" * 257, (1,)),),
    (TensorSpec("a", (0,)),),
    (TensorSpec("a", (-1, -1)),),
    (TensorSpec("a", (1,) * 9),),
    (TensorSpec("a", (1 << 20, 1 << 20)),),
]


@pytest.mark.parametrize("tensors", BAD_LAYOUTS)
def test_a_layout_beyond_its_bounds_is_refused(tensors: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(ProtocolError, match="FF-CORE-040"):
        TensorLayout(tensors).check()


def test_what_breaks_a_bound_of_a_layout_is_named() -> None:
    told = [TensorLayout(tensors).fault() for tensors in BAD_LAYOUTS]
    assert [re.split(r"[;,]", text)[0] for text in told] == [
        "it has 0 tensors",
        "its names are not sorted",
        "its names are not sorted",
        "'' has a name of 0 bytes",
        f"'{'x' * 80}' has a name of 257 bytes",
        "'a' has the shape (0",
        "'a' has the shape (-1",
        "'a' has 9 sides",
        f"it has {1 << 40} elements",
    ]
    assert not TensorLayout.of({"a": (2, 3)}).fault()


def test_layout_ids_differ_by_name_shape_and_split() -> None:
    seen = {
        TensorLayout.of(s).id for s in ({"a": (2, 3)}, {"a": (3, 2)}, {"a": (6,)}, {"b": (6,)}, {"a": (3,), "b": (3,)})
    }
    assert len(seen) == 5


@given(place=st.integers(0, 11), bit=st.integers(0, 31))
@FEW
def test_a_single_bit_of_one_element_changes_the_root(place: int, bit: int) -> None:
    layout = TensorLayout.of({"a": (2, 3), "b": (6,)})
    flat = vector(12)
    root = state_root(layout, {"params": flat})
    changed = flat.copy()
    changed.view(np.uint32)[place] ^= np.uint32(1 << bit)
    assert state_root(layout, {"params": changed}) != root
    assert state_root(layout, {"params": flat.copy()}) == root


def test_roots_depend_on_names_shapes_sections_and_the_sign_of_zero() -> None:
    flat = np.zeros(6, np.float32)
    one = TensorLayout.of({"a": (2, 3)})
    seen = {
        state_root(one, {"params": flat}),
        state_root(one, {"params": -flat}),
        state_root(one, {"momentum": flat}),
        state_root(one, {"params": flat, "momentum": flat}),
        state_root(TensorLayout.of({"b": (2, 3)}), {"params": flat}),
        state_root(TensorLayout.of({"a": (3, 2)}), {"params": flat}),
    }
    assert len(seen) == 6
    both = {"params": flat, "momentum": flat + 1}
    assert state_root(one, both) == state_root(one, dict(reversed(list(both.items()))))


@pytest.mark.parametrize("size", [1, ROOT_CHUNK - 1, ROOT_CHUNK, ROOT_CHUNK + 1, 2 * ROOT_CHUNK])
def test_each_side_of_a_chunk_border_is_under_the_root(size: int) -> None:
    tensor, values = TensorSpec("a", (size,)), np.zeros(size, np.float32)
    roots = {tensor_root(tensor, values)}
    edges = {p for p in (0, ROOT_CHUNK - 1, ROOT_CHUNK, size - 1) if 0 <= p < size}
    for place in edges:
        changed = values.copy()
        changed[place] = 1
        roots.add(tensor_root(tensor, changed))
    assert len(roots) == 1 + len(edges)


def test_the_root_reads_any_memory_order_and_byte_order_alike() -> None:
    tensor = TensorSpec("a", (4, 5))
    values = vector(20).reshape(4, 5)
    root = tensor_root(tensor, values)
    assert tensor_root(tensor, np.asfortranarray(values)) == root
    assert tensor_root(tensor, values.astype(">f4")) == root
    assert layouts.ROOT_CHUNK == 1 << 12


@given(values=st.lists(FLOATS, min_size=1, max_size=30))
@FEW
def test_fixed_point_is_exact_half_to_even_and_saturates(values: list[float]) -> None:
    got = to_fixed(np.array(values, np.float32))
    for value, units in zip(values, got.tolist(), strict=True):
        # Fraction rounds half to even.
        exact = round(Fraction(float(np.float32(value))) * (1 << FRACTION_BITS))
        assert units == max(-SATURATION, min(SATURATION, exact))


def test_halves_go_to_even_and_the_ends_hold() -> None:
    unit = 2.0**-FRACTION_BITS
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32) * np.float32(unit)
    assert to_fixed(halves).tolist() == [0, 2, 2, 0, -2, -2]
    big = np.array([64.0, 65.0, -64.0, 3e38, -3e38], np.float32)
    assert to_fixed(big).tolist() == [SATURATION, SATURATION, -SATURATION, SATURATION, -SATURATION]


@given(units=st.integers(-(1 << 62), 1 << 62), weight=st.integers(1, 1 << 30))
@FEW
def test_the_mean_is_one_division_and_one_rounding_of_the_total(units: int, weight: int) -> None:
    got = mean_from_fixed(np.array([units], np.int64), weight)[0]
    oracle = np.float32(float(units) / float(weight) * 2.0**-FRACTION_BITS)
    assert got.tobytes() == oracle.tobytes()


def step(p: float, m: float | None, g: float, lr: float, beta: float, nesterov: bool) -> tuple[Any, Any]:
    """One element, one float32 operation at a time."""
    f = np.float32
    if m is None:
        return f(f(p) + f(f(lr) * f(g))), None
    moved = f(f(f(beta) * f(m)) + f(g))
    direction = f(f(g) + f(f(beta) * moved)) if nesterov else moved
    return f(f(p) + f(f(lr) * direction)), moved


SMALL = st.floats(-(2.0**40), 2.0**40, width=32)


@given(
    rows=st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=1, max_size=40),
    lr=st.floats(0, 2),
    beta=st.floats(0, 1),
    nesterov=st.booleans(),
    has_momentum=st.booleans(),
)
@FEW
def test_the_outer_step_equals_float32_arithmetic_done_one_operation_at_a_time(
    rows: list[tuple[float, float, float]], lr: float, beta: float, nesterov: bool, has_momentum: bool
) -> None:
    p, m, g = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    new, moved = apply_outer(p, m if has_momentum else None, g, lr, beta, nesterov)
    oracle = [step(a, b if has_momentum else None, c, lr, beta, nesterov) for a, b, c in rows]
    assert new.dtype == np.float32
    assert new.tobytes() == np.array([a for a, _ in oracle], np.float32).tobytes()
    if has_momentum:
        assert moved is not None
        assert moved.tobytes() == np.array([b for _, b in oracle], np.float32).tobytes()
    else:
        assert moved is None


def test_an_element_does_not_depend_on_its_place_in_the_vector() -> None:
    p, m, g = vector(1003, 1), vector(1003, 2), vector(1003, 3)
    whole, moved = apply_outer(p, m, g, 0.7, 0.9, True)
    assert moved is not None
    order = np.random.default_rng(4).permutation(1003)
    shuffled, _ = apply_outer(p[order], m[order], g[order], 0.7, 0.9, True)
    assert shuffled.tobytes() == whole[order].tobytes()
    parts = [apply_outer(p[i : i + 7], m[i : i + 7], g[i : i + 7], 0.7, 0.9, True)[0] for i in range(0, 1003, 7)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_tiny_numbers_are_not_flushed_to_zero() -> None:
    tiny = np.array([1e-45, -1e-45], np.float32)
    new, _ = apply_outer(np.zeros(2, np.float32), None, tiny, 1.0, 0.0, False)
    assert new.tobytes() == tiny.tobytes()
