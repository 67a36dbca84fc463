"""The class of a job in words: whether its work is proven or outcome only is said wherever the job is shown."""

from __future__ import annotations

from farflung.core.events import Classed, Planned, Probed
from farflung.job.proof import PROVEN, UNPROVEN
from farflung.watch.fold import Timeline
from farflung.watch.rows import Span, Style
from farflung.watch.words import clean, many


def foreseen(plan: Planned) -> str:
    """What a plan says before the model is traced."""
    return f"work: {clean(plan.proof, 80)}" if plan.proof else ""


def told(classed: Classed) -> tuple[str, str]:
    """The class, and why it is no better."""
    if classed.is_proven:
        return PROVEN, f"graph {clean(classed.graph, 12)}"
    return UNPROVEN, clean(classed.reason, 200)


def spans(t: Timeline) -> list[Span]:
    """The class on a screen: what is not proven stands out."""
    if t.classed is None:
        return []
    words, more = told(t.classed)
    scored = [Span(each, Style.QUIET) for each in [probed(t.probed)] if each]
    if t.classed.is_proven:
        return [Span(words, Style.QUIET), *scored]
    return [Span(words, Style.CARE), *scored, Span(more, Style.QUIET)]


def fact(t: Timeline) -> str | None:
    """The class and what was scored in one line, None while it is not known."""
    if t.classed is None:
        return None
    words = told(t.classed)[0] if t.classed.is_proven else _unproven(t.classed)
    return "; ".join(filter(None, (words, probed(t.probed))))


def probed(each: Probed) -> str:
    """What scoring did, in a few words, or the empty text."""
    return (
        f"loss of {many(each.scored, 'contribution')} probed, {each.unpaid} unpaid for it"
        if each.scored
        else ""
    )


def _unproven(classed: Classed) -> str:
    words, why = told(classed)
    return f"{words} ({why})"
