"""Lowers sums and maxima over any sides, and what is computed from them: means, variances, softmax, norms.

The sides that go are moved to the end and joined; a side longer than SPAN is folded level by level, so that one tile
of a dispute never needs more than SPAN elements for each of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.core import limits
from farflung.core.canon.operation_rules import BOOL, F32, Shape
from farflung.verify.canon import views
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor
from farflung.verify.canon.pointwise import OutputSpec, RefusedError, binary, convert, inverse_root, negated, unary

SPAN = limits.GRAPH_FOLD  # longest side of one `sum`, `max`, `matmul`, and index of one `put_add`
EXACT = 1 << 24  # whole numbers up to here are exact in float32


def fold(d: GraphBuilder, op: str, x: GraphTensor, fill: float) -> GraphTensor:
    """sum or max of the last side, in levels of SPAN; the last block is filled up with `fill`."""
    while x.shape[-1] > 1:
        n = x.shape[-1]
        if n > SPAN:
            rows = -(-n // SPAN)
            x = views.padded(d, x, len(x.shape) - 1, rows * SPAN, fill)
            x = views.reshape(d, x, (*x.shape[:-1], rows, SPAN))
        x = d.add(op, (x,), F32, x.shape[:-1])
        if n <= SPAN:
            return x
    return views.reshape(d, x, x.shape[:-1])


def total(d: GraphBuilder, x: GraphTensor) -> GraphTensor:
    """Sum of the last side."""
    return fold(d, "sum", x, 0.0)


def gathered(d: GraphBuilder, x: GraphTensor, sides: Sequence[int] | int | None) -> GraphTensor:
    """The named sides (all, where none is named) joined as the last one."""
    rank = len(x.shape)
    named = [sides] if isinstance(sides, int) else list(sides or range(rank))
    gone = sorted({side % rank for side in named}) if rank else []
    kept = [side for side in range(rank) if side not in gone]
    moved = views.permute(d, x, [*kept, *gone]) if rank else x
    return views.reshape(d, moved, (*(x.shape[s] for s in kept), math.prod(x.shape[s] for s in gone)))


def summed(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    sides: Sequence[int] | None = None,
    keep: bool = False,
    **_: object,
) -> GraphTensor:
    """sum; of truth values: how many hold."""
    if x.kind not in (F32, BOOL):
        raise RefusedError("it adds whole numbers; convert them to float32 first")
    rows = gathered(d, x, sides)
    if x.kind == BOOL and rows.shape[-1] > EXACT:
        raise RefusedError(f"it counts more than {EXACT} truth values")
    return convert(d, views.reshape(d, total(d, convert(d, rows, F32)), out.shape), out.kind)


def averaged(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    sides: Sequence[int] | None = None,
    keep: bool = False,
    **_: object,
) -> GraphTensor:
    """mean: the sum over the count."""
    return views.reshape(d, mean(d, gathered(d, convert(d, x, F32), sides)), out.shape)


def mean(d: GraphBuilder, rows: GraphTensor) -> GraphTensor:
    """Mean of the last side."""
    return binary(d, "div", total(d, rows), d.const(rows.shape[-1]))


def varied(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    sides: Sequence[int] | None = None,
    *_: object,
    correction: float | None = None,
    keepdim: bool = False,
) -> GraphTensor:
    """var: squares of the distances from the mean, over the count less `correction` (1 where none is given)."""
    rows = gathered(d, x, sides)
    less = 1.0 if correction is None else correction
    if rows.shape[-1] <= less:
        raise RefusedError("it takes a variance of too few elements")
    squares = squared(d, centred(d, rows))
    return views.reshape(d, binary(d, "div", total(d, squares), d.const(rows.shape[-1] - less)), out.shape)


def centred(d: GraphBuilder, rows: GraphTensor) -> GraphTensor:
    """Each element less the mean of the last side."""
    return binary(d, "sub", rows, column(d, mean(d, rows)))


def column(d: GraphBuilder, x: GraphTensor) -> GraphTensor:
    """A last side of 1 behind."""
    return views.reshape(d, x, (*x.shape, 1))


def squared(d: GraphBuilder, x: GraphTensor) -> GraphTensor:
    """x x."""
    return binary(d, "mul", x, x)


def highest(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, sides: Sequence[int] | None = None, keep: bool = False
) -> GraphTensor:
    """amax."""
    _floats(x)
    return views.reshape(d, fold(d, "max", gathered(d, x, sides), -math.inf), out.shape)


def lowest(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, sides: Sequence[int] | None = None, keep: bool = False
) -> GraphTensor:
    """amin = -amax(-x)."""
    _floats(x)
    return unary(d, "neg", highest(d, out, unary(d, "neg", x), sides))


def some(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, sides: Sequence[int] | int | None = None, keep: bool = False
) -> GraphTensor:
    """any: more than none."""
    rows = gathered(d, convert(d, convert(d, x, BOOL), F32), sides)
    return views.reshape(d, binary(d, "lt", d.const(0.0), total(d, rows), BOOL), out.shape)


def every(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, sides: Sequence[int] | int | None = None, keep: bool = False
) -> GraphTensor:
    """all: none that does not."""
    return negated(d, some(d, out, negated(d, convert(d, x, BOOL)), sides))


def norm(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    order: float = 2,
    sides: Sequence[int] | None = None,
    *_: object,
    **__: object,
) -> GraphTensor:
    """linalg_vector_norm of order 1 or 2."""
    rows = gathered(d, x, sides)
    if order == 2:
        return views.reshape(d, unary(d, "sqrt", total(d, squared(d, rows))), out.shape)
    if order == 1:
        return views.reshape(d, total(d, unary(d, "abs", rows)), out.shape)
    raise RefusedError(f"it takes a norm of order {order}; known are 1 and 2")


def _along(d: GraphBuilder, x: GraphTensor, side: int) -> tuple[GraphTensor, list[int]]:
    """A side moved to the end, and the order that moves it back."""
    rank = len(x.shape)
    order = [s for s in range(rank) if s != side % rank] + [side % rank]
    return views.permute(d, x, order), sorted(range(rank), key=order.__getitem__)


def softmax(d: GraphBuilder, out: OutputSpec, x: GraphTensor, side: int, *_: object) -> GraphTensor:
    """exp(x - max) over its sum."""
    if not x.shape:
        return d.const(1.0)
    rows, back = _along(d, x, side)
    powers = unary(d, "exp", binary(d, "sub", rows, column(d, fold(d, "max", rows, -math.inf))))
    return views.permute(d, binary(d, "div", powers, column(d, total(d, powers))), back)


def log_softmax(d: GraphBuilder, out: OutputSpec, x: GraphTensor, side: int, *_: object) -> GraphTensor:
    """(x - max) - log sum exp(x - max)."""
    if not x.shape:
        return d.const(0.0)
    rows, back = _along(d, x, side)
    less = binary(d, "sub", rows, column(d, fold(d, "max", rows, -math.inf)))
    logs = unary(d, "log", total(d, unary(d, "exp", less)))
    return views.permute(d, binary(d, "sub", less, column(d, logs)), back)


def _normal(d: GraphBuilder, rows: GraphTensor, eps: float) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    """Rows with mean 0 and variance 1, their means, and what they were multiplied with."""
    middle = mean(d, rows)
    away = binary(d, "sub", rows, column(d, middle))
    spread = binary(d, "add", mean(d, squared(d, away)), d.const(eps))
    factor = inverse_root(d, OutputSpec(F32, spread.shape), spread)
    return binary(d, "mul", away, column(d, factor)), middle, factor


def _affine(
    d: GraphBuilder, x: GraphTensor, weight: GraphTensor | None, bias: GraphTensor | None, shape: Shape
) -> GraphTensor:
    x = x if weight is None else binary(d, "mul", x, views.reshape(d, weight, shape))
    return x if bias is None else binary(d, "add", x, views.reshape(d, bias, shape))


def layer_norm(
    d: GraphBuilder,
    out: Sequence[OutputSpec],
    x: GraphTensor,
    shape: Sequence[int],
    weight: GraphTensor | None,
    bias: GraphTensor | None,
    eps: float,
) -> list[GraphTensor]:
    """Layer normalisation (Ba et al. 2016, equation 4): result, mean, 1 / sqrt(variance + eps)."""
    n = math.prod(shape)
    rows, *rest = _normal(d, views.reshape(d, x, (x.size // n, n)), eps)
    found = [_affine(d, rows, weight, bias, (n,)), *rest]
    return [views.reshape(d, value, one.shape) for value, one in zip(found, out, strict=True)]


def group_norm(
    d: GraphBuilder,
    out: Sequence[OutputSpec],
    x: GraphTensor,
    weight: GraphTensor | None,
    bias: GraphTensor | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> list[GraphTensor]:
    """Group normalisation (Wu & He 2018, equations 1 and 2): result, mean, 1 / sqrt(variance + eps)."""
    rows, *rest = _normal(d, views.reshape(d, x, (batch * groups, channels // groups * places)), eps)
    whole = views.reshape(d, rows, (batch, channels, places))
    found = [_affine(d, whole, weight, bias, (channels, 1)), *rest]
    return [views.reshape(d, value, one.shape) for value, one in zip(found, out, strict=True)]


def _floats(x: GraphTensor) -> None:
    if x.kind != F32:
        raise RefusedError("it compares whole numbers; convert them to float32 first")
