"""Defines the operations of a canonical graph, and infers the kind and shape of each result from its arguments.

A rule reads kinds, shapes and whole numbers alone: nothing is computed and nothing is allocated. What each operation
computes is said in docs/protocol/canon.md and done, a tile at a time, by `core.canon.tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from farflung.core import limits
from farflung.core.errors import ProtocolError

F32: Final = "f32"
I64: Final = "i64"
BOOL: Final = "bool"
KINDS: Final = (F32, I64, BOOL)
CONVERSIONS: Final = ((I64, F32), (BOOL, F32), (BOOL, I64), (F32, I64))

Shape = tuple[int, ...]


class TensorType(NamedTuple):
    """A kind and a shape: all that a rule knows of a value."""

    kind: str
    shape: Shape


class OperationCall(NamedTuple):
    """One node as its rule sees it: its number among the values, its arguments, and what it says of itself."""

    number: int
    op: str
    args: tuple[TensorType, ...]
    attrs: tuple[int, ...]
    stated: TensorType

    def bad_args(self, cause: str) -> NoReturn:
        """Raises ProtocolError FF-CORE-064."""
        raise ProtocolError("FF-CORE-064", f"wrong arguments of value {self.number} ({self.op})", cause=cause)

    def bad_attrs(self, cause: str) -> NoReturn:
        """Raises ProtocolError FF-CORE-065."""
        raise ProtocolError("FF-CORE-065", f"wrong attributes of value {self.number} ({self.op})", cause=cause)


class OperationRule(NamedTuple):
    """How many arguments an operation takes, how many attributes (None: its rule looks), and its rule."""

    arity: int
    attrs: int | None
    infer: Callable[[OperationCall], TensorType]


def is_shape(shape: Shape) -> bool:
    """At most 8 sides, each of 1 or more, and not more elements than a model may have."""
    return (
        len(shape) <= limits.TENSOR_DIMENSIONS
        and all(0 < side <= limits.ELEMENTS for side in shape)
        and math.prod(shape) <= limits.ELEMENTS
    )


def broadcast(shapes: tuple[Shape, ...]) -> Shape | None:
    """The shape that all are stretched to: aligned at the last side, a side of 1 repeats. None: they do not fit."""
    rank = max(map(len, shapes))
    sides = []
    for column in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = set(column) - {1}
        if len(wide) > 1:
            return None
        sides.append(wide.pop() if wide else 1)
    return tuple(sides)


def _of(call: OperationCall, *kinds: str) -> None:
    """The arguments' kinds are these; the last one stands for all that follow."""
    for place, arg in enumerate(call.args):
        wanted = kinds[min(place, len(kinds) - 1)]
        if arg.kind != wanted:
            call.bad_args(f"argument {place} is {arg.kind}, not {wanted}")


def _stretched(call: OperationCall) -> Shape:
    shape = broadcast(tuple(arg.shape for arg in call.args))
    if shape is None:
        call.bad_args("their shapes do not fit each other")
    return shape


def _same(kind: str) -> Callable[[OperationCall], TensorType]:
    """Element by element, all of one kind."""

    def infer(call: OperationCall) -> TensorType:
        _of(call, kind)
        return TensorType(kind, _stretched(call))

    return infer


def _compared(call: OperationCall) -> TensorType:
    first = call.args[0].kind
    if first == BOOL:
        call.bad_args("argument 0 is bool")
    _of(call, first)
    return TensorType(BOOL, _stretched(call))


def _selected(call: OperationCall) -> TensorType:
    _of(call, BOOL, call.args[1].kind)
    return TensorType(call.args[1].kind, _stretched(call))


def _converted(call: OperationCall) -> TensorType:
    if (call.args[0].kind, call.stated.kind) not in CONVERSIONS:
        call.bad_args(f"{call.args[0].kind} is not converted to {call.stated.kind}")
    return TensorType(call.stated.kind, call.args[0].shape)


def _const(call: OperationCall) -> TensorType:
    low, high = {F32: (0, (1 << 32) - 1), I64: (-1 << 63, (1 << 63) - 1), BOOL: (0, 1)}[call.stated.kind]
    if not low <= call.attrs[0] <= high:
        call.bad_attrs(f"no {call.stated.kind} has these bits")
    return call.stated


def _iota(call: OperationCall) -> TensorType:
    if len(call.stated.shape) != 1:
        call.bad_args("it has one side")
    return TensorType(I64, call.stated.shape)


def _folded(call: OperationCall) -> TensorType:
    _of(call, F32)
    shape = call.args[0].shape
    if not shape or shape[-1] > limits.GRAPH_FOLD:
        call.bad_args(f"the last side is missing or over {limits.GRAPH_FOLD}")
    return TensorType(F32, shape[:-1])


def _matmul(call: OperationCall) -> TensorType:
    _of(call, F32)
    left, right = (arg.shape for arg in call.args)
    if len(left) != 3 or len(right) != 3 or left[0] != right[0] or left[2] != right[1]:
        call.bad_args("they are not [B, M, K] and [B, K, N]")
    if left[2] > limits.GRAPH_FOLD:
        call.bad_args(f"the inner side is over {limits.GRAPH_FOLD}")
    return TensorType(F32, (left[0], left[1], right[2]))


def _moved(call: OperationCall) -> TensorType:
    """What is reached lies between two extremes: each side at the end where its stride adds least, or most."""
    shape, (offset, *strides) = call.stated.shape, call.attrs or (0,)
    if len(call.attrs) != 1 + len(shape):
        call.bad_attrs("an offset and a stride for each side are due")
    ends = [(side - 1) * stride for side, stride in zip(shape, strides, strict=True)]
    low, high = offset + sum(min(end, 0) for end in ends), offset + sum(max(end, 0) for end in ends)
    if low < 0 or high >= math.prod(call.args[0].shape):
        call.bad_attrs("it reaches outside of its argument")
    if any(not -limits.ELEMENTS <= stride <= limits.ELEMENTS for stride in strides):
        call.bad_attrs("a stride is longer than any tensor")
    return TensorType(call.args[0].kind, shape)


def _placed(call: OperationCall) -> TensorType:
    base, piece = call.args
    _of(call, base.kind)
    if len(base.shape) != len(piece.shape):
        call.bad_args("base and piece have not the same number of sides")
    if len(call.attrs) != len(base.shape):
        call.bad_attrs("a start for each side is due")
    for start, part, whole in zip(call.attrs, piece.shape, base.shape, strict=True):
        if not 0 <= start <= whole - part:
            call.bad_attrs("the piece does not lie inside of the base")
    return base


def _taken(call: OperationCall) -> TensorType:
    _of(call, F32, I64)
    table, index = (arg.shape for arg in call.args)
    if len(table) != 2 or len(index) != 1:
        call.bad_args("they are not [V, D] and [n]")
    return TensorType(F32, (index[0], table[1]))


def _put(call: OperationCall) -> TensorType:
    _of(call, I64, F32)
    index, rows = (arg.shape for arg in call.args)
    if len(index) != 1 or len(rows) != 2 or index[0] != rows[0]:
        call.bad_args("they are not [n] and [n, D]")
    if index[0] > limits.GRAPH_FOLD:
        call.bad_args(f"the index is over {limits.GRAPH_FOLD}")
    if not 0 < call.attrs[0] <= limits.ELEMENTS:
        call.bad_attrs("a number of rows is due")
    return TensorType(F32, (call.attrs[0], rows[1]))


OPERATIONS: Final[dict[str, OperationRule]] = {
    "const": OperationRule(0, 1, _const),
    "iota": OperationRule(0, 0, _iota),
    **{op: OperationRule(1, 0, _same(F32)) for op in ("neg", "abs", "sign", "sqrt", "exp", "log", "erf", "tanh")},
    **{op: OperationRule(2, 0, _same(F32)) for op in ("add", "sub", "mul", "div")},
    **{op: OperationRule(2, 0, _same(I64)) for op in ("iadd", "isub", "imul")},
    **{op: OperationRule(2, 0, _compared) for op in ("lt", "le", "eq")},
    **{op: OperationRule(2, 0, _same(BOOL)) for op in ("and", "or")},
    "not": OperationRule(1, 0, _same(BOOL)),
    "select": OperationRule(3, 0, _selected),
    "convert": OperationRule(1, 0, _converted),
    "sum": OperationRule(1, 0, _folded),
    "max": OperationRule(1, 0, _folded),
    "matmul": OperationRule(2, 0, _matmul),
    "move": OperationRule(1, None, _moved),
    "place": OperationRule(2, None, _placed),
    "take": OperationRule(2, 0, _taken),
    "put_add": OperationRule(2, 1, _put),
}


def infer(call: OperationCall) -> TensorType:
    """The kind and shape of a node. Raises ProtocolError FF-CORE-063 (unknown), -064 (arguments), -065 (attributes)."""
    rule = OPERATIONS.get(call.op)
    if rule is None:
        raise ProtocolError("FF-CORE-063", f"value {call.number} is of an unknown operation", cause=call.op[:40])
    if len(call.args) != rule.arity:
        call.bad_args(f"{len(call.args)} in place of {rule.arity}")
    if rule.attrs is not None and len(call.attrs) != rule.attrs:
        call.bad_attrs(f"{len(call.attrs)} in place of {rule.attrs}")
    return rule.infer(call)
