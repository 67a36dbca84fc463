"""Canonical graphs for tests: a builder that states what follows, drawn graphs of every operation, hostile values."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.core.canon.operation_rules import BOOL, F32, I64, OPERATIONS, OperationCall, TensorType, infer

DTYPES = {F32: np.float32, I64: np.int64, BOOL: np.bool_}
SIDES = (1, 2, 3, 5, 17, 63, 64, 65, 130)
ELEMENTS = 9000
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.nan,
    math.inf,
    -math.inf,
    1e-45,
    -1e-40,
    1.1754944e-38,
    3.4e38,
    -3e38,
    88.7,
    -103.9,
)
WHOLE = (0, 1, -1, 2, 1 << 62, -(1 << 63), (1 << 63) - 1, (1 << 24) + 1)
UNARY = ("neg", "abs", "sign", "sqrt", "exp", "log", "erf", "tanh", "not")
BINARY = {
    **dict.fromkeys(("add", "sub", "mul", "div"), F32),
    **dict.fromkeys(("iadd", "isub", "imul"), I64),
    **dict.fromkeys(("and", "or"), BOOL),
}


class Builder:
    """A graph node by node; each `add` returns the value's number."""

    def __init__(self) -> None:
        self.inputs: list[GraphInput] = []
        self.nodes: list[GraphNode] = []

    def input(self, name: str, kind: str, shape: tuple[int, ...]) -> int:
        assert not self.nodes, "inputs come first"
        self.inputs.append(GraphInput(name, kind, shape))
        return len(self.inputs) - 1

    def of(self, number: int) -> GraphInput | GraphNode:
        count = len(self.inputs)
        return self.inputs[number] if number < count else self.nodes[number - count]

    def add(self, op: str, *args: int, attrs=(), kind: str = F32, shape=()) -> int:
        """`kind` and `shape` matter for operations that state them: const, iota, convert, move."""
        number = len(self.inputs) + len(self.nodes)
        tensors = tuple(TensorType(self.of(arg).kind, self.of(arg).shape) for arg in args)
        made = infer(OperationCall(number, op, tensors, tuple(attrs), TensorType(kind, tuple(shape))))
        self.nodes.append(GraphNode(op, args, made.kind, made.shape, tuple(attrs)))
        return number

    def const(self, value, shape=(), kind: str = F32) -> int:
        bits = int(np.float32(value).view(np.uint32)) if kind == F32 else int(value)
        return self.add("const", attrs=(bits,), kind=kind, shape=shape)

    def move(self, arg: int, shape, offset: int, strides) -> int:
        return self.add("move", arg, attrs=(offset, *strides), kind=self.of(arg).kind, shape=shape)

    def reshape(self, arg: int, shape) -> int:
        return self.move(arg, shape, 0, strides_of(shape))

    def transpose(self, arg: int) -> int:
        """The last two sides exchanged."""
        *rest, rows, columns = self.of(arg).shape
        strides = strides_of((*rest, rows, columns))
        return self.move(arg, (*rest, columns, rows), 0, (*strides[:-2], strides[-1], strides[-2]))

    def graph(self, **outputs: int) -> CanonicalGraph:
        named = tuple(GraphOutput(name, value) for name, value in outputs.items())
        return CanonicalGraph(tuple(self.inputs), tuple(self.nodes), named)


def strides_of(shape) -> tuple[int, ...]:
    """Of a row-major tensor, in elements."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def values(kind: str, shape, seed: int) -> np.ndarray:
    """Ordinary numbers, of which one in four is hostile; whole numbers often fit as indices."""
    draw = np.random.default_rng(seed)
    special = draw.random(shape) < 0.25
    if kind == BOOL:
        return np.asarray(draw.random(shape) < 0.5)
    if kind == I64:
        return np.where(special, draw.choice(np.array(WHOLE), shape), draw.integers(-2, 70, shape))
    ordinary = draw.standard_normal(shape) * 2.0 ** draw.integers(-10, 10)
    return np.where(special, draw.choice(np.array(FLOATS), shape), ordinary).astype(np.float32)


def inputs_of(graph: CanonicalGraph, seed: int) -> dict[str, np.ndarray]:
    return {each.name: values(each.kind, each.shape, seed + place) for place, each in enumerate(graph.inputs)}


@st.composite
def shapes(draw, rank=None):
    rank = draw(st.integers(0, 4)) if rank is None else rank
    shape = []
    for _ in range(rank):
        room = ELEMENTS // math.prod(shape)
        shape.append(draw(st.sampled_from([side for side in SIDES if side <= room])))
    return tuple(draw(st.permutations(shape)))


class Drawing:
    """Adds drawn nodes to a builder; what does not fit is first moved into shape."""

    def __init__(self, draw, builder: Builder) -> None:
        self.draw, self.builder = draw, builder

    def some(self, kind: str) -> int:
        """Any value of a kind: the three inputs are one of each."""
        count = len(self.builder.inputs) + len(self.builder.nodes)
        return self.draw(st.sampled_from([n for n in range(count) if self.builder.of(n).kind == kind]))

    def shaped(self, kind: str, shape) -> int:
        """A value of a kind, reached by drawn strides."""
        arg = self.some(kind)
        low = high = 0
        room, strides = math.prod(self.builder.of(arg).shape) - 1, []
        for side in shape:
            reach = (room - (high - low)) // max(side - 1, 1)
            stride = self.draw(st.sampled_from(sorted({0, 1, -1, reach, -reach, reach // 2})))
            stride = max(-reach, min(stride, reach))
            strides.append(stride)
            low, high = low + min(0, stride * (side - 1)), high + max(0, stride * (side - 1))
        return self.builder.move(arg, shape, -low + self.draw(st.integers(0, room - (high - low))), strides)

    def stretched(self, shape) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        sides = tuple(self.draw(st.sampled_from([1, side])) for side in shape)
        return sides[self.draw(st.integers(0, len(sides))) :]

    def add(self, op: str) -> int:
        """One operation on drawn arguments."""
        draw, builder, kind = self.draw, self.builder, BOOL if op == "not" else F32
        if op in UNARY:
            return builder.add(op, self.some(kind))
        if op in ("sum", "max"):
            arg = self.some(F32)
            return builder.add(op, arg if builder.of(arg).shape else self.shaped(F32, (draw(st.sampled_from(SIDES)),)))
        if op in BINARY or op in ("lt", "le", "eq"):
            kind = BINARY.get(op) or draw(st.sampled_from([F32, I64]))
            first = self.some(kind)
            pair = [first, self.shaped(kind, self.stretched(builder.of(first).shape))]
            return builder.add(op, *draw(st.permutations(pair)))
        return getattr(self, f"add_{op}")()

    def add_const(self) -> int:
        kind = self.draw(st.sampled_from([F32, I64, BOOL]))
        value = self.draw(st.sampled_from({F32: FLOATS, I64: WHOLE, BOOL: (0, 1)}[kind]))
        return self.builder.const(value, self.draw(shapes()), kind)

    def add_iota(self) -> int:
        return self.builder.add("iota", kind=I64, shape=self.draw(shapes(1)))

    def add_select(self) -> int:
        kind, shape = self.draw(st.sampled_from([F32, I64, BOOL])), self.draw(shapes())
        which = self.shaped(BOOL, self.stretched(shape))
        return self.builder.add("select", which, self.shaped(kind, shape), self.shaped(kind, self.stretched(shape)))

    def add_convert(self) -> int:
        start, end = self.draw(st.sampled_from([(I64, F32), (BOOL, F32), (BOOL, I64), (F32, I64)]))
        return self.builder.add("convert", self.some(start), kind=end)

    def add_matmul(self) -> int:
        batch = self.draw(st.integers(1, 3))
        rows, inner, columns = (self.draw(st.sampled_from(SIDES[:-1])) for _ in range(3))
        left, right = self.shaped(F32, (batch, rows, inner)), self.shaped(F32, (batch, inner, columns))
        return self.builder.add("matmul", left, right)

    def add_move(self) -> int:
        return self.shaped(self.draw(st.sampled_from([F32, I64, BOOL])), self.draw(shapes()))

    def add_place(self) -> int:
        kind = self.draw(st.sampled_from([F32, I64, BOOL]))
        base = self.some(kind)
        sides = self.builder.of(base).shape
        box = tuple(self.draw(st.integers(1, side)) for side in sides)
        starts = tuple(self.draw(st.integers(0, side - part)) for side, part in zip(sides, box, strict=True))
        return self.builder.add("place", base, self.shaped(kind, box), attrs=starts)

    def add_take(self) -> int:
        return self.builder.add("take", self.shaped(F32, self.draw(shapes(2))), self.shaped(I64, self.draw(shapes(1))))

    def add_put_add(self) -> int:
        count, width = self.draw(shapes(2))
        rows = self.shaped(F32, (count, width))
        height = self.draw(st.sampled_from(SIDES))
        return self.builder.add("put_add", self.shaped(I64, (count,)), rows, attrs=(height,))


@st.composite
def graphs(draw, operations=tuple(OPERATIONS), most: int = 8):
    """A valid graph of drawn operations on three inputs `f32`, `i64` and `bool`."""
    builder = Builder()
    for kind in (F32, I64, BOOL):
        builder.input(kind, kind, draw(shapes()))
    drawing = Drawing(draw, builder)
    for _ in range(draw(st.integers(1, most))):
        last = drawing.add(draw(st.sampled_from(operations)))
    return builder.graph(last=last)
