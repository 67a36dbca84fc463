"""Defines the part of a job's terms that fixes its canonical execution.

Thus a dispute over one segment has one right answer.

The execution of a segment of k steps is the step graph k times, then the judging graph once. Every value, inputs too,
has tiles (`core.canon.tiles`); all tiles in their order are the leaves of a tree (`core.canon.tile_tree`):

    leaves of step 0 | ... | leaves of step k - 1 | leaves of the judging part, the last of which is the verdict

Within a part a value's tiles follow those of the value before it. A `ProgramEntry` says of one value all that is
needed to compute any element of it; the entries lie under `listing`, so nobody has to show a graph. What an input is,
its entry's `op` says:

    op       name                     attrs          its truth
    state    section/tensor           (value,)       step 0: under the start border; later: that value, one step before
    buffer   buffers/tensor           ()             under `buffers`
    batch    any                      (0,) or (1,)   the tokens that the data order gives the step, or those behind them
    by_step  any                      (column,)      under `by_step`, in the row of the step of the run
    by_count any                      (column,)      under `by_count`, in the row of what the optimizer has counted
    start    start/section/tensor     ()             judging part: under the start border
    claimed  claimed/section/tensor   ()             judging part: under the claimed border
    final    any                      (value,)       judging part: that value of the last step

A section is `params` or an optimizer's vector; its border's root of that part holds it, and ZERO_HASH holds zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.canon.graph import CanonicalGraph
from farflung.core.canon.tiles import tile_count
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_SPEC, digest
from farflung.core.errors import ProtocolError
from farflung.core.ids import ZERO_HASH, Hash

STATE: Final = "state"
BUFFER: Final = "buffer"
BATCH: Final = "batch"
BY_STEP: Final = "by_step"
BY_COUNT: Final = "by_count"
START: Final = "start"
CLAIMED: Final = "claimed"
FINAL: Final = "final"
SOURCES: Final = (STATE, BUFFER, BATCH, BY_STEP, BY_COUNT, START, CLAIMED, FINAL)

Source = tuple[str, tuple[int, ...]]  # an input's op and attrs


class ProgramEntry(Wire, frozen=True):
    """One value of a graph: a node, or an input with its source. `args`: numbers of values of the same graph.

    `first`: the number of its first leaf within its part.
    """

    op: str
    args: tuple[int, ...]
    kind: str
    shape: tuple[int, ...]
    attrs: tuple[int, ...]
    name: str
    first: int


class CanonicalProgram(Wire, frozen=True):
    """What the terms fix. A job without one has `CanonicalProgram()`: its disputes stay with the jury.

    `listing`: core.merkle root over the encoded entries, `values` of the step graph, then `judged` of the judging
    graph. `leaves` of one step, `closing` of the judging part. `rows` windows of `context` tokens are a step's batch;
    a window starts at one of `places`. `round_steps` and `segments` cut a round, `step_tokens` tell a weight's steps.
    """

    graph: Hash = ZERO_HASH
    judge: Hash = ZERO_HASH
    listing: Hash = ZERO_HASH
    values: int = 0
    judged: int = 0
    leaves: int = 0
    closing: int = 0
    buffers: Hash = ZERO_HASH
    by_step: Hash = ZERO_HASH
    by_count: Hash = ZERO_HASH
    tokens: Hash = ZERO_HASH
    seed: int = 0
    rows: int = 0
    context: int = 0
    places: int = 0
    round_steps: int = 0
    segments: int = 0
    step_tokens: int = 0


class LeafPosition(NamedTuple):
    """Where a leaf lies: in which step (that behind the last one: the judging part), and at which offset there."""

    step: int
    offset: int
    is_judged: bool


class SegmentSteps(NamedTuple):
    """The steps of one segment of one contribution."""

    first: int  # within the round
    steps: int


def job_id(rest: Hash, program: CanonicalProgram) -> Hash:
    """A job's id, from the hash of all else that its terms say: H(NS_SPEC; rest, program)."""
    return digest(NS_SPEC, rest, encode(program))


def is_sound(program: CanonicalProgram) -> bool:
    """Whether every number is within its bounds; `CanonicalProgram()` is not."""
    return (
        0 < program.values <= limits.GRAPH_INPUTS + limits.GRAPH_NODES
        and 0 < program.judged <= limits.GRAPH_INPUTS + limits.GRAPH_NODES
        and 0 < program.leaves <= limits.EXECUTION_LEAVES
        and 0 < program.closing <= limits.EXECUTION_LEAVES
        and 0 < program.segments <= program.round_steps <= limits.WEIGHT
        and 0 < program.rows <= limits.WEIGHT
        and 0 < program.context <= limits.WEIGHT
        and 0 < program.step_tokens <= limits.WEIGHT
        and 0 < program.places <= limits.PROGRAM_PLACES
        and 0 <= program.seed < 1 << 63
    )


def run_of(program: CanonicalProgram, weight: int, segment: int) -> SegmentSteps | None:
    """The steps of `segment` of a contribution of `weight` tokens; None: it has no such segment, or none with a step.

    Border i lies after step floor(H i / K) of H = weight / step_tokens steps (docs/protocol/audit.md).
    """
    steps = weight // program.step_tokens
    if not (0 <= segment < program.segments and 0 < steps <= program.round_steps):
        return None
    first, end = (steps * border // program.segments for border in (segment, segment + 1))
    return SegmentSteps(first, end - first) if first < end else None


def leaf_count(program: CanonicalProgram, steps: int) -> int:
    """Leaves of the execution of so many steps."""
    return steps * program.leaves + program.closing


def place_of(program: CanonicalProgram, steps: int, leaf: int) -> LeafPosition:
    """Where leaf `leaf` lies. Raises ProtocolError FF-CORE-072: there is no such leaf."""
    if not 0 <= leaf < leaf_count(program, steps):
        raise ProtocolError("FF-CORE-072", f"the execution has no leaf {leaf}")
    step = min(steps, leaf // program.leaves)
    return LeafPosition(step, leaf - step * program.leaves, step == steps)


def entry_index(program: CanonicalProgram, value: int, *, is_judged: bool) -> int:
    """Where the entry of a graph's value stands under `listing`."""
    return program.values + value if is_judged else value


def tile_at(program: CanonicalProgram, index: int, entry: ProgramEntry, place: LeafPosition) -> int:
    """Which tile of the value, whose entry is at `index`, lies at this place.

    Raises ProtocolError FF-CORE-073: none does; the entry is of another value.
    """
    tile = place.offset - entry.first
    is_judged = index >= program.values
    if is_judged != place.is_judged or not 0 <= tile < tile_count(entry.shape):
        raise ProtocolError("FF-CORE-073", f"the leaf lies in no tile of value {index}")
    return tile


def listed(graph: CanonicalGraph, sources: Mapping[str, Source]) -> tuple[ProgramEntry, ...]:
    """The entries of a checked graph, whose inputs `sources` tells by name. Raises KeyError for one that is missing."""
    made: list[ProgramEntry] = []
    first = 0
    for each in graph.inputs:
        op, attrs = sources[each.name]
        made.append(ProgramEntry(op, (), each.kind, each.shape, attrs, each.name, first))
        first += tile_count(each.shape)
    for node in graph.nodes:
        made.append(ProgramEntry(node.op, node.args, node.kind, node.shape, node.attrs, "", first))
        first += tile_count(node.shape)
    return tuple(made)
