"""Defines the canonical graph: one training step as simple operations with the same bits on every machine.

It is traced once, shipped, and named by its hash, for parties to agree on (Verde, arXiv 2502.19405: disputes go down to
one operator of an agreed graph). Values are numbered: inputs first, then nodes, each of which takes lower
numbers only. docs/protocol/canon.md is the specification.
"""

from __future__ import annotations

import contextlib

import msgspec

from farflung.core import limits
from farflung.core.canon.operation_rules import KINDS, OperationCall, TensorType, infer, is_shape
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import NS_GRAPH, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash


class GraphInput(Wire, frozen=True):
    """A tensor that comes from outside. Kinds: `f32`, `i64`, `bool`; () to 8 sides, each of 1 or more; row-major."""

    name: str
    kind: str
    shape: tuple[int, ...]


class GraphNode(Wire, frozen=True):
    """One operation: values it takes, what it makes of them, and whole numbers (floats as their bits) that say how."""

    op: str
    args: tuple[int, ...]
    kind: str
    shape: tuple[int, ...]
    attrs: tuple[int, ...]


class GraphOutput(Wire, frozen=True):
    """A value that has a name after the step."""

    name: str
    value: int


class CanonicalGraph(Wire, frozen=True):
    """One step. What `read` returns has been checked; what is built by hand is checked by `check`."""

    inputs: tuple[GraphInput, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[GraphOutput, ...]

    def value(self, number: int) -> GraphInput | GraphNode:
        """What makes value `number` ≥ 0: an input or a node. Both have a kind and a shape."""
        count = len(self.inputs)
        return self.inputs[number] if number < count else self.nodes[number - count]


def graph_id(graph: CanonicalGraph) -> Hash:
    """The graph's name: BLAKE3 of its canonical bytes under its own namespace."""
    return digest(NS_GRAPH, encode(graph))


class _UndecodedGraph(msgspec.Struct, array_like=True):
    """A graph's three lists as bytes that nobody has looked into."""

    inputs: msgspec.Raw
    nodes: msgspec.Raw
    outputs: msgspec.Raw


def read(data: bytes) -> CanonicalGraph:
    """A checked graph from its canonical bytes. Raises ProtocolError FF-CORE-020 to -022, -060 to -067.

    Lists are counted before anything is made of them: a node of 6 bytes takes 300 in memory.
    """
    if len(data) <= limits.GRAPH_BYTES:
        with contextlib.suppress(msgspec.DecodeError):  # `decode` says what it is
            lists = msgspec.msgpack.decode(data, type=_UndecodedGraph)
            _check_counts(_count(lists.inputs), _count(lists.nodes), _count(lists.outputs))
    graph = decode(data, CanonicalGraph, limits.GRAPH_BYTES)
    check(graph)
    return graph


def _count(raw: msgspec.Raw) -> int:
    """What the head of an array in msgpack says of its length; 1 of anything that is no array."""
    head = bytes(memoryview(raw)[:5])
    if head[0] & 0xF0 == 0x90:
        return head[0] & 0x0F
    return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5], "big") if head[0] in (0xDC, 0xDD) else 1


def check(graph: CanonicalGraph) -> None:
    """Every bound, and every node's kind and shape against what follows from its arguments; computes nothing.

    Raises ProtocolError FF-CORE-060 (counts), -061 (names), -062 (kind or shape out of bounds), -063 (unknown
    operation), -064 (arguments), -065 (attributes), -066 (not what was stated), -067 (an output of no value).
    """
    _check_counts(len(graph.inputs), len(graph.nodes), len(graph.outputs))
    _check_names([each.name for each in graph.inputs])
    _check_names([each.name for each in graph.outputs])
    values: list[TensorType] = []
    for each in graph.inputs:
        values.append(_bounded(len(values), each))
    for node in graph.nodes:
        values.append(_checked(node, values))
    for output in graph.outputs:
        if not 0 <= output.value < len(values):
            raise ProtocolError("FF-CORE-067", "an output is no value of the graph", cause=output.name[:40])


def _check_counts(inputs: int, nodes: int, outputs: int) -> None:
    if inputs > limits.GRAPH_INPUTS or not 0 < nodes <= limits.GRAPH_NODES or not 0 < outputs <= limits.GRAPH_OUTPUTS:
        raise ProtocolError("FF-CORE-060", "a graph without nodes or outputs, or with too many")


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names) or not all(0 < len(name.encode()) <= limits.TENSOR_NAME_BYTES for name in names):
        raise ProtocolError("FF-CORE-061", "a name in a graph is empty, too long, or given twice")


def _bounded(number: int, of: GraphInput | GraphNode) -> TensorType:
    if of.kind not in KINDS or not is_shape(of.shape):
        raise ProtocolError("FF-CORE-062", f"value {number} has a kind or a shape that is out of bounds")
    return TensorType(of.kind, of.shape)


def _checked(node: GraphNode, values: list[TensorType]) -> TensorType:
    """A node against its rule; `values` are all before it."""
    number = len(values)
    stated = _bounded(number, node)
    known = all(0 <= arg < number for arg in node.args)
    args = tuple(values[arg] for arg in node.args[: limits.GRAPH_ARGS]) if known else ()
    call = OperationCall(number, node.op, args, node.attrs, stated)
    if not known or len(node.args) > limits.GRAPH_ARGS:
        call.bad_args("too many of them, or one that is not before it")
    made = infer(call)
    if made != stated:
        raise ProtocolError(
            "FF-CORE-066",
            f"value {number} ({node.op}) is not what it says",
            cause=f"{made.kind} {list(made.shape)} follows, {stated.kind} {list(stated.shape)} is stated",
        )
    return made
