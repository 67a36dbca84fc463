"""Describes in words the most that relays may cost and what they were paid."""

from __future__ import annotations

from farflung.core import events
from farflung.core.units import format_bytes
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline


def planned_fees(plan: events.PlanEvent) -> str:
    """What relays may cost beside the job; empty where they carry for nothing."""
    if not plan.relay_price:
        return ""
    each = f"{phrases.short_credits(plan.relay_price)} a GiB"
    return f"relays at {each}: at most {phrases.short_credits(plan.relay_funds)} more"


def payment(event: events.RelayPaymentEvent, t: RunTimeline) -> str:
    """What a relay got, and for what."""
    work = f"{format_bytes(event.bytes)} that both ends signed for"
    rest = f"; {phrases.shown_credits(event.held)} still in its channel" if event.held else ""
    who = phrases.named(event.peer, t) if event.peer in t.names else f"relay {phrases.peer(event.peer)}"
    return f"{who} is paid {phrases.shown_credits(event.paid)} for {work}{rest}"


def summary(t: RunTimeline) -> str:
    """What all relays of a run got; empty where they carry for nothing."""
    if not t.relays:
        return ""
    money, carried = sum(r.paid for r in t.relays.values()), sum(r.bytes for r in t.relays.values())
    whom = "the relay" if len(t.relays) == 1 else phrases.many(len(t.relays), "relay")
    return f"{phrases.short_credits(money)} to {whom} for {format_bytes(carried)}"
