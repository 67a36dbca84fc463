"""Lowers element-wise arithmetic, comparisons, logic, conversions and activations of aten to canonical
operations.

Formulas are written out in float32, one rounding each, in one order; they are the textbook's, not torch's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from farflung.core.canon.operation_rules import BOOL, F32, I64, Shape
from farflung.verify.canon.graph_builder import GraphBuilder, GraphTensor

Operand = GraphTensor | float | int | bool
RANK = {BOOL: 0, I64: 1, F32: 2}
INTEGERS = {"add": "iadd", "sub": "isub", "mul": "imul"}


class OutputSpec(NamedTuple):
    """What torch says that an operation gives."""

    kind: str
    shape: Shape


class RefusedError(Exception):
    """A known operation in a form that has no canonical one; says which, for the person."""


def convert(d: GraphBuilder, x: GraphTensor, kind: str) -> GraphTensor:
    """Another kind, as torch converts: to bool is "not 0", to i64 cuts toward zero."""
    if x.kind == kind:
        return x
    if kind == BOOL:
        return negated(d, d.add("eq", (x, d.const(0, x.kind)), BOOL, x.shape))
    if (bits := d.filled(x)) is not None and x.kind != F32:
        return d.const(bits[0], kind, x.shape)
    return d.add("convert", (x,), kind, x.shape)


def lift(d: GraphBuilder, x: Operand, kind: str) -> GraphTensor:
    """An operand as a tensor of `kind`."""
    return convert(d, x, kind) if isinstance(x, GraphTensor) else d.const(x, kind)


def binary(d: GraphBuilder, op: str, a: GraphTensor, b: GraphTensor, kind: str | None = None) -> GraphTensor:
    """A node of two arguments of one kind, whose shapes broadcast; constants are given as one element."""
    shape = tuple(np.broadcast_shapes(a.shape, b.shape))
    a = _narrow(d, a, b, shape)
    b = _narrow(d, b, a, shape)
    one = d.const(1.0).number
    if op == "mul" and one in (a.number, b.number):  # exact, and common: a weight decay of 1
        x = b if a.number == one else a
        if x.shape == shape:
            return x
    return d.add(op, (a, b), kind or a.kind, shape)


def _narrow(d: GraphBuilder, x: GraphTensor, other: GraphTensor, shape: Shape) -> GraphTensor:
    bits = d.filled(x)
    return x if bits is None or other.shape != shape else d.add("const", (), x.kind, (), bits)


def unary(d: GraphBuilder, op: str, x: GraphTensor) -> GraphTensor:
    """A node of one float32 argument."""
    return d.add(op, (x,), F32, x.shape)


def arithmetic(op: str) -> Callable[..., GraphTensor]:
    """add, sub, mul with torch's `alpha`; integers wrap."""

    def lower(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand, alpha: float = 1, **_: object) -> GraphTensor:
        if out.kind == BOOL:
            if op == "sub":
                raise RefusedError("it subtracts truth values")
            return binary(d, "or" if op == "add" else "and", lift(d, a, BOOL), lift(d, b, BOOL))
        x, y = lift(d, a, out.kind), lift(d, b, out.kind)
        if alpha != 1:
            y = binary(d, "mul" if out.kind == F32 else "imul", y, lift(d, alpha, out.kind))
        return binary(d, op if out.kind == F32 else INTEGERS[op], x, y)

    return lower


def divided(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand) -> GraphTensor:
    """True division."""
    return binary(d, "div", lift(d, a, F32), lift(d, b, F32))


def compared(op: str, is_swapped: bool, is_negated: bool) -> Callable[..., GraphTensor]:
    """lt, le, eq of the wider of both kinds, with the arguments swapped or the answer turned."""

    def lower(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand) -> GraphTensor:
        kind = max((_kind(a), _kind(b), I64), key=RANK.__getitem__)
        x, y = lift(d, a, kind), lift(d, b, kind)
        x, y = (y, x) if is_swapped else (x, y)
        found = binary(d, op, x, y, BOOL)
        return negated(d, found) if is_negated else found

    return lower


def _kind(x: Operand) -> str:
    if isinstance(x, GraphTensor):
        return x.kind
    return F32 if isinstance(x, float) else I64


def negated(d: GraphBuilder, x: GraphTensor) -> GraphTensor:
    """not."""
    return d.add("not", (x,), BOOL, x.shape)


def logical(op: str) -> Callable[..., GraphTensor]:
    """and, or of what is not 0."""

    def lower(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand) -> GraphTensor:
        if out.kind != BOOL:
            raise RefusedError("it works on the bits of whole numbers")
        return binary(d, op, lift(d, a, BOOL), lift(d, b, BOOL))

    return lower


def either(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand) -> GraphTensor:
    """xor: one of both, not both."""
    return binary(d, "and", logical("or")(d, out, a, b), negated(d, logical("and")(d, out, a, b)))


def inverted(d: GraphBuilder, out: OutputSpec, a: GraphTensor) -> GraphTensor:
    """logical_not, bitwise_not of truth values."""
    if out.kind != BOOL:
        raise RefusedError("it works on the bits of whole numbers")
    return negated(d, convert(d, a, BOOL))


def chosen(d: GraphBuilder, condition: GraphTensor, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """select: `a` where the condition holds, else `b`."""
    shape = tuple(np.broadcast_shapes(condition.shape, a.shape, b.shape))
    return d.add("select", (condition, a, b), a.kind, shape)


def where(d: GraphBuilder, out: OutputSpec, condition: GraphTensor, a: Operand, b: Operand) -> GraphTensor:
    """where; arguments of one element stay so, and the first to have the whole shape gives it."""
    x, y = lift(d, a, out.kind), lift(d, b, out.kind)
    whole = (condition, x, y)
    if any(v.shape == out.shape and d.filled(v) is None for v in whole):
        x, y = (v if d.filled(v) is None else d.add("const", (), v.kind, (), d.filled(v) or ()) for v in (x, y))
    return chosen(d, condition, x, y)


def larger(d: GraphBuilder, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """max(a, b) = select(a < b, b, a)."""
    return chosen(d, binary(d, "lt", a, b, BOOL), b, a)


def smaller(d: GraphBuilder, a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """min(a, b) = select(b < a, b, a)."""
    return chosen(d, binary(d, "lt", b, a, BOOL), b, a)


def maximum(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand) -> GraphTensor:
    """maximum."""
    return larger(d, lift(d, a, out.kind), lift(d, b, out.kind))


def minimum(d: GraphBuilder, out: OutputSpec, a: Operand, b: Operand) -> GraphTensor:
    """minimum."""
    return smaller(d, lift(d, a, out.kind), lift(d, b, out.kind))


def clamped(
    d: GraphBuilder, out: OutputSpec, x: GraphTensor, low: Operand | None = None, high: Operand | None = None
) -> GraphTensor:
    """clamp: not below `low`, then not above `high`."""
    x = convert(d, x, out.kind)
    x = x if low is None else larger(d, x, lift(d, low, out.kind))
    return x if high is None else smaller(d, x, lift(d, high, out.kind))


def relu(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """max(x, 0)."""
    return larger(d, x, d.const(0, out.kind))


def converted(d: GraphBuilder, out: OutputSpec, x: GraphTensor, *_: object, **__: object) -> GraphTensor:
    """_to_copy."""
    return convert(d, x, out.kind)


def function(op: str) -> Callable[..., GraphTensor]:
    """exp, log, erf, tanh, sqrt: whole numbers are converted first."""

    def lower(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
        return unary(d, op, convert(d, x, F32))

    return lower


def turned(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """neg."""
    return unary(d, "neg", x) if out.kind == F32 else binary(d, "isub", d.const(0, I64), convert(d, x, I64))


def magnitude(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """abs."""
    if out.kind == F32:
        return unary(d, "abs", x)
    return chosen(d, binary(d, "lt", x, d.const(0, I64), BOOL), turned(d, out, x), x)


def sign(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """1, -1 or 0."""
    return convert(d, unary(d, "sign", convert(d, x, F32)), out.kind)


def inverse(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """1 / x."""
    return binary(d, "div", d.const(1.0), convert(d, x, F32))


def inverse_root(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """1 / sqrt(x): two roundings."""
    return inverse(d, out, unary(d, "sqrt", convert(d, x, F32)))


def sigmoid(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """1 / (1 + exp(-x))."""
    return inverse(d, out, binary(d, "add", unary(d, "exp", unary(d, "neg", x)), d.const(1.0)))


def silu(d: GraphBuilder, out: OutputSpec, x: GraphTensor) -> GraphTensor:
    """x sigmoid(x)."""
    return binary(d, "mul", x, sigmoid(d, out, x))


def gelu(d: GraphBuilder, out: OutputSpec, x: GraphTensor, approximate: str = "none") -> GraphTensor:
    """x/2 (1 + erf(x/√2)), or the tanh form (Hendrycks & Gimpel 2016, section 2)."""
    if approximate == "none":
        bell = unary(d, "erf", binary(d, "mul", x, d.const(math.sqrt(0.5))))
    else:
        cube = binary(d, "mul", binary(d, "mul", x, x), x)
        inner = binary(d, "add", x, binary(d, "mul", cube, d.const(0.044715)))
        bell = unary(d, "tanh", binary(d, "mul", inner, d.const(math.sqrt(2.0 / math.pi))))
    return binary(d, "mul", binary(d, "mul", x, d.const(0.5)), binary(d, "add", bell, d.const(1.0)))


def power(d: GraphBuilder, out: OutputSpec, x: GraphTensor, exponent: float) -> GraphTensor:
    """x^2, x^3, x^4, roots and inverses, as products, sqrt and quotients."""
    if out.kind != F32:
        raise RefusedError("it raises whole numbers to a power; convert them to float32 first")
    x = convert(d, x, F32)
    square = binary(d, "mul", x, x)
    match float(exponent):
        case 0.0:
            return d.const(1.0, F32, x.shape)
        case 1.0:
            return x
        case 2.0:
            return square
        case 3.0:
            return binary(d, "mul", square, x)
        case 4.0:
            return binary(d, "mul", square, square)
        case 0.5:
            return unary(d, "sqrt", x)
        case -0.5:
            return inverse_root(d, out, x)
        case -1.0:
            return inverse(d, out, x)
        case -2.0:
            return inverse(d, out, square)
    raise RefusedError(f"it raises to the power {exponent}; known are 0, 1, 2, 3, 4, 0.5, -0.5, -1 and -2")
