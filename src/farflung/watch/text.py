"""Events as plain lines for a pipe or a log file: the stage first, numbers with units, at most 100 columns.

Lines say what the events say and no more, in the words of the screen (watch.words).
"""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch import classes, committee, fares, foretold, game, guessing, words, yardstick
from farflung.watch.fold import PHASES, Timeline

COLUMNS: Final = 100
STAGE_COLUMNS: Final = 9
INDENT: Final = "  "
WHY_COLUMNS: Final = 40  # for the reason why a peer was caught, in the result


def clean(text: str, size: int = COLUMNS - STAGE_COLUMNS) -> str:
    """At most `size` columns of what prints of `text`."""
    return words.clean(text, size)


def say(stage: str, *parts: str, between: str = "; ") -> list[str]:
    """Lines that start with `stage` and hold the non-empty parts in order; a part is cut, never broken."""
    rows: list[str] = []
    for part in [clean(part) for part in parts if part]:
        if rows and STAGE_COLUMNS + words.columns_of(rows[-1] + between + part) <= COLUMNS:
            rows[-1] += between + part
        else:
            rows.append(part)
    return [f"{stage:<{STAGE_COLUMNS}}{row}" for row in rows]


def lines(event: AnyEvent, timeline: Timeline, run: str = "") -> list[str]:
    """The lines for `event`, where `timeline` already holds it; none for mere counters. `run`: as for a View."""
    match event:
        case events.Began():
            return _began(event)
        case events.Planned():
            return _planned(event)
        case events.Classed():
            return say("Verify", *classes.told(event))
        case events.ProcessStarted():
            peer = f", peer {words.peer(event.peer)}" if event.peer else ""
            return say("Network", f"{event.name} is up (pid {event.pid}{peer})")
        case events.Matched():
            return _matched(event)
        case events.Funded():
            escrow, stakes = words.credits_of(event.escrow), format_credits(event.stakes)
            return say("Network", f"job {words.peer(event.job)}: {escrow} in escrow, {stakes} at stake")
        case events.Resumed():
            return say("Network", f"session {event.session}: the run goes on from round {event.round}")
        case events.Sandboxed():
            return _sandboxed(event)
        case events.Housed():
            return say("Network", f"through {words.homes(event)}", "the plan's seconds are for loopback")
        case events.Restarted():
            return say(timeline.stage, words.restarted(event))
        case events.Settled():
            return say("Settle", words.settled(event, timeline))
        case events.StandsOn():
            return say("Plan", *words.stands_on(event))
        case events.WaysTaken():
            return say("Network", words.ways(event))
        case events.ValidatorKilled():
            return say(timeline.stage, committee.killed(event))
        case events.ChainsCompared():
            return say("Settle", committee.compared(event))
        case events.RelayPaid():
            return say("Settle", fares.paid(event))
        case events.Compared():
            return _compared(event)
        case events.Repeated():
            return say("Result", words.repeated(event))
        case events.Warned():
            return say(timeline.stage, words.warned(event), _try(event.hint))
        case events.Failed():
            cause = f"cause: {event.cause}" if event.cause else ""
            return say(timeline.stage, words.failed(event), cause, _try(event.hint))
        case events.Result():
            return _result(event, timeline, run)
    return _verify(event, timeline) or _train(event, timeline)


def _compared(event: events.Compared) -> list[str]:
    """Broken between words and not cut: how far it is off, and why, stand at the end."""
    room = COLUMNS - STAGE_COLUMNS
    said, why = foretold.compared(event)
    pieces = [*wrap(said, room), *(INDENT + piece for piece in wrap(why, room - len(INDENT)))]
    return [line for piece in pieces for line in say("Result", piece)]


def _try(hint: str) -> str:
    return f"try: {hint}" if hint else ""


def _began(event: events.Began) -> list[str]:
    made = f"Python {event.python}, PyTorch {event.torch}"
    return [
        *say("farflung", f"{event.version}  {words.WHERE[0]}"),
        *say("Plan", f"run {event.run}", f"job {event.name}", f"seed {event.seed}", made),
    ]


def _planned(event: events.Planned) -> list[str]:
    room = f"{format_bytes(event.memory_bytes)} a worker, {format_bytes(event.data_bytes)} of data"
    alone = f"then one machine {format_seconds(event.baseline_seconds)}" if event.baseline_seconds else ""
    return [
        *say("Plan", words.shape(event), words.schedule(event)),
        *say("Plan", *words.agreement(event)),
        *say("Plan", *yardstick.traffic(event)),
        *say("Plan", *foretold.lines_of(event)),
        *say("Plan", words.committee(event)),
        *say("Plan", room, f"about {format_seconds(event.seconds)}", alone),
        *say("Plan", words.price(event), fares.planned(event)),
        *say("Plan", classes.foreseen(event)),
    ]


def _sandboxed(event: events.Sandboxed) -> list[str]:
    gaps = [line for gap in event.gaps[:16] for line in say("Network", f"{INDENT}{gap}")]
    leaves = f"workers run in the tier {event.tier}" + (", which leaves open:" if gaps else "")
    return [*say("Network", leaves), *gaps]


def _matched(event: events.Matched) -> list[str]:
    price = f"{len(event.peers)} hired at {format_credits(event.unit_price)} credits a token"
    names = [" ".join(peer[:8] for peer in event.peers[i : i + 10]) for i in range(0, len(event.peers), 10)]
    return [
        *say("Network", words.many(event.offers, "offer"), price, between=", "),
        *[line for row in names for line in say("Network", row)],
    ]


def _train(event: AnyEvent, timeline: Timeline) -> list[str]:
    match event:
        case events.Joined():
            replayed = f", {event.replayed} rounds replayed" if event.replayed else ""
            took = format_seconds(event.seconds)
            return say(
                "Network", f"{words.peer(event.peer)} joined at round {event.round} in {took}{replayed}"
            )
        case events.RoundOpened() if event.round - 1 in timeline.rounds:
            is_long = event.waited >= words.TELLING_SECONDS
            return say("Train", _waited(event)) if is_long else []
        case events.Arrived():
            return _late(event, timeline)
        case events.PassedOver():
            return say("Train", _passed_over(event))
        case events.RoundClosed():
            return _round(event, timeline)
        case events.Evaluated():
            seen = format_count(event.tokens)
            return say("Train", f"held-out loss {event.loss:.3f} before round {event.round} ({seen} tokens)")
        case events.Reexecuted():
            return say("Train", f"{words.peer(event.peer)} computed its part of round {event.round} again")
        case events.Left():
            return say(timeline.stage, words.left(event, timeline))
        case events.Baseline():
            return say("Train", words.baseline_end(event))
        case events.BaselineScored():
            return say("Train", words.baseline_step(event))
    return []


def _waited(event: events.RoundOpened) -> str:
    audits = f"the audits of round {event.round - 1}"
    return f"round {event.round} opened after {format_seconds(event.waited)} of waiting for {audits}"


def _passed_over(event: events.PassedOver) -> str:
    slow = f"{words.peer(event.peer)} was too slow after {format_seconds(event.seconds)}"
    return f"{slow}: round {event.round} goes on without it, and it takes part in the next one"


def _late(event: events.Arrived, timeline: Timeline) -> list[str]:
    """A line for the one for whom all others waited, where that was long; `timeline` holds its arrival."""
    opened = timeline.opened
    seen = timeline.arrivals.get(event.round, {})
    if opened is None or opened.round != event.round or len(seen) < len(opened.peers):
        return []
    others = [a.seconds for (who, phase), a in seen.items() if phase == event.phase and who != event.peer]
    if len(others) + 1 < len(opened.peers) or not others:
        return []
    behind = event.seconds - max(others)
    if behind < words.TELLING_SECONDS or event.phase not in PHASES:
        return []
    did = words.DID[event.phase]
    return say("Train", f"{words.peer(event.peer)} {did} {format_seconds(behind)} after the others")


def _verify(event: AnyEvent, timeline: Timeline) -> list[str]:
    """Audits make no noise while the work holds."""
    match event:
        case events.Drawn() if event.flagged:
            whose = f"{words.peer(event.peer)}'s part of round {event.round}"
            return say("Verify", f"{whose} is audited: {event.flagged}")
        case events.AuditConcluded() if event.finding != words.HOLDS:
            what = f"{words.peer(event.peer)}, round {event.round}, segment {event.segment}: {event.finding}"
            return say("Verify", what, words.excess(event), words.repeated_by(event))
        case events.CanaryConcluded() if event.finding == words.FALSE:
            return say("Verify", f"canary: verifier {words.peer(event.verifier)} found it")
        case events.Perjured():
            return [*say("Verify", guessing.claim(event)), *say("Verify", guessing.price(event))]
        case events.Scored() if event.unpaid:
            harm = f"round {event.round} is not paid: alone it makes the held-out loss worse"
            said = len(event.verifiers)
            told = [
                (f"{words.peer(peer)}'s {harm}", words.many(said, "verifier")) for peer in event.unpaid[:8]
            ]
            return [line for each in told for line in say("Verify", *each)]
        case events.Caught():
            evidence = f"evidence {event.evidence[:8]}" if event.evidence else ""
            split = "" if event.pending else f" ({words.bounties(event.bounty, event.burnt)})"
            lost = f"{words.caught_price(event)}{split}"
            return [
                *say("Verify", words.caught_claim(event, timeline)),
                *say("Verify", lost, evidence),
            ]
        case events.Played() | events.Ruled():
            return say("Verify", *game.told(event))
    return []


def _round(event: events.RoundClosed, timeline: Timeline) -> list[str]:
    left, plan = timeline.seconds_left, timeline.plan
    width = len(str(event.rounds))
    parts = (
        f"{len(timeline.rounds):>{width}}/{event.rounds} rounds",
        f"loss {event.loss:.3f}",
        words.speed(event),
        f"sync {format_bytes(event.sync_bytes)}",
        f"{event.peers} of {plan.peers} peers" if plan is not None and event.peers < plan.peers else "",
        f"{words.clock(left)} left" if left is not None else "",
    )
    before = timeline.rounds.get(event.round - 1)
    is_new = event.way and (before is None or before.way != event.way)
    told = say("Train", words.exchange(event)) if is_new else []
    return [*say("Train", *parts, between="  "), *told]


def _result(event: events.Result, timeline: Timeline, run: str) -> list[str]:
    again = f"{event.reexecuted} contributions computed again" if event.reexecuted else ""
    took = f"{event.rounds} rounds, {format_count(event.tokens)} tokens in {format_seconds(event.seconds)}"
    return [
        *_verified(event, timeline),
        *say("Result", *_losses(event)),
        *_sent(event, timeline),
        *say("Result", *_money(event)),
        *say("Result", *foretold.basis(timeline)),
        *say("Result", took, again, *[words.left(gone, timeline) for gone in timeline.left[:8]]),
        *say("Result", f"model  {event.model_hash}"),
        *say("Result", f"ledger {event.ledger_root}"),
        *say("Next", f"farflung sample {run or clean(event.run, 60)}", words.ALSO),
    ]


def _verified(event: events.Result, timeline: Timeline) -> list[str]:
    count = event.segments_audited
    audited = f"{words.many(count, 'segment')} audited" if count else "no segment was audited"
    if count and timeline.verifiers:
        audited += f" by {words.many(len(timeline.verifiers), 'verifier')}"
    found = [timeline.caught.get(peer) for peer in event.caught[:8]]
    why = [f" ({clean(each.why, WHY_COLUMNS)})" if each is not None else "" for each in found]
    caught = [f"caught: {peer[:8]}{each}" for peer, each in zip(event.caught, why, strict=False)]
    return say("Verify", audited, *(caught or ["nobody was caught"]))


def _losses(event: events.Result) -> tuple[str, ...]:
    loss = f"held-out loss {event.loss:.3f} nats a token, {event.loss_start:.3f} at the start"
    return (loss, words.unigram(event), words.gap(event))


def _sent(event: events.Result, timeline: Timeline) -> list[str]:
    own, ring = yardstick.sent_ring(event)
    whole = f"sent {format_bytes(event.bytes_sent)} ({words.kinds(event.bytes_by)})"
    return [*say("Result", whole), *say("Result", own, ring), *say("Result", *yardstick.each_step(timeline))]


def _money(event: events.Result) -> tuple[str, ...]:
    parts = (("paid", event.paid), ("slashed", event.slashed), ("returned", event.refunded))
    text = ", ".join(f"{name} {format_credits(value)}" for name, value in parts)
    slashed = f"of what was slashed {words.bounties(event.bounty, event.burnt)}" if event.slashed else ""
    return (f"{text} credits", slashed, words.conserved(event.sum))
