"""Builds the distance graph in canonical arithmetic.

It decides whether a claimed end lies beyond two tolerances of the canonical one.

It follows the steps of a disputed segment, so that the verdict itself is a tile about which both sides can be asked.
Tensor by tensor, with limits of 2^-30 (job.spec.Tolerance), as train.segments.distances and verify.audit_verdict have
it:

    guilty    not  sum (claimed - final)^2  <=  (2 limit 2^-30)^2 sum unit^2      any tensor with a limit
    unit      final - start for weights, final for the optimizer's vectors

All is divided by the largest |unit| first, or by the largest difference where every unit is 0: squares that matter do
not underflow, however small the vectors are, since a limit is 2^-30 at least. A square that overflows is beyond any
limit. A NaN is never less or equal: guilty. Noise tensors, whose limit is 0, are no part of it.

    in    start/params/NAME   claimed/VECTOR/NAME   final/VECTOR/NAME        out    guilty, a bool, the last value
"""

from __future__ import annotations

from typing import Final

from farflung.core.canon.graph import CanonicalGraph, GraphInput, check
from farflung.core.canon.operation_rules import BOOL, F32
from farflung.core.canon.program import CLAIMED, FINAL, START
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import Tolerance
from farflung.train.contribution_trace import PARAMS
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor
from farflung.verify.canon.pointwise import binary, chosen, negated, unary
from farflung.verify.canon.reductions import fold, gathered, squared, total
from farflung.verify.tolerance import UNIT_BITS

GUILTY: Final = "guilty"


def distance_graph(layout: TensorLayout, tolerance: Tolerance) -> CanonicalGraph:
    """The graph of one job, a function of its terms alone. `tolerance` limits at least one tensor (FF-VERI-050)."""
    judged = [
        (vector, tensor.name, tensor.shape, limit)
        for vector, limits in tolerance.limits
        for tensor, limit in zip(layout.tensors, limits, strict=True)
        if limit
    ]
    names = [(kind, *each) for each in judged for kind in _kinds(each[0])]
    builder = GraphBuilder(
        [GraphInput(f"{kind}/{vector}/{name}", F32, shape) for kind, vector, name, shape, _ in names]
    )
    known = {name: builder.input(number) for number, name in enumerate(builder.names)}
    guilty: GraphTensor | None = None
    for vector, name, _, limit in judged:
        start = known.get(f"{START}/{vector}/{name}")
        claimed, final = (known[f"{kind}/{vector}/{name}"] for kind in (CLAIMED, FINAL))
        apart = binary(builder, "sub", claimed, final)
        beyond = _is_beyond(builder, apart, binary(builder, "sub", final, start) if start else final, limit)
        guilty = beyond if guilty is None else binary(builder, "or", guilty, beyond)
    assert guilty is not None
    graph = builder.finished({GUILTY: guilty}, frozenset())
    check(graph)
    return graph


def _kinds(vector: str) -> tuple[str, ...]:
    return (START, CLAIMED, FINAL) if vector == PARAMS else (CLAIMED, FINAL)


def _is_beyond(d: GraphBuilder, apart: GraphTensor, unit: GraphTensor, limit: int) -> GraphTensor:
    """Whether a tensor lies beyond twice its limit: a bool of shape ()."""
    least = _or(d, _largest(d, unit), _or(d, _largest(d, apart), d.const(1.0)))
    distance, norm = (_square(d, binary(d, "div", each, least)) for each in (apart, unit))
    squared_limit = (2.0 * limit / (1 << UNIT_BITS)) ** 2
    allowed = binary(d, "mul", norm, d.const(squared_limit))
    return negated(d, d.add("le", (distance, allowed), BOOL, ()))


def _or(d: GraphBuilder, x: GraphTensor, other: GraphTensor) -> GraphTensor:
    """x, or `other` where it is 0."""
    is_zero = d.add("eq", (x, d.const(0.0)), BOOL, ())
    return chosen(d, is_zero, other, x)


def _largest(d: GraphBuilder, x: GraphTensor) -> GraphTensor:
    """The largest absolute value, of shape ()."""
    return fold(d, "max", gathered(d, unary(d, "abs", x), None), 0.0)


def _square(d: GraphBuilder, x: GraphTensor) -> GraphTensor:
    """The sum of all squares, of shape ()."""
    return total(d, gathered(d, squared(d, x), None))
