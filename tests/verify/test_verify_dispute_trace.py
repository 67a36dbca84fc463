"""What people call a value of a step's graph: the tensor that it becomes, and the nearest one that it is made of."""

from __future__ import annotations

from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.verify.dispute_trace import named

F32 = ("f32", (2,))
GRAPH = CanonicalGraph(
    (GraphInput("params/w", *F32), GraphInput("mean/w", *F32), GraphInput("x", *F32)),
    (
        GraphNode("neg", (2,), *F32, ()),
        GraphNode("mul", (3, 1), *F32, ()),
        GraphNode("add", (4, 0), *F32, ()),
        GraphNode("neg", (5,), *F32, ()),
    ),
    (GraphOutput("params/w", 6),),
)


def test_a_value_is_called_by_the_tensor_that_it_becomes_and_by_the_nearest_that_it_is_made_of() -> None:
    assert named(GRAPH, 6) == ("params/w", "params/w")
    assert named(GRAPH, 5) == ("", "params/w")
    assert named(GRAPH, 4) == ("", "mean/w")
    assert named(GRAPH, 3) == named(GRAPH, 2) == ("", "")
