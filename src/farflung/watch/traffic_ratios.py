"""Computes the traffic of synchronization relative to a bf16 ring all-reduce, and the ratio that papers report.

*The metric*: bytes that a peer sends and receives to agree (sync and control), each step, counted at its sockets with
encryption and framing, against a ring all-reduce of every gradient in bf16 among as many peers, which is computed and
never run: 2 (N - 1) / N x 2 bytes a parameter each way. *As papers count*: one float32 gradient a step over one
payload, one way, which leaves out that N - 1 payloads come back; a payload is here what its N copies took at the
sockets, divided by N; in a round whose payloads a relay copied, what they took once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from farflung.core import events
from farflung.core.units import format_bytes, format_multiple
from farflung.plan.exchange_choice import ExchangeWay
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import clean, less_than

PROVIDER: Final = "provider"
FLOAT: Final = 4


class RatioPerPeer(NamedTuple):
    """Bytes of one provider in one step, to agree; `ring`: each way in a bf16 ring. `papers`: their ratio, or 0."""

    up: float
    down: float
    ring: float
    papers: float

    @property
    def below(self) -> float:
        """Times fewer bytes than the ring, in the direction that moves more: the metric."""
        return self.ring / max(self.up, self.down)


def planned_traffic(plan: events.PlanEvent) -> tuple[str, str]:
    """Sync traffic as expected and at most, and how much less that is than the yardstick, which is never run."""
    most, ring = max(plan.sync_bytes, plan.sync_most), less_than(plan.ring_bytes, plan.sync_bytes)
    if most == plan.sync_bytes:
        return f"sync traffic: {format_bytes(plan.sync_bytes)}", ring
    expected = f"{format_bytes(plan.sync_bytes)} expected ({clean(plan.way, 30)})"
    return f"sync traffic: {expected}, {format_bytes(most)} at most", ring


def sent_and_ring(result: events.RunResultEvent) -> tuple[str, str]:
    """All traffic against the yardstick, and how much of it is for sync (updates and control).

    Nodes of other owners count their traffic themselves: then it is this computer's traffic, against nothing.
    """
    if not result.bytes_by.sync:
        return f"traffic of this computer {format_bytes(result.bytes_sent)}", ""
    sync = result.bytes_by.sync + result.bytes_by.control
    against = less_than(result.bytes_ring_bf16, result.bytes_sent)
    whole = f"all traffic {format_bytes(result.bytes_sent)}"
    return f"{whole}, {against}" if against else whole, f"sync traffic alone {format_bytes(sync)}"


def ratio_per_peer(t: RunTimeline) -> RatioPerPeer | None:
    """What one provider moved in one step so far; None where nobody counted, or before the first round closed."""
    plan = t.plan
    steps = len(t.rounds) * plan.steps // plan.rounds if plan is not None and plan.rounds else 0
    names = {name for name, process in t.processes.items() if process.role == PROVIDER}
    up = sum(by.sync + by.control for (_, name), by in t.traffic.items() if name in names)
    down = sum(size for (_, name), size in t.received.items() if name in names)
    if plan is None or min(steps, plan.peers, plan.steps, plan.parameters, plan.ring_bytes, up, down) <= 0:
        return None
    shares = plan.peers * steps
    sent = sum(1 if ratio_per_peer.way == ExchangeWay.FAN.value else plan.peers for ratio_per_peer in t.rounds.values())
    payload = t.sent.sync / (plan.peers * sent)
    papers = FLOAT * plan.parameters * plan.steps / plan.rounds / payload if payload > 0 else 0.0
    return RatioPerPeer(up / shares, down / shares, plan.ring_bytes / (plan.peers * plan.steps), papers)


def ratio_lines(t: RunTimeline) -> tuple[str, ...]:
    """The metric in words, and the papers' ratio, labelled; empty where nobody counted."""
    found = ratio_per_peer(t)
    if found is None:
        return ()
    moved = f"a provider sends {format_bytes(found.up)} and receives {format_bytes(found.down)} a step"
    papers = f"as papers count, float32 gradients over payloads one way: {format_multiple(found.papers)}"
    ring = f"that ring {format_bytes(found.ring)} each way: {format_multiple(found.below)} times"
    return (moved, ring, *([papers] if found.papers else []))
