"""What a run measured, and what it shows that a plan could not know: a timeline as the plan's comparison wants it."""

from __future__ import annotations

from collections import Counter

from farflung.plan.causes import Seen
from farflung.plan.compare import Measured
from farflung.watch.fold import Timeline


def measured(t: Timeline, took: float, paid: int) -> Measured:
    """Bytes, memory, seconds and pay of a run that is over."""
    by = t.bytes_by()
    peaks = [usage.peak_bytes for name, usage in t.usage.items() if name.endswith("worker")]
    return Measured(
        sync_bytes=by.sync,
        audit_bytes=by.audit,
        join_bytes=by.join,
        control_bytes=by.control,
        relay_bytes=by.relay,
        memory_bytes=max(peaks, default=None),
        seconds=took,
        paid=paid,
    )


def seen(t: Timeline, took: float) -> Seen:
    """Signs of why it came out otherwise than planned."""
    closed = tuple(t.rounds.values())
    members = sum(each.peers for each in closed)
    opened = min((each.at for each in t.openings.values()), default=0.0)
    told = [each for each in closed if each.way]
    return Seen(
        rounds=len(closed),
        members=members / len(closed) if closed else 0.0,
        left=len(t.left),
        restarted=len(t.restarted),
        caught=len(t.caught),
        audits=len(t.drawn.keys() | t.audits.keys()),
        repeated=sum(max(0, len(audit.verifiers) - 1) for audit in t.audits.values()),
        ways=dict(Counter(each.way for each in told)),
        training=sum(each.train_seconds for each in closed),
        exchange=sum(each.way_taken for each in told),
        exchange_foretold=sum(each.way_predicted for each in told),
        payload_bytes=sum(each.sync_bytes for each in closed) / members if members else 0.0,
        starting=max(0.0, opened - (t.began.at if t.began is not None else 0.0)),
        lasted=took,
    )
