"""Renders the upper half of the screen: the plan, the nodes that are up, training progress and pending members."""

from __future__ import annotations

from typing import Final

from farflung.core.events import PlanEvent, RunResumeEvent
from farflung.core.units import format_bytes, format_seconds
from farflung.watch import (
    committee_text,
    data_text,
    job_class_text,
    phrases,
    plan_vs_run_text,
    relay_fee_text,
    traffic_ratios,
)
from farflung.watch.fold import RunStage, RunTimeline
from farflung.watch.row_layout import LABEL, ScreenRow, SpanStyle, TextSpan, block, plain

BAR: Final = 40
WAITING: Final = "…"  # at the end of what is waited for; a clock follows
NARROW: Final = 50  # below: no time beside the bar
DONE, OPEN = "━", "─"  # of a bar; they differ without colour too

STORY = 1  # ranks: the lower, the longer it stays where there are few lines
FACT = 3
MORE = 5
DETAIL = 7


def _not_yet(label: str, text: str, columns: int) -> list[ScreenRow]:
    return block(label, [TextSpan(text, SpanStyle.QUIET)], columns, rank=FACT)


def plan(t: RunTimeline, now: float, columns: int, is_over: bool = False) -> list[ScreenRow]:
    """What will be done, and what it takes."""
    p = t.plan
    if p is None:
        said = "was not made" if is_over else f"reading the job and its data … {phrases.clock(now - t.session_at)}"
        return _not_yet("Plan", said, columns)
    each = phrases.schedule(p)
    sync, ring = traffic_ratios.planned_traffic(p)
    alone = f", baseline {format_seconds(p.baseline_seconds)}" if p.baseline_seconds else ""
    takes = (f"RAM {format_bytes(p.memory_bytes)} per worker", f"time {phrases.planned_span(p.seconds)}{alone}")
    return [
        *block("Plan", [plain(phrases.shape(p)), plain(each)], columns, rank=FACT),
        *block("", [plain(text) for text in phrases.agreement(p)], columns, rank=DETAIL),
        *block("", [plain(sync), plain(ring)], columns, rank=MORE),
        *block("", [plain(text) for text in plan_vs_run_text.assumed_lines(p)], columns, rank=DETAIL),
        *block("", [plain(phrases.committee(p))] if p.validators > 1 else [], columns, rank=DETAIL),
        *block("", [plain(data_text.summary(p))], columns, rank=FACT if data_text.is_unasked(p) else DETAIL),
        *block(
            "", [plain(text) for text in (*takes, phrases.price(p), relay_fee_text.planned_fees(p))], columns, rank=MORE
        ),
        *_class(t, p, columns),
    ]


def folded_plan(t: RunTimeline, columns: int) -> list[ScreenRow]:
    """The plan once training runs: what is trained and for how much, and what must not be overlooked."""
    p = t.plan
    if p is None:
        return []
    cells = (phrases.shape(p), phrases.schedule(p), phrases.many(p.peers, "provider"), phrases.price(p))
    left_out = [plain(data_text.summary(p))] if data_text.is_unasked(p) else []
    return [
        *block("Plan", [plain(text) for text in cells], columns, rank=DETAIL),
        *block("", left_out, columns, rank=FACT),
        *_class(t, p, columns),
    ]


def is_training(t: RunTimeline) -> bool:
    """Whether a round was opened: then loss and progress come first, and the plan is folded."""
    return t.opened is not None or bool(t.rounds)


def _class(t: RunTimeline, p: PlanEvent, columns: int) -> list[ScreenRow]:
    """Foreseen, then found. What is not proven says so as long as anything is said."""
    spans = job_class_text.spans(t) or [TextSpan(job_class_text.planned_class(p), SpanStyle.QUIET)]
    is_unproven = t.classed is not None and not t.classed.is_proven
    return block("", spans, columns, rank=STORY if is_unproven else DETAIL) if spans[0].text else []


def network(t: RunTimeline, now: float, columns: int, is_over: bool) -> list[ScreenRow]:
    """Who is up, who is still starting, where workers run."""
    if not t.processes:
        return _not_yet("Network", "not started" if is_over else "waits for the plan …", columns)
    starting = _starting(t, is_over)
    if starting and starting[0].text.endswith(WAITING):
        since = phrases.clock(now - max(each.at for each in t.processes.values()))
        starting = [TextSpan(f"{starting[0].text} {since}", starting[0].style)]
    rank = MORE if is_training(t) and not t.is_starting_again else FACT
    rows = block("Network", [plain(_up(t)), *starting], columns, rank=rank)
    cells = [
        plain(text) for text in (_homes(t), _tier(t), _hired(t), _exchange(t), _ways(t), committee_text.summary(t))
    ]
    return [*rows, *block("", cells, columns, rank=DETAIL)] if any(c.text for c in cells) else rows


def _of_role(t: RunTimeline, role: str) -> int:
    return sum(1 for p in t.processes.values() if p.role == role and p.at >= t.session_at)


def _up(t: RunTimeline) -> str:
    validators = _of_role(t, "validator")
    ledger = phrases.many(validators, "validator") if validators > 1 else "ledger" if validators else ""
    requester = "requester" if _of_role(t, "requester") else ""
    alone = [name for name in (ledger, requester) if name]
    nodes, relays = (
        [phrases.many(_of_role(t, role), role) for role in roles if _of_role(t, role)]
        for roles in (("provider", "verifier"), ("relay",))
    )
    up = [*nodes, *alone, *relays]
    return ", ".join(up) + " up" if up else "no node is up yet"


def _starting(t: RunTimeline, is_over: bool) -> list[TextSpan]:
    """What the first round still waits for."""
    if t.resumed is not None and t.rounds:
        return _again(t, t.resumed, is_over)
    since = [opened.at - t.session_at for opened in t.openings.values() if opened.at >= t.session_at]
    if since:
        return [TextSpan(f"ready in {format_seconds(min(since))}", SpanStyle.GOOD)]
    if is_over:
        return [TextSpan("never ready", SpanStyle.CARE)]
    if t.rounds:
        return []
    wanted = t.plan.peers if t.plan is not None else 0
    here = _of_role(t, "provider")
    if here < wanted:
        return [TextSpan(f"starting providers: {here} of {wanted} …", SpanStyle.QUIET)]
    if not _of_role(t, "requester"):
        return [TextSpan("measuring the numerical noise of one step (30 s is usual) …", SpanStyle.QUIET)]
    if t.matched is None:
        return [TextSpan("hiring …", SpanStyle.QUIET)]
    hired = len(t.matched.peers)
    return [
        TextSpan(
            f"bringing data and model: {len(t.joined)} of {phrases.many(hired, 'provider')} ready …", SpanStyle.QUIET
        )
    ]


def _again(t: RunTimeline, resumed: RunResumeEvent, is_over: bool) -> list[TextSpan]:
    """How far a run is that goes on after it was stopped or killed."""
    if not t.is_starting_again:
        seconds = [o.at - resumed.at for o in t.openings.values() if o.at >= resumed.at]
        return [TextSpan(f"ready again in {format_seconds(min(seconds))}", SpanStyle.GOOD)] if seconds else []
    if is_over:
        return [TextSpan("not ready again", SpanStyle.CARE)]
    here, wanted = _of_role(t, "provider"), t.plan.peers if t.plan is not None else 0
    if here < wanted:
        return [TextSpan(f"starting again, providers: {here} of {wanted} …", SpanStyle.QUIET)]
    return [TextSpan(f"going on from round {resumed.round} …", SpanStyle.QUIET)]


def _tier(t: RunTimeline) -> str:
    if not t.sandboxes:
        return ""
    last = t.sandboxes[-1]
    gaps = f", {phrases.many(len(last.gaps), 'known gap')}" if last.gaps else ""
    return f"workers in sandbox {phrases.clean(last.tier, 20)}{gaps}"


def _homes(t: RunTimeline) -> str:
    return phrases.homes(t.housed) if t.housed is not None else ""


def _exchange(t: RunTimeline) -> str:
    return phrases.exchange(t.last_round) if t.last_round is not None else ""


def _ways(t: RunTimeline) -> str:
    return phrases.ways(t.ways) if t.ways is not None else ""


def _hired(t: RunTimeline) -> str:
    if t.funded is not None:
        return f"{phrases.shown_credits(t.funded.escrow)} in escrow, {phrases.short_credits(t.funded.stakes)} at stake"
    return ""


def bar(done: float, columns: int) -> list[TextSpan]:
    """`done` of 1 as a bar."""
    full = round(columns * min(1.0, max(0.0, done)))
    spans = [TextSpan(DONE * full, SpanStyle.MARK), TextSpan(OPEN * (columns - full), SpanStyle.QUIET)]
    return [span for span in spans if span.text]


def train(t: RunTimeline, now: float, columns: int, is_over: bool) -> list[ScreenRow]:
    """How far it is, how good, how fast, and why it is not faster."""
    if not is_training(t):
        text = "no round was opened" if is_over else "starting nodes …"
        return [*_not_yet("Train", text, columns), *_incidents(t, columns, is_over)]
    rows = [_progress(t, now, columns, is_over)]
    rows += block("", _quality(t), columns, rank=STORY)
    if not is_over and t.result is None:
        rows += _slow(t, now, columns)
    return [*rows, *_incidents(t, columns, is_over), *_baseline(t, now, columns)]


def _progress(t: RunTimeline, now: float, columns: int, is_over: bool) -> ScreenRow:
    last = t.last_round
    opened = t.opened
    rounds = last.rounds if last is not None else opened.rounds if opened is not None else 0
    done = len(t.rounds)
    said = f"{done}/{rounds} rounds"
    time = _left(t, now) if not is_over and done < rounds and t.stage is RunStage.TRAIN else _took(t)
    if columns < NARROW:
        time = ""
    size = max(4, min(BAR, columns - LABEL - len(said) - len(time) - 6))
    spans = block("Train", [plain("")], columns)[0].spans
    rest = [plain(f"   {said}"), TextSpan(f"   {time}" if time else "", SpanStyle.QUIET)]
    return ScreenRow((*spans, *bar(done / rounds if rounds else 0.0, size), *[s for s in rest if s.text]), 0)


def _left(t: RunTimeline, now: float) -> str:
    left, last = t.seconds_left, t.last_round
    if left is None or last is None:
        return f"{phrases.planned_span(t.plan.seconds)} planned" if t.plan is not None else ""
    return phrases.span_left(left, max(0.0, now - last.at))


def _took(t: RunTimeline) -> str:
    seconds = sum(closed.seconds for closed in t.rounds.values())
    last = t.last_round
    early = ", ended early" if t.result is not None and last is not None and len(t.rounds) < last.rounds else ""
    return f"took {format_seconds(seconds)}{early}" if seconds else ""


def _quality(t: RunTimeline) -> list[TextSpan]:
    """Losses, then speed."""
    last = t.last_round
    held = t.losses[max(t.losses)] if t.losses else None
    start = t.losses.get(0)
    parts = []
    if held is not None:
        since = f", start {start:.3f}" if start is not None and len(t.losses) > 1 else ""
        parts.append(plain(f"validation loss {phrases.loss_text(held, t)}{since}"))
    if last is None:
        return parts or [TextSpan("the first round is not closed yet", SpanStyle.QUIET)]
    parts.append(plain(f"training {last.loss:.3f}" if parts else f"training loss {last.loss:.3f}"))
    return [*parts, plain(phrases.speed(last)), plain(phrases.send_rate(t))]


def _slow(t: RunTimeline, now: float, columns: int) -> list[ScreenRow]:
    """Why it is not faster: whom the open round waits for, or the audits of the one before."""
    waiting = t.waiting
    if waiting is not None and t.opened is not None:
        late = waiting.since is not None and now - waiting.since >= 1.0
        style = SpanStyle.CARE if late else SpanStyle.QUIET
        said = f"{phrases.wait(waiting, now, t)}; round {t.opened.round} for {phrases.clock(now - t.opened.at)}"
        return block("", [TextSpan(said, style)], columns, rank=STORY)
    last = t.last_round
    open_rounds = phrases.open_audits(t)
    if t.stage is not RunStage.TRAIN or last is None:
        return []
    if open_rounds:
        said, rank = phrases.audits_wait(open_rounds), STORY
    elif last.round + 1 >= last.rounds:
        said, rank = "all rounds are closed and checked; the ledger pays next …", MORE
    else:
        said, rank = "the next round opens …", DETAIL
    since = phrases.clock(now - last.at)
    clocked = f"{said} {since}" if said.endswith(WAITING) else f"{said}, {since} so far"
    return block("", [TextSpan(clocked, SpanStyle.QUIET)], columns, rank=rank)


def _incidents(t: RunTimeline, columns: int, is_over: bool) -> list[ScreenRow]:
    """Who died or left, what was done; a caught peer's story is told under Verify. Then the last warning."""
    told = phrases.incidents(t)
    rows: list[ScreenRow] = []
    if told:
        who, then = told[-1]
        more = f"{len(told) - 1} more before" if len(told) > 1 else ""
        parts = [TextSpan(who, SpanStyle.CARE), TextSpan(then, SpanStyle.CARE), TextSpan(more, SpanStyle.QUIET)]
        rows += block("", parts, columns, rank=STORY)
    warnings = phrases.warnings(t, is_over)
    if warnings and t.result is None:
        rows += block("", [TextSpan(phrases.warned(warnings[-1], t), SpanStyle.CARE)], columns, rank=STORY)
    return rows


def _baseline(t: RunTimeline, now: float, columns: int) -> list[ScreenRow]:
    """The single-machine baseline, while it is under way; the gap is the result's business."""
    if t.result is not None:
        return []
    if t.baseline is not None:
        return block("", [plain(phrases.baseline_end(t.baseline))], columns, rank=MORE)
    if not t.baseline_scores:
        planned = t.plan.baseline_seconds if t.plan is not None and t.stage is RunStage.SETTLE else 0.0
        said = f"single-machine baseline: {phrases.planned_span(planned)} planned" if planned else ""
        return block("", [TextSpan(said, SpanStyle.QUIET)], columns, rank=MORE) if said else []
    last = t.baseline_scores[-1]
    each = last.seconds / last.step if last.step else 0.0
    left, since = each * (last.steps - last.step), max(0.0, now - last.at)
    more = f"about {phrases.clock(left - since)} left" if since < left else f"{phrases.clock(since)} since that step"
    return block("", [plain(phrases.baseline_step(last)), plain(more)], columns, rank=MORE)
