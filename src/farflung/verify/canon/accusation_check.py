"""Holds an accusation against the job's graph before it is signed: what a worker repeats is a stranger's module.

A module may compute something else on this machine, or now, than it did where and when the peer trained. The graph
cannot: it is data that everybody who takes part has, and what decides a dispute. So a distance that the graph does
not find as well is no lie of the peer's.
"""

from __future__ import annotations

from farflung.core.canon.program import SegmentSteps
from farflung.core.tensor_layout import Float32
from farflung.ledger.rules.slashes import EXCESS_FALSE
from farflung.ledger.transactions import VerdictFinding
from farflung.train import segments
from farflung.train.blobs import Blob
from farflung.verify.audit_verdict import AuditFinding, is_distance
from farflung.verify.canon import dispute_execution
from farflung.verify.canon.job_program import JobProgramParts
from farflung.verify.segment_audit import SegmentAudit


def needs_graph(found: AuditFinding) -> bool:
    """Whether a finding accuses of a distance, which a worker has measured; all else is exact."""
    return is_distance(found.finding, found.excess)


def confirmed(
    parts: JobProgramParts,
    audit: SegmentAudit,
    seat: int,
    public: Float32,
    states: tuple[Blob, Blob],
    found: AuditFinding,
) -> AuditFinding:
    """`found`, an accusation, where the graph makes it as well; else UNPAID. Raises what `execute` raises.

    `states`: the segment's start and claimed end, which fit what was committed to; `public`: weights of P_r.
    """
    place, layout = audit.place, audit.layout
    start, claimed = (segments.unpack(each, place.spec.optimizer, layout, place.round) for each in states)
    first, after = place.borders[place.segment : place.segment + 2]
    steps = SegmentSteps(first, after - first)
    segment = dispute_execution.segment_of(parts, layout, public, seat, steps, start, claimed)
    if dispute_execution.executed(parts, segment, steps.steps, lambda _: None):
        return found
    return AuditFinding(VerdictFinding.UNPAID, EXCESS_FALSE)
