"""What a submitter ships of its model, beside the module: the graph of one step, and the constants that it reads.

All else of a job's program follows from terms and data (verify.canon.programs), so this is all that a node has to be
sent. The tracer answers with it, a run's folder keeps it, and what stands in it is looked at before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from farflung.core import limits
from farflung.core.canon import graph as graphs
from farflung.core.canon.elements import DTYPES, Array
from farflung.core.canon.graph import Graph, Input
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError
from farflung.verify.canon.scalars import BUFFERS

SHIPPED_BYTES: Final = limits.GRAPH_BYTES + limits.CONSTANTS_BYTES


class Shipped(Wire, frozen=True, tag="step-traced"):
    """`graph`: canonical bytes; `constants`: row-major, little-endian, of its inputs `buffers/NAME` in their order."""

    graph: bytes
    constants: tuple[bytes, ...]


def shipped(graph: Graph, buffers: Mapping[str, Array]) -> Shipped:
    """What is shipped of a traced step; `buffers` by input names, of which the graph may need fewer."""
    return Shipped(encode(graph), tuple(_bytes(buffers[each.name]) for each in _constants(graph)))


def read(data: bytes) -> tuple[Graph, dict[str, Array]]:
    """The checked graph, and its constants by their names.

    Raises ProtocolError: FF-CORE-020 to -022 and what core.canon.graph.read raises, FF-VERI-116 other constants than
    the graph reads.
    """
    found = decode(data, Shipped, SHIPPED_BYTES)
    graph = graphs.read(found.graph)
    wanted = _constants(graph)
    if [len(each) for each in found.constants] != [_size(each) for each in wanted]:
        raise ProtocolError(
            "FF-VERI-116",
            "a graph is shipped with other constants than it reads",
            cause=f"it reads {len(wanted)}, of {sum(map(_size, wanted))} bytes",
            hint="take no part in this job: whoever submitted it ships what nobody can execute",
        )
    arrays = zip(wanted, found.constants, strict=True)
    return graph, {each.name: _array(each, raw) for each, raw in arrays}


def _constants(graph: Graph) -> list[Input]:
    return [each for each in graph.inputs if each.name.startswith(f"{BUFFERS}/")]


def _size(each: Input) -> int:
    return math.prod(each.shape) * DTYPES[each.kind].itemsize


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _array(each: Input, raw: bytes) -> Array:
    kind = DTYPES[each.kind]
    return np.frombuffer(raw, kind.newbyteorder("<")).astype(kind, copy=False).reshape(each.shape)
