"""Lowers matrix products.

A side longer than SPAN is multiplied in parts, which are added from the first to the last.
"""

from __future__ import annotations

from farflung.core.canon.operation_rules import F32
from farflung.verify.canon import views
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor
from farflung.verify.canon.pointwise import OutputSpec, RefusedError, binary, convert
from farflung.verify.canon.reductions import SPAN


def product(d: GraphBuilder, a_BMK: GraphTensor, b_BKN: GraphTensor) -> GraphTensor:
    """(B, M, K) times (B, K, N)."""
    shape = (*a_BMK.shape[:2], b_BKN.shape[2])
    length = a_BMK.shape[2]
    result: GraphTensor | None = None
    for start in range(0, length, SPAN):
        count = min(SPAN, length - start)
        left, right = views.part(d, a_BMK, 2, start, count), views.part(d, b_BKN, 1, start, count)
        one = d.add("matmul", (left, right), F32, shape)
        result = one if result is None else binary(d, "add", result, one)
    assert result is not None
    return result


def batched(d: GraphBuilder, out: OutputSpec, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """bmm."""
    if out.kind != F32:
        raise RefusedError("it multiplies matrices of whole numbers")
    return product(d, convert(d, a, F32), convert(d, b, F32))


def plain(d: GraphBuilder, out: OutputSpec, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """mm, mv and dot: missing sides are sides of 1."""
    left = views.reshape(d, a, (1, *a.shape) if len(a.shape) == 2 else (1, 1, *a.shape))
    right = views.reshape(d, b, (1, *b.shape) if len(b.shape) == 2 else (1, *b.shape, 1))
    return views.reshape(d, batched(d, out, left, right), out.shape)


def added(
    d: GraphBuilder,
    out: OutputSpec,
    bias: GraphTensor,
    a: GraphTensor,
    b: GraphTensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> GraphTensor:
    """addmm, baddbmm: beta bias + alpha a b."""
    found = batched(d, out, a, b) if len(a.shape) == 3 else plain(d, out, a, b)
    found = found if alpha == 1 else binary(d, "mul", found, d.const(alpha))
    if beta == 0:
        return found
    bias = bias if beta == 1 else binary(d, "mul", bias, d.const(beta))
    return binary(d, "add", bias, found)
