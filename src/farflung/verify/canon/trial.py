"""Whether a shipped graph is the step that a worker trains: tried before work begins, on a step natively made.

Nobody can be made to train honestly and be found guilty by a graph that means something else. It is tried at two steps,
the first and the last of the run, from the job's own start: a graph that differs elsewhere alone is not found here.
"""

from __future__ import annotations

from collections.abc import Mapping

from farflung.core.canon.elements import Array
from farflung.core.canon.program import Run
from farflung.core.errors import SpecError
from farflung.core.layout import Float32
from farflung.job.spec import Tolerance
from farflung.train import inner, local, segments
from farflung.train.model import Model
from farflung.train.segments import BorderState
from farflung.train.trace import PARAMS
from farflung.verify.canon import playing
from farflung.verify.canon.execute import execute
from farflung.verify.canon.programs import Parts
from farflung.verify.judge import WHOLE, compare


def check_graph(model: Model, parts: Parts, tolerance: Tolerance, start: Float32, member: int) -> None:
    """Two native steps from `start`, shape (size,), each also by the graph; `model` holds other weights afterwards.

    Raises SpecError FF-VERI-104 when they lie farther apart than one tolerance, RunError as native training does.
    """
    spec = parts.spec
    at = BorderState(0, 0, start)
    for round, step in ((0, 0), (spec.rounds - 1, spec.sync.steps - 1)):
        begin = BorderState(round, at.step, at.params, at.vectors)
        batches = local.batches(parts.tokens, spec, round, member)
        end = local.leg(model, spec, begin, batches, member, range(step, step + 1), lambda: None).end
        excess = _excess(model, parts, tolerance, (begin, end), Run(step, 1), member)
        if excess > WHOLE:
            raise SpecError(
                "FF-VERI-104",
                "the job's graph is not the step that it trains",
                cause=f"step {step} of round {round} lies {excess / WHOLE:g} tolerances from the native one",
                hint="take no part in this job: honest work would be found guilty",
            )
        at = end


def _excess(
    model: Model,
    parts: Parts,
    tolerance: Tolerance,
    ends: tuple[BorderState, BorderState],
    run: Run,
    member: int,
) -> int:
    """How far a native step lies from the canonical one, in thousandths of the tolerance."""
    begin, end = ends
    assert begin.params is not None
    segment = playing.segment_of(parts, model.layout, begin.params, member, run, begin, end)
    optimizer = parts.spec.optimizer
    made = execute(parts.graph, playing.inputs(parts, segment, 0, segment.start))
    mine = {
        vector: model.layout.flatten(_section(made, vector))
        for vector in (PARAMS, *inner.VECTORS[optimizer.name])
    }
    claimed = segments.compared(end, optimizer)
    return compare(tolerance, model.layout, segments.distances(model.layout, begin.params, mine, claimed))


def _section(made: Mapping[str, Array], vector: str) -> dict[str, Array]:
    return {
        name.removeprefix(f"{vector}/"): array
        for name, array in made.items()
        if name.startswith(f"{vector}/")
    }
