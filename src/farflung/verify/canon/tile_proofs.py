"""Builds the proof for a referee: the first element in which two tiles differ, and all inputs of its
computation.

Whoever has executed the segment honestly can make it, player or not. The values that the element is made of are
executed again (verify.canon.dispute_execution); which of their tiles are due the kernels of core.canon.tiles say by
asking.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farflung.core import merkle
from farflung.core.canon import input_roots, tiles
from farflung.core.canon import program as programs
from farflung.core.canon.array_operations import Array
from farflung.core.canon.graph import GraphNode
from farflung.core.canon.input_roots import InputLeafProof
from farflung.core.canon.operation_rules import TensorType
from farflung.core.canon.program import LeafPosition, ProgramEntry
from farflung.core.canon.referee import ElementProof, EntryProof, TileProof
from farflung.core.canon.tile_tree import TileTree
from farflung.core.canon.tiles import Places
from farflung.core.canon.window_order import starts
from farflung.core.codec import encode
from farflung.train.contribution_trace import PARAMS
from farflung.verify.canon import dispute_execution
from farflung.verify.canon.dispute_execution import DisputedSegment, State
from farflung.verify.canon.job_program import JobProgramParts


def leaf_tile(parts: JobProgramParts, segment: DisputedSegment, leaf: int) -> bytes:
    """The canonical bytes of one leaf's tile, executed again. Raises ProtocolError FF-CORE-072: no such leaf."""
    place, value, entry = located(parts, segment, leaf)
    made = dispute_execution.values(parts, segment, place.step, {value})[value]
    return dispute_execution.tile(made, place.offset - entry.first)


def exhibit(
    parts: JobProgramParts, segment: DisputedSegment, tree: TileTree, leaf: int, pair: tuple[bytes, bytes]
) -> ElementProof:
    """The proof about `leaf`, whose tiles the accused and the challenger have shown. `tree`: that of this execution."""
    place, value, entry = located(parts, segment, leaf)
    flat = _flat(entry, place, pair)
    shown = _listed(parts, value, is_judged=place.is_judged)
    if entry.op in (programs.STATE, programs.FINAL) and place.step:
        return _inherited(parts, segment, tree, place, entry, flat, (shown, pair))
    if entry.op in programs.SOURCES:
        return ElementProof(shown, (), pair, (), _pieces(parts, segment, place, entry, flat))
    return _computed(parts, segment, tree, place, entry, flat, (shown, pair))


def located(parts: JobProgramParts, segment: DisputedSegment, leaf: int) -> tuple[LeafPosition, int, ProgramEntry]:
    """Where a leaf lies, the number of its value in that part's graph, and the value's entry."""
    place = programs.place_of(parts.program, segment.run.steps, leaf)
    entries = _part(parts, is_judged=place.is_judged)
    value = bisect_right(entries, place.offset, key=lambda entry: entry.first) - 1
    return place, value, entries[value]


def _part(parts: JobProgramParts, *, is_judged: bool) -> Sequence[ProgramEntry]:
    count = parts.program.values
    return parts.entries[count:] if is_judged else parts.entries[:count]


def _flat(entry: ProgramEntry, place: LeafPosition, pair: tuple[bytes, bytes]) -> int:
    """The first element of the value in which the tiles differ; the tile's first where one is of another size."""
    box = tiles.box(entry.shape, place.offset - entry.first)
    left, right = pair
    count = box.shape[0] * box.shape[1]
    at = 0
    if len(left) == len(right) and len(left) % count == 0:
        different = np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8)
        at = int(np.argmax(different)) // (len(left) // count)
    row, column = divmod(at, box.shape[1])
    return (box.top + row) * tiles.matrix(entry.shape)[1] + box.left + column


def _listed(parts: JobProgramParts, value: int, *, is_judged: bool) -> EntryProof:
    index = programs.entry_index(parts.program, value, is_judged=is_judged)
    leaves = [encode(entry) for entry in parts.entries]
    return EntryProof(index, parts.entries[index], merkle.prove(leaves, index))


def _opened(
    tree: TileTree, base: int, entry: ProgramEntry, value: Array, numbers: Sequence[int]
) -> tuple[TileProof, ...]:
    """These tiles of a value whose part's leaves begin at `base`."""
    leaves = [(base + entry.first + number, number) for number in numbers]
    return tuple(TileProof(leaf, dispute_execution.tile(value, number), tree.path(leaf)) for leaf, number in leaves)


def _computed(
    parts: JobProgramParts,
    segment: DisputedSegment,
    tree: TileTree,
    place: LeafPosition,
    entry: ProgramEntry,
    flat: int,
    shown: tuple[EntryProof, tuple[bytes, bytes]],
) -> ElementProof:
    """Of an operation: the tiles of its arguments for which the element asks."""
    entries = _part(parts, is_judged=place.is_judged)
    made = dispute_execution.values(parts, segment, place.step, set(entry.args))
    asked: dict[int, set[int]] = {arg: set() for arg in entry.args}

    def fetch(which: int, places: Places) -> NDArray[Any]:
        value = made[entry.args[which]]
        asked[entry.args[which]].update(np.unique(tiles.tile_of(value.shape, places)).tolist())
        found: NDArray[Any] = value.reshape(-1)[places]
        return found

    node = GraphNode(entry.op, entry.args, entry.kind, entry.shape, entry.attrs)
    tensors = tuple(TensorType(entries[arg].kind, entries[arg].shape) for arg in entry.args)
    tiles.element(node, tensors, flat, fetch)
    base = place.step * parts.program.leaves
    opened = [
        each for arg, numbers in asked.items() for each in _opened(tree, base, entries[arg], made[arg], sorted(numbers))
    ]
    args = tuple(_listed(parts, arg, is_judged=place.is_judged) for arg in entry.args)
    return ElementProof(shown[0], args, shown[1], tuple(opened), ())


def _inherited(
    parts: JobProgramParts,
    segment: DisputedSegment,
    tree: TileTree,
    place: LeafPosition,
    entry: ProgramEntry,
    flat: int,
    shown: tuple[EntryProof, tuple[bytes, bytes]],
) -> ElementProof:
    """Of an input that is a value of the step before: that value's tile."""
    (value,), step = entry.attrs, place.step - 1
    made = dispute_execution.values(parts, segment, step, {value})[value]
    number = int(tiles.tile_of(made.shape, np.array(flat, np.int64)))
    base, args = step * parts.program.leaves, (_listed(parts, value, is_judged=False),)
    opened = _opened(tree, base, args[0].entry, made, (number,))
    return ElementProof(shown[0], args, shown[1], opened, ())


def _pieces(
    parts: JobProgramParts, segment: DisputedSegment, place: LeafPosition, entry: ProgramEntry, flat: int
) -> tuple[InputLeafProof, ...]:
    """Of any other input: the element under the root that the terms or the accused had fixed."""
    program = parts.program
    at = segment.run.first + place.step
    match entry.op:
        case programs.BUFFER:
            return input_roots.open_tensor(dict(sorted(parts.buffers.items())), entry.name, flat)
        case programs.BATCH:
            row, column = divmod(flat, program.context)
            drawn = program.seed, segment.round, segment.seat, at, 1, program.places
            begin = starts(*drawn, first=row)[0]
            return input_roots.open_token(parts.tokens, begin + column + entry.attrs[0])
        case programs.BY_STEP:
            return input_roots.open_row(parts.by_step, segment.round * program.round_steps + at)
        case programs.BY_COUNT:
            return input_roots.open_row(parts.by_count, segment.counted + place.step)
    state = segment.claimed if entry.op == programs.CLAIMED else segment.start
    name = entry.name.removeprefix(f"{entry.op}/")
    return _state_pieces(state, name, flat, is_fresh=segment.is_fresh and state is segment.start)


def _state_pieces(state: State, name: str, flat: int, *, is_fresh: bool) -> tuple[InputLeafProof, ...]:
    """An element of a border's state: weights and vectors have a root each. A fresh optimizer has none, and is zero."""
    is_weight = name.partition("/")[0] == PARAMS
    if is_fresh and not is_weight:
        return ()
    same: Mapping[str, Array] = {
        each: array for each, array in state.items() if (each.partition("/")[0] == PARAMS) == is_weight
    }
    return input_roots.open_tensor(same, name, flat)
