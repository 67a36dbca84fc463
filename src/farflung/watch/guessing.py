"""Canaries in words: how many verifiers were shown a false segment, who found it, and who lost its stake (056)."""

from __future__ import annotations

from farflung.core import events
from farflung.watch import words
from farflung.watch.fold import Timeline


def shown(t: Timeline) -> str:
    """How many canaries there were, and how many were found; empty where there was none."""
    if not t.canaries:
        return ""
    found = sum(1 for canary in t.canaries.values() if canary.finding == words.FALSE)
    return f"{found} of {len(t.canaries)} {'canary' if len(t.canaries) == 1 else 'canaries'} found"


def claim(event: events.Perjured) -> str:
    """Which verifier was found to guess."""
    return f"verifier {words.peer(event.verifier)} said that a false segment holds"


def price(event: events.Perjured) -> str:
    """What that cost it."""
    return f"{words.credits_of(event.slashed)} of its stake taken"
