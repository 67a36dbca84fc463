"""Events as plain lines for a pipe or a log file: the stage first, numbers with units, at most 100 columns.

Lines say what the events say and no more. Text that came from elsewhere is cut and stripped of control characters.
"""

from __future__ import annotations

from typing import Final

from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch.fold import Timeline

COLUMNS: Final = 100
STAGE_COLUMNS: Final = 9
WHY_COLUMNS: Final = 40  # for the reason why a peer was caught, in the result
HOLDS: Final = "holds"  # the finding of an audit of honest work


def clean(text: str, size: int = COLUMNS - STAGE_COLUMNS) -> str:
    """At most `size` printable characters of `text`."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= size else shown[: size - 1] + "…"


def say(stage: str, *parts: str, between: str = "; ") -> list[str]:
    """Lines that start with `stage` and hold the non-empty parts in order; a part is cut, never broken."""
    rows: list[str] = []
    for part in [clean(part) for part in parts if part]:
        if rows and STAGE_COLUMNS + len(rows[-1]) + len(between) + len(part) <= COLUMNS:
            rows[-1] += between + part
        else:
            rows.append(part)
    return [f"{stage:<{STAGE_COLUMNS}}{row}" for row in rows]


def lines(event: AnyEvent, timeline: Timeline) -> list[str]:
    """The lines for `event`, where `timeline` already holds it; none for mere counters."""
    match event:
        case events.Planned():
            return _planned(event)
        case events.ProcessStarted():
            peer = f", peer {event.peer[:8]}" if event.peer else ""
            return say("Network", f"{event.name} is up (pid {event.pid}{peer})")
        case events.Matched():
            return _matched(event)
        case events.Funded():
            escrow, stakes = format_credits(event.escrow), format_credits(event.stakes)
            return say("Network", f"job {event.job[:8]}: {escrow} credits in escrow, {stakes} at stake")
        case events.Resumed():
            return say("Network", f"session {event.session}: the run goes on from round {event.round}")
        case events.Sandboxed():
            return _sandboxed(event)
        case events.Restarted():
            took = format_seconds(event.seconds)
            return say(timeline.stage, f"{event.name} is up again after {took}", event.why)
        case events.Settled():
            paid = format_credits(event.paid)
            return say("Settle", f"{event.peer[:8]} is paid {paid} credits for {event.units} accepted tokens")
        case events.Compared():
            return _compared(event)
        case events.Warned():
            return say(timeline.stage, f"warning[{event.code}]: {event.message}", _try(event.hint))
        case events.Failed():
            cause = f"cause: {event.cause}" if event.cause else ""
            return say(timeline.stage, f"error[{event.code}]: {event.message}", cause, _try(event.hint))
        case events.Result():
            return _result(event, timeline)
    return _verify(event, timeline) or _train(event, timeline)


def _try(hint: str) -> str:
    return f"try: {hint}" if hint else ""


def _times(large: float, small: float) -> str:
    return f"{large / small:.3g} times" if small > 0 else "no multiple of"


def _planned(event: events.Planned) -> list[str]:
    shape = f"{event.rounds} rounds of {event.sync}: {event.steps} steps each"
    sync, ring = format_bytes(event.sync_bytes), format_bytes(event.ring_bytes)
    more = f", {_times(event.ring_bytes, event.sync_bytes)} as much" if event.ring_bytes else ""
    price, escrow = format_credits(event.price), format_credits(event.escrow)
    return [
        *say("Plan", f"{event.name}: {event.model}", f"{format_count(event.parameters)} parameters"),
        *say("Plan", shape, f"{format_count(event.tokens)} tokens by {event.peers} providers"),
        *say("Plan", f"{sync} to agree; a bf16 ring all-reduce would send {ring}{more}"),
        *say(
            "Plan",
            f"{format_bytes(event.memory_bytes)} a worker",
            f"{format_bytes(event.data_bytes)} of data",
        ),
        *say(
            "Plan", f"about {format_seconds(event.seconds)}", f"at most {price} credits, {escrow} in escrow"
        ),
        *say("Plan", f"run folder {event.run}" if event.run else ""),
    ]


def _sandboxed(event: events.Sandboxed) -> list[str]:
    gaps = [line for gap in event.gaps[:16] for line in say("Network", f"  {gap}")]
    leaves = f"workers run in the tier {event.tier}" + (", which leaves open:" if gaps else "")
    return [*say("Network", leaves), *gaps]


def _matched(event: events.Matched) -> list[str]:
    price = f"{event.offers} offers, {len(event.peers)} hired at {format_credits(event.unit_price)} credits a token"
    names = [" ".join(peer[:8] for peer in event.peers[i : i + 10]) for i in range(0, len(event.peers), 10)]
    return [*say("Network", price), *[line for row in names for line in say("Network", row)]]


def _train(event: AnyEvent, timeline: Timeline) -> list[str]:
    match event:
        case events.Joined():
            replayed = f", {event.replayed} rounds replayed" if event.replayed else ""
            took = format_seconds(event.seconds)
            return say("Network", f"{event.peer[:8]} joined at round {event.round} in {took}{replayed}")
        case events.RoundClosed():
            return _round(event, timeline)
        case events.Evaluated():
            seen = format_count(event.tokens)
            return say("Train", f"held-out loss {event.loss:.3f} before round {event.round} ({seen} tokens)")
        case events.Reexecuted():
            return say("Train", f"{event.peer[:8]} computed its part of round {event.round} again")
        case events.Left():
            return say(timeline.stage, f"{event.peer[:8]} left: {event.reason}")
        case events.Baseline():
            took = format_seconds(event.seconds)
            return say("Train", f"one machine, {event.steps} steps in {took}: loss {event.loss:.3f}")
    return []


def _verify(event: AnyEvent, timeline: Timeline) -> list[str]:
    """Audits make no noise while the work holds."""
    match event:
        case events.Drawn() if event.flagged:
            return say(
                "Verify", f"{event.peer[:8]}'s part of round {event.round} is audited: {event.flagged}"
            )
        case events.AuditConcluded() if event.finding != HOLDS:
            what = f"{event.peer[:8]}, round {event.round}, segment {event.segment}: {event.finding}"
            return say("Verify", what, _excess(event), _seen_by(event))
        case events.Caught():
            return _caught(event, timeline)
    return []


def _excess(audit: events.AuditConcluded) -> str:
    if audit.excess <= 0:
        return ""
    size = f"{audit.excess:,.0f}" if audit.excess >= 100 else f"{audit.excess:.3g}"
    return f"{size} times the tolerance"


def _seen_by(audit: events.AuditConcluded) -> str:
    return f"repeated by {', '.join(verifier[:8] for verifier in audit.verifiers[:4])}"


def _caught(event: events.Caught, timeline: Timeline) -> list[str]:
    """Who, what, by how much; then what it cost, and where the money went."""
    audit = timeline.audits.get((event.round, event.peer, event.segment))
    place = f"round {event.round}, segment {event.segment}"
    excess = _excess(audit) if audit is not None else ""
    lost, bounty, burnt = (format_credits(part) for part in (event.slashed, event.bounty, event.burnt))
    cost = f"it loses {lost} credits ({bounty} to the verifiers, {burnt} burnt)"
    evidence = f"evidence {event.evidence[:8]}" if event.evidence else ""
    return [
        *say("Verify", f"{event.peer[:8]} is caught and out: {event.why} ({place})", excess),
        *say("Verify", cost, evidence),
    ]


def _round(event: events.RoundClosed, timeline: Timeline) -> list[str]:
    left, plan = timeline.seconds_left, timeline.plan
    width = len(str(event.rounds))
    rate = format_count(event.tokens / event.seconds) if event.seconds > 0 else "?"
    parts = (
        f"round {event.round + 1:>{width}}/{event.rounds}",
        f"loss {event.loss:.3f}",
        f"{rate} tokens/s",
        f"sync {format_bytes(event.sync_bytes)}",
        f"{event.peers} of {plan.peers} peers" if plan is not None and event.peers < plan.peers else "",
        f"{_clock(left)} left" if left is not None else "",
        f"waited for {event.waited_for[:8]}" if event.waited_for else "",
    )
    return say("Train", *parts, between="  ")


def _clock(seconds: float) -> str:
    """`2:05`, for a column that keeps its width."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _amount(value: float, unit: str) -> str:
    match unit:
        case "B":
            return format_bytes(value)
        case "s":
            return format_seconds(value)
        case "micro-credits":
            return f"{format_credits(round(value))} credits"
    return f"{value:.4g} {unit}".rstrip()


def _compared(event: events.Compared) -> list[str]:
    planned, measured = _amount(event.planned, event.unit), _amount(event.measured, event.unit)
    share = f"{event.measured / event.planned:.2f} of the plan" if event.planned > 0 else "not planned"
    return say("Result", f"{event.quantity}: planned {planned}, measured {measured} ({share})")


def _result(event: events.Result, timeline: Timeline) -> list[str]:
    again = f"{event.reexecuted} contributions computed again" if event.reexecuted else ""
    took = f"{event.rounds} rounds, {format_count(event.tokens)} tokens in {format_seconds(event.seconds)}"
    return [
        *_verified(event, timeline),
        *say("Result", *_losses(event)),
        *_sent(event),
        *say("Result", *_money(event)),
        *say("Result", took, again, *[f"{gone.peer[:8]} left: {gone.reason}" for gone in timeline.left[:8]]),
        *say("Result", f"model  {event.model_hash}"),
        *say("Result", f"ledger {event.ledger_root}"),
        *say("Result", f"folder {event.run}"),
    ]


def _verified(event: events.Result, timeline: Timeline) -> list[str]:
    audited = (
        f"{event.segments_audited} segments audited" if event.segments_audited else "no segment was audited"
    )
    if event.segments_audited and timeline.verifiers:
        audited += f" by {len(timeline.verifiers)} verifiers"
    found = [timeline.caught.get(peer) for peer in event.caught[:8]]
    why = [f" ({clean(each.why, WHY_COLUMNS)})" if each is not None else "" for each in found]
    caught = [f"caught: {peer[:8]}{each}" for peer, each in zip(event.caught, why, strict=False)]
    return say("Verify", audited, *(caught or ["nobody was caught"]))


def _losses(event: events.Result) -> tuple[str, ...]:
    side = "below" if event.loss < event.loss_unigram else "not below"
    parts = [
        f"held-out loss {event.loss:.3f} nats a token, {event.loss_start:.3f} at the start",
        f"{side} the unigram entropy of {event.loss_unigram:.3f}",
    ]
    if event.loss_baseline is not None:
        gap = event.loss - event.loss_baseline
        parts.append(f"one machine on the same tokens: {event.loss_baseline:.3f} (gap {gap:+.3f})")
    return tuple(parts)


def _sent(event: events.Result) -> list[str]:
    by, ring = event.bytes_by, event.bytes_ring_bf16
    kinds = ", ".join(f"{name} {format_bytes(getattr(by, name))}" for name in by.__struct_fields__)
    share = f"{_times(ring, by.sync + by.control)} sync + control" if ring else ""
    yardstick = f"a bf16 ring all-reduce: {format_bytes(ring)}" + (f", {share}" if share else "")
    return say("Result", f"sent {format_bytes(event.bytes_sent)} ({kinds})", yardstick)


def _money(event: events.Result) -> tuple[str, ...]:
    parts = (("paid", event.paid), ("slashed", event.slashed), ("refunded", event.refunded))
    text = ", ".join(f"{name} {format_credits(value)}" for name, value in parts)
    bounty, burnt = format_credits(event.bounty), format_credits(event.burnt)
    slashed = f"of what was slashed {bounty} to the verifiers, {burnt} burnt" if event.slashed else ""
    return (
        f"{text} credits",
        slashed,
        f"sum {event.sum}" + ("" if event.sum == 0 else ": money is not conserved"),
    )
