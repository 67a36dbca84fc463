"""Describes the work class of a job in words: every view of the job says whether it is proven or outcome only."""

from __future__ import annotations

from farflung.core.events import JobClassEvent, LossProbeCounts, PlanEvent
from farflung.job.proof_class import PROVEN, UNPROVEN
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import clean, many
from farflung.watch.row_layout import SpanStyle, TextSpan


def planned_class(plan: PlanEvent) -> str:
    """What a plan says before the model is traced."""
    return f"work: {clean(plan.proof, 160)}" if plan.proof else ""


def class_and_reason(classed: JobClassEvent) -> tuple[str, str]:
    """The class, and why it is no better."""
    if classed.is_proven:
        return PROVEN, f"graph {clean(classed.graph, 12)}"
    return UNPROVEN, clean(classed.reason, 200)


def spans(t: RunTimeline) -> list[TextSpan]:
    """The class on a screen: what is not proven stands out."""
    if t.classed is None:
        return []
    words, more = class_and_reason(t.classed)
    scored = [TextSpan(each, SpanStyle.QUIET) for each in [loss_probes(t.probed)] if each]
    if t.classed.is_proven:
        return [TextSpan(words, SpanStyle.QUIET), *scored]
    return [TextSpan(words, SpanStyle.CARE), *scored, TextSpan(more, SpanStyle.QUIET)]


def fact(t: RunTimeline) -> str | None:
    """The class and what was scored in one line, None while it is not known."""
    if t.classed is None:
        return None
    words = class_and_reason(t.classed)[0] if t.classed.is_proven else _unproven(t.classed)
    return "; ".join(filter(None, (words, loss_probes(t.probed))))


def loss_probes(each: LossProbeCounts) -> str:
    """What scoring did, in a few words, or the empty text."""
    return f"loss of {many(each.scored, 'contribution')} probed, {each.unpaid} unpaid for it" if each.scored else ""


def _unproven(classed: JobClassEvent) -> str:
    words, why = class_and_reason(classed)
    return f"{words} ({why})"
