"""A slow, readable oracle of canonical graphs: Python's own numbers, one element after the other, no NumPy.

A tensor is (shape, flat list). binary64 arithmetic rounded to binary32 is binary32 arithmetic for + - * / sqrt, because
53 >= 2 * 24 + 2 (Figueroa 1995, "When is double rounding innocuous?"); `single` is a C conversion.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any

from farflung.core.canon.graph import CanonicalGraph, GraphNode

Shape = tuple[int, ...]
Tensor = tuple[Shape, list[Any]]


def single(value: float) -> float:
    return ctypes.c_float(value).value


def from_bits(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def divided(a: float, b: float) -> float:
    if a != a or b != b:
        return math.nan
    if b == 0.0:
        return math.nan if a == 0.0 else math.copysign(math.inf, math.copysign(1.0, a) * math.copysign(1.0, b))
    return a / b


def wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def log(x: float) -> float:
    return -math.inf if x == 0.0 else math.nan if not x > 0.0 else math.log(x)


def nearest(value: int) -> float:
    """A whole number as binary32, half to even, by whole numbers alone (binary64 on the way would round twice)."""
    size = abs(value)
    extra = max(0, size.bit_length() - 24)
    kept, rest = size >> extra, size & ((1 << extra) - 1)
    half = 1 << extra >> 1
    kept += bool(extra) and (rest > half or (rest == half and kept & 1))
    return math.copysign(float(kept << extra), value)


def whole(x: float) -> int:
    return int(x) if -(2.0**63) <= x < 2.0**63 else 0


ELEMENT: dict[str, Any] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": lambda x: 1.0 if x > 0 else -1.0 if x < 0 else 0.0,
    "sqrt": lambda x: x if x == 0.0 else single(math.sqrt(x)) if x > 0.0 else math.nan,
    "exp": lambda x: single(exp(x)),
    "log": lambda x: single(log(x)),
    "erf": lambda x: single(math.erf(x)),
    "tanh": lambda x: single(math.tanh(x)),
    "add": lambda a, b: single(a + b),
    "sub": lambda a, b: single(a - b),
    "mul": lambda a, b: single(a * b),
    "div": lambda a, b: single(divided(a, b)),
    "iadd": lambda a, b: wrapped(a + b),
    "isub": lambda a, b: wrapped(a - b),
    "imul": lambda a, b: wrapped(a * b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "select": lambda c, a, b: a if c else b,
}


def indices(shape: Shape) -> Iterator[Shape]:
    return itertools.product(*map(range, shape))


def at(tensor: Tensor, index: Shape) -> Any:
    """An element; sides that are missing or 1 repeat."""
    shape, values = tensor
    place = 0
    for side, i in zip(shape, index[len(index) - len(shape) :], strict=True):
        place = place * side + (0 if side == 1 else i)
    return values[place]


def tree(values: list[float]) -> float:
    while len(values) & (len(values) - 1):
        values = [*values, 0.0]
    while len(values) > 1:
        half = len(values) // 2
        values = [single(a + b) for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


def largest(values: list[float]) -> float:
    m = values[0]
    for x in values[1:]:
        m = x if m < x else m
    return m


def dot(left: Tensor, right: Tensor, b: int, m: int, n: int) -> float:
    acc = 0.0
    for k in range(left[0][2]):
        acc = single(acc + single(at(left, (b, m, k)) * at(right, (b, k, n))))
    return acc


def convert(value: Any, kind: str) -> Any:
    if kind == "i64":
        return int(value) if isinstance(value, bool) else whole(value)
    return nearest(value) if not isinstance(value, bool) else float(value)


def element(node: GraphNode, args: list[Tensor], index: Shape) -> Any:
    """One element of a node's result."""
    op, attrs = node.op, node.attrs
    if op in ELEMENT:
        return ELEMENT[op](*(at(arg, index) for arg in args))
    if op == "const":
        return from_bits(attrs[0]) if node.kind == "f32" else bool(attrs[0]) if node.kind == "bool" else attrs[0]
    if op == "iota":
        return index[0]
    if op == "convert":
        return convert(at(args[0], index), node.kind)
    if op in ("sum", "max"):
        row = [at(args[0], (*index, k)) for k in range(args[0][0][-1])]
        return tree(row) if op == "sum" else largest(row)
    if op == "matmul":
        return dot(args[0], args[1], *index)
    if op == "move":
        return args[0][1][attrs[0] + sum(i * s for i, s in zip(index, attrs[1:], strict=True))]
    if op == "place":
        within = tuple(i - start for i, start in zip(index, attrs, strict=True))
        inside = all(0 <= i < side for i, side in zip(within, args[1][0], strict=True))
        return at(args[1], within) if inside else at(args[0], index)
    if op == "take":
        row = args[1][1][index[0]]
        return at(args[0], (row, index[1])) if 0 <= row < args[0][0][0] else 0.0
    assert op == "put_add", op
    total = 0.0
    for n, row in enumerate(args[0][1]):
        if row == index[0]:
            total = single(total + at(args[1], (n, index[1])))
    return total


def run(graph: CanonicalGraph, inputs: list[Tensor]) -> list[Tensor]:
    """Every value of a graph, inputs first."""
    values = list(inputs)
    for node in graph.nodes:
        args = [values[arg] for arg in node.args]
        values.append((node.shape, [element(node, args, index) for index in indices(node.shape)]))
    return values
