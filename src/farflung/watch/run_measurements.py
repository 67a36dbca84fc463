"""Extracts a run's measurements from its timeline, as the comparison with the plan needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from farflung.plan.plan_comparison import MeasuredRun
from farflung.plan.run_signs import RunObservations
from farflung.watch.fold import RunTimeline

WORKER = " worker"


def measured_run(t: RunTimeline, took: float | None, paid: int) -> MeasuredRun:
    """Bytes, memory, seconds and pay of a run that is over, in all of its sessions.

    `took`: seconds from the command to the end; of a run that was resumed nothing is known of them, as nobody noted how
    long it lay.
    """
    by = t.bytes_by()
    return MeasuredRun(
        sync_bytes=by.sync,
        audit_bytes=by.audit,
        join_bytes=by.join,
        control_bytes=by.control,
        relay_bytes=by.relay,
        memory_bytes=max(_peaks(t).values(), default=None),
        seconds=None if t.sessions > 1 else took,
        paid=paid,
        fees=sum(relay.paid for relay in t.relays.values()) if t.relays else None,
    )


def observations(t: RunTimeline, took: float) -> RunObservations:
    """Signs of why it came out otherwise than planned."""
    closed = tuple(t.rounds.values())
    exchanged = [each for each in closed if each.way]
    sizes = [each.payload_bytes for each in closed if each.payload_bytes]
    opened = min((each.at for each in t.openings.values()), default=0.0)
    starting = max(0.0, opened - (t.began.at if t.began is not None else 0.0))
    training, waited = sum(each.train_seconds for each in closed), _waited(t)
    rounds = sum(each.seconds for each in closed)
    return RunObservations(
        rounds=len(closed),
        members=_mean([each.peers for each in closed]),
        joined=len(t.joined),
        restarted=len(t.restarted),
        sessions=t.sessions,
        caught=len(t.caught),
        drawn=tuple(sorted((round, segment) for round, _, segment in t.drawn.keys() | t.audits.keys())),
        drawn_of=_drawn_of(t),
        repeated=sum(max(0, len(audit.verifiers) - 1) for audit in t.audits.values()),
        unpaid=t.probed.unpaid,
        ways=dict(Counter(each.way for each in exchanged)),
        payload_bytes=_mean(sizes),
        peaks=_peaks(t),
        unit_price=t.matched.unit_price if t.matched is not None else 0,
        carried=sum(relay.bytes for relay in t.relays.values()),
        starting=starting,
        training=training,
        agreeing=max(0.0, rounds - waited - training),
        exchange=sum(each.way_taken for each in exchanged),
        exchange_predicted=sum(each.way_predicted for each in exchanged),
        checking=max(0.0, took - starting - rounds) + waited,
        lasted=0.0 if t.sessions > 1 else took,
    )


def _drawn_of(t: RunTimeline) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Audits of each process that has a name here; of those without an audit none."""
    each: dict[str, list[tuple[int, int]]] = {}
    for round, peer, segment in t.drawn.keys() | t.audits.keys():
        each.setdefault(peer, []).append((round, segment))
    named = ((name, started.peer) for name, started in t.processes.items() if started.peer)
    return {name: tuple(sorted(each.get(peer, ()))) for name, peer in named}


def _waited(t: RunTimeline) -> float:
    """Seconds of closed rounds before they were opened, for the audits of those before them."""
    return sum(t.openings[round].waited for round in t.rounds if round in t.openings)


def _peaks(t: RunTimeline) -> Mapping[str, int]:
    """Resident bytes of the largest worker of each role, as `provider-0 worker` names it."""
    found: dict[str, int] = {}
    for name, usage in t.usage.items():
        if name.endswith(WORKER):
            role = name.removesuffix(WORKER).partition("-")[0]
            found[role] = max(found.get(role, 0), usage.peak_bytes)
    return found


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
