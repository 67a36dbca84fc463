"""Describes canaries in words: how many verifiers got a false segment, who found it, who lost its stake (056)."""

from __future__ import annotations

from farflung.core import events
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline


def summary(t: RunTimeline) -> str:
    """How many canaries there were, and how many were found; empty where there was none."""
    if not t.canaries:
        return ""
    found = sum(1 for canary in t.canaries.values() if canary.finding == phrases.FALSE)
    return f"{found} of {len(t.canaries)} {'canary' if len(t.canaries) == 1 else 'canaries'} found"


def claim(event: events.PerjuryEvent, t: RunTimeline) -> str:
    """Which verifier was found to guess."""
    return f"{phrases.named(event.verifier, t)} said that a false segment holds"


def price(event: events.PerjuryEvent) -> str:
    """What that cost it."""
    return f"{phrases.shown_credits(event.slashed)} of its stake taken"
