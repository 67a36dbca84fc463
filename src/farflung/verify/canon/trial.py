"""Whether a shipped graph is the step that a worker trains: tried before work begins, on a step natively made.

Nobody can be made to train honestly and be found guilty by a graph that means something else. Each node tries one step
with the optimizer's vectors of a step before it, in a round that it draws by its own secret: a graph that differs in
some rounds alone is found by some node, and its maker cannot know by which.
"""

from __future__ import annotations

from collections.abc import Mapping

from farflung.core.canon.elements import Array
from farflung.core.canon.program import Run
from farflung.core.errors import SpecError
from farflung.core.layout import Float32, Layout
from farflung.job.spec import Tolerance
from farflung.train import inner, segments
from farflung.train.segments import BorderState
from farflung.train.trace import PARAMS
from farflung.verify.canon import playing
from farflung.verify.canon.execute import execute
from farflung.verify.canon.programs import Parts
from farflung.verify.judge import WHOLE, compare


def check_step(
    parts: Parts,
    layout: Layout,
    tolerance: Tolerance,
    public: Float32,
    member: int,
    ends: tuple[BorderState, BorderState],
) -> None:
    """The first step of a round, natively from `ends[0]` to `ends[1]`, also by the graph; `public`: weights of P_r.

    Raises SpecError FF-VERI-104 when both lie farther apart than one tolerance, and what `execute` raises.
    """
    begin, end = ends
    segment = playing.segment_of(parts, layout, public, member, Run(0, 1), begin, end)
    optimizer = parts.spec.optimizer
    made = execute(parts.graph, playing.inputs(parts, segment, 0, segment.start))
    mine = {
        vector: layout.flatten(_section(made, vector)) for vector in (PARAMS, *inner.VECTORS[optimizer.name])
    }
    claimed = segments.compared(end, optimizer)
    excess = compare(tolerance, layout, segments.distances(layout, public, mine, claimed))
    if excess > WHOLE:
        raise SpecError(
            "FF-VERI-104",
            "the job's graph is not the step that it trains",
            cause=f"a step of round {begin.round} lies {excess / WHOLE:g} tolerances from the native one",
            hint="take no part in this job: honest work would be found guilty",
        )


def _section(made: Mapping[str, Array], vector: str) -> dict[str, Array]:
    return {
        name.removeprefix(f"{vector}/"): array
        for name, array in made.items()
        if name.startswith(f"{vector}/")
    }
