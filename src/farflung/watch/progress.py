"""The upper half of the screen: what is planned, who is up, how training goes and for whom it waits."""

from __future__ import annotations

from typing import Final

from farflung.core.events import Planned, Resumed
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_seconds
from farflung.watch import classes, committee, fares, foretold, words, yardstick
from farflung.watch.fold import Stage, Timeline
from farflung.watch.rows import LABEL, Row, Span, Style, block, plain

BAR: Final = 40
NARROW: Final = 50  # below: no time beside the bar
DONE, OPEN = "━", "─"  # of a bar; they differ without colour too

STORY = 1  # ranks: the lower, the longer it stays where there are few lines
FACT = 3
MORE = 5
DETAIL = 7


def _not_yet(label: str, text: str, columns: int) -> list[Row]:
    return block(label, [Span(text, Style.QUIET)], columns, rank=FACT)


def plan(t: Timeline, columns: int, is_over: bool = False) -> list[Row]:
    """What will be done, and what it takes."""
    p = t.plan
    if p is None:
        return _not_yet("Plan", "was not made" if is_over else "reading the job and its data …", columns)
    each = words.schedule(p)
    sync, ring = yardstick.traffic(p)
    alone = f", one machine {format_seconds(p.baseline_seconds)}" if p.baseline_seconds else ""
    takes = (f"{format_bytes(p.memory_bytes)} a worker", f"about {format_seconds(p.seconds)}{alone}")
    return [
        *block("Plan", [plain(words.shape(p)), plain(each)], columns, rank=FACT),
        *block("", [plain(text) for text in words.agreement(p)], columns, rank=DETAIL),
        *block("", [plain(sync), plain(ring)], columns, rank=MORE),
        *block("", [plain(text) for text in foretold.lines_of(p)], columns, rank=DETAIL),
        *block("", [plain(words.committee(p))] if p.validators > 1 else [], columns, rank=DETAIL),
        *block("", [plain(text) for text in (*takes, words.price(p), fares.planned(p))], columns, rank=MORE),
        *_class(t, p, columns),
    ]


def _class(t: Timeline, p: Planned, columns: int) -> list[Row]:
    """Foreseen, then found. What is not proven says so as long as anything is said."""
    spans = classes.spans(t) or [Span(classes.foreseen(p), Style.QUIET)]
    is_unproven = t.classed is not None and not t.classed.is_proven
    return block("", spans, columns, rank=STORY if is_unproven else DETAIL) if spans[0].text else []


def network(t: Timeline, columns: int, is_over: bool) -> list[Row]:
    """Who is up, who is still starting, where workers run."""
    if not t.processes:
        return _not_yet("Network", "not started" if is_over else "waits for the plan …", columns)
    rows = block("Network", [plain(_up(t)), *_starting(t, is_over)], columns, rank=FACT)
    cells = [
        plain(text)
        for text in (_homes(t), _tier(t), _hired(t), _exchange(t), _ways(t), committee.together(t))
    ]
    return [*rows, *block("", cells, columns, rank=DETAIL)] if any(c.text for c in cells) else rows


def _of_role(t: Timeline, role: str) -> int:
    return sum(1 for p in t.processes.values() if p.role == role and p.at >= t.session_at)


def _up(t: Timeline) -> str:
    validators = _of_role(t, "validator")
    ledger = words.many(validators, "validator") if validators > 1 else "ledger" if validators else ""
    requester = "requester" if _of_role(t, "requester") else ""
    alone = [name for name in (ledger, requester) if name]
    nodes, relays = (
        [words.many(_of_role(t, role), role) for role in roles if _of_role(t, role)]
        for roles in (("provider", "verifier"), ("relay",))
    )
    up = [*nodes, *alone, *relays]
    return ", ".join(up) + " up" if up else "nobody up yet"


def _starting(t: Timeline, is_over: bool) -> list[Span]:
    """What the first round still waits for."""
    if t.resumed is not None and t.rounds:
        return _again(t, t.resumed, is_over)
    since = [opened.at - t.session_at for opened in t.openings.values() if opened.at >= t.session_at]
    if since:
        return [Span(f"ready in {format_seconds(min(since))}", Style.GOOD)]
    if is_over:
        return [Span("never ready", Style.CARE)]
    if t.rounds:
        return []
    wanted = t.plan.peers if t.plan is not None else 0
    here = _of_role(t, "provider")
    if here < wanted:
        return [Span(f"starting providers: {here} of {wanted} …", Style.QUIET)]
    if not _of_role(t, "requester"):
        return [Span("preparing terms and noise profile …", Style.QUIET)]
    if t.matched is None:
        return [Span("hiring …", Style.QUIET)]
    hired = len(t.matched.peers)
    return [Span(f"bringing data and model: {len(t.joined)} of {hired} providers have both …", Style.QUIET)]


def _again(t: Timeline, resumed: Resumed, is_over: bool) -> list[Span]:
    """How far a run is that goes on after it was stopped or killed."""
    if not t.is_starting_again:
        seconds = [o.at - resumed.at for o in t.openings.values() if o.at >= resumed.at]
        return [Span(f"ready again in {format_seconds(min(seconds))}", Style.GOOD)] if seconds else []
    if is_over:
        return [Span("not ready again", Style.CARE)]
    here, wanted = _of_role(t, "provider"), t.plan.peers if t.plan is not None else 0
    if here < wanted:
        return [Span(f"starting again, providers: {here} of {wanted} …", Style.QUIET)]
    return [Span(f"going on from round {resumed.round} …", Style.QUIET)]


def _tier(t: Timeline) -> str:
    if not t.sandboxes:
        return ""
    last = t.sandboxes[-1]
    gaps = f", {words.many(len(last.gaps), 'known gap')}" if last.gaps else ""
    return f"workers in sandbox {words.clean(last.tier, 20)}{gaps}"


def _homes(t: Timeline) -> str:
    return words.homes(t.housed) if t.housed is not None else ""


def _exchange(t: Timeline) -> str:
    return words.exchange(t.last_round) if t.last_round is not None else ""


def _ways(t: Timeline) -> str:
    return words.ways(t.ways) if t.ways is not None else ""


def _hired(t: Timeline) -> str:
    if t.funded is not None:
        return f"{words.credits_of(t.funded.escrow)} in escrow, {format_credits(t.funded.stakes)} at stake"
    return ""


def bar(done: float, columns: int) -> list[Span]:
    """`done` of 1 as a bar."""
    full = round(columns * min(1.0, max(0.0, done)))
    spans = [Span(DONE * full, Style.MARK), Span(OPEN * (columns - full), Style.QUIET)]
    return [span for span in spans if span.text]


def train(t: Timeline, now: float, columns: int, is_over: bool) -> list[Row]:
    """How far it is, how good, how fast, and why it is not faster."""
    if t.opened is None and not t.rounds:
        text = "no round was opened" if is_over else "waits for the network …"
        return [*_not_yet("Train", text, columns), *_incidents(t, columns, is_over)]
    rows = [_progress(t, now, columns, is_over)]
    rows += block("", _quality(t), columns, rank=FACT)
    if not is_over and t.result is None:
        rows += _slow(t, now, columns)
    return [*rows, *_incidents(t, columns, is_over), *_baseline(t, now, columns)]


def _progress(t: Timeline, now: float, columns: int, is_over: bool) -> Row:
    last = t.last_round
    opened = t.opened
    rounds = last.rounds if last is not None else opened.rounds if opened is not None else 0
    done = len(t.rounds)
    said = f"{done}/{rounds} rounds"
    time = _left(t, now) if not is_over and done < rounds and t.stage is Stage.TRAIN else _took(t)
    if columns < NARROW:
        time = ""
    size = max(4, min(BAR, columns - LABEL - len(said) - len(time) - 6))
    spans = block("Train", [plain("")], columns)[0].spans
    rest = [plain(f"   {said}"), Span(f"   {time}" if time else "", Style.QUIET)]
    return Row((*spans, *bar(done / rounds if rounds else 0.0, size), *[s for s in rest if s.text]), 0)


def _left(t: Timeline, now: float) -> str:
    left, last = t.seconds_left, t.last_round
    if left is None or last is None:
        return f"about {words.clock(t.plan.seconds)} planned" if t.plan is not None else ""
    return f"{words.clock(left - max(0.0, now - last.at))} left"


def _took(t: Timeline) -> str:
    seconds = sum(closed.seconds for closed in t.rounds.values())
    last = t.last_round
    early = (
        ", ended early" if t.result is not None and last is not None and len(t.rounds) < last.rounds else ""
    )
    return f"took {format_seconds(seconds)}{early}" if seconds else ""


def _quality(t: Timeline) -> list[Span]:
    """Losses, then speed."""
    last = t.last_round
    held = t.losses[max(t.losses)] if t.losses else None
    start = t.losses.get(0)
    parts = []
    if held is not None:
        since = f" (start {start:.3f})" if start is not None and len(t.losses) > 1 else ""
        parts.append(plain(f"held-out loss {held:.3f}{since}"))
    if last is None:
        return parts or [Span("the first round is not closed yet", Style.QUIET)]
    parts.append(plain(f"training {last.loss:.3f}" if parts else f"training loss {last.loss:.3f}"))
    return [*parts, plain(words.speed(last)), plain(words.send_rate(t))]


def _slow(t: Timeline, now: float, columns: int) -> list[Row]:
    """Why it is not faster: whom the open round waits for, or the audits of the one before."""
    waiting = t.waiting
    cores = t.plan.cores if t.plan is not None else 0
    if waiting is not None:
        late = waiting.since is not None and now - waiting.since >= 1.0
        style = Style.CARE if late else Style.QUIET
        return block("", [Span(words.wait(waiting, now, cores), style)], columns, rank=STORY)
    last = t.last_round
    open_rounds = words.open_audits(t)
    if t.stage is not Stage.TRAIN or last is None:
        return []
    if open_rounds:
        said, rank = words.audits_wait(open_rounds), STORY
    elif last.round + 1 >= last.rounds:
        said, rank = "all rounds are closed and checked; the ledger pays next …", MORE
    else:
        said, rank = "the next round opens …", DETAIL
    return block("", [Span(said, Style.QUIET)], columns, rank=rank)


def _incidents(t: Timeline, columns: int, is_over: bool) -> list[Row]:
    """Who died or left, what was done; a caught peer's story is told under Verify. Then the last warning."""
    told = words.incidents(t)
    rows: list[Row] = []
    if told:
        who, then = told[-1]
        more = f"{len(told) - 1} more before" if len(told) > 1 else ""
        parts = [Span(who, Style.CARE), Span(then, Style.CARE), Span(more, Style.QUIET)]
        rows += block("", parts, columns, rank=STORY)
    warnings = words.warnings(t, is_over)
    if warnings and t.result is None:
        rows += block("", [Span(words.warned(warnings[-1]), Style.CARE)], columns, rank=STORY)
    return rows


def _baseline(t: Timeline, now: float, columns: int) -> list[Row]:
    """One machine on the same tokens, while it is under way; the gap is the result's business."""
    if t.result is not None:
        return []
    if t.baseline is not None:
        return block("", [plain(words.baseline_end(t.baseline))], columns, rank=MORE)
    if not t.baseline_scores:
        planned = t.plan.baseline_seconds if t.plan is not None and t.stage is Stage.SETTLE else 0.0
        said = (
            f"one machine trains on the same tokens, about {words.clock(planned)} planned" if planned else ""
        )
        return block("", [Span(said, Style.QUIET)], columns, rank=MORE) if said else []
    last = t.baseline_scores[-1]
    each = last.seconds / last.step if last.step else 0.0
    left = each * (last.steps - last.step) - max(0.0, now - last.at)
    return block(
        "", [plain(words.baseline_step(last)), plain(f"about {words.clock(left)} left")], columns, rank=MORE
    )
