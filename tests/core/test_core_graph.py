"""The format of canonical graphs: what is stated is what follows, and any bytes get a clear answer."""

from __future__ import annotations

import re
import tracemalloc

import msgspec
import pytest
from core_canon_cases import GRAPHS
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput, check, graph_id, read
from farflung.core.canon.operation_rules import KINDS, OPERATIONS
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError

HUGE = 1 << 63
MANY = settings(max_examples=150, deadline=None)


def graph(*nodes: GraphNode, inputs: tuple[GraphInput, ...] = ()) -> CanonicalGraph:
    return CanonicalGraph(inputs, nodes, (GraphOutput("y", len(inputs) + len(nodes) - 1),))


A = GraphInput("a", "f32", (3, 4))
B = GraphInput("b", "f32", (4,))
I = GraphInput("i", "i64", (3,))  # noqa: E741
T = GraphInput("t", "bool", (3, 4))
C = GraphInput("c", "f32", (2, 3, 4))
D = GraphInput("d", "f32", (2, 4, 5))
L = GraphInput("l", "f32", (2, 257))
P = GraphInput("p", "f32", (1, 2, 257))
Q = GraphInput("q", "f32", (1, 257, 2))
S = GraphInput("s", "f32", ())
R = GraphInput("r", "f32", (3, 4, 5))
INPUTS = (A, B, I, T, C, D, L, P, Q, S, R)  # values 0 to 10


def node(op: str, args: tuple[int, ...], kind: str, shape: tuple[int, ...], *attrs: int) -> GraphNode:
    return GraphNode(op, args, kind, shape, attrs)


GOOD = [
    node("add", (0, 1), "f32", (3, 4)),
    node("eq", (2, 2), "bool", (3,)),
    node("select", (3, 0, 1), "f32", (3, 4)),
    node("convert", (2,), "f32", (3,)),
    node("sum", (0,), "f32", (3,)),
    node("max", (1,), "f32", ()),
    node("matmul", (4, 5), "f32", (2, 3, 5)),
    node("move", (0,), "f32", (4, 3), 3, -1, 4),
    node("move", (0,), "f32", (5, 12), 0, 0, 1),
    node("move", (0,), "f32", (1,), 11, limits.ELEMENTS),
    node("place", (0, 0), "f32", (3, 4), 0, 0),
    node("take", (0, 2), "f32", (3, 4)),
    node("put_add", (2, 0), "f32", (7, 4), 7),
    node("const", (), "i64", (), -HUGE),
    node("const", (), "f32", (1 << 20, 1 << 16), 0xFFFFFFFF),
    node("iota", (), "i64", (limits.ELEMENTS,)),
]

BAD = [
    ("063", node("fma", (0, 1), "f32", (3, 4))),
    ("063", node("", (), "f32", ())),
    ("062", node("add", (0, 1), "f16", (3, 4))),
    ("062", node("add", (0, 1), "f32", (0, 4))),
    ("062", node("add", (0, 1), "f32", (-3, 4))),
    ("062", node("neg", (9,), "f32", (1,) * 9)),
    ("062", node("const", (), "f32", (HUGE,), 0)),
    ("062", node("const", (), "f32", (1 << 20, 1 << 17), 0)),
    ("062", node("const", (), "f32", (1 << 36,) * 8, 0)),
    # Arguments
    ("064", node("add", (0, 11), "f32", (3, 4))),  # itself
    ("064", node("add", (0, 12), "f32", (3, 4))),
    ("064", node("add", (0, HUGE), "f32", (3, 4))),
    ("064", node("neg", (-1,), "f32", (3, 4, 5))),
    ("064", node("add", (0,), "f32", (3, 4))),
    ("064", node("add", (0, 0, 0), "f32", (3, 4))),
    ("064", node("add", (0,) * 1000, "f32", (3, 4))),
    ("064", node("select", (3, 0, 1, 0), "f32", (3, 4))),
    ("064", node("add", (0, 2), "f32", (3, 4))),
    ("064", node("iadd", (2, 0), "i64", (3, 4))),
    ("064", node("mul", (0, 5), "f32", (2, 4, 5))),
    ("064", node("and", (3, 0), "bool", (3, 4))),
    ("064", node("lt", (0, 2), "bool", (3, 4))),
    ("064", node("eq", (3, 3), "bool", (3, 4))),
    ("064", node("select", (0, 0, 0), "f32", (3, 4))),
    ("064", node("select", (3, 0, 2), "f32", (3, 4))),
    ("064", node("convert", (0,), "bool", (3, 4))),
    ("064", node("convert", (0,), "f32", (3, 4))),
    ("064", node("sum", (9,), "f32", ())),
    ("064", node("sum", (6,), "f32", (2,))),
    ("064", node("max", (6,), "f32", (2,))),
    ("064", node("sum", (2,), "f32", ())),
    ("064", node("matmul", (4, 4), "f32", (2, 3, 4))),
    ("064", node("matmul", (4, 10), "f32", (2, 3, 5))),
    ("064", node("matmul", (0, 1), "f32", (3,))),
    ("064", node("matmul", (7, 5), "f32", (1, 2, 5))),
    ("064", node("matmul", (7, 8), "f32", (1, 2, 2))),
    ("064", node("place", (0, 1), "f32", (3, 4), 0, 0)),
    ("064", node("place", (0, 3), "f32", (3, 4), 0, 0)),
    ("064", node("take", (4, 2), "f32", (3, 4))),
    ("064", node("take", (0, 1), "f32", (4, 4))),
    ("064", node("put_add", (2, 6), "f32", (7, 257), 7)),
    ("064", node("put_add", (2, 1), "f32", (7, 4), 7)),
    ("064", node("put_add", (2, 4), "f32", (7, 4), 7)),
    ("064", node("iota", (), "i64", (2, 2))),
    # Attributes
    ("065", node("add", (0, 1), "f32", (3, 4), 0)),
    ("065", node("add", (0, 1), "f32", (3, 4), *range(1000))),
    ("065", node("const", (), "f32", ())),
    ("065", node("const", (), "f32", (), 1 << 32)),
    ("065", node("const", (), "f32", (), -1)),
    ("065", node("const", (), "i64", (), HUGE)),
    ("065", node("const", (), "bool", (), 2)),
    ("065", node("move", (0,), "f32", (3,))),
    ("065", node("move", (0,), "f32", (3,), *range(1000))),
    ("065", node("move", (0,), "f32", (3,), 0)),
    ("065", node("move", (0,), "f32", (3,), 0, -1)),
    ("065", node("move", (0,), "f32", (3,), 10, 1)),
    ("065", node("move", (0,), "f32", (3,), -1, 1)),
    ("065", node("move", (0,), "f32", (), 12)),
    ("065", node("move", (0,), "f32", (2, 2), 4, 8, -5)),
    ("065", node("move", (0,), "f32", (2,), 0, HUGE)),
    ("065", node("move", (0,), "f32", (1,), 0, HUGE)),
    ("065", node("move", (0,), "f32", (1,), 0, -HUGE)),
    ("065", node("place", (0, 0), "f32", (3, 4), 0)),
    ("065", node("place", (0, 0), "f32", (3, 4), 0, 1)),
    ("065", node("place", (0, 0), "f32", (3, 4), -1, 0)),
    ("065", node("put_add", (2, 0), "f32", (7, 4), 0)),
    ("065", node("put_add", (2, 0), "f32", (7, 4), HUGE)),
    # What is stated
    ("066", node("add", (0, 1), "f32", (4,))),
    ("066", node("add", (0, 1), "i64", (3, 4))),
    ("066", node("sum", (0,), "f32", (3, 1))),
    ("066", node("move", (0,), "i64", (3,), 0, 1)),
    ("066", node("place", (0, 0), "f32", (4, 4), 0, 0)),
    ("066", node("put_add", (2, 0), "f32", (7, 4), 8)),
    ("066", node("iota", (), "f32", (3,))),
    ("066", node("convert", (2,), "f32", (4,))),
]


def answer(data: bytes) -> str:
    """The code with which bytes are refused; empty when they are taken, and are what was read."""
    try:
        made = read(data)
    except ProtocolError as error:
        return error.code
    assert encode(made) == data
    return ""


def refusal(of: CanonicalGraph) -> str:
    with pytest.raises(ProtocolError) as caught:
        check(of)
    assert re.fullmatch(r"FF-CORE-06\d", caught.value.code)
    assert len(str(caught.value)) < 500
    return caught.value.code


def test_a_node_that_keeps_the_rules_is_taken() -> None:
    for made in GOOD:
        check(graph(made, inputs=INPUTS))


def test_a_node_that_breaks_a_rule_is_refused() -> None:
    told = [refusal(graph(made, inputs=INPUTS)) for _, made in BAD]
    assert told == [f"FF-CORE-{code}" for code, _ in BAD]


def test_a_graph_is_read_as_it_was_written_and_has_a_name() -> None:
    made = graph(GOOD[0], inputs=INPUTS)
    assert read(encode(made)) == made
    assert graph_id(made) != graph_id(graph(node("sub", (0, 1), "f32", (3, 4)), inputs=INPUTS))
    assert made.value(0) == A
    assert made.value(len(INPUTS)) == GOOD[0]


def test_the_name_of_a_graph_is_what_it_was() -> None:
    assert graph_id(GRAPHS["matmul"]).hex()[:16] == "d4735dd07bc27207"


def test_counts_names_and_outputs_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    good = GOOD[0]
    assert refusal(CanonicalGraph((), (), (GraphOutput("y", 0),))) == "FF-CORE-060"
    assert refusal(CanonicalGraph(INPUTS, (good,), ())) == "FF-CORE-060"
    for name in ("", "é" * 129):
        assert refusal(CanonicalGraph((GraphInput(name, "f32", ()),), (good,), (GraphOutput("y", 0),))) == "FF-CORE-061"
        assert refusal(CanonicalGraph(INPUTS, (good,), (GraphOutput(name, 0),))) == "FF-CORE-061"
    assert refusal(CanonicalGraph((A, A), (good,), (GraphOutput("y", 0),))) == "FF-CORE-061"
    assert refusal(CanonicalGraph(INPUTS, (good,), (GraphOutput("y", 0), GraphOutput("y", 1)))) == "FF-CORE-061"
    assert refusal(CanonicalGraph((GraphInput("a", "f32", (HUGE,)),), (good,), (GraphOutput("y", 0),))) == "FF-CORE-062"
    for value in (-1, len(INPUTS) + 1, HUGE):
        assert refusal(CanonicalGraph(INPUTS, (good,), (GraphOutput("y", value),))) == "FF-CORE-067"
    for name, many in (
        ("GRAPH_INPUTS", CanonicalGraph(INPUTS, (good,), (GraphOutput("y", 0),))),
        ("GRAPH_NODES", graph(good, good, inputs=INPUTS)),
        ("GRAPH_OUTPUTS", CanonicalGraph(INPUTS, (good,), (GraphOutput("y", 0), GraphOutput("z", 1)))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, 1)
            assert refusal(many) == "FF-CORE-060"


def test_too_many_bytes_are_refused_before_they_are_read() -> None:
    with pytest.raises(ProtocolError, match="FF-CORE-020"):
        read(bytes(limits.GRAPH_BYTES + 1))


NUMBERS = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([HUGE, -HUGE, limits.ELEMENTS, 256, 257, 1 << 32]),
    st.integers(-HUGE, 2 * HUGE - 1),
)
TUPLES = st.lists(NUMBERS, max_size=10).map(tuple)
NODES = st.builds(
    GraphNode, st.sampled_from([*OPERATIONS, "?"]), TUPLES, st.sampled_from([*KINDS, "f64"]), TUPLES, TUPLES
)
NEAR = st.builds(
    lambda made, field, value: msgspec.structs.replace(made, **{field: value}),
    st.sampled_from(GOOD),
    st.sampled_from(["args", "shape", "attrs"]),
    TUPLES,
)


@given(
    nodes=st.lists(st.one_of(NODES, NEAR, st.sampled_from(GOOD)), max_size=3),
    outputs=st.lists(st.builds(GraphOutput, st.text(max_size=2), NUMBERS), max_size=2),
)
@MANY
def test_whatever_is_in_a_graph_it_is_taken_or_refused_with_a_code(
    nodes: list[GraphNode], outputs: list[GraphOutput]
) -> None:
    made = CanonicalGraph(INPUTS, tuple(nodes), tuple(outputs))
    assert re.fullmatch(r"(FF-CORE-06[0-7])?", answer(encode(made)))


@given(data=st.binary(max_size=200))
@MANY
def test_any_bytes_are_refused_with_a_code(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="FF-CORE-0"):
        read(data)


@given(name=st.sampled_from(sorted(GRAPHS)), place=st.integers(0, 1 << 16), byte=st.integers(0, 255), cut=st.booleans())
@MANY
def test_a_graph_with_one_byte_changed_or_an_end_missing_is_taken_or_refused(
    name: str, place: int, byte: int, cut: bool
) -> None:
    data = bytearray(encode(GRAPHS[name]))
    place %= len(data)
    if cut:
        del data[place:]
    else:
        data[place] = byte
    assert re.fullmatch(r"(FF-CORE-0(2[0-3]|6[0-7]))?", answer(bytes(data)))


def test_nothing_of_a_tensors_size_is_allocated_by_the_check() -> None:
    made = [each for each in GOOD if each.op in ("iota", "const")]
    data = [encode(graph(each, inputs=INPUTS)) for each in (*made, *(bad for _, bad in BAD))]
    tracemalloc.start()
    answers = {answer(each) for each in data}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert len(answers) > 4
