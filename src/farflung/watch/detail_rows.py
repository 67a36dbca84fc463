"""Renders one round or one dispute in full: the times of each member; claims, findings and costs."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from farflung.core.events import AuditEndEvent, SentBytesByKind
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch import dispute_text, phrases
from farflung.watch.fold import MemberRoundTimes, RunTimeline
from farflung.watch.row_layout import ScreenRow, SpanStyle, TextSpan, block, cut, plain

BAR: Final = 40
LEAST_BAR: Final = 8
NAMED: Final = 22  # columns of `provider-1 (9ae58a6e)`: a narrower screen has the keys alone
COMPUTE, WAIT, SEND, MERGE = "█", "·", "▓", "▒"


def _spent(lane: MemberRoundTimes) -> tuple[tuple[str, float], ...]:
    """What a member did, in order, with seconds."""
    if lane.trained is None:
        return ((WAIT, lane.end),)
    shown = lane.shown if lane.shown is not None else lane.end
    merged = lane.merged if lane.merged is not None else lane.end
    return (
        (COMPUTE, lane.trained),
        (WAIT, lane.shown_from - lane.trained),
        (SEND, shown - lane.shown_from),
        (WAIT, lane.merged_from - shown),
        (MERGE, merged - lane.merged_from),
        (WAIT, lane.end - merged),
    )


def lane_bar(lane: MemberRoundTimes, columns: int) -> str:
    """The lane as `columns` characters, each what the member did most of that time."""
    if lane.end <= 0:
        return WAIT * columns
    bar, passed = "", 0.0
    for sign, seconds in _spent(lane):
        passed += max(0.0, seconds)
        bar += sign * max(0, min(columns, round(columns * passed / lane.end)) - len(bar))
    return (bar + WAIT * columns)[:columns]


def _seconds(lane: MemberRoundTimes, sign: str) -> float:
    return sum(max(0.0, seconds) for what, seconds in _spent(lane) if what == sign)


def _sent(t: RunTimeline, number: int) -> SentBytesByKind | None:
    """Bytes that all sent while the round was the open one; None when that was not seen."""
    after, before = (t.sent_at.get(number), t.sent_at.get(number - 1, SentBytesByKind() if number == 0 else None))
    if after is None or before is None:
        return None
    return SentBytesByKind(
        **{k: max(0, getattr(after, k) - getattr(before, k)) for k in SentBytesByKind.__struct_fields__}
    )


def _audits(t: RunTimeline, number: int) -> list[AuditEndEvent]:
    return sorted((a for a in t.audits.values() if a.round == number), key=lambda a: a.at)


def round_rows(t: RunTimeline, number: int, columns: int) -> list[ScreenRow]:
    """A closed round: its members' lanes, its root, its audits, its bytes."""
    closed = t.rounds[number]
    opened = t.openings.get(number)
    before = t.rounds.get(number - 1)
    is_long = opened is not None and opened.waited >= 0.1 and before is not None and before.at <= opened.at
    waited = f"opened after {format_seconds(opened.waited)} of waiting for audits" if opened and is_long else ""
    head = [
        plain(f"{number} of 0 to {closed.rounds - 1}"),
        plain(f"closed after {format_seconds(closed.seconds)}"),
        plain(f"{phrases.many(closed.peers, 'provider')}, {format_count(closed.tokens)} tokens"),
        plain(f"training loss {closed.loss:.3f}"),
    ]
    rows = block("Round", head, columns)
    held = t.losses.get(number + 1)
    loss = f"validation loss {held:.3f} after it" if held is not None else ""
    rows += block("", [plain(loss), plain(waited)], columns) if loss or waited else []
    rows += block("", [plain(phrases.exchange(closed))], columns) if closed.way else []
    rows += block("", [plain(phrases.clipped(closed, t))], columns) if closed.clipped else []
    rows += _lanes(t, number, columns)
    drawn = [d for d in t.drawn.values() if d.round == number]
    rows += block("Verify", [plain(_drawn(len(drawn)))], columns)
    for audit in _audits(t, number):
        style = SpanStyle.PLAIN if audit.finding == phrases.HOLDS else SpanStyle.BAD
        rows += block("", [TextSpan(_told(audit, t), style)], columns)
    rows += block("Root", [plain(phrases.clean(closed.root, 64))], columns)
    sent = _sent(t, number)
    if sent is not None:
        said = f"{format_bytes(phrases.total(sent))} by all, audits and joining included"
        rows += block("Sent", [plain(said), plain(phrases.kinds(sent))], columns)
    return rows


def _drawn(count: int) -> str:
    return f"{phrases.many(count, 'segment')} drawn" if count else "no segment drawn"


def _told(audit: AuditEndEvent, t: RunTimeline) -> str:
    off = phrases.excess(audit)
    return (
        f"{phrases.named(audit.peer, t)} segment {audit.segment} {phrases.clean(audit.finding, 12)}"
        f"{', off by ' + off if off else ''}; {phrases.repeated_by(audit, t)} in {format_seconds(audit.seconds)}"
    )


def _lanes(t: RunTimeline, number: int, columns: int) -> list[ScreenRow]:
    lanes = t.lanes(number)
    if not lanes:
        return block("Members", [TextSpan("this round's start is not in the log", SpanStyle.QUIET)], columns)
    numbers = "   train   merge    wait"
    names = {lane.peer: phrases.named(lane.peer, t) for lane in lanes}
    if sum((9, NAMED, LEAST_BAR, 1, len(numbers))) > columns:
        names = {peer: phrases.peer(peer) for peer in names}
    who = max(map(phrases.columns_of, names.values())) + 1
    size = max(LEAST_BAR, min(BAR, columns - 9 - who - len(numbers) - 1))
    legend = f"{COMPUTE} train  {SEND} send  {MERGE} merge  {WAIT} wait"
    rows = [
        ScreenRow(
            cut(
                (
                    TextSpan("Members  ", SpanStyle.STRONG),
                    TextSpan(f"{legend:<{size + who}}", SpanStyle.QUIET),
                    plain(numbers),
                ),
                columns,
            )
        )
    ]
    for lane in lanes:
        if lane.trained is None:
            rows += block(
                "", [plain(phrases.named(lane.peer, t)), TextSpan("left before its work came", SpanStyle.CARE)], columns
            )
            continue
        bar = lane_bar(lane, size)
        spent = "".join(f"{_seconds(lane, sign):>6.2f} s" for sign in (COMPUTE, MERGE, WAIT))
        spans = (plain(" " * 9 + f"{names[lane.peer]:<{who}}"), TextSpan(bar, SpanStyle.MARK), plain(" " + spent))
        rows.append(ScreenRow(cut(spans, columns)))
    return rows


def round_facts(t: RunTimeline, number: int) -> dict[str, Any]:
    """The same for machines: seconds since the round was opened."""
    opened, sent = t.openings.get(number), _sent(t, number)
    return {
        "round": msgspec.to_builtins(t.rounds[number]),
        "waited": opened.waited if opened is not None else None,
        "lanes": msgspec.to_builtins(t.lanes(number)),
        "held_out_loss": t.losses.get(number + 1),
        "drawn": [msgspec.to_builtins(d) for d in t.drawn.values() if d.round == number],
        "audits": [msgspec.to_builtins(a) for a in _audits(t, number)],
        "sent": msgspec.to_builtins(sent) if sent is not None else None,
    }


def dispute_rows(t: RunTimeline, number: int, columns: int, *, evidence: str, run: str) -> list[ScreenRow]:
    """A contested audit from the draw to the money. `evidence`: the file's path in the run's folder, if it is there."""
    audit = phrases.disputes(t)[number - 1]
    drawn = t.drawn.get((audit.round, audit.peer, audit.segment))
    caught = t.caught.get(audit.peer)
    is_caught = caught is not None and (caught.round, caught.segment) == (audit.round, audit.segment)
    place = f"segment {audit.segment} of round {audit.round} by {phrases.named(audit.peer, t)}"
    head = f"{number} of {len(phrases.disputes(t))}: {place}"
    rows = block("Dispute", [TextSpan(head, SpanStyle.STRONG)], columns)
    rows += block("Peer", [plain(phrases.clean(audit.peer, 64))], columns)
    why = (
        f"suspicion chose it: {phrases.clean(drawn.flagged, 80)}"
        if drawn and drawn.flagged
        else "the draw chose it, after all had committed to their work"
    )
    rows += block("Draw", [plain(why), plain(f"{drawn.at:.1f} s into the run" if drawn else "")], columns)
    rows += block("Found", [_finding(audit)], columns)
    first, *others = audit.verifiers or ("",)
    rows += block(
        "First", [plain(f"{phrases.named(first, t)} trained the segment again, before it saw the claim")], columns
    )
    second = f"{phrases.peers(others, t)} did the same, blind as well" if others else "none was asked for"
    rows += block("Second", [plain(second)], columns)
    took = f"{format_count(audit.tokens)} tokens trained again in {format_seconds(audit.seconds)}"
    rows += block("Cost", [plain(took)], columns)
    rows += _verdict(t, audit, is_caught, columns)
    rows += dispute_text.rows(*dispute_text.of(t, audit.peer, audit.round, audit.segment), t, columns)
    return rows + _proof(t, audit, is_caught, evidence, run, columns)


def _finding(audit: AuditEndEvent) -> TextSpan:
    off = phrases.excess(audit) or "not at all"
    what = {
        phrases.HOLDS: f"it holds: the claim is off by {off}, one tolerance is allowed",
        "unpaid": f"not paid: the claim is off by {off}, between one and two tolerances",
        phrases.FALSE: f"false: the claim is off by {off}, more than two is no numerical noise",
        "withheld": "withheld: the drawn states were not shown in time",
    }.get(audit.finding, f"{phrases.clean(audit.finding, 20)}: off by {off}")
    return TextSpan(what, SpanStyle.GOOD if audit.finding == phrases.HOLDS else SpanStyle.BAD)


def _verdict(t: RunTimeline, audit: AuditEndEvent, is_caught: bool, columns: int) -> list[ScreenRow]:
    if not is_caught:
        said = "its work is accepted" if audit.finding == phrases.HOLDS else "no stake was taken for this one"
        return block("Verdict", [plain(said)], columns)
    caught = t.caught[audit.peer]
    gone = next((left.reason for left in t.left if left.peer == audit.peer), "")
    where = phrases.bounties(caught.bounty, caught.burnt)
    lost = [] if audit.peer in t.ruled else [plain(phrases.caught_price(caught)), plain(where)]  # said of its game
    return [
        *block(
            "Verdict", [TextSpan(phrases.clean(caught.why, 60), SpanStyle.BAD), plain(phrases.clean(gone, 60))], columns
        ),
        *block("Money", [*lost, plain(_forfeited(t, audit.peer))], columns),
    ]


def _forfeited(t: RunTimeline, peer: str) -> str:
    paid = t.settled.get(peer)
    if paid is None:
        return ""
    return phrases.settled(paid, t)


def _proof(
    t: RunTimeline, audit: AuditEndEvent, is_caught: bool, evidence: str, run: str, columns: int
) -> list[ScreenRow]:
    digest = t.caught[audit.peer].evidence if is_caught else ""
    if not evidence and not digest:
        return block("Evidence", [TextSpan("none is kept where no stake was taken", SpanStyle.QUIET)], columns)
    place = (
        plain(phrases.clean(evidence, 80))
        if evidence
        else TextSpan("its file is not in the run's folder", SpanStyle.CARE)
    )
    hash_row = block("", [plain(f"hash {phrases.clean(digest, 64)}")], columns) if digest else []
    how = TextSpan(f"farflung verify-run {phrases.clean(run, 60)}", SpanStyle.MARK)
    checks = TextSpan("recomputes the run, checks each signature", SpanStyle.QUIET)
    return [*block("Evidence", [place], columns), *hash_row, *block("Check it", [how, checks], columns)]


def dispute_facts(t: RunTimeline, number: int, *, evidence: str) -> dict[str, Any]:
    """The same for machines."""
    audit = phrases.disputes(t)[number - 1]
    drawn, caught = t.drawn.get((audit.round, audit.peer, audit.segment)), t.caught.get(audit.peer)
    return {
        "dispute": number,
        "of": len(phrases.disputes(t)),
        "drawn": msgspec.to_builtins(drawn) if drawn is not None else None,
        "audit": msgspec.to_builtins(audit),
        "caught": msgspec.to_builtins(caught) if caught is not None else None,
        "evidence": evidence or None,
        **dispute_text.facts(*dispute_text.of(t, audit.peer, audit.round, audit.segment)),
    }
