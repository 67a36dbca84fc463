"""Tiles of canonical graphs: put together they are what a slow oracle in plain Python finds."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import core_oracle as oracle
import numpy as np
import pytest
from core_canon_cases import GOLDEN, GRAPHS, fingerprint, inputs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.canon.array_operations import DTYPES, canonical_bytes
from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput, check
from farflung.core.canon.operation_rules import OPERATIONS, broadcast
from farflung.core.canon.tiles import SIDE, box, compute, matrix, places_of, tile_count, tile_of
from farflung.core.errors import ProtocolError

FEW = settings(max_examples=15, deadline=None)
ROUNDED = {"exp", "log", "erf", "tanh"}  # where the oracle may choose another neighbour: tested by themselves
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-130), 1.5 * 2.0**127, 1.0, -1.5)
SINGLES = st.one_of(st.sampled_from(SPECIAL), st.floats(width=32), st.floats(-4, 4, width=32))
WHOLES = st.one_of(st.integers(-4, 4), st.integers(-(1 << 63), (1 << 63) - 1))
VALUES = {"f32": SINGLES, "i64": WHOLES, "bool": st.booleans()}
SHAPES = st.lists(st.integers(1, 4), max_size=4).map(tuple)

UNARY = ("neg", "abs", "sign", "sqrt", "exp", "log", "erf", "tanh")
BINARY = ("add", "sub", "mul", "div")
WHOLE = ("iadd", "isub", "imul")
COMPARED = ("lt", "le", "eq")


def graph_of(node: GraphNode, *inputs: tuple[str, tuple[int, ...]]) -> CanonicalGraph:
    made = CanonicalGraph(
        tuple(GraphInput(f"x{place}", kind, shape) for place, (kind, shape) in enumerate(inputs)),
        (node,),
        (GraphOutput("y", len(inputs)),),
    )
    check(made)
    return made


def array(kind: str, tensor: oracle.Tensor) -> Any:
    return np.array(tensor[1], DTYPES[kind]).reshape(tensor[0])


def recorded(graph: CanonicalGraph, number: int, tile: int, arrays: list[Any]) -> tuple[Any, list[set[int]]]:
    """A tile, and which elements of which argument were asked for: all inside."""
    args = graph.value(number).args  # type: ignore[union-attr]
    asked: list[set[int]] = [set() for _ in args]

    def fetch(which: int, places: Any) -> Any:
        flat = arrays[args[which]].reshape(-1)
        assert places.dtype == np.int64
        assert places.size > 0
        assert 0 <= places.min() <= places.max() < flat.size
        asked[which].update(places.reshape(-1).tolist())
        return flat[places]

    return compute(graph, number, tile, fetch), asked


def replayed(graph: CanonicalGraph, number: int, tile: int, arrays: list[Any], asked: list[set[int]]) -> Any:
    """The tile from what was recorded alone: anything else is refused."""
    args = graph.value(number).args  # type: ignore[union-attr]
    held = [
        {place: arrays[arg].reshape(-1)[place] for place in places} for arg, places in zip(args, asked, strict=True)
    ]

    def fetch(which: int, places: Any) -> Any:
        values = [held[which][place] for place in places.reshape(-1).tolist()]
        return np.array(values, arrays[args[which]].dtype).reshape(places.shape)

    return compute(graph, number, tile, fetch)


def assembled(graph: CanonicalGraph, number: int, arrays: list[Any], replay: bool = True) -> Any:
    value = graph.value(number)
    whole = np.zeros(matrix(value.shape), DTYPES[value.kind])
    seen = np.zeros(whole.shape, np.int64)
    for tile in range(tile_count(value.shape)):
        at = box(value.shape, tile)
        made, asked = recorded(graph, number, tile, arrays)
        assert made.shape == at.shape
        assert made.dtype == whole.dtype
        if replay:
            assert canonical_bytes(replayed(graph, number, tile, arrays, asked)) == canonical_bytes(made)
        whole[at.top : at.bottom, at.left : at.right] = made
        seen[at.top : at.bottom, at.left : at.right] += 1
        assert (tile_of(value.shape, places_of(value.shape, at)) == tile).all()
    assert (seen == 1).all()
    return whole.reshape(value.shape)


def agree(graph: CanonicalGraph, inputs: list[oracle.Tensor], replay: bool = True) -> None:
    """All tiles of all nodes are the oracle's, bit for bit."""
    values = oracle.run(graph, inputs)
    arrays = [array(graph.value(number).kind, tensor) for number, tensor in enumerate(values)]
    for number in range(len(graph.inputs), len(values)):
        made, expected = assembled(graph, number, arrays, replay), arrays[number]
        if graph.value(number).op in ROUNDED:  # type: ignore[union-attr]
            assert np.allclose(made, expected, rtol=2.4e-7, atol=2.0**-149, equal_nan=True)
        else:
            assert canonical_bytes(made) == canonical_bytes(expected)


def drawn(data: st.DataObject, kind: str, shape: tuple[int, ...]) -> oracle.Tensor:
    count = math.prod(shape)
    return shape, data.draw(st.lists(VALUES[kind], min_size=count, max_size=count))


def squeezed(data: st.DataObject, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that is stretched to `shape`: sides of 1, and none at the front."""
    sides = tuple(1 if data.draw(st.integers(0, 3)) == 0 else side for side in shape)
    return sides[data.draw(st.integers(0, len(sides))) :]


@pytest.mark.parametrize("op", [*UNARY, *BINARY, *WHOLE, *COMPARED, "and", "or", "not", "select"])
@given(data=st.data())
@FEW
def test_elementwise_operations_are_the_oracles(op: str, data: st.DataObject) -> None:
    kind = "i64" if op in WHOLE else "bool" if op in ("and", "or", "not") else "f32"
    if op in COMPARED or op == "select":
        kind = data.draw(st.sampled_from(["f32", "i64"] if op in COMPARED else ["f32", "i64", "bool"]))
    kinds = ("bool", kind, kind) if op == "select" else (kind,) * OPERATIONS[op].arity
    shape = data.draw(SHAPES)
    shapes = [squeezed(data, shape) for _ in kinds]
    made = broadcast(tuple(shapes))
    assert made is not None
    node = GraphNode(op, tuple(range(len(kinds))), "bool" if op in COMPARED else kind, made, ())
    agree(
        graph_of(node, *zip(kinds, shapes, strict=True)),
        [drawn(data, *each) for each in zip(kinds, shapes, strict=True)],
    )


@given(data=st.data(), pair=st.sampled_from([("i64", "f32"), ("bool", "f32"), ("bool", "i64"), ("f32", "i64")]))
@settings(max_examples=60, deadline=None)
def test_conversions_are_the_oracles(data: st.DataObject, pair: tuple[str, str]) -> None:
    shape = data.draw(SHAPES)
    agree(graph_of(GraphNode("convert", (0,), pair[1], shape, ()), (pair[0], shape)), [drawn(data, pair[0], shape)])


def test_conversions_round_once_and_whole_numbers_end_at_their_range() -> None:
    wholes = [(1 << 24) + 1, (1 << 54) + (1 << 30) + 1, -(1 << 63), (1 << 63) - 1, (1 << 25) + 2, (1 << 25) + 6]
    agree(graph_of(GraphNode("convert", (0,), "f32", (6,), ()), ("i64", (6,))), [((6,), wholes)])
    singles = [2.0**63, -(2.0**63), 2.0**63 - 2.0**39, math.nan, -math.inf, math.inf, -0.9, 1.9]
    agree(graph_of(GraphNode("convert", (0,), "i64", (8,), ()), ("f32", (8,))), [((8,), singles)])


@pytest.mark.parametrize("op", ["sum", "max"])
@given(data=st.data())
@FEW
def test_folds_over_the_last_side_are_the_oracles(op: str, data: st.DataObject) -> None:
    shape = (*data.draw(SHAPES)[:2], data.draw(st.integers(1, 17)))
    agree(graph_of(GraphNode(op, (0,), "f32", shape[:-1], ()), ("f32", shape)), [drawn(data, "f32", shape)])


@given(data=st.data())
@FEW
def test_products_of_matrices_are_the_oracles(data: st.DataObject) -> None:
    b, m, k, n = (data.draw(st.integers(1, 4)) for _ in range(4))
    node = GraphNode("matmul", (0, 1), "f32", (b, m, n), ())
    agree(
        graph_of(node, ("f32", (b, m, k)), ("f32", (b, k, n))),
        [drawn(data, "f32", (b, m, k)), drawn(data, "f32", (b, k, n))],
    )


@given(data=st.data(), kind=st.sampled_from(["f32", "i64", "bool"]))
@settings(max_examples=40, deadline=None)
def test_moves_are_the_oracles(data: st.DataObject, kind: str) -> None:
    source, shape = data.draw(SHAPES), data.draw(SHAPES)
    count = math.prod(source)
    strides = []
    low = high = 0
    for side in shape:
        room = (count - 1 - (high - low)) // max(1, side - 1)
        stride = data.draw(st.integers(-room, room))
        strides.append(stride)
        low, high = low + min(0, stride * (side - 1)), high + max(0, stride * (side - 1))
    node = GraphNode("move", (0,), kind, shape, (data.draw(st.integers(-low, count - 1 - high)), *strides))
    agree(graph_of(node, (kind, source)), [drawn(data, kind, source)])


@given(data=st.data(), kind=st.sampled_from(["f32", "i64", "bool"]))
@FEW
def test_placed_pieces_are_the_oracles(data: st.DataObject, kind: str) -> None:
    base = data.draw(SHAPES)
    piece = tuple(data.draw(st.integers(1, side)) for side in base)
    starts = tuple(data.draw(st.integers(0, side - part)) for side, part in zip(base, piece, strict=True))
    node = GraphNode("place", (0, 1), kind, base, starts)
    agree(graph_of(node, (kind, base), (kind, piece)), [drawn(data, kind, base), drawn(data, kind, piece)])


@given(data=st.data())
@FEW
def test_rows_that_are_taken_or_added_are_the_oracles(data: st.DataObject) -> None:
    v, d, n = (data.draw(st.integers(1, 5)) for _ in range(3))
    index = (n,), data.draw(st.lists(WHOLES, min_size=n, max_size=n))
    take = graph_of(GraphNode("take", (0, 1), "f32", (n, d), ()), ("f32", (v, d)), ("i64", (n,)))
    agree(take, [drawn(data, "f32", (v, d)), index])
    put = graph_of(GraphNode("put_add", (0, 1), "f32", (v, d), (v,)), ("i64", (n,)), ("f32", (n, d)))
    agree(put, [index, drawn(data, "f32", (n, d))])


def test_odd_sizes_over_several_tiles_are_the_oracles(subtests: pytest.Subtests) -> None:
    for name in sorted(GRAPHS):
        with subtests.test(name=name):
            graph = GRAPHS[name]
            check(graph)
            agree(
                graph,
                [(each.shape, values) for each, values in zip(graph.inputs, inputs_of(graph), strict=True)],
                replay=False,
            )


def test_every_operation_has_a_golden_case() -> None:
    assert {node.op for graph in GRAPHS.values() for node in graph.nodes} == set(OPERATIONS)


def test_tiles_have_the_hashes_that_they_had() -> None:
    assert {name: fingerprint(name) for name in sorted(GRAPHS)} == GOLDEN


@pytest.mark.parametrize("oldest", [False, True])
def test_tiles_are_the_same_without_a_processors_newer_instructions(oldest: bool) -> None:
    """NumPy chooses its loops when it is imported: another process."""
    code = "import core_canon_cases as c\nassert {name: c.fingerprint(name) for name in sorted(c.GRAPHS)} == c.GOLDEN"
    here = str(Path(__file__).parent)
    optional = np._core._multiarray_umath.__cpu_dispatch__
    without = [each for each in optional if oldest or each.startswith(("AVX512", "X86_V4"))]
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(without), "PYTHONPATH": here}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_folds_and_products_work_at_their_limit_of_256() -> None:
    source = np.random.default_rng(4)
    long = source.standard_normal((1, 2, 256)).astype(np.float32)
    tall = source.standard_normal((1, 256, 3)).astype(np.float32)
    tensors = [(each.shape, each.reshape(-1).tolist()) for each in (long, tall)]
    shapes = [("f32", long.shape), ("f32", tall.shape)]
    agree(graph_of(GraphNode("matmul", (0, 1), "f32", (1, 2, 3), ()), *shapes), tensors, replay=False)
    for op in ("sum", "max"):
        agree(graph_of(GraphNode(op, (0,), "f32", (1, 2), ()), shapes[0]), tensors[:1], replay=False)
    rows = [oracle.single(float(n % 7) + 0.1) for n in range(256)]
    put = graph_of(GraphNode("put_add", (0, 1), "f32", (2, 1), (2,)), ("i64", (256,)), ("f32", (256, 1)))
    agree(put, [((256,), [n % 3 for n in range(256)]), ((256, 1), rows)], replay=False)


def test_a_tile_that_is_not_there_is_refused() -> None:
    graph = graph_of(GraphNode("neg", (0,), "f32", (3, 65), ()), ("f32", (3, 65)))
    fetch = lambda which, places: np.zeros(places.shape, np.float32)  # noqa: E731
    for number, tile, code in ((1, 2, "068"), (1, -1, "068"), (0, 0, "069"), (2, 0, "069"), (-1, 0, "069")):
        with pytest.raises(ProtocolError) as caught:
            compute(graph, number, tile, fetch)
        assert caught.value.code == f"FF-CORE-{code}"
    assert compute(graph, 1, 1, fetch).shape == (3, 1)


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.zeros((2, 3), np.float64), np.zeros((2, 3), np.int64)])
def test_elements_of_another_shape_or_kind_are_refused(wrong: Any) -> None:
    graph = graph_of(GraphNode("neg", (0,), "f32", (2, 3), ()), ("f32", (2, 3)))
    with pytest.raises(ProtocolError, match="FF-CORE-070"):
        compute(graph, 1, 0, lambda which, places: wrong)


@given(shape=st.lists(st.integers(1, 200), max_size=3).map(tuple))
@FEW
def test_tiles_cover_a_tensor_once(shape: tuple[int, ...]) -> None:
    seen = np.zeros(math.prod(shape), np.int64)
    for tile in range(tile_count(shape)):
        at = box(shape, tile)
        assert max(at.shape) <= SIDE
        seen[places_of(shape, at)] += 1
    assert (seen == 1).all()


def test_a_huge_tensors_tile_is_computed_without_the_tensor() -> None:
    side = 1 << 18
    graph = graph_of(GraphNode("neg", (0,), "f32", (side, side), ()), ("f32", (side, side)))
    last = tile_count((side, side)) - 1
    made = compute(graph, 1, last, lambda which, places: (places % 1000).astype(np.float32))
    assert made[-1, -1] == -((side * side - 1) % 1000)


def test_every_nan_has_one_form_in_bytes() -> None:
    forms = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0x7F800000, 0xFF800000, 0x80000000], np.uint32).view(
        np.float32
    )
    expected = [0x7FC00000, 0x7FC00000, 0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000]
    assert canonical_bytes(forms) == struct.pack("<6I", *expected)
    assert canonical_bytes(forms.reshape(3, 2).T) == struct.pack("<6I", *(expected[i] for i in (0, 2, 4, 1, 3, 5)))
    assert canonical_bytes(np.array([-2, 1], np.int64)) == struct.pack("<2q", -2, 1)
    assert canonical_bytes(np.array([True, False])) == b"\1\0"
