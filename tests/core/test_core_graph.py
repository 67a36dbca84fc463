"""The format of canonical graphs: what is stated is what follows, and any bytes get a clear answer."""

from __future__ import annotations

import pytest

from farflung.core.canon.graph import Graph, Input, Node, Output, check, graph_id, read
from farflung.core.codec import encode
from farflung.core.errors import ProtocolError


def graph(*nodes: Node, inputs: tuple[Input, ...] = ()) -> Graph:
    return Graph(inputs, nodes, (Output("y", len(inputs) + len(nodes) - 1),))


A = Input("a", "f32", (3, 4))
B = Input("b", "f32", (4,))


def test_a_graph_is_read_as_it_was_written_and_has_a_name() -> None:
    made = graph(Node("add", (0, 1), "f32", (3, 4), ()), inputs=(A, B))
    assert read(encode(made)) == made
    assert graph_id(made) != graph_id(graph(Node("sub", (0, 1), "f32", (3, 4), ()), inputs=(A, B)))


@pytest.mark.parametrize(
    ("node", "code"),
    [
        (Node("fma", (0, 1), "f32", (3, 4), ()), "FF-CORE-063"),
        (Node("add", (0, 2), "f32", (3, 4), ()), "FF-CORE-064"),
        (Node("add", (0, -1), "f32", (3, 4), ()), "FF-CORE-064"),
        (Node("add", (0,), "f32", (3, 4), ()), "FF-CORE-064"),
        (Node("move", (0,), "f32", (3,), (0, -1)), "FF-CORE-065"),
        (Node("move", (0,), "f32", (3,), (11, 1)), "FF-CORE-065"),
        (Node("move", (0,), "f32", (1 << 63,), (0, 1)), "FF-CORE-062"),
        (Node("add", (0, 1), "f32", (4,), ()), "FF-CORE-066"),
        (Node("add", (0, 1), "i64", (3, 4), ()), "FF-CORE-066"),
        (Node("add", (0, 1), "f16", (3, 4), ()), "FF-CORE-062"),
    ],
)
def test_a_node_that_breaks_a_rule_is_refused(node: Node, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check(graph(node, inputs=(A, B)))
    assert caught.value.code == code
