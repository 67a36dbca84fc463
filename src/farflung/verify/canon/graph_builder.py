"""Builds a canonical graph: equal nodes become one node, and nodes that no output needs are left out.

Every view of torch is a `move` here; consecutive moves become one wherever the second meets no carry between the
first one's sides (`composed`), so that views cost nothing to write.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, GraphOutput
from farflung.core.canon.operation_rules import F32, Shape


class GraphTensor(NamedTuple):
    """A tensor of the draft: the number of its input or node, its kind and shape."""

    number: int
    kind: str
    shape: Shape

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


class GraphBuilder:
    """Inputs first, then nodes in the order in which they are asked for; numbers are final only in `finished`."""

    def __init__(self, inputs: Sequence[GraphInput]) -> None:
        self._inputs = tuple(inputs)
        self._nodes: list[GraphNode] = []
        self._known: dict[GraphNode, GraphTensor] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(entry.name for entry in self._inputs)

    def input(self, number: int) -> GraphTensor:
        """The input of that place."""
        entry = self._inputs[number]
        return GraphTensor(number, entry.kind, entry.shape)

    def add(
        self, op: str, args: Sequence[GraphTensor], kind: str, shape: Shape, attrs: Sequence[int] = ()
    ) -> GraphTensor:
        """A node, or the one that already says the same."""
        node = GraphNode(op, tuple(arg.number for arg in args), kind, tuple(shape), tuple(attrs))
        if node not in self._known:
            self._known[node] = GraphTensor(len(self._inputs) + len(self._nodes), kind, node.shape)
            self._nodes.append(node)
        return self._known[node]

    def const(self, value: float, kind: str = F32, shape: Shape = ()) -> GraphTensor:
        """A tensor filled with `value`."""
        bits = struct.unpack("<I", struct.pack("<f", _single(value)))[0] if kind == F32 else int(value)
        return self.add("const", (), kind, shape, (bits,))

    def filled(self, value: GraphTensor) -> tuple[int, ...] | None:
        """The attrs of a constant, None for all other values."""
        node = self._node(value)
        return node.attrs if node is not None and node.op == "const" else None

    def move(self, value: GraphTensor, shape: Shape, offset: int, strides: Sequence[int]) -> GraphTensor:
        """out[i] = flat_value[offset + sum i_j stride_j] of `shape`, as few nodes as are exact."""
        strides = tuple(0 if side == 1 else stride for side, stride in zip(shape, strides, strict=True))
        if (bits := self.filled(value)) is not None:
            return self.add("const", (), value.kind, shape, bits)
        inner = self._node(value)
        if inner is not None and inner.op == "move":
            both = composed(inner.shape, inner.attrs, shape, (offset, *strides))
            if both is not None:
                (before,) = inner.args
                return self.move(self._value(before), shape, both[0], both[1:])
        if shape == value.shape and offset == 0 and strides == contiguous(shape):
            return value
        return self.add("move", (value,), value.kind, shape, (offset, *strides))

    def finished(self, outputs: Mapping[str, GraphTensor], optional: frozenset[str]) -> CanonicalGraph:
        """The graph of what `outputs` need, numbered anew; inputs named in `optional` are left out when unused."""
        count = len(self._inputs)
        needed = {value.number for value in outputs.values()}
        for at in range(len(self._nodes) - 1, -1, -1):
            if count + at in needed:
                needed.update(self._nodes[at].args)
        inputs = [n for n, i in enumerate(self._inputs) if n in needed or i.name not in optional]
        nodes = [n for n in range(count, count + len(self._nodes)) if n in needed]
        renumbered = {old: new for new, old in enumerate([*inputs, *nodes])}
        return CanonicalGraph(
            tuple(self._inputs[n] for n in inputs),
            tuple(_renumbered(self._nodes[n - count], renumbered) for n in nodes),
            tuple(GraphOutput(name, renumbered[value.number]) for name, value in outputs.items()),
        )

    def _node(self, value: GraphTensor) -> GraphNode | None:
        at = value.number - len(self._inputs)
        return self._nodes[at] if at >= 0 else None

    def _value(self, number: int) -> GraphTensor:
        count = len(self._inputs)
        if number < count:
            return self.input(number)
        node = self._nodes[number - count]
        return GraphTensor(number, node.kind, node.shape)


def contiguous(shape: Shape) -> tuple[int, ...]:
    """Row-major strides; 0 for a side of 1, which is never stepped along."""
    strides, step = [0] * len(shape), 1
    for at in range(len(shape) - 1, -1, -1):
        strides[at] = 0 if shape[at] == 1 else step
        step *= shape[at]
    return tuple(strides)


def composed(
    inner_shape: Shape, inner: tuple[int, ...], shape: Shape, outer: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Attrs of one move that does `inner` (whose result has `inner_shape`), then `outer`; None when there is none.

    A stride of the outer move is written in the digits of the inner shape. Where no place that is reached makes a
    digit overflow into the next, digits add up, and so do the inner strides.
    """
    sides, strides = _merged(inner_shape, inner[1:])
    start = outer[0] + sum((n - 1) * s for n, s in zip(shape, outer[1:], strict=True) if s < 0)
    first = _digits(start, sides)
    highest = list(first)
    offset = inner[0] + sum(c * s for c, s in zip(first, strides, strict=True))
    result: list[int] = []
    for n, stride in zip(shape, outer[1:], strict=True):
        digits = _digits(abs(stride), sides)
        highest = [h + (n - 1) * d for h, d in zip(highest, digits, strict=True)]
        step = sum(d * s for d, s in zip(digits, strides, strict=True))
        result.append(step if stride >= 0 else -step)
        offset += (n - 1) * step if stride < 0 else 0
    if any(h >= side for h, side in zip(highest, sides, strict=True)):
        return None
    return (offset, *result)


def _merged(shape: Shape, strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The same walk with as few sides as possible."""
    sides: list[int] = []
    steps: list[int] = []
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if steps and steps[-1] == n * s:
            sides[-1], steps[-1] = sides[-1] * n, s
        else:
            sides.append(n)
            steps.append(s)
    return (sides, steps) if sides else ([1], [0])


def _digits(place: int, sides: list[int]) -> list[int]:
    digits = [0] * len(sides)
    for at in range(len(sides) - 1, 0, -1):
        place, digits[at] = divmod(place, sides[at])
    digits[0] = place
    return digits


def _renumbered(node: GraphNode, numbers: Mapping[int, int]) -> GraphNode:
    return GraphNode(node.op, tuple(numbers[arg] for arg in node.args), node.kind, node.shape, node.attrs)


def _single(value: float) -> float:
    """Too large for a float32: infinite, as torch rounds it."""
    return math.copysign(math.inf, value) if math.isfinite(value) and abs(value) > 3.4028235677973366e38 else value
