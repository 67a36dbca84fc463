"""Describes a ledger of several validators in words."""

from __future__ import annotations

from farflung.core import events
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline


def validator_kill(event: events.ValidatorKillEvent) -> str:
    """Whom the run itself ended, and why."""
    name = phrases.clean(event.name, 40)
    return f"validator {name} is killed after round {event.round}, on purpose: the others go on"


def chain_comparison(event: events.ChainComparisonEvent) -> str:
    """Whether a fork was found: a run that found one has failed before."""
    least = "" if event.least == event.blocks else f"; one has {event.least} of them so far"
    return f"{event.validators} validators hold one chain of {event.blocks} blocks{least}"


def summary(t: RunTimeline) -> str:
    """What became of the committee so far; empty for a committee of one."""
    if t.chains is not None:
        return chain_comparison(t.chains)
    return validator_kill(t.killed) if t.killed is not None else ""
