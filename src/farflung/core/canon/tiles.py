"""Computes one tile of one graph node from only the elements that it needs, as a referee would.

A tensor is seen as a matrix: its last side are the columns, all others together the rows (1 x 1 without sides). Its
tiles are 64 x 64, row by row, the last ones smaller. A player runs `compute` with a fetch that remembers which elements
were asked for; the referee runs it on opened tiles. Both ask for the same, because what is asked depends on the graph,
the tile and what was fetched before, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farflung.core.canon import array_operations
from farflung.core.canon.array_operations import DTYPES, ELEMENTWISE, Array
from farflung.core.canon.graph import CanonicalGraph, GraphNode
from farflung.core.canon.operation_rules import Shape, TensorType
from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import Float32

SIDE: Final = 64

Places = NDArray[np.int64]  # flat, row-major
Fetch = Callable[[int, Places], NDArray[Any]]  # which argument, which of its elements (any shape) → their values


class TileBounds(NamedTuple):
    """The rows and columns of a tile in its tensor's matrix: from, and up to but without."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the tile."""
        return self.bottom - self.top, self.right - self.left


def matrix(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a tensor."""
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def tile_count(shape: Shape) -> int:
    """How many tiles a tensor has."""
    rows, columns = matrix(shape)
    return -(-rows // SIDE) * -(-columns // SIDE)


def box(shape: Shape, tile: int) -> TileBounds:
    """The place of a tensor's tile. Raises ProtocolError FF-CORE-068 when there is no such tile."""
    if not 0 <= tile < tile_count(shape):
        raise ProtocolError("FF-CORE-068", f"there is no tile {tile}", cause=f"of a tensor {list(shape)}")
    rows, columns = matrix(shape)
    row, column = divmod(tile, -(-columns // SIDE))
    return TileBounds(row * SIDE, min(rows, (row + 1) * SIDE), column * SIDE, min(columns, (column + 1) * SIDE))


def tile_of(shape: Shape, places: Places) -> Places:
    """In which tile each element lies."""
    columns = matrix(shape)[1]
    return places // columns // SIDE * -(-columns // SIDE) + places % columns // SIDE


def places_of(shape: Shape, at: TileBounds) -> Places:
    """The elements of a tile: shape (rows, columns)."""
    rows = np.arange(at.top, at.bottom, dtype=np.int64)
    return rows[:, None] * matrix(shape)[1] + np.arange(at.left, at.right, dtype=np.int64)


def compute(graph: CanonicalGraph, number: int, tile: int, fetch: Fetch) -> Array:
    """Tile `tile` of value `number`, shape (rows, columns) of that tile; the graph has been checked.

    Raises ProtocolError FF-CORE-068 (no such tile), -069 (the value is no node), -070 (fetch gave something else
    than was asked for). What `fetch` raises passes through.
    """
    if not len(graph.inputs) <= number < len(graph.inputs) + len(graph.nodes):
        raise ProtocolError("FF-CORE-069", f"value {number} is not computed: it is no node of the graph")
    node = graph.nodes[number - len(graph.inputs)]
    args = [TensorType(value.kind, value.shape) for value in map(graph.value, node.args)]
    return _computed(node, args, box(node.shape, tile), fetch)


def element(node: GraphNode, args: Sequence[TensorType], place: int, fetch: Fetch) -> Array:
    """The one element of a node at flat place `place`, shape (1, 1): a tile of its own, so that no more is asked for.

    The node is what `rules.infer` makes of `args`, and has that place. Raises ProtocolError FF-CORE-070.
    """
    row, column = divmod(place, matrix(node.shape)[1])
    return _computed(node, args, TileBounds(row, row + 1, column, column + 1), fetch)


def _computed(node: GraphNode, args: Sequence[TensorType], at: TileBounds, fetch: Fetch) -> Array:
    work = TileComputation(node, [arg.shape for arg in args], at, _exact(args, fetch))
    with np.errstate(all="ignore"):
        return _elementwise(work) if node.op in ELEMENTWISE else _KERNELS[node.op](work)


def _exact(values: Sequence[TensorType], fetch: Fetch) -> Fetch:
    """`fetch`, whose answers have the shape and the kind that was asked for."""

    def checked(which: int, places: Places) -> NDArray[Any]:
        got = fetch(which, places)
        if got.shape != places.shape or got.dtype != DTYPES[values[which].kind]:
            raise ProtocolError("FF-CORE-070", f"argument {which} of a tile came in another shape or kind")
        return got

    return checked


class TileComputation(NamedTuple):
    """One tile to compute: the node, its arguments' shapes, which tile, and where elements come from."""

    node: GraphNode
    shapes: list[Shape]
    at: TileBounds
    fetch: Fetch

    @property
    def places(self) -> Places:
        """The tile's own elements."""
        return places_of(self.node.shape, self.at)


def _steps(shape: Shape) -> list[int]:
    """How far apart neighbours along each side lie."""
    return [math.prod(shape[side + 1 :]) for side in range(len(shape))]


def _walked(places: Places, shape: Shape, strides: list[int]) -> Places:
    """Σ coordinate x stride, for elements of a tensor of `shape`."""
    made = np.zeros_like(places)
    rest = places
    for side, stride in zip(reversed(shape), reversed(strides), strict=True):
        made = made + rest % side * stride
        rest = rest // side
    return made


def _elementwise(work: TileComputation) -> Array:
    out, args = work.node.shape, []
    for which, shape in enumerate(work.shapes):
        sides = (1,) * (len(out) - len(shape)) + shape
        strides = [0 if side == 1 else step for side, step in zip(sides, _steps(sides), strict=True)]
        args.append(work.fetch(which, _walked(work.places, out, strides)))
    return array_operations.elementwise(work.node.op, work.node.kind, *args)


def _const(work: TileComputation) -> Array:
    return array_operations.const(work.node.kind, work.at.shape, work.node.attrs[0])


def _iota(work: TileComputation) -> Array:
    return work.places


def _moved(work: TileComputation) -> Array:
    offset, *strides = work.node.attrs
    return work.fetch(0, offset + _walked(work.places, work.node.shape, strides))


def _folded(fold: Callable[[Float32], Float32]) -> Callable[[TileComputation], Array]:
    def kernel(work: TileComputation) -> Array:
        n = work.shapes[0][-1]
        along = np.arange(n, dtype=np.int64)
        rows = [fold(work.fetch(0, row[:, None] * n + along)) for row in work.places]  # a row at a time: 64 x 256
        return np.stack(rows)

    return kernel


def _matmul(work: TileComputation) -> Array:
    """A batch at a time: acc + a b, k ascending."""
    _, m, inner = work.shapes[0]
    n = work.node.shape[2]
    columns = np.arange(work.at.left, work.at.right, dtype=np.int64)
    along = np.arange(inner, dtype=np.int64)
    made = np.zeros(work.at.shape, np.float32)
    for batch in range(work.at.top // m, (work.at.bottom - 1) // m + 1):
        rows = np.arange(max(work.at.top, batch * m), min(work.at.bottom, (batch + 1) * m), dtype=np.int64)
        left = work.fetch(0, rows[:, None] * inner + along)
        right = work.fetch(1, (batch * inner + along)[:, None] * n + columns)
        acc = np.zeros((len(rows), len(columns)), np.float32)
        for k in range(inner):
            acc = acc + left[:, k, None] * right[k]
        made[rows - work.at.top] = acc
    return made


def _placed(work: TileComputation) -> Array:
    """What lies in the piece's box comes from the piece, the rest from the base."""
    places, shape, piece = work.places, work.node.shape, work.shapes[1]
    is_inside = np.ones(places.shape, np.bool_)
    from_piece = np.zeros_like(places)
    for side, step, start, part, hop in zip(shape, _steps(shape), work.node.attrs, piece, _steps(piece), strict=True):
        within = places // step % side - start
        is_inside &= (within >= 0) & (within < part)
        from_piece = from_piece + within * hop
    made = np.zeros(places.shape, DTYPES[work.node.kind])
    for which, mask, wanted in ((0, ~is_inside, places), (1, is_inside, from_piece)):
        if mask.any():
            made[mask] = work.fetch(which, wanted[mask])
    return made


def _taken(work: TileComputation) -> Array:
    """The rows' indices first, then of the table what they name."""
    height, width = work.shapes[0]
    index = work.fetch(1, np.arange(work.at.top, work.at.bottom, dtype=np.int64))
    columns = np.arange(work.at.left, work.at.right, dtype=np.int64)
    known = np.flatnonzero((index >= 0) & (index < height))
    made = np.zeros(work.at.shape, np.float32)
    if len(known):
        made[known] = work.fetch(0, index[known][:, None] * width + columns)
    return made


def _put(work: TileComputation) -> Array:
    """All indices; then the rows that fall into the tile, added one after the other."""
    count, width = work.shapes[1]
    columns = np.arange(work.at.left, work.at.right, dtype=np.int64)
    made = np.zeros(work.at.shape, np.float32)
    index = work.fetch(0, np.arange(count, dtype=np.int64))
    hits = np.flatnonzero((index >= work.at.top) & (index < work.at.bottom))
    if len(hits):
        rows = work.fetch(1, hits[:, None] * width + columns)
        for target, row in zip(index[hits] - work.at.top, rows, strict=True):
            made[target] = made[target] + row
    return made


_KERNELS: Final[dict[str, Callable[[TileComputation], Array]]] = {
    "const": _const,
    "iota": _iota,
    "sum": _folded(array_operations.tree_sum),
    "max": _folded(array_operations.maximum),
    "matmul": _matmul,
    "move": _moved,
    "place": _placed,
    "take": _taken,
    "put_add": _put,
}
