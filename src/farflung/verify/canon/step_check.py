"""Checks before work begins that a shipped graph is the step that a worker trains, by comparison with a native
step.

Nobody can be made to train honestly and be found guilty by a graph that means something else. Each node tries one step
with the optimizer's vectors of a step before it, in a round that it draws by its own secret: a graph that differs in
some rounds alone is found by some node, and its maker cannot know by which.
"""

from __future__ import annotations

from farflung.core.canon.array_operations import Array
from farflung.core.canon.program import SegmentSteps
from farflung.core.errors import SpecError
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import Tolerance
from farflung.train import inner_state, segments
from farflung.train.contribution_trace import PARAMS
from farflung.train.segments import BorderState
from farflung.verify.audit_verdict import WHOLE, compare
from farflung.verify.canon import dispute_execution
from farflung.verify.canon.execute import execute
from farflung.verify.canon.job_program import JobProgramParts


def check_step(
    parts: JobProgramParts,
    layout: TensorLayout,
    tolerance: Tolerance,
    public: Float32,
    member: int,
    ends: tuple[BorderState, BorderState],
) -> None:
    """The first step of a round, natively from `ends[0]` to `ends[1]`, also by the graph; `public`: weights of P_r.

    Raises SpecError FF-VERI-104 when both lie farther apart than one tolerance, and what `execute` raises.
    """
    begin, end = ends
    segment = dispute_execution.segment_of(parts, layout, public, member, SegmentSteps(0, 1), begin, end)
    optimizer = parts.spec.optimizer
    claimed, places = segments.compared(end, optimizer), {tensor.name: place for tensor, place in layout.slices()}
    found: dict[str, dict[str, float]] = {vector: {} for vector in (PARAMS, *inner_state.VECTORS[optimizer.name])}

    def compared(output: str, made: Array) -> None:
        """One tensor of the end; nothing of it is kept."""
        vector, _, tensor = output.partition("/")
        if vector in found:
            base = public[places[tensor]] if vector == PARAMS else None
            found[vector][tensor] = segments.distance(made.reshape(-1), claimed[vector][places[tensor]], base)

    execute(parts.graph, dispute_execution.inputs(parts, segment, 0, segment.start), hand=compared)
    distances = {vector: [each[tensor.name] for tensor in layout.tensors] for vector, each in found.items()}
    excess = compare(tolerance, layout, distances)
    if excess > WHOLE:
        raise SpecError(
            "FF-VERI-104",
            "the job's graph is not the step that it trains",
            cause=f"a step of round {begin.round} lies {excess / WHOLE:g} tolerances from the native one",
            hint="take no part in this job: honest work would be found guilty",
        )
