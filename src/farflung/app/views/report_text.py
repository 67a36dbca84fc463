"""Writes the sentences of a report: the run's summary, each cheater's story, every chart's description.

Every number in them is an event's or a sum of events'; text from elsewhere passes watch.redaction first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from farflung.core import events
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_multiple, format_seconds
from farflung.plan.plan_comparison import HIGH, LOW
from farflung.watch import dispute_text, report_series, traffic_ratios
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import less_than
from farflung.watch.redaction import redact
from farflung.watch.report_series import (
    AuditGrid,
    LossCurves,
    MemberRow,
    MemberTimeShare,
    MoneySummary,
    PlannedVsMeasuredRow,
    SentBytesSeries,
)

SMALL: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class IncidentText(Struct, frozen=True):
    """Somebody was caught: the headline and what happened, sentence by sentence."""

    title: str
    sentences: tuple[str, ...]
    evidence: str


def many(count: int, noun: str) -> str:
    """`1 round`, `20 rounds`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def few(count: int, noun: str) -> str:
    """As `many`, with small numbers in words."""
    return many(count, noun).replace(str(count), SMALL[count], 1) if 0 <= count < len(SMALL) else many(count, noun)


def person(names: Mapping[str, str], peer: str) -> str:
    """A peer as a sentence names it."""
    short = redact(peer[:8], 8)
    return f"{redact(names[peer], 40)} ({short})" if peer in names else short


def short(t: RunTimeline, curves: LossCurves, sent: SentBytesSeries, found: AuditGrid) -> tuple[str, ...]:
    """The run in a few sentences."""
    told = (_work(t), _learned(t, curves), _traffic(sent), _clipped(t), _checked(t, found), _settled(t))
    return tuple(s for s in told if s)


def _work(t: RunTimeline) -> str:
    if t.plan is None:
        return ""
    done, tokens = len(t.rounds), sum(r.tokens for r in t.rounds.values())
    strangers = ", strangers to each other," if t.plan.peers > 1 else ""
    who = f"{few(t.plan.peers, 'provider').capitalize()}{strangers}"
    what = f"a model of {format_count(t.plan.parameters)} parameters"
    if not done:
        return f"{who} {'are' if t.plan.peers > 1 else 'is'} to train {what} in {many(t.plan.rounds, 'round')}."
    rounds = many(done, "round") if done == t.plan.rounds else f"{done} of {many(t.plan.rounds, 'round')}"
    return f"{who} trained {what} on {format_count(tokens)} tokens in {rounds}."


def _learned(t: RunTimeline, curves: LossCurves) -> str:
    held = curves.held_out
    if not held:
        return ""
    first, last = held[0].loss, held[-1].loss
    if len(held) == 1:
        return f"The validation loss at the start is {first:.3f} nats per token."
    verb = "fell" if last < first else "rose" if last > first else "stayed"
    said = f"The validation loss {verb} from {first:.3f} to {last:.3f} nats per token"
    if t.baseline is None:
        return said + "."
    gap = last - t.baseline.loss
    side = f"{abs(gap):.3f} {'above' if gap > 0 else 'below'} it" if round(gap, 3) else "the same"
    baseline = f"the single-machine baseline reached {t.baseline.loss:.3f} on the same tokens"
    return f"{said}; {baseline}, and this run is {side}."


def _traffic(sent: SentBytesSeries) -> str:
    if not sent.agreeing or sent.times is None:
        return ""
    whole, own = format_bytes(sent.total), format_bytes(sent.agreeing)
    return f"All traffic was {whole}, {less_than(sent.ring, sent.total)}; sync traffic alone was {own}."


def _clipped(t: RunTimeline) -> str:
    """What the merges took away of each provider's contributions, on the average of its rounds."""
    taken: dict[str, float] = {}
    for closed in t.rounds.values():
        for key, share in zip(closed.clipped, closed.clipped_shares, strict=False):
            taken[key] = taken.get(key, 0.0) + share
    if not taken:
        return ""
    ordered = sorted(taken, key=lambda key: (-taken[key], key))
    shares = {key: f"{100 * taken[key] / len(t.rounds):.2g} %" for key in ordered[:8]}
    named = ", ".join(f"{share} of what {person(t.names, key)} sent" for key, share in shares.items())
    more = f" and less of {len(ordered) - 8} more" if len(ordered) > 8 else ""
    return f"Clipping to the median norm took away {named}{more}, on the average of all rounds; it is not sent again."


def per_provider(t: RunTimeline) -> str:
    """The metric (watch.traffic_ratios), and the ratio that papers tell."""
    found = traffic_ratios.ratio_per_peer(t)
    if found is None:
        return ""
    papers = (
        f" Papers count float32 gradients over payloads, one way: that ratio is {format_multiple(found.papers)} here."
        if found.papers
        else ""
    )
    return (
        f"Each provider sent {format_bytes(found.up)} and received {format_bytes(found.down)} a step, at its sockets;"
        f" the ring moves {format_bytes(found.ring)} each way, {format_multiple(found.below)} times.{papers}"
    )


def _checked(t: RunTimeline, found: AuditGrid) -> str:
    if not found.concluded:
        return ""
    held = found.count(report_series.HOLDS)
    said = f"Others trained {many(found.concluded, 'segment')} again, drawn after the work was done: {held} held"
    caught = len(t.caught)
    return said + (f", and {few(caught, 'provider')} {'was' if caught == 1 else 'were'} caught." if caught else ".")


def _settled(t: RunTimeline) -> str:
    if t.result is None:
        return ""
    paid = format_credits(t.result.paid)
    if t.result.sum:
        return (
            f"The ledger paid {paid} credits; the sum of all money differs by {format_credits(t.result.sum)} credits."
        )
    return f"The ledger paid {paid} credits, and all money adds up: the sum is 0."


def stories(t: RunTimeline, names: Mapping[str, str]) -> tuple[IncidentText, ...]:
    """One for each peer that was caught, in the order of time, for each verifier that guessed, and for each whom a
    dispute freed.
    """
    found = sorted(t.caught.values(), key=lambda c: (c.at, c.peer))
    freed = sorted((r for peer, r in t.ruled.items() if peer not in t.caught), key=lambda r: (r.at, r.peer))
    guessed = sorted(t.perjured.values(), key=lambda p: (p.at, p.verifier))
    return (
        *(_story(t, caught, names) for caught in found),
        *(_guessed(event, names) for event in guessed),
        *(_freed(ruled, names) for ruled in freed),
    )


def _guessed(event: events.PerjuryEvent, names: Mapping[str, str]) -> IncidentText:
    """A verifier signed that a canary holds."""
    who = person(names, event.verifier)
    said = (
        f"In round {event.round}, {person(names, event.peer)} showed it one segment with a false end, as the requester"
        f" had drawn. {who} signed that it holds: it had not looked."
    )
    lost, bounty, burnt = (format_credits(x) for x in (event.slashed, event.bounty, event.burnt))
    price = f"It lost {lost} credits of its stake: {bounty} went to who showed it, {burnt} were burnt."
    return IncidentText(f"{who} guessed", (said, price), "")


def _freed(ruled: events.DisputeEndEvent, names: Mapping[str, str]) -> IncidentText:
    """Somebody was accused, and keeps what it had."""
    who = person(names, ruled.peer)
    accused = f"The work of {who} in segment {ruled.segment} of round {ruled.round} was said to be false."
    money = [f"{text[:1].upper()}{text[1:]}." for text in dispute_text.money(ruled)]
    return IncidentText(f"{who} was accused, and freed", (accused, _told(ruled), *money), "")


def _story(t: RunTimeline, caught: events.SlashEvent, names: Mapping[str, str]) -> IncidentText:
    who = person(names, caught.peer)
    key = (caught.round, caught.peer, caught.segment)
    audit, drawn = t.audits.get(key), t.drawn.get(key)
    sentences = [f"In round {caught.round}, {who} signed a commitment to its work, as every member does."]
    if drawn is not None and drawn.flagged:
        sentences.append(f"Suspicion chose segment {caught.segment} of it: {redact(drawn.flagged, 120)}.")
    else:
        sentences.append(
            f"Only then was it drawn which parts are trained again, and segment {caught.segment} of it was."
        )
    why = redact(caught.why, 120)
    sentences.append(f"{_verdict(audit, names)}: {why}." if audit is not None else f"The finding: {why}.")
    sentences += _disputed(t, caught)
    sentences.append(_price(t, caught))
    return IncidentText(f"{who} was caught", tuple(sentences), caught.evidence)


def _disputed(t: RunTimeline, caught: events.SlashEvent) -> list[str]:
    """How it was played down to one element."""
    played, ruled = dispute_text.of(t, caught.peer, caught.round, caught.segment)
    if ruled is None:
        return ["It contests that, and the dispute is not decided yet."] if played else []
    return [_told(ruled)]


def _told(ruled: events.DisputeEndEvent) -> str:
    parts = [dispute_text.end(ruled), dispute_text.element(ruled), dispute_text.values(ruled)]
    said = "; ".join(redact(part, 200) for part in parts if part)
    return f"There was a dispute ({dispute_text.size(ruled)}): {said}."


def _verdict(audit: events.AuditEndEvent, names: Mapping[str, str]) -> str:
    who = " and ".join(person(names, verifier) for verifier in audit.verifiers[:4]) or "Nobody"
    alone = "one after the other, each without knowing the other's result, " if len(audit.verifiers) > 1 else ""
    said = f"{who} trained that segment again, {alone}in {format_seconds(audit.seconds)} together"
    if audit.finding == "withheld":
        return f"{who} asked for the drawn state, and it was not shown"
    if audit.excess <= 0:
        return f"{said}; the claim does not hold"
    return f"{said}; the claim lies {excess(audit.excess)} tolerances from what they found, where 1 is the limit"


def excess(value: float) -> str:
    """A distance in tolerances."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _price(t: RunTimeline, caught: events.SlashEvent) -> str:
    lost, bounty, burnt = (format_credits(x) for x in (caught.slashed, caught.bounty, caught.burnt))
    what = "stake and bond" if caught.peer in t.ruled else "stake"
    said = f"It lost {lost} credits of its {what}: {bounty} went to the verifiers, {burnt} were burnt"
    if caught.pending:
        said = f"{format_credits(caught.pending)} credits of its stake wait for a dispute, which decides whose they are"
    pay = t.settled.get(caught.peer)
    if pay is None:
        return said + "."
    kept = f"{format_credits(pay.paid)} credits" if pay.paid else "nothing"
    return f"{said}. For its earlier work of {format_count(pay.units)} accepted tokens it was paid {kept}."


def loss_described(curves: LossCurves, over: str) -> str:
    """The loss chart in words."""
    parts = []
    for name, points in (("training", curves.train), ("validation", curves.held_out), ("baseline", curves.baseline)):
        if points:
            parts.append(f"{name} from {points[0].loss:.3f} to {points[-1].loss:.3f}")
    return f"Loss in nats per token over {over}: {'; '.join(parts) or 'no points yet'}. All points are in the tables."


def sent_described(sent: SentBytesSeries) -> str:
    """The bytes chart in words."""
    ring = f", a bf16 ring all-reduce {format_bytes(sent.ring)} (computed)" if sent.ring else ""
    return f"Bytes sent: {format_bytes(sent.total)} in this run{ring}. The kinds are in the table."


def lanes_described(strips: tuple[MemberRow, ...], late: MemberTimeShare | None, names: Mapping[str, str]) -> str:
    """The lanes in words."""
    rounds = sorted({strip.round for strip in strips})
    who = f"; most often all waited for {person(names, late.peer)}, {late.last} times" if late is not None else ""
    return f"What each provider did in the last of {many(len(rounds), 'round')}: compute, send, merge, wait{who}."


def audits_described(found: AuditGrid) -> str:
    """The audit grid in words."""
    parts = [f"{found.count(each)} {each}" for each in (*report_series.FINDINGS,) if found.count(each)]
    return f"Audits by round and member: {', '.join(parts) or 'none drawn'}."


def money_described(money: MoneySummary) -> str:
    """The flows in words."""
    return (
        f"Of {format_credits(money.escrow)} credits in escrow {format_credits(money.paid)} were paid out; "
        f"of {format_credits(money.stakes)} at stake {format_credits(money.slashed)} were slashed."
        + (f" Pay of the convicted was burnt: {format_credits(money.burnt)}." if money.burnt else "")
    )


def plan_described(rows: tuple[PlannedVsMeasuredRow, ...]) -> str:
    """The comparison in words."""
    off = [redact(row.quantity, 24) for row in rows if row.off][:8]
    return f"{len(rows)} quantities compared; outside {LOW} to {HIGH}: {', '.join(off) or 'none'}."


def waiting(
    late: MemberTimeShare | None, rows: tuple[MemberTimeShare, ...], names: Mapping[str, str], between: float = 0.0
) -> str:
    """Whom everybody waited for, and how long, in a sentence. `between`: seconds in which all waited for audits."""
    pause = between * len(rows)
    audits = f", {format_seconds(between)} each for audits before a round opened" if between >= 0.1 else ""
    if late is None:
        return "Nobody had to be waited for." if len(rows) > 1 else "One provider alone waits for nobody."
    rounds = max(row.rounds for row in rows)
    spent = sum(row.wait + row.compute + row.send + row.merge for row in rows) + pause
    waited = (sum(row.wait for row in rows) + pause) / max(1, spent)
    return (
        f"Everybody waited most often for {person(names, late.peer)}: it was the last to finish training in "
        f"{late.last} of {many(rounds, 'round')}. All members together spent {waited:.0%} of their time waiting"
        f"{audits}."
    )
