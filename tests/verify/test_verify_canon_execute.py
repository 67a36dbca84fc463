"""Whole graphs: every value is its tiles put together, and nothing is kept longer than it is needed."""

import weakref

import numpy as np
import pytest
import torch
from canon_graphs import Builder, graphs, inputs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.canon import tiles
from farflung.core.canon.array_operations import DTYPES, canonical_bytes
from farflung.core.canon.graph import CanonicalGraph, GraphNode, GraphOutput, check
from farflung.core.canon.operation_rules import F32, I64, OPERATIONS
from farflung.core.errors import ProtocolError, RunError, UsageError
from farflung.verify.canon import tensor_kernels
from farflung.verify.canon.execute import execute, peak, products

seeds = st.integers(0, 1 << 32)


def everything(graph: CanonicalGraph, seed: int) -> list[np.ndarray]:
    """All values of a graph, on drawn inputs."""
    values: list[np.ndarray] = []
    execute(graph, inputs_of(graph, seed), lambda number, value: values.append(value))
    return values


def from_tiles(graph: CanonicalGraph, number: int, values: list[np.ndarray]) -> np.ndarray:
    """A value put together from tiles, each of which fetches what it needs."""
    node = graph.value(number)
    whole = np.zeros(tiles.matrix(node.shape), DTYPES[node.kind])

    def fetch(which, places):
        return values[node.args[which]].reshape(-1)[places]

    for tile in range(tiles.tile_count(node.shape)):
        box = tiles.box(node.shape, tile)
        whole[box.top : box.bottom, box.left : box.right] = tiles.compute(graph, number, tile, fetch)
    return whole.reshape(node.shape)


def compare(graph: CanonicalGraph, seed: int) -> None:
    check(graph)
    values = everything(graph, seed)
    for number in range(len(graph.inputs), len(values)):
        node, value = graph.value(number), values[number]
        assert (value.dtype, value.shape) == (DTYPES[node.kind], node.shape), node
        assert value.flags.c_contiguous, node
        assert canonical_bytes(value) == canonical_bytes(from_tiles(graph, number, values)), node


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_whole_tensor_is_its_tiles_put_together(operation):
    @given(graphs((operation,), most=2), seeds)
    @settings(max_examples=6)
    def agree(graph, seed):
        compare(graph, seed)

    agree()


@given(graphs(), seeds)
@settings(max_examples=20)
def test_graphs_of_many_operations_are_their_tiles_put_together(graph, seed):
    compare(graph, seed)


@given(graphs(), seeds)
@settings(max_examples=10)
def test_outputs_and_what_is_seen_are_the_same_values(graph, seed):
    values = everything(graph, seed)
    outputs = execute(graph, inputs_of(graph, seed))
    for output in graph.outputs:
        assert canonical_bytes(outputs[output.name]) == canonical_bytes(values[output.value])


class Memory:
    """Told each value, it counts how many stretches of memory hold values that are still alive."""

    def __init__(self) -> None:
        self.refs: list[weakref.ref] = []
        self.counts: list[int] = []

    def __call__(self, number: int, value: np.ndarray) -> None:
        self.refs.append(weakref.ref(value))
        self.counts.append(self.alive())

    def alive(self) -> int:
        return len({value.ctypes.data for ref in self.refs if (value := ref()) is not None})


@given(graphs(tuple(sorted(OPERATIONS)), most=6), seeds)
@settings(max_examples=20)
def test_outputs_that_are_handed_over_are_the_same_and_none_is_kept(graph, seed):
    wanted, handed = execute(graph, inputs_of(graph, seed)), {}
    assert execute(graph, inputs_of(graph, seed), hand=lambda name, value: handed.update({name: value.copy()})) == {}
    assert {name: canonical_bytes(v) for name, v in handed.items()} == {
        name: canonical_bytes(v) for name, v in wanted.items()
    }
    assert peak(graph, keeps_outputs=False) <= peak(graph)


def test_a_value_is_dropped_after_its_last_use():
    """A chain needs an argument and its result; one more for a value that is needed again at the end."""
    builder = Builder()
    first = builder.input("x", F32, (4, 4))
    last = kept = builder.add("neg", first)
    for operation in ["neg", "exp", "neg", "sum", "neg", "neg"] * 2:
        last = builder.add(operation, last) if builder.of(last).shape else builder.add("add", last, kept)
        last = builder.reshape(last, builder.of(last).shape)
    graph = builder.graph(end=builder.add("add", last, kept))
    memory, inputs = Memory(), {"x": np.ones((4, 4), np.float32)}
    execute(graph, inputs, memory)
    assert len(memory.counts) > 20
    assert max(memory.counts) == 4, "the caller's x, the kept one, an argument and its result"
    assert memory.alive() == 1


def test_what_nobody_uses_is_dropped_at_once():
    builder = Builder()
    x = builder.input("x", F32, (3,))
    for _ in range(9):
        builder.add("neg", x)
    memory, inputs = Memory(), {"x": np.ones(3, np.float32)}
    execute(builder.graph(x=x), inputs, memory)
    assert max(memory.counts) == 2


def test_a_small_view_does_not_hold_a_large_tensor():
    builder = Builder()
    x = builder.input("x", F32, (100, 100))
    part = builder.move(builder.add("neg", x), (2, 100), 300, (100, 1))
    graph = builder.graph(part=part)
    found = execute(graph, {"x": np.ones((100, 100), np.float32)})
    assert found["part"].base is None


def small() -> CanonicalGraph:
    builder = Builder()
    x, index = builder.input("x", F32, (3, 2)), builder.input("index", I64, (3,))
    return builder.graph(y=builder.add("put_add", index, x, attrs=(4,)), x=x)


X, INDEX = np.ones((3, 2), np.float32), np.array([0, 2, 2])


def test_an_output_may_be_an_input():
    found = execute(small(), {"x": X, "index": INDEX})
    assert found["x"] is X
    assert found["y"].tolist() == [[1, 1], [0, 0], [2, 2], [0, 0]]


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [({"x": X}, "missing: index"), ({"x": X, "index": INDEX, "z": X}, "unknown: z"), ({}, "missing: index, x")],
)
def test_inputs_of_other_names_are_refused(inputs, cause):
    with pytest.raises(UsageError, match="FF-VERI-070") as refused:
        execute(small(), inputs)
    assert cause in str(refused.value.cause)


@pytest.mark.parametrize("other", [X.T, X[:2], X.astype(np.float64), X.astype(">f4"), X[None], X > 0])
def test_inputs_of_another_kind_or_shape_are_refused(other):
    with pytest.raises(UsageError, match="FF-VERI-071"):
        execute(small(), {"x": other, "index": INDEX})


def test_inputs_that_do_not_lie_in_order_are_taken_as_if_they_did():
    builder = Builder()
    x = builder.input("x", F32, (2, 3))
    graph = builder.graph(y=builder.reshape(x, (6,)))
    assert execute(graph, {"x": np.arange(6, dtype=np.float32).reshape(3, 2).T})["y"].tolist() == [0, 2, 4, 1, 3, 5]


def test_a_graph_that_was_not_checked_is_checked_before_anything_is_read():
    graph = small()
    outside = GraphNode("move", (0,), F32, (1000,), (0, 1))
    with pytest.raises(ProtocolError, match="FF-CORE-065"):
        execute(CanonicalGraph(graph.inputs, (outside,), (GraphOutput("y", 2),)), {"x": X, "index": INDEX})


def test_no_input_is_written_into():
    builder = Builder()
    x, y = builder.input("x", F32, (2, 3)), builder.input("y", F32, (1, 3))
    placed = builder.add("place", builder.reshape(x, (2, 3)), y, attrs=(1, 0))
    given = {"x": np.ones((2, 3), np.float32), "y": np.zeros((1, 3), np.float32)}
    for each in given.values():
        each.flags.writeable = False
    assert execute(builder.graph(z=placed), given)["z"].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_a_process_that_flushes_denormals_is_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(RunError, match="FF-VERI-072"):
            execute(small(), {"x": X, "index": INDEX})
    finally:
        torch.set_flush_denormal(False)
    execute(small(), {"x": X, "index": INDEX})


def test_all_products_of_a_graph_are_told_before_the_first(monkeypatch):
    """So that their loop is compiled for the first of them, or for none."""
    b = Builder()
    left, right = b.input("left", F32, (2, 3, 5)), b.input("right", F32, (2, 5, 7))
    graph = b.graph(out=b.add("matmul", left, right))
    told = []
    monkeypatch.setattr(tensor_kernels, "foresee", told.append)
    execute(graph, inputs_of(graph, 1))
    assert told == [products(graph)] == [2 * 3 * 5 * 7]
