"""Defines the file that a submitter ships beside its module: the graph of one step, and the constants that it
reads.

All else of a job's program follows from terms and data (verify.canon.job_program), so this is all that a node has to be
sent. The tracer answers with it, a run's folder keeps it, and what is in it is looked at before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from farflung.core import limits
from farflung.core.canon import graph as graphs
from farflung.core.canon.array_operations import DTYPES, Array
from farflung.core.canon.graph import CanonicalGraph, GraphInput
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError
from farflung.verify.canon.scalars import BUFFERS

SHIPPED_BYTES: Final = limits.GRAPH_BYTES + limits.CONSTANTS_BYTES


class GraphFile(Wire, frozen=True, tag="step-traced"):
    """`graph`: canonical bytes; `constants`: row-major, little-endian, of its inputs `buffers/NAME` in their order."""

    graph: bytes
    constants: tuple[bytes, ...]


def pack(graph: CanonicalGraph, buffers: Mapping[str, Array]) -> GraphFile:
    """What is shipped of a traced step; `buffers` by input names, of which the graph may need fewer."""
    return GraphFile(encode(graph), tuple(_bytes(buffers[each.name]) for each in _constants(graph)))


def read(data: bytes | memoryview) -> tuple[CanonicalGraph, dict[str, Array]]:
    """The checked graph, and its constants by their names.

    Raises ProtocolError: FF-CORE-020 to -022 and what core.canon.graph.read raises, FF-VERI-116 other constants than
    the graph reads.
    """
    found = decode(data, GraphFile, SHIPPED_BYTES)
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


def _constants(graph: CanonicalGraph) -> list[GraphInput]:
    return [each for each in graph.inputs if each.name.startswith(f"{BUFFERS}/")]


def _size(each: GraphInput) -> int:
    return math.prod(each.shape) * DTYPES[each.kind].itemsize


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _array(each: GraphInput, raw: bytes) -> Array:
    kind = DTYPES[each.kind]
    return np.frombuffer(raw, kind.newbyteorder("<")).astype(kind, copy=False).reshape(each.shape)
