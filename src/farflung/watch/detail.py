"""One round or one dispute in full: who took how long for what; who claimed what, who found otherwise, what it cost."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from farflung.core.events import AuditConcluded, BytesBy
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch import game, words
from farflung.watch.fold import Lane, Timeline
from farflung.watch.rows import Row, Span, Style, block, cut, plain

BAR: Final = 40
LEAST_BAR: Final = 8
COMPUTE, WAIT, SEND, MERGE = "█", "·", "▓", "▒"


def _spent(lane: Lane) -> tuple[tuple[str, float], ...]:
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


def lane_bar(lane: Lane, columns: int) -> str:
    """The lane as `columns` characters, each what the member did most of that time."""
    if lane.end <= 0:
        return WAIT * columns
    bar, passed = "", 0.0
    for sign, seconds in _spent(lane):
        passed += max(0.0, seconds)
        bar += sign * max(0, min(columns, round(columns * passed / lane.end)) - len(bar))
    return (bar + WAIT * columns)[:columns]


def _seconds(lane: Lane, sign: str) -> float:
    return sum(max(0.0, seconds) for what, seconds in _spent(lane) if what == sign)


def _sent(t: Timeline, number: int) -> BytesBy | None:
    """Bytes that all sent while the round was the open one; None when that was not seen."""
    after, before = t.sent_at.get(number), t.sent_at.get(number - 1, BytesBy() if number == 0 else None)
    if after is None or before is None:
        return None
    return BytesBy(**{k: max(0, getattr(after, k) - getattr(before, k)) for k in BytesBy.__struct_fields__})


def _audits(t: Timeline, number: int) -> list[AuditConcluded]:
    return sorted((a for a in t.audits.values() if a.round == number), key=lambda a: a.at)


def round_rows(t: Timeline, number: int, columns: int) -> list[Row]:
    """A closed round: its members' lanes, its root, its audits, its bytes."""
    closed = t.rounds[number]
    opened = t.openings.get(number)
    before = t.rounds.get(number - 1)
    is_long = opened is not None and opened.waited >= 0.1 and before is not None and before.at <= opened.at
    waited = (
        f"opened after {format_seconds(opened.waited)} of waiting for audits" if opened and is_long else ""
    )
    head = [
        plain(f"{number} of 0 to {closed.rounds - 1}"),
        plain(f"closed after {format_seconds(closed.seconds)}"),
        plain(f"{words.many(closed.peers, 'provider')}, {format_count(closed.tokens)} tokens"),
        plain(f"training loss {closed.loss:.3f}"),
    ]
    rows = block("Round", head, columns)
    held = t.losses.get(number + 1)
    loss = f"held-out loss {held:.3f} after it" if held is not None else ""
    rows += block("", [plain(loss), plain(waited)], columns) if loss or waited else []
    rows += block("", [plain(words.exchange(closed))], columns) if closed.way else []
    rows += _lanes(t, number, columns)
    drawn = [d for d in t.drawn.values() if d.round == number]
    rows += block("Verify", [plain(_drawn(len(drawn)))], columns)
    for audit in _audits(t, number):
        style = Style.PLAIN if audit.finding == words.HOLDS else Style.BAD
        rows += block("", [Span(_told(audit), style)], columns)
    rows += block("Root", [plain(words.clean(closed.root, 64))], columns)
    sent = _sent(t, number)
    if sent is not None:
        said = f"{format_bytes(words.total(sent))} by all, audits and joining beside it included"
        rows += block("Sent", [plain(said), plain(words.kinds(sent))], columns)
    return rows


def _drawn(count: int) -> str:
    return f"{words.many(count, 'segment')} drawn" if count else "no segment drawn"


def _told(audit: AuditConcluded) -> str:
    off = words.excess(audit)
    return (
        f"{words.peer(audit.peer)} segment {audit.segment} {words.clean(audit.finding, 12)}"
        f"{', off by ' + off if off else ''}; {words.repeated_by(audit)} in {format_seconds(audit.seconds)}"
    )


def _lanes(t: Timeline, number: int, columns: int) -> list[Row]:
    lanes = t.lanes(number)
    if not lanes:
        return block("Members", [Span("nobody saw this round open", Style.QUIET)], columns)
    numbers = "   train   merge    wait"
    size = max(LEAST_BAR, min(BAR, columns - 9 - 9 - len(numbers) - 1))
    legend = f"{COMPUTE} train  {SEND} send  {MERGE} merge  {WAIT} wait"
    rows = [
        Row(
            cut(
                (Span("Members  ", Style.STRONG), Span(f"{legend:<{size + 9}}", Style.QUIET), plain(numbers)),
                columns,
            )
        )
    ]
    for lane in lanes:
        if lane.trained is None:
            rows += block(
                "", [plain(words.peer(lane.peer)), Span("left before its work came", Style.CARE)], columns
            )
            continue
        bar = lane_bar(lane, size)
        spent = "".join(f"{_seconds(lane, sign):>6.2f} s" for sign in (COMPUTE, MERGE, WAIT))
        spans = (plain(" " * 9 + f"{words.peer(lane.peer):<9}"), Span(bar, Style.MARK), plain(" " + spent))
        rows.append(Row(cut(spans, columns)))
    return rows


def round_facts(t: Timeline, number: int) -> dict[str, Any]:
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


def dispute_rows(t: Timeline, number: int, columns: int, *, evidence: str, run: str) -> list[Row]:
    """A contested audit from the draw to the money. `evidence`: the file's path in the run's folder, if it is there."""
    audit = words.disputes(t)[number - 1]
    drawn = t.drawn.get((audit.round, audit.peer, audit.segment))
    caught = t.caught.get(audit.peer)
    is_caught = caught is not None and (caught.round, caught.segment) == (audit.round, audit.segment)
    place = f"segment {audit.segment} of round {audit.round} by {words.peer(audit.peer)}"
    head = f"{number} of {len(words.disputes(t))}: {place}"
    rows = block("Dispute", [Span(head, Style.STRONG)], columns)
    rows += block("Peer", [plain(words.clean(audit.peer, 64))], columns)
    why = (
        f"suspicion chose it: {words.clean(drawn.flagged, 80)}"
        if drawn and drawn.flagged
        else "the draw chose it, after all had committed to their work"
    )
    rows += block("Draw", [plain(why), plain(f"{drawn.at:.1f} s into the run" if drawn else "")], columns)
    rows += block("Found", [_finding(audit)], columns)
    first, *others = audit.verifiers or ("",)
    rows += block(
        "First",
        [plain(f"{words.clean(first, 64)} trained the segment again, before it saw the claim")],
        columns,
    )
    second = f"{words.peers(others)} did the same, blind as well" if others else "none was asked for"
    rows += block("Second", [plain(second)], columns)
    took = f"{format_count(audit.tokens)} tokens trained again in {format_seconds(audit.seconds)}"
    rows += block("Cost", [plain(took)], columns)
    rows += _verdict(t, audit, is_caught, columns)
    rows += game.rows(*game.of(t, audit.peer, audit.round, audit.segment), columns)
    return rows + _proof(t, audit, is_caught, evidence, run, columns)


def _finding(audit: AuditConcluded) -> Span:
    off = words.excess(audit) or "not at all"
    what = {
        words.HOLDS: f"it holds: the claim is off by {off}, one tolerance is allowed",
        "unpaid": f"not paid: the claim is off by {off}, between one and two tolerances",
        words.FALSE: f"false: the claim is off by {off}, more than two are nobody's noise",
        "withheld": "withheld: the drawn states were not shown in time",
    }.get(audit.finding, f"{words.clean(audit.finding, 20)}: off by {off}")
    return Span(what, Style.GOOD if audit.finding == words.HOLDS else Style.BAD)


def _verdict(t: Timeline, audit: AuditConcluded, is_caught: bool, columns: int) -> list[Row]:
    if not is_caught:
        said = "its work is accepted" if audit.finding == words.HOLDS else "no stake was taken for this one"
        return block("Verdict", [plain(said)], columns)
    caught = t.caught[audit.peer]
    gone = next((left.reason for left in t.left if left.peer == audit.peer), "")
    where = words.bounties(caught.bounty, caught.burnt)
    lost = (
        [] if audit.peer in t.ruled else [plain(words.caught_price(caught)), plain(where)]
    )  # said of its game
    return [
        *block(
            "Verdict", [Span(words.clean(caught.why, 60), Style.BAD), plain(words.clean(gone, 60))], columns
        ),
        *block("Money", [*lost, plain(_forfeited(t, audit.peer))], columns),
    ]


def _forfeited(t: Timeline, peer: str) -> str:
    paid = t.settled.get(peer)
    if paid is None:
        return ""
    return words.settled(paid, t)


def _proof(
    t: Timeline, audit: AuditConcluded, is_caught: bool, evidence: str, run: str, columns: int
) -> list[Row]:
    digest = t.caught[audit.peer].evidence if is_caught else ""
    if not evidence and not digest:
        return block(
            "Evidence", [Span("none is kept for work that nobody was punished for", Style.QUIET)], columns
        )
    place = (
        plain(words.clean(evidence, 80))
        if evidence
        else Span("its file is not in the run's folder", Style.CARE)
    )
    hash_row = block("", [plain(f"hash {words.clean(digest, 64)}")], columns) if digest else []
    how = Span(f"farflung verify-run {words.clean(run, 60)}", Style.MARK)
    checks = Span("recomputes the run, checks each signature", Style.QUIET)
    return [*block("Evidence", [place], columns), *hash_row, *block("Check it", [how, checks], columns)]


def dispute_facts(t: Timeline, number: int, *, evidence: str) -> dict[str, Any]:
    """The same for machines."""
    audit = words.disputes(t)[number - 1]
    drawn, caught = t.drawn.get((audit.round, audit.peer, audit.segment)), t.caught.get(audit.peer)
    return {
        "dispute": number,
        "of": len(words.disputes(t)),
        "drawn": msgspec.to_builtins(drawn) if drawn is not None else None,
        "audit": msgspec.to_builtins(audit),
        "caught": msgspec.to_builtins(caught) if caught is not None else None,
        "evidence": evidence or None,
        **game.facts(*game.of(t, audit.peer, audit.round, audit.segment)),
    }
