"""Holds an accusation against the job's graph before it is signed: what a worker repeats is a stranger's module.

A module may compute something else on this machine, or now, than it did where and when the peer trained. The graph
cannot: it is data that everybody who takes part has, and what decides a dispute. So a distance that the graph does
not find as well is no lie of the peer's.
"""

from __future__ import annotations

from farflung.core.canon.program import SegmentSteps
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.ledger.transactions import VerdictFinding
from farflung.train.segments import BorderState
from farflung.verify.audit_verdict import AuditFinding, is_distance
from farflung.verify.canon import dispute_execution
from farflung.verify.canon.job_program import JobProgramParts


def needs_graph(found: AuditFinding) -> bool:
    """Whether a finding accuses of a distance, which a worker has measured; all else is exact."""
    return is_distance(found.finding, found.excess)


def is_false(
    parts: JobProgramParts,
    layout: TensorLayout,
    public: Float32,
    seat: int,
    steps: SegmentSteps,
    ends: tuple[BorderState, BorderState],
) -> bool:
    """Whether the graph finds as well that a segment does not lead to its claimed end. Raises what `execute` raises.

    `ends`: the segment's start and claimed end, which fit what was committed to; `public`: weights of P_r.
    """
    segment = dispute_execution.segment_of(parts, layout, public, seat, steps, *ends)
    return dispute_execution.executed(parts, segment, steps.steps, lambda _: None)


def confirmed(found: AuditFinding, is_false: bool) -> AuditFinding:
    """`found`, an accusation, where the graph makes it as well; else UNPAID."""
    return found if is_false else AuditFinding(VerdictFinding.UNPAID, EXCESS_FALSE)
