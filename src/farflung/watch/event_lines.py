"""Renders events as plain lines for a pipe or a log: the stage first, numbers with units, at most 100 columns.

Lines say what the events say and no more, in the words of the screen (watch.phrases).
"""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch import (
    canary_text,
    committee_text,
    data_text,
    dispute_text,
    job_class_text,
    phrases,
    plan_vs_run_text,
    relay_fee_text,
    traffic_ratios,
)
from farflung.watch.fold import PHASES, RunTimeline

COLUMNS: Final = 100
STAGE_COLUMNS: Final = 9
INDENT: Final = "  "
WHY_COLUMNS: Final = 40  # for the reason why a peer was caught, in the result


def clean(text: str, size: int = COLUMNS - STAGE_COLUMNS) -> str:
    """At most `size` columns of what prints of `text`."""
    return phrases.clean(text, size)


def say(stage: str, *parts: str, between: str = "; ") -> list[str]:
    """Lines that start with `stage` and hold the non-empty parts in order; a part is cut, never broken."""
    rows: list[str] = []
    for part in [clean(part) for part in parts if part]:
        if rows and STAGE_COLUMNS + phrases.columns_of(rows[-1] + between + part) <= COLUMNS:
            rows[-1] += between + part
        else:
            rows.append(part)
    return [f"{stage:<{STAGE_COLUMNS}}{row}" for row in rows]


def lines(event: AnyEvent, timeline: RunTimeline, run: str = "") -> list[str]:
    """The lines for `event`, where `timeline` already holds it; none for mere counters. `run`: as for a ScreenView."""
    match event:
        case events.RunStartEvent():
            return _began(event)
        case events.PlanEvent():
            return _planned(event)
        case events.JobClassEvent():
            return say("Verify", *job_class_text.class_and_reason(event))
        case events.ProcessStartEvent():
            peer = f", peer {phrases.peer(event.peer)}" if event.peer else ""
            return say("Network", f"{event.name} is up (pid {event.pid}{peer})")
        case events.ProviderMatchEvent():
            return _matched(event, timeline)
        case events.EscrowEvent():
            escrow, stakes = phrases.shown_credits(event.escrow), phrases.short_credits(event.stakes)
            return say("Network", f"job {phrases.peer(event.job)}: {escrow} in escrow, {stakes} at stake")
        case events.RunResumeEvent():
            return say("Network", f"session {event.session}: the run goes on from round {event.round}")
        case events.SandboxEvent():
            return _sandboxed(event)
        case events.SimulatedHomeEvent():
            return say("Network", f"through {phrases.homes(event)}", "the plan's seconds are for loopback")
        case events.ProcessRestartEvent():
            return say(timeline.stage, phrases.restarted(event))
        case events.LeasePaymentEvent():
            return say("Settle", phrases.settled(event, timeline))
        case events.LineageEvent():
            return say("Plan", *phrases.stands_on(event))
        case events.PathCountsEvent():
            return say("Network", phrases.ways(event))
        case events.ValidatorKillEvent():
            return say(timeline.stage, committee_text.validator_kill(event))
        case events.ChainComparisonEvent():
            return say("Settle", committee_text.chain_comparison(event))
        case events.RelayPaymentEvent():
            return say("Settle", relay_fee_text.payment(event, timeline))
        case events.RepeatedRunEvent():
            return say("Result", phrases.repeated(event))
        case events.WarningEvent(code=phrases.ESCAPED):
            return [row for part in event.message.split("; ") for row in say("Verify", part)]
        case events.WarningEvent():
            return say(timeline.stage, phrases.warned(event, timeline), _try(event.hint))
        case events.RunFailureEvent():
            cause = f"cause: {phrases.with_names(event.cause, timeline)}" if event.cause else ""
            return say(timeline.stage, phrases.failed(event, timeline), cause, _try(event.hint))
        case events.RunResultEvent():
            return _result(event, timeline, run)
    return _verify(event, timeline) or _train(event, timeline)


def _data(event: events.PlanEvent) -> list[str]:
    """Broken between words and not cut: why files are left out is at the end."""
    texts = [clean(text, 4 * COLUMNS) for text in data_text.lines(event)]
    pieces = [piece for text in texts for piece in wrap(text, COLUMNS - STAGE_COLUMNS, subsequent_indent=INDENT)]
    return [line for piece in pieces for line in say("Plan", piece)]


def _try(hint: str) -> str:
    return f"try: {hint}" if hint else ""


def _began(event: events.RunStartEvent) -> list[str]:
    made = f"Python {event.python}, PyTorch {event.torch}"
    return [
        *say("farflung", f"{event.version}  {phrases.where(event)[0]}"),
        *say("Plan", f"run {event.run}", f"job {event.name}", f"seed {event.seed}", made),
    ]


def _planned(event: events.PlanEvent) -> list[str]:
    room = f"RAM {format_bytes(event.memory_bytes)} per worker, {data_text.size(event)}"
    alone = f"then the baseline {format_seconds(event.baseline_seconds)}" if event.baseline_seconds else ""
    return [
        *say("Plan", phrases.shape(event), phrases.schedule(event)),
        *say("Plan", *phrases.agreement(event)),
        *say("Plan", *traffic_ratios.planned_traffic(event)),
        *say("Plan", *plan_vs_run_text.assumed_lines(event)),
        *say("Plan", phrases.committee(event)),
        *say("Plan", room, f"time {phrases.planned_span(event.seconds)}", alone),
        *_data(event),
        *say("Plan", phrases.price(event), relay_fee_text.planned_fees(event)),
        *say("Plan", job_class_text.planned_class(event)),
    ]


def _sandboxed(event: events.SandboxEvent) -> list[str]:
    gaps = [line for gap in event.gaps[:16] for line in say("Network", f"{INDENT}{gap}")]
    leaves = f"workers run in the tier {event.tier}" + (", which leaves open:" if gaps else "")
    return [*say("Network", leaves), *gaps]


def _matched(event: events.ProviderMatchEvent, timeline: RunTimeline) -> list[str]:
    price = f"{len(event.peers)} hired at {format_credits(event.unit_price)} credits a token"
    return [
        *say("Network", phrases.many(event.offers, "offer"), price, between=", "),
        *say("Network", *[phrases.named(peer, timeline) for peer in event.peers], between=", "),
    ]


def _train(event: AnyEvent, timeline: RunTimeline) -> list[str]:
    match event:
        case events.PeerJoinEvent():
            replayed = f", {phrases.many(event.replayed, 'round')} replayed" if event.replayed else ""
            took = format_seconds(event.seconds)
            return say(
                "Network", f"{phrases.named(event.peer, timeline)} joined at round {event.round} in {took}{replayed}"
            )
        case events.RoundStartEvent() if event.round - 1 in timeline.rounds:
            is_long = event.waited >= phrases.TELLING_SECONDS
            return say("Train", _waited(event)) if is_long else []
        case events.ArrivalEvent():
            return _late(event, timeline)
        case events.SkippedMemberEvent():
            return say("Train", _passed_over(event, timeline))
        case events.RoundEndEvent():
            return _round(event, timeline)
        case events.EvaluationEvent():
            seen = format_count(event.tokens)
            return say("Train", f"validation loss {event.loss:.3f} before round {event.round} ({seen} tokens)")
        case events.ReexecutionEvent():
            return say("Train", f"{phrases.named(event.peer, timeline)} computed its part of round {event.round} again")
        case events.ProcessExitEvent():
            return say(timeline.stage, phrases.left(event, timeline))
        case events.BaselineEvent():
            return say("Train", phrases.baseline_end(event))
        case events.BaselineProgressEvent():
            return say("Train", phrases.baseline_step(event))
    return []


def _waited(event: events.RoundStartEvent) -> str:
    audits = f"the audits of round {event.round - 1}"
    return f"round {event.round} opened after {format_seconds(event.waited)} of waiting for {audits}"


def _passed_over(event: events.SkippedMemberEvent, timeline: RunTimeline) -> str:
    slow = f"{phrases.named(event.peer, timeline)} was too slow after {format_seconds(event.seconds)}"
    return f"{slow}: round {event.round} goes on without it, and it takes part in the next one"


def _late(event: events.ArrivalEvent, timeline: RunTimeline) -> list[str]:
    """A line for the one for whom all others waited, where that was long; `timeline` holds its arrival."""
    opened = timeline.opened
    seen = timeline.arrivals.get(event.round, {})
    if opened is None or opened.round != event.round or len(seen) < len(opened.peers):
        return []
    others = [a.seconds for (who, phase), a in seen.items() if phase == event.phase and who != event.peer]
    if len(others) + 1 < len(opened.peers) or not others:
        return []
    behind = event.seconds - max(others)
    if behind < phrases.TELLING_SECONDS or event.phase not in PHASES:
        return []
    did = phrases.DID[event.phase]
    return say("Train", f"{phrases.named(event.peer, timeline)} {did} {format_seconds(behind)} after the others")


def _verify(event: AnyEvent, timeline: RunTimeline) -> list[str]:
    """Audits make no noise while the work holds."""
    match event:
        case events.AuditDrawEvent() if event.flagged:
            whose = f"{phrases.named(event.peer, timeline)}'s part of round {event.round}"
            return say("Verify", f"{whose} is audited: {event.flagged}")
        case events.AuditEndEvent() if event.finding != phrases.HOLDS:
            what = (
                f"{phrases.named(event.peer, timeline)}, round {event.round}, segment {event.segment}: {event.finding}"
            )
            return say("Verify", what, phrases.excess(event), phrases.repeated_by(event, timeline))
        case events.CanaryEndEvent() if event.finding == phrases.FALSE:
            return say("Verify", f"canary: {phrases.named(event.verifier, timeline)} found it")
        case events.PerjuryEvent():
            return [*say("Verify", canary_text.claim(event, timeline)), *say("Verify", canary_text.price(event))]
        case events.LossScoreEvent() if event.unpaid:
            harm = f"round {event.round} is not paid: alone it makes the validation loss worse"
            said = len(event.verifiers)
            told = [
                (f"{phrases.named(peer, timeline)}'s {harm}", phrases.many(said, "verifier"))
                for peer in event.unpaid[:8]
            ]
            return [line for each in told for line in say("Verify", *each)]
        case events.SlashEvent():
            evidence = f"evidence {event.evidence[:8]}" if event.evidence else ""
            split = "" if event.pending else f" ({phrases.bounties(event.bounty, event.burnt)})"
            lost = f"{phrases.caught_price(event)}{split}"
            return [*say("Verify", phrases.caught_claim(event, timeline)), *say("Verify", lost, evidence)]
        case events.DisputeStageEvent() | events.DisputeEndEvent():
            return say("Verify", *dispute_text.event_text(event, timeline))
    return []


def _round(event: events.RoundEndEvent, timeline: RunTimeline) -> list[str]:
    left, plan = timeline.seconds_left, timeline.plan
    width = len(str(event.rounds))
    sync = f"sync {format_bytes(event.sync_bytes)}" if event.sync_bytes else ""  # nodes of other owners count it
    parts = (
        f"{len(timeline.rounds):>{width}}/{event.rounds} rounds",
        f"loss {event.loss:.3f}",
        phrases.speed(event),
        sync,
        f"{event.peers} of {plan.peers} peers" if plan is not None and event.peers < plan.peers else "",
        phrases.span_left(left) if left is not None else "",
    )
    before = timeline.rounds.get(event.round - 1)
    is_new = event.way and (before is None or before.way != event.way)
    told = say("Train", phrases.exchange(event)) if is_new else []
    return [*say("Train", *parts, between="  "), *told]


def silence(t: RunTimeline, now: float) -> list[str]:
    """The line for a run of which nothing was heard for long: what is waited for, and for how long; none at its end."""
    if t.result is not None or t.failed is not None:
        return []
    waiting, audited = t.waiting, phrases.open_audits(t)
    if waiting is not None and t.opened is not None:
        said = f"{phrases.wait(waiting, now, t)}; round {t.opened.round} for {phrases.clock(now - t.opened.at)}"
    elif audited:
        said = f"{phrases.audits_wait(audited)} {phrases.clock(now - t.at)}"
    else:
        said = f"nothing new for {phrases.clock(now - t.at)}"
    return say(t.stage, said)


def _result(event: events.RunResultEvent, timeline: RunTimeline, run: str) -> list[str]:
    again = f"{phrases.many(event.reexecuted, 'contribution')} computed again" if event.reexecuted else ""
    name = run or clean(event.run, 60)
    estimates = plan_vs_run_text.summary(timeline, f"farflung report {name}")
    took = (
        f"{phrases.many(event.rounds, 'round')}, {format_count(event.tokens)} tokens in {format_seconds(event.seconds)}"
    )
    return [
        *_verified(event, timeline),
        *say("Result", *_losses(event, timeline)),
        *_sent(event, timeline),
        *say("Result", *_money(event, timeline)),
        *say("Result", estimates, *plan_vs_run_text.basis(timeline)),
        *say("Result", took, again, *[phrases.left(gone, timeline) for gone in timeline.left[:8]]),
        *say("Result", f"model  {event.model_hash}"),
        *say("Result", f"ledger {event.ledger_root}"),
        *say("Next", f"farflung sample {name}", phrases.ALSO),
    ]


def _verified(event: events.RunResultEvent, timeline: RunTimeline) -> list[str]:
    count = event.segments_audited
    audited = f"{phrases.many(count, 'segment')} audited" if count else "no segment was audited"
    if count and timeline.verifiers:
        audited += f" by {phrases.many(len(timeline.verifiers), 'verifier')}"
    found = [timeline.caught.get(peer) for peer in event.caught[:8]]
    why = [f" ({clean(each.why, WHY_COLUMNS)})" if each is not None else "" for each in found]
    caught = [f"caught: {phrases.named(peer, timeline)}{each}" for peer, each in zip(event.caught, why, strict=False)]
    return say("Verify", audited, *(caught or ["nobody was caught"]))


def _losses(event: events.RunResultEvent, timeline: RunTimeline) -> tuple[str, ...]:
    loss = f"validation loss {phrases.loss_text(event.loss, timeline)}, {event.loss_start:.3f} at the start"
    return (loss, phrases.unigram(event), phrases.gap(event))


def _sent(event: events.RunResultEvent, timeline: RunTimeline) -> list[str]:
    all_sent, sync = traffic_ratios.sent_and_ring(event)
    kinds = f"by kind: {phrases.kinds(event.bytes_by)}" if event.bytes_by.sync else ""
    ratios = traffic_ratios.ratio_lines(timeline)
    return [*say("Result", all_sent, sync), *say("Result", kinds), *say("Result", *ratios)]


def _money(event: events.RunResultEvent, t: RunTimeline) -> tuple[str, ...]:
    parts = [("paid", event.paid), ("slashed", event.slashed), ("returned", event.refunded)]
    parts += [("pay burnt", event.pay_burnt)] if event.pay_burnt else []
    text = ", ".join(f"{name} {phrases.short_credits(value)}" for name, value in parts)
    slashed = f"of what was slashed {phrases.bounties(event.bounty, event.burnt)}" if event.slashed else ""
    return (f"{text} credits", slashed, phrases.conserved(event.sum, t.began))
