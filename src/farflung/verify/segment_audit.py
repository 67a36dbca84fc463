"""Audits one segment for a verifier: compares what it ran itself with what the peer opens.

The order is the point of it: the verifier reruns from the committed start, commits to what came out
(verify.blind_commitment), and only then is shown what the peer claims. Equal roots end it; else the claimed state is
fetched and measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farflung.core.commitments import BorderRoots
from farflung.core.errors import RunError
from farflung.core.ids import Hash
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import Tolerance
from farflung.ledger.transactions import VerdictFinding
from farflung.train import segments
from farflung.train.blobs import Blob
from farflung.train.contribution_trace import TraceLeaf
from farflung.train.segments import BorderState
from farflung.train.worker_messages import ReencodeResult, RerunResult
from farflung.verify.audit_verdict import EXCESS_CAP, AuditFinding, compare, finding_of
from farflung.verify.segment_opening import ClaimedEnds, OpenedSegment, are_losses, read_ends


class SegmentAudit(NamedTuple):
    """A segment that was opened and trained again. `base`: the weights at its start, shape (layout.size,)."""

    place: OpenedSegment
    layout: TensorLayout
    tolerance: Tolerance
    start: BorderRoots
    base: Float32
    mine: RerunResult


def begin(
    place: OpenedSegment,
    layout: TensorLayout,
    tolerance: Tolerance,
    start: BorderRoots,
    state: Blob,
    params: Float32,
    mine: RerunResult,
) -> SegmentAudit:
    """An audit whose segment was trained again from `state`, which `is_start`. `params`: the public weights P_r."""
    opened = segments.unpack(state, place.spec.optimizer, layout, place.round)
    base = segments.begin(opened, params)
    return SegmentAudit(place, layout, tolerance, start, base, mine)


class SegmentClaim(NamedTuple):
    """What the peer claims, as bytes that nobody has checked: states in train.segments form, leaves with paths."""

    leaves: Sequence[TraceLeaf]
    end: Blob
    last: Blob


def is_start(place: OpenedSegment, layout: TensorLayout, border: BorderRoots, data: Blob) -> bool:
    """Whether an opened state is the whole state at `border`, residual included: what a segment is trained from."""
    if not is_opened_as(place, layout, border, data):
        return False
    state = segments.unpack(data, place.spec.optimizer, layout, border.round)
    return _residual(layout, state) == border.residual


def is_opened_as(place: OpenedSegment, layout: TensorLayout, border: BorderRoots, data: Blob) -> bool:
    """Whether a state in train.segments form is the one that is at `border`; at border 0 the weights are P_r's."""
    spec = place.spec
    try:
        state = segments.unpack(data, spec.optimizer, layout, border.round)
    except RunError:
        return False
    if (state.params is None) is (border.index > 0) or state.step != border.steps:
        return False
    return (
        state.params is None or segments.params_root(layout, state.params) == border.params
    ) and segments.optimizer_root(layout, spec.optimizer, state.vectors) == border.optimizer


def judge(audit: SegmentAudit, claim: SegmentClaim, reencoded: ReencodeResult | None) -> AuditFinding:
    """The finding. `reencoded`: what the worker's encoder makes of `claim.last`; None when that is nothing to encode.

    Never raises for anything that the peer shows: bytes that cannot be what was committed are FALSE.
    """
    ends = read_ends(audit.place, audit.start, claim.leaves)
    if isinstance(ends, str):
        return AuditFinding(VerdictFinding.FALSE, EXCESS_CAP)
    return finding_of(
        excess(audit, ends, claim.end),
        encoding_ok=reencoded is not None and is_encoded(audit, ends, claim.last, reencoded),
        statistics_ok=are_losses(audit.place, ends.statistics, audit.mine.losses),
    )


def is_same(mine: BorderRoots, claimed: BorderRoots) -> bool:
    """Whether two borders stand for the same weights and optimizer. The residual is the encoding's matter."""
    return (mine.params, mine.optimizer) == (claimed.params, claimed.optimizer)


def excess(audit: SegmentAudit, ends: ClaimedEnds, end: Blob) -> int:
    """How far the claimed end lies from the verifier's own, in thousandths of the tolerance."""
    if is_same(audit.mine.border, ends.end):
        return 0
    layout = audit.layout
    if not is_opened_as(audit.place, layout, ends.end, end):
        return EXCESS_CAP
    mine, claimed = _compared(audit, audit.mine.end), _compared(audit, end)
    if mine.keys() != claimed.keys():
        return EXCESS_CAP
    return compare(audit.tolerance, layout, segments.distances(layout, audit.base, mine, claimed))


def _compared(audit: SegmentAudit, data: Blob) -> dict[str, Float32]:
    optimizer = audit.place.spec.optimizer
    return segments.compared(segments.unpack(data, optimizer, audit.layout, audit.place.round), optimizer)


def is_encoded(audit: SegmentAudit, ends: ClaimedEnds, last: Blob, reencoded: ReencodeResult) -> bool:
    """Whether the claimed last weights, and the residual from before, encode to exactly what was committed."""
    try:
        state = segments.unpack(last, audit.place.spec.optimizer, audit.layout, audit.place.round)
    except RunError:
        return False
    given = ReencodeResult(audit.place.contribution.payload, ends.last.params, ends.last.residual)
    return reencoded == given and _residual(audit.layout, state) == audit.start.residual


def _residual(layout: TensorLayout, state: BorderState) -> Hash:
    return segments.unsent_root(layout, state.residual, state.offset)
