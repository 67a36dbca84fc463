"""Executes a canonical graph on whole tensors, one operation after the other, bit for bit what its tiles say.

`core.canon.tiles` says what each operation computes, a tile at a time; here the same is done with whole arrays. A value
is dropped after its last use, so that a step needs what is alive at once, not all of its intermediates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from farflung.core.canon import array_operations
from farflung.core.canon.array_operations import DTYPES, Array
from farflung.core.canon.graph import CanonicalGraph, GraphInput, GraphNode, check
from farflung.core.errors import RunError, UsageError
from farflung.core.mapped_pages import leave
from farflung.verify.canon import tensor_kernels

Seen = Callable[[int, Array], None]
Hand = Callable[[str, Array], None]

WORK: Final = 8  # times a result's own bytes: what NumPy's forms of exp, log, erf and tanh need meanwhile


def execute(
    graph: CanonicalGraph, inputs: Mapping[str, Array], seen: Seen | None = None, hand: Hand | None = None
) -> dict[str, Array]:
    """Every output of a graph by its name: C-contiguous arrays of the stated kind and shape.

    `inputs`: an array for each of the graph's inputs. An output that is an input, or another output, is the same array.
    `seen`: told each value with its number, inputs included, in ascending order; it may keep an array, not change it.
    `hand`: given each output as it is made, and then none is kept: the result is empty.
    Raises UsageError FF-VERI-070 (other names), -071 (another kind or shape), RunError -072 (the process flushes
    denormals to zero), and what `check` raises.
    """
    check(graph)
    tensor_kernels.foresee(products(graph))
    values = dict(enumerate(_taken(graph, inputs)))
    uses, named = last_uses(graph, keeps_outputs=hand is None), _names_of_outputs(graph)
    with np.errstate(all="ignore"):  # infinities and NaN are results like others
        _check_denormals()
        for number in range(len(graph.inputs) + len(graph.nodes)):
            made = graph.value(number)
            dying = {number}
            if isinstance(made, GraphNode):
                values[number] = _value(made, [values[arg] for arg in made.args])
                dying |= set(made.args)
            if seen is not None:
                seen(number, values[number])
            if hand is not None:
                for name in named.get(number, ()):
                    hand(name, values[number])
            for each in dying:
                if uses[each] <= number:
                    leave(values.pop(each))  # an input may lie in a mapped file
    return {} if hand is not None else {output.name: values[output.value] for output in graph.outputs}


def _names_of_outputs(graph: CanonicalGraph) -> dict[int, list[str]]:
    """By the number of a value."""
    named: dict[int, list[str]] = {}
    for output in graph.outputs:
        named.setdefault(output.value, []).append(output.name)
    return named


def peak(graph: CanonicalGraph, *, keeps_outputs: bool = True) -> int:
    """Bytes that `execute` holds at most, inputs included: what is alive at once, and a function's work in binary64.

    A bound that is computed from shapes alone, before anything is allocated; torch and Python themselves come on top.
    """
    values = [graph.value(number) for number in range(len(graph.inputs) + len(graph.nodes))]
    sizes = [math.prod(each.shape) * DTYPES[each.kind].itemsize for each in values]
    uses, held, most = last_uses(graph, keeps_outputs=keeps_outputs), sum(sizes[: len(graph.inputs)]), 0
    dying: dict[int, int] = {}
    for number, size in enumerate(sizes):
        held += size if number >= len(graph.inputs) else 0
        dying[uses[number]] = dying.get(uses[number], 0) + size
        most = max(most, held + WORK * size)
        held -= dying.pop(number, 0)
    return most


def products(graph: CanonicalGraph) -> int:
    """How many products of two numbers the matrices of a graph take: nearly all of its work."""
    return sum(
        math.prod(node.shape) * graph.value(node.args[0]).shape[2] for node in graph.nodes if node.op == "matmul"
    )


def last_uses(graph: CanonicalGraph, *, keeps_outputs: bool = True) -> list[int]:
    """For each value the last value that is made of it; itself if none is, and one past all of them for an output that
    is kept.
    """
    end = len(graph.inputs) + len(graph.nodes)
    uses = list(range(end))
    for number, node in enumerate(graph.nodes, len(graph.inputs)):
        for arg in node.args:
            uses[arg] = number
    for output in graph.outputs if keeps_outputs else ():
        uses[output.value] = end
    return uses


def _taken(graph: CanonicalGraph, inputs: Mapping[str, Array]) -> list[Array]:
    """The inputs in the graph's order."""
    wanted, given = {each.name for each in graph.inputs}, set(inputs)
    if wanted != given:
        missing, strange = sorted(wanted - given)[:3], sorted(given - wanted)[:3]
        raise UsageError(
            "FF-VERI-070",
            "these are not the inputs of the graph",
            cause=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(strange) or 'none'}",
            hint="give one array for each of the graph's inputs, by its name",
        )
    return [_fitting(each, inputs[each.name]) for each in graph.inputs]


def _fitting(stated: GraphInput, array: Array) -> Array:
    """An input as it is in memory, if it is what the graph says."""
    if array.dtype != DTYPES[stated.kind] or array.shape != stated.shape:
        raise UsageError(
            "FF-VERI-071",
            f"an input of the graph is of another kind or shape: {stated.name[:40]}",
            cause=f"{stated.kind} {list(stated.shape)} is stated, {array.dtype} {list(array.shape)} is given",
            hint="convert it before: nothing is rounded or stretched on the way in",
        )
    return np.require(array, requirements="C")


def _check_denormals() -> None:
    """Both ways of losing denormals: results flushed to zero, and arguments taken for zero."""
    for least in (np.finfo(np.float32).tiny, np.finfo(np.float64).tiny):
        normal = np.full(8, least)
        denormal = normal * normal.dtype.type(0.5)
        if not (denormal.view(f"u{denormal.itemsize}").all() and (denormal + denormal == normal).all()):
            raise RunError(
                "FF-VERI-072",
                "this process flushes denormal numbers to zero",
                cause="its results would not be those of other machines",
                hint="do not call torch.set_flush_denormal(True), nor load code built with -ffast-math",
            )


def _value(node: GraphNode, args: list[Array]) -> Array:
    """What a node makes of its arguments, which are C-contiguous, as it is itself."""
    if node.op in KERNELS:
        return KERNELS[node.op](node, *args)
    return np.require(array_operations.elementwise(node.op, node.kind, *args), requirements="C")


def _const(node: GraphNode) -> Array:
    return array_operations.const(node.kind, node.shape, node.attrs[0])


def _iota(node: GraphNode) -> Array:
    return np.arange(node.shape[0], dtype=np.int64)


def _function(node: GraphNode, x: Array) -> Array:
    return tensor_kernels.FUNCTIONS[node.op](x.reshape(-1)).reshape(node.shape)


def _sum(node: GraphNode, x: Array) -> Array:
    return np.ascontiguousarray(tensor_kernels.tree_sum(x.reshape(-1, x.shape[-1]))).reshape(node.shape)


def _max(node: GraphNode, x: Array) -> Array:
    return np.ascontiguousarray(array_operations.maximum(x)).reshape(node.shape)


def _matmul(_node: GraphNode, left: Array, right: Array) -> Array:
    return tensor_kernels.matmul(left, right)


def _move(node: GraphNode, x: Array) -> Array:
    """A view by strides, copied unless it is the whole argument in its order. NumPy checks that it lies inside."""
    offset, *strides = (each * x.itemsize for each in node.attrs)
    view: Array = np.ndarray(node.shape, x.dtype, x, offset, strides)
    return view if view.size == x.size and view.flags.c_contiguous else view.copy()


def _place(node: GraphNode, base: Array, piece: Array) -> Array:
    out = base.copy()
    out[tuple(slice(at, at + side) for at, side in zip(node.attrs, piece.shape, strict=True))] = piece
    return out


def _take(_node: GraphNode, table: Array, index: Array) -> Array:
    inside = (index >= 0) & (index < len(table))
    return np.where(inside[:, None], table[np.where(inside, index, 0)], np.float32(0))


def _put_add(node: GraphNode, index: Array, rows: Array) -> Array:
    return tensor_kernels.put_add(rows, index, node.attrs[0])


KERNELS: Final[dict[str, Callable[..., Array]]] = {
    "const": _const,
    "iota": _iota,
    **dict.fromkeys(tensor_kernels.FUNCTIONS, _function),
    "sum": _sum,
    "max": _max,
    "matmul": _matmul,
    "move": _move,
    "place": _place,
    "take": _take,
    "put_add": _put_add,
}
