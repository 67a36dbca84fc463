"""Reads and writes at computed places: rows by `take` and `put_add`, elements by comparing every place's number.

An element is found as the sum of what a comparison leaves: all other places give +0.0, so the value is exact. An index
outside the table is an error in torch; here it reads +0.0 and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farflung.core.canon.operation_rules import BOOL, F32, I64
from farflung.verify.canon import views
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor
from farflung.verify.canon.pointwise import Operand, OutputSpec, RefusedError, binary, chosen, convert, lift
from farflung.verify.canon.reductions import SPAN, total


def embedding(d: GraphBuilder, out: OutputSpec, table: GraphTensor, index: GraphTensor, *_: object) -> GraphTensor:
    """Rows of a table."""
    rows = d.add("take", (table, views.reshape(d, index, (index.size,))), F32, (index.size, table.shape[1]))
    return views.reshape(d, rows, out.shape)


def embedding_gradient(
    d: GraphBuilder, out: OutputSpec, grad: GraphTensor, index: GraphTensor, length: int, padding: int, is_scaled: bool
) -> GraphTensor:
    """embedding_dense_backward: rows added at their places in the order of the tokens."""
    if is_scaled:
        raise RefusedError("its gradient is scaled by frequency (scale_grad_by_freq)")
    flat = views.reshape(d, index, (index.size,))
    rows = views.reshape(d, grad, (index.size, out.shape[1]))
    if padding >= 0:
        is_padding = views.reshape(d, binary(d, "eq", flat, d.const(padding, I64), BOOL), (index.size, 1))
        rows = chosen(d, is_padding, d.const(0.0), rows)
    return put_add(d, flat, rows, length)


def put_add(d: GraphBuilder, index: GraphTensor, rows: GraphTensor, length: int) -> GraphTensor:
    """Rows (n, D) added to zeros (length, D) at index (n,): SPAN of them at a time, what they give is added in turn."""
    result: GraphTensor | None = None
    for start in range(0, index.size, SPAN):
        count = min(SPAN, index.size - start)
        some = views.part(d, index, 0, start, count), views.part(d, rows, 0, start, count)
        one = d.add("put_add", some, F32, (length, rows.shape[1]), (length,))
        result = one if result is None else binary(d, "add", result, one)
    assert result is not None
    return result


def _place(
    d: GraphBuilder, indices: Sequence[GraphTensor | None], x: GraphTensor
) -> tuple[GraphTensor, tuple[int, ...], int]:
    """Leading indices as one number of a row: (n,), the indices' common shape, and how many sides they take."""
    found = [index for index in indices if index is not None]
    if len(found) != len(indices) or not found or any(index.kind == BOOL for index in found):
        raise RefusedError("only the first sides can be indexed, each by a tensor of whole numbers")
    shape = tuple(np.broadcast_shapes(*(index.shape for index in found)))
    number: GraphTensor | None = None
    for side, index in enumerate(found):
        count = d.const(x.shape[side], I64)
        below = binary(d, "lt", index, d.const(0, I64), BOOL)
        wrapped = chosen(d, below, binary(d, "iadd", index, count), index)
        number = wrapped if number is None else binary(d, "iadd", binary(d, "imul", number, count), wrapped)
    assert number is not None
    flat = views.reshape(d, views.expand(d, number, shape), (math.prod(shape),))
    return flat, shape, len(found)


def indexed(d: GraphBuilder, out: OutputSpec, x: GraphTensor, indices: Sequence[GraphTensor | None]) -> GraphTensor:
    """x[i, j, ...] of float32: rows of the sides that are left."""
    if x.kind != F32:
        raise RefusedError("it picks from whole numbers or truth values; index a float32 tensor")
    flat, _, sides = _place(d, indices, x)
    length, width = math.prod(x.shape[:sides]), math.prod(x.shape[sides:])
    rows = d.add("take", (views.reshape(d, x, (length, width)), flat), F32, (flat.size, width))
    return views.reshape(d, rows, out.shape)


def index_put(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    indices: Sequence[GraphTensor | None],
    values: GraphTensor,
    is_added: bool = False,
    *_: object,
) -> GraphTensor:
    """x[i, j, ...] += values; writing without adding has no order where two indices are equal."""
    if not is_added or out.kind != F32:
        raise RefusedError("it writes at computed places without adding; use torch.where")
    flat, shape, sides = _place(d, indices, x)
    length, width = math.prod(x.shape[:sides]), math.prod(x.shape[sides:])
    whole = views.expand(d, values, (*shape, *x.shape[sides:]))
    rows = views.reshape(d, whole, (flat.size, width))
    put = views.reshape(d, put_add(d, flat, rows, length), x.shape)
    return put if d.filled(x) == (0,) else binary(d, "add", x, put)


def _hits(d: GraphBuilder, x: GraphTensor, side: int, index: GraphTensor) -> tuple[GraphTensor, list[int]]:
    """Whether index (..., J, 1) names the place (V,): (..., J, V), the side last; and the order that puts it there."""
    rank = len(x.shape)
    order = [s for s in range(rank) if s != side] + [side]
    last = views.permute(d, index, order)
    places = d.add("iota", (), I64, (x.shape[side],))
    return binary(d, "eq", views.reshape(d, last, (*last.shape, 1)), places, BOOL), order


def _back(d: GraphBuilder, x: GraphTensor, order: Sequence[int]) -> GraphTensor:
    return views.permute(d, x, sorted(range(len(order)), key=order.__getitem__))


def gather(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, side: int, index: GraphTensor, *_: object, **__: object
) -> GraphTensor:
    """gather: one element for each index, along any side."""
    if x.kind != F32 or not x.shape:
        raise RefusedError("it gathers whole numbers, truth values or a scalar; gather from a float32 tensor")
    side %= len(x.shape)
    for other, n in enumerate(index.shape):
        if other != side:
            x = views.part(d, x, other, 0, n)
    hits, order = _hits(d, x, side, index)
    rows = views.permute(d, x, order)
    wide = views.reshape(d, rows, (*rows.shape[:-1], 1, rows.shape[-1]))
    return _back(d, total(d, chosen(d, hits, wide, d.const(0.0))), order)


def scatter(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, side: int, index: GraphTensor, value: Operand, *_: object
) -> GraphTensor:
    """scatter of one number; of a tensor where each row writes one place, for else the order would matter."""
    side = _checked(x, side, index)
    hits, order = _hits(d, x, side, index)
    rows = views.permute(d, x, order)
    if not isinstance(value, GraphTensor):
        return _back(d, chosen(d, _any(d, hits), lift(d, value, out.kind), rows), order)
    if index.shape[side] != 1:
        raise RefusedError("it scatters more than one value along a side")
    for other, n in enumerate(index.shape):
        value = views.part(d, value, other, 0, n)
    source = views.permute(d, convert(d, value, out.kind), order)
    return _back(d, chosen(d, _any(d, hits), source, rows), order)


def scatter_add(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, side: int, index: GraphTensor, source: GraphTensor
) -> GraphTensor:
    """scatter_add: what all indices bring to a place, summed, then added."""
    side = _checked(x, side, index)
    if out.kind != F32:
        raise RefusedError("it adds whole numbers")
    for other, n in enumerate(index.shape):
        source = views.part(d, source, other, 0, n)
    hits, order = _hits(d, x, side, index)
    rows = views.permute(d, source, order)
    wide = chosen(d, hits, views.reshape(d, rows, (*rows.shape, 1)), d.const(0.0))
    rank = len(wide.shape)
    turned = views.permute(d, wide, [*range(rank - 2), rank - 1, rank - 2])
    return binary(d, "add", x, _back(d, total(d, turned), order))


def _any(d: GraphBuilder, hits: GraphTensor) -> GraphTensor:
    """Whether any of (..., J, V) names the place: (..., V)."""
    if hits.shape[-2] == 1:
        return views.reshape(d, hits, (*hits.shape[:-2], hits.shape[-1]))
    rank = len(hits.shape)
    turned = views.permute(d, convert(d, hits, F32), [*range(rank - 2), rank - 1, rank - 2])
    return binary(d, "lt", d.const(0.0), total(d, turned), BOOL)


def _checked(x: GraphTensor, side: int, index: GraphTensor) -> int:
    if not x.shape:
        raise RefusedError("it scatters into a scalar")
    side %= len(x.shape)
    if any(n != m for at, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if at != side):
        raise RefusedError("it scatters into a part of the other sides")
    return side
