"""Sums and maxima over any sides, and what is made of them: means, variances, softmax, norms.

The sides that go are moved to the end and joined; a side longer than SPAN is folded level by level, so that one tile
of a dispute never needs more than SPAN elements for each of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.core import limits
from farflung.core.canon.rules import BOOL, F32, Shape
from farflung.verify.canon import views
from farflung.verify.canon.draft import Draft, Value
from farflung.verify.canon.pointwise import Out, RefusedError, binary, convert, inverse_root, negated, unary

SPAN = limits.GRAPH_FOLD  # longest side of one `sum`, `max`, `matmul`, and index of one `put_add`
EXACT = 1 << 24  # whole numbers up to here are exact in float32


def fold(d: Draft, op: str, x: Value, fill: float) -> Value:
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


def total(d: Draft, x: Value) -> Value:
    """Sum of the last side."""
    return fold(d, "sum", x, 0.0)


def gathered(d: Draft, x: Value, sides: Sequence[int] | int | None) -> Value:
    """The named sides (all, where none is named) joined as the last one."""
    rank = len(x.shape)
    named = [sides] if isinstance(sides, int) else list(sides or range(rank))
    gone = sorted({side % rank for side in named}) if rank else []
    kept = [side for side in range(rank) if side not in gone]
    moved = views.permute(d, x, [*kept, *gone]) if rank else x
    return views.reshape(d, moved, (*(x.shape[s] for s in kept), math.prod(x.shape[s] for s in gone)))


def summed(
    d: Draft, out: Out, x: Value, sides: Sequence[int] | None = None, keep: bool = False, **_: object
) -> Value:
    """sum; of truth values: how many hold."""
    if x.kind not in (F32, BOOL):
        raise RefusedError("it adds whole numbers; convert them to float32 first")
    rows = gathered(d, x, sides)
    if x.kind == BOOL and rows.shape[-1] > EXACT:
        raise RefusedError(f"it counts more than {EXACT} truth values")
    return convert(d, views.reshape(d, total(d, convert(d, rows, F32)), out.shape), out.kind)


def averaged(
    d: Draft, out: Out, x: Value, sides: Sequence[int] | None = None, keep: bool = False, **_: object
) -> Value:
    """mean: the sum over the count."""
    return views.reshape(d, mean(d, gathered(d, convert(d, x, F32), sides)), out.shape)


def mean(d: Draft, rows: Value) -> Value:
    """Mean of the last side."""
    return binary(d, "div", total(d, rows), d.const(rows.shape[-1]))


def varied(
    d: Draft,
    out: Out,
    x: Value,
    sides: Sequence[int] | None = None,
    *_: object,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    """var: squares of the distances from the mean, over the count less `correction` (1 where none is given)."""
    rows = gathered(d, x, sides)
    less = 1.0 if correction is None else correction
    if rows.shape[-1] <= less:
        raise RefusedError("it takes a variance of too few elements")
    squares = squared(d, centred(d, rows))
    return views.reshape(d, binary(d, "div", total(d, squares), d.const(rows.shape[-1] - less)), out.shape)


def centred(d: Draft, rows: Value) -> Value:
    """Each element less the mean of the last side."""
    return binary(d, "sub", rows, column(d, mean(d, rows)))


def column(d: Draft, x: Value) -> Value:
    """A last side of 1 behind."""
    return views.reshape(d, x, (*x.shape, 1))


def squared(d: Draft, x: Value) -> Value:
    """x x."""
    return binary(d, "mul", x, x)


def highest(d: Draft, out: Out, x: Value, sides: Sequence[int] | None = None, keep: bool = False) -> Value:
    """amax."""
    _floats(x)
    return views.reshape(d, fold(d, "max", gathered(d, x, sides), -math.inf), out.shape)


def lowest(d: Draft, out: Out, x: Value, sides: Sequence[int] | None = None, keep: bool = False) -> Value:
    """amin = -amax(-x)."""
    _floats(x)
    return unary(d, "neg", highest(d, out, unary(d, "neg", x), sides))


def some(d: Draft, out: Out, x: Value, sides: Sequence[int] | int | None = None, keep: bool = False) -> Value:
    """any: more than none."""
    rows = gathered(d, convert(d, convert(d, x, BOOL), F32), sides)
    return views.reshape(d, binary(d, "lt", d.const(0.0), total(d, rows), BOOL), out.shape)


def every(
    d: Draft, out: Out, x: Value, sides: Sequence[int] | int | None = None, keep: bool = False
) -> Value:
    """all: none that does not."""
    return negated(d, some(d, out, negated(d, convert(d, x, BOOL)), sides))


def norm(
    d: Draft,
    out: Out,
    x: Value,
    order: float = 2,
    sides: Sequence[int] | None = None,
    *_: object,
    **__: object,
) -> Value:
    """linalg_vector_norm of order 1 or 2."""
    rows = gathered(d, x, sides)
    if order == 2:
        return views.reshape(d, unary(d, "sqrt", total(d, squared(d, rows))), out.shape)
    if order == 1:
        return views.reshape(d, total(d, unary(d, "abs", rows)), out.shape)
    raise RefusedError(f"it takes a norm of order {order}; known are 1 and 2")


def _along(d: Draft, x: Value, side: int) -> tuple[Value, list[int]]:
    """A side moved to the end, and the order that moves it back."""
    rank = len(x.shape)
    order = [s for s in range(rank) if s != side % rank] + [side % rank]
    return views.permute(d, x, order), sorted(range(rank), key=order.__getitem__)


def softmax(d: Draft, out: Out, x: Value, side: int, *_: object) -> Value:
    """exp(x - max) over its sum."""
    if not x.shape:
        return d.const(1.0)
    rows, back = _along(d, x, side)
    powers = unary(d, "exp", binary(d, "sub", rows, column(d, fold(d, "max", rows, -math.inf))))
    return views.permute(d, binary(d, "div", powers, column(d, total(d, powers))), back)


def log_softmax(d: Draft, out: Out, x: Value, side: int, *_: object) -> Value:
    """(x - max) - log sum exp(x - max)."""
    if not x.shape:
        return d.const(0.0)
    rows, back = _along(d, x, side)
    less = binary(d, "sub", rows, column(d, fold(d, "max", rows, -math.inf)))
    logs = unary(d, "log", total(d, unary(d, "exp", less)))
    return views.permute(d, binary(d, "sub", less, column(d, logs)), back)


def _normal(d: Draft, rows: Value, eps: float) -> tuple[Value, Value, Value]:
    """Rows with mean 0 and variance 1, their means, and what they were multiplied with."""
    middle = mean(d, rows)
    away = binary(d, "sub", rows, column(d, middle))
    spread = binary(d, "add", mean(d, squared(d, away)), d.const(eps))
    factor = inverse_root(d, Out(F32, spread.shape), spread)
    return binary(d, "mul", away, column(d, factor)), middle, factor


def _affine(d: Draft, x: Value, weight: Value | None, bias: Value | None, shape: Shape) -> Value:
    x = x if weight is None else binary(d, "mul", x, views.reshape(d, weight, shape))
    return x if bias is None else binary(d, "add", x, views.reshape(d, bias, shape))


def layer_norm(
    d: Draft,
    out: Sequence[Out],
    x: Value,
    shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> list[Value]:
    """Layer normalisation (Ba et al. 2016, equation 4): result, mean, 1 / sqrt(variance + eps)."""
    n = math.prod(shape)
    rows, *rest = _normal(d, views.reshape(d, x, (x.size // n, n)), eps)
    found = [_affine(d, rows, weight, bias, (n,)), *rest]
    return [views.reshape(d, value, one.shape) for value, one in zip(found, out, strict=True)]


def group_norm(
    d: Draft,
    out: Sequence[Out],
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> list[Value]:
    """Group normalisation (Wu & He 2018, equations 1 and 2): result, mean, 1 / sqrt(variance + eps)."""
    rows, *rest = _normal(d, views.reshape(d, x, (batch * groups, channels // groups * places)), eps)
    whole = views.reshape(d, rows, (batch, channels, places))
    found = [_affine(d, whole, weight, bias, (channels, 1)), *rest]
    return [views.reshape(d, value, one.shape) for value, one in zip(found, out, strict=True)]


def _floats(x: Value) -> None:
    if x.kind != F32:
        raise RefusedError("it compares whole numbers; convert them to float32 first")
