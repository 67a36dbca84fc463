"""Lowers views, joins and fillings of aten to moves, places and constants. Nothing here rounds."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.core.canon.operation_rules import F32, I64, Shape
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor, contiguous
from farflung.verify.canon.pointwise import OutputSpec, RefusedError, convert, lift


def reshape(d: GraphBuilder, x: GraphTensor, shape: Shape) -> GraphTensor:
    """The same elements in the same order."""
    return d.move(x, shape, 0, contiguous(shape))


def permute(d: GraphBuilder, x: GraphTensor, sides: Sequence[int]) -> GraphTensor:
    """Side j of the result is side `sides[j]` of x."""
    steps, sides = contiguous(x.shape), [side % len(x.shape) for side in sides]
    return d.move(x, tuple(x.shape[s] for s in sides), 0, [steps[s] for s in sides])


def expand(d: GraphBuilder, x: GraphTensor, shape: Shape) -> GraphTensor:
    """Sides of 1, and missing ones at the left, repeated."""
    lead = len(shape) - len(x.shape)
    return d.move(x, shape, 0, (0,) * lead + contiguous(x.shape))


def part(d: GraphBuilder, x: GraphTensor, side: int, start: int, count: int, step: int = 1) -> GraphTensor:
    """`count` places of a side from `start`."""
    steps = list(contiguous(x.shape))
    offset = start * steps[side]
    shape = tuple(count if at == side else n for at, n in enumerate(x.shape))
    steps[side] *= step
    return d.move(x, shape, offset, steps)


def place(d: GraphBuilder, base: GraphTensor, piece: GraphTensor, side: int, start: int) -> GraphTensor:
    """`base` with `piece` laid over it from `start` of a side on."""
    if piece.shape == base.shape:
        return piece
    at = [start if j == side else 0 for j in range(len(base.shape))]
    return d.add("place", (base, piece), base.kind, base.shape, at)


def padded(d: GraphBuilder, x: GraphTensor, side: int, length: int, fill: float) -> GraphTensor:
    """A side made as long as `length`, with `fill` behind."""
    if x.shape[side] == length:
        return x
    shape = tuple(length if at == side else n for at, n in enumerate(x.shape))
    return place(d, d.const(fill, x.kind, shape), x, side, 0)


def same(d: GraphBuilder, out: OutputSpec, x: GraphTensor, *_: object, **__: object) -> GraphTensor:
    """alias, clone, detach: the tensor itself."""
    return x


def viewed(d: GraphBuilder, out: OutputSpec, x: GraphTensor, *_: object, **__: object) -> GraphTensor:
    """view, squeeze, unsqueeze: torch has worked out the shape."""
    return reshape(d, x, out.shape)


def permuted(d: GraphBuilder, out: OutputSpec, x: GraphTensor, sides: Sequence[int]) -> GraphTensor:
    """permute."""
    return permute(d, x, sides)


def transposed(d: GraphBuilder, out: OutputSpec, x: GraphTensor, a: int = 0, b: int = 1) -> GraphTensor:
    """transpose, t."""
    sides = list(range(len(x.shape)))
    if sides:
        sides[a], sides[b] = sides[b], sides[a]
    return permute(d, x, sides)


def expanded(d: GraphBuilder, out: OutputSpec, x: GraphTensor, *_: object, **__: object) -> GraphTensor:
    """expand."""
    return expand(d, x, out.shape)


def sliced(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    side: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> GraphTensor:
    """slice: torch has worked out how many places there are."""
    side %= len(x.shape)
    first, _, _ = slice(start, end, step).indices(x.shape[side])
    return part(d, x, side, first, out.shape[side], step)


def selected(d: GraphBuilder, out: OutputSpec, x: GraphTensor, side: int, index: int) -> GraphTensor:
    """select: one place of a side, which goes."""
    side %= len(x.shape)
    return reshape(d, part(d, x, side, index % x.shape[side], 1), out.shape)


def flipped(d: GraphBuilder, out: OutputSpec, x: GraphTensor, sides: Sequence[int]) -> GraphTensor:
    """flip."""
    steps, offset = list(contiguous(x.shape)), 0
    for side in {side % len(x.shape) for side in sides}:
        offset += (x.shape[side] - 1) * steps[side]
        steps[side] = -steps[side]
    return d.move(x, x.shape, offset, steps)


def repeated(d: GraphBuilder, out: OutputSpec, x: GraphTensor, times: Sequence[int]) -> GraphTensor:
    """repeat."""
    lead = len(times) - len(x.shape)
    sides = (1,) * lead + x.shape
    steps = (0,) * lead + contiguous(x.shape)
    shape = tuple(n for pair in zip(times, sides, strict=True) for n in pair)
    if len(shape) > 8:
        raise RefusedError("it repeats a tensor of more than four sides")
    return reshape(d, d.move(x, shape, 0, [s for step in steps for s in (0, step)]), out.shape)


def split(
    d: GraphBuilder, out: Sequence[OutputSpec], x: GraphTensor, sizes: int | Sequence[int], side: int = 0
) -> list[GraphTensor]:
    """split, split_with_sizes."""
    side %= len(x.shape)
    starts, at = [], 0
    for one in out:
        starts.append(at)
        at += one.shape[side]
    return [part(d, x, side, start, one.shape[side]) for start, one in zip(starts, out, strict=True)]


def unbound(d: GraphBuilder, out: Sequence[OutputSpec], x: GraphTensor, side: int = 0) -> list[GraphTensor]:
    """unbind."""
    return [selected(d, one, x, side, index) for index, one in enumerate(out)]


def joined(d: GraphBuilder, out: OutputSpec, parts: Sequence[GraphTensor], side: int = 0) -> GraphTensor:
    """cat."""
    side %= len(out.shape)
    result, at = d.const(0, out.kind, out.shape), 0
    for one in parts:
        result = place(d, result, convert(d, one, out.kind), side, at)
        at += one.shape[side]
    return result


def slice_scattered(
    d: GraphBuilder,
    out: OutputSpec,
    x: GraphTensor,
    piece: GraphTensor,
    side: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> GraphTensor:
    """slice_scatter without gaps."""
    if step != 1:
        raise RefusedError(f"it writes every {step}th place; write into neighbouring places")
    side %= len(x.shape)
    first, _, _ = slice(start, end).indices(x.shape[side])
    return place(d, x, piece, side, first)


def select_scattered(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, piece: GraphTensor, side: int, index: int
) -> GraphTensor:
    """select_scatter."""
    side %= len(x.shape)
    shape = tuple(1 if at == side else n for at, n in enumerate(x.shape))
    return place(d, x, reshape(d, piece, shape), side, index % x.shape[side])


def bordered(d: GraphBuilder, out: OutputSpec, x: GraphTensor, widths: Sequence[int], fill: float = 0) -> GraphTensor:
    """constant_pad_nd: widths (left, right) from the last side on, negative ones cut."""
    for at in range(len(widths) // 2):
        side = len(x.shape) - 1 - at
        left, right = widths[2 * at], widths[2 * at + 1]
        cut_left, cut_right = max(0, -left), max(0, -right)
        if cut_left or cut_right:
            x = part(d, x, side, cut_left, x.shape[side] - cut_left - cut_right)
        left, right = max(0, left), max(0, right)
        if left or right:
            shape = tuple(n + (left + right) * (j == side) for j, n in enumerate(x.shape))
            x = place(d, d.const(fill, x.kind, shape), x, side, left)
    return x


def full(d: GraphBuilder, out: OutputSpec, _: object, fill: float = 0, **__: object) -> GraphTensor:
    """full, full_like, scalar_tensor's shape: a constant."""
    return d.const(fill, out.kind, out.shape)


def scalar(d: GraphBuilder, out: OutputSpec, value: float, **_: object) -> GraphTensor:
    """scalar_tensor."""
    return d.const(value, out.kind, ())


def zeros(d: GraphBuilder, out: OutputSpec, *_: object, **__: object) -> GraphTensor:
    """zeros; also `empty`, whose values a step that is right never reads."""
    return d.const(0, out.kind, out.shape)


def ones(d: GraphBuilder, out: OutputSpec, *_: object, **__: object) -> GraphTensor:
    """ones."""
    return d.const(1, out.kind, out.shape)


def copied(d: GraphBuilder, out: OutputSpec, x: GraphTensor, source: GraphTensor, *_: object) -> GraphTensor:
    """copy: what the second tensor holds, in the first one's shape and kind."""
    return expand(d, convert(d, source, x.kind), x.shape)


def counted(d: GraphBuilder, out: OutputSpec, start: float, end: float, step: float = 1, **_: object) -> GraphTensor:
    """arange of whole numbers, or of floats as torch's own formula start + i step gives them."""
    places: GraphTensor = d.add("iota", (), I64, out.shape)
    if out.kind == I64 and not all(float(n).is_integer() for n in (start, step)):
        raise RefusedError("it counts in fractions, rounded to whole numbers")
    x = convert(d, places, out.kind)
    mul, add = ("mul", "add") if out.kind == F32 else ("imul", "iadd")
    if step != 1:
        x = d.add(mul, (x, lift(d, step, out.kind)), out.kind, out.shape)
    return x if start == 0 else d.add(add, (x, lift(d, start, out.kind)), out.kind, out.shape)
