"""Executes a disputed segment as its program says: the tree of all tiles, then the values that a referee
requests.

The step graph runs once a step, the judging graph once behind (core.canon.program). Every value is hashed as it comes
and is gone after its last use: a player holds what `execute` keeps alive, the states at both borders and 34 bytes a
tile. For a referee the steps up to the disputed one run again, and only the values that one element needs are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from farflung.core.canon import program as programs
from farflung.core.canon import tiles
from farflung.core.canon.array_operations import Array, canonical_bytes
from farflung.core.canon.program import SegmentSteps
from farflung.core.canon.tile_tree import TileTree, leaf_hash
from farflung.core.errors import RunError
from farflung.core.ids import Hash
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.train import data_order, inner_state
from farflung.train.contribution_trace import PARAMS
from farflung.train.segments import BorderState, begin
from farflung.verify.canon import tensor_kernels
from farflung.verify.canon.distance_graph import GUILTY
from farflung.verify.canon.execute import Seen, execute, peak, products
from farflung.verify.canon.job_program import JobProgramParts
from farflung.verify.canon.scalars import BY_COUNT, BY_STEP

State = Mapping[str, Array]  # by `section/tensor`


class DisputedSegment(NamedTuple):
    """What is executed: steps `run` of `round`, on the batches of `seat`, from `start`, held against `claimed`.

    `counted`: steps that the optimizer had counted before; `is_fresh`: it had no vectors, which stand as zeros here.
    Both states have every tensor of every section.
    """

    round: int
    seat: int
    run: SegmentSteps
    counted: int
    start: State
    claimed: State
    is_fresh: bool


class SegmentExecution(NamedTuple):
    """One execution: its tree, and what the last leaf of it says."""

    tree: TileTree
    is_guilty: bool


def segment_of(
    parts: JobProgramParts,
    layout: TensorLayout,
    public: Float32,
    seat: int,
    run: SegmentSteps,
    start: BorderState,
    claimed: BorderState,
) -> DisputedSegment:
    """A segment from its opened states; `public`: weights of P_r, shape (layout.size,), which border 0 leaves out."""
    optimizer = parts.spec.optimizer

    def named(state: BorderState) -> State:
        vectors = {name: np.zeros(layout.size, np.float32) for name in inner_state.VECTORS[optimizer.name]}
        vectors |= inner_state.named(optimizer, state.vectors)
        return sections(layout, {PARAMS: begin(state, public), **vectors})

    return DisputedSegment(start.round, seat, run, start.step, named(start), named(claimed), not start.vectors)


def sections(layout: TensorLayout, vectors: Mapping[str, Float32]) -> dict[str, Array]:
    """Flat vectors by `section/tensor`, in the order in which a border's root has them."""
    return {
        f"{section}/{tensor.name}": np.ascontiguousarray(flat[place]).reshape(tensor.shape)
        for section, flat in sorted(vectors.items())
        for tensor, place in layout.slices()
    }


def check_memory(parts: JobProgramParts, most: int, *, is_trial: bool = False) -> int:
    """Bytes that an execution takes. Raises RunError FF-VERI-103 before one begins that does not fit into `most`.

    `is_trial`: of one step that is compared as it is made (verify.canon.step_check).
    """
    states = 2 * sum(4 * math.prod(each.shape) for each in parts.graph.inputs if "/" in each.name)
    needed = max(peak(parts.graph), peak(parts.judge)) + states
    if is_trial:
        needed = peak(parts.graph, keeps_outputs=False)
    if needed > most:
        raise RunError(
            "FF-VERI-103",
            "the job's graph needs more memory than there is",
            cause=f"a step with the states at both borders takes {-(-needed // (1 << 20))} MiB, "
            f"of {most >> 20} MiB that may be used",
            hint="take part on a larger machine; a dispute can be played by whoever has the opened states",
        )
    return needed


def play(parts: JobProgramParts, segment: DisputedSegment) -> SegmentExecution:
    """Executes all of it; raises what `execute` raises."""
    hashes: list[Hash] = []

    def seen(_: int, value: Array) -> None:
        hashes.extend(leaf_hash(number, data) for number, data in enumerate(tiles_of(value), len(hashes)))

    is_guilty = executed(parts, segment, segment.run.steps, lambda step: seen)
    return SegmentExecution(TileTree(hashes), is_guilty)


def values(parts: JobProgramParts, segment: DisputedSegment, step: int, wanted: Collection[int]) -> dict[int, Array]:
    """These values of a step's graph, or of the judging graph in the step behind the last one, executed again."""
    found: dict[int, Array] = {}

    def seen(number: int, value: Array) -> None:
        if number in wanted:
            found[number] = value

    executed(parts, segment, step, lambda at: seen if at == step else None)
    return found


def tile(value: Array, number: int) -> bytes:
    """The canonical bytes of a value's tile, as they stand under a leaf."""
    at = tiles.box(value.shape, number)
    return canonical_bytes(value.reshape(tiles.matrix(value.shape))[at.top : at.bottom, at.left : at.right])


def tiles_of(value: Array) -> Iterator[bytes]:
    """All of them, in their order: made canonical together, because most tiles are small."""
    rows, columns = tiles.matrix(value.shape)
    whole = np.frombuffer(canonical_bytes(value), f"<u{value.itemsize}").reshape(rows, columns)
    for top in range(0, rows, tiles.SIDE):
        for left in range(0, columns, tiles.SIDE):
            yield whole[top : top + tiles.SIDE, left : left + tiles.SIDE].tobytes()


def executed(parts: JobProgramParts, segment: DisputedSegment, last: int, seen: Callable[[int], Seen | None]) -> bool:
    """Steps up to `last`, which is the judging part behind all of them; what that finds, False where it is not reached.

    `seen(step)` is told each value of that step (verify.canon.execute).
    """
    state, steps = segment.start, min(last + 1, segment.run.steps)
    tensor_kernels.foresee(steps * products(parts.graph))
    for step in range(steps):
        made = execute(parts.graph, inputs(parts, segment, step, state), seen(step))
        state = {name: made[name] for name in state}
    return last >= segment.run.steps and judged(parts, segment, state, seen(last))


def judged(parts: JobProgramParts, segment: DisputedSegment, state: State, seen: Seen | None) -> bool:
    """What the judging part finds of a segment that ended in `state`."""
    ends = {programs.START: segment.start, programs.CLAIMED: segment.claimed, programs.FINAL: state}
    given = {each.name: each.name.partition("/") for each in parts.judge.inputs}
    told = {name: ends[kind][tensor] for name, (kind, _, tensor) in given.items()}
    return bool(execute(parts.judge, told, seen)[GUILTY])


def inputs(parts: JobProgramParts, segment: DisputedSegment, step: int, state: State) -> dict[str, Array]:
    """What the graph takes in a step of the segment that starts from `state`."""
    spec, optimizer = parts.spec, parts.spec.optimizer.name
    at = segment.run.first + step
    x, y = data_order.batch(parts.tokens, spec, segment.round, segment.seat, at)
    rates = {
        **dict(zip(BY_STEP[optimizer], parts.by_step[segment.round * spec.sync.steps + at], strict=True)),
        **dict(zip(BY_COUNT[optimizer], parts.by_count[segment.counted + step], strict=True)),
    }
    scalars = {name: np.asarray(value, np.float32) for name, value in rates.items()}
    return {**state, **parts.buffers, "x": x, "y": y, **scalars}
