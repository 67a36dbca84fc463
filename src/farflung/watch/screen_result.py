"""Renders the lower half of the screen: audit results, payments, and the outcome of the run."""

from __future__ import annotations

from typing import Final

from farflung.core.events import SlashEvent
from farflung.core.units import format_bytes, format_count
from farflung.plan.plan_comparison import is_off
from farflung.watch import canary_text, dispute_text, phrases, plan_vs_run_text, relay_fee_text, traffic_ratios
from farflung.watch.fold import RunTimeline
from farflung.watch.row_layout import WIDE, ScreenRow, SpanStyle, TextSpan, block, plain
from farflung.watch.screen_progress import DETAIL, FACT, MORE, STORY

HASH: Final = 12
CELL: Final = 42


def _quiet(text: str) -> TextSpan:
    return TextSpan(text, SpanStyle.QUIET)


def verify(t: RunTimeline, columns: int, is_over: bool, run: str = "") -> list[ScreenRow]:
    """How much work was repeated and what was found; a cheater's story in two lines."""
    rows = block("Verify", _counts(t, is_over), columns, rank=FACT)
    caught = sorted(t.caught.values(), key=lambda c: c.at)
    for number, each in enumerate(caught):
        rank = STORY if number == 0 else DETAIL
        rows += block("", [TextSpan(phrases.caught_claim(each, t), SpanStyle.BAD)], columns, rank=rank)
        audit = phrases.audit_of(each, t)
        by = phrases.repeated_by(audit, t) if audit is not None else ""
        price = [plain(by), plain(phrases.caught_price(each))]
        rows += block("", price, columns, rank=rank + 1, right=_see(t, each, run))
    for warning in t.warnings:
        if warning.code == phrases.ESCAPED:
            told = phrases.with_names(phrases.clean(warning.message, 200), t)
            rows += block("", [TextSpan(told, SpanStyle.CARE)], columns, rank=STORY)
    return rows + _guessers(t, columns) + _played(t, columns)


def _guessers(t: RunTimeline, columns: int) -> list[ScreenRow]:
    """Verifiers that lost their stakes to a canary: a line each."""
    rows: list[ScreenRow] = []
    for each in sorted(t.perjured.values(), key=lambda p: (p.round, p.verifier)):
        parts = [TextSpan(canary_text.claim(each, t), SpanStyle.BAD), plain(canary_text.price(each))]
        rows += block("", parts, columns, rank=STORY if not rows else DETAIL)
    return rows


def _played(t: RunTimeline, columns: int) -> list[ScreenRow]:
    """Where each dispute stands, or how it ended: a line each."""
    rows: list[ScreenRow] = []
    for peer in sorted(t.games.keys() | t.ruled.keys()):
        ruled = t.ruled.get(peer)
        style = SpanStyle.CARE if ruled is None else dispute_text.style(ruled)
        element = dispute_text.element(ruled) if ruled is not None else ""
        parts = [TextSpan(dispute_text.now(t, peer), style), plain(element)]
        rows += block("", parts, columns, rank=STORY if not rows else DETAIL)
    return rows


def _see(t: RunTimeline, caught: SlashEvent, run: str) -> tuple[str, ...]:
    """The command that shows the evidence."""
    audit, found = phrases.audit_of(caught, t), phrases.disputes(t)
    if audit is None:
        return ()
    return _commands(t, run, "watch", f" --dispute {found.index(audit) + 1}")


def _commands(t: RunTimeline, run: str, verb: str, rest: str = "") -> tuple[str, ...]:
    """A verb with the run's name, and shorter without it; `run`: how it must be named, where it must be."""
    name = run or phrases.run_name(t)
    short = f"farflung {verb}{rest}"
    named = f"farflung {verb} {name}{rest}"
    return (named,) if run else (named, short) if name else (short,)


def _counts(t: RunTimeline, is_over: bool) -> list[TextSpan]:
    drawn = len(t.drawn.keys() | t.audits.keys())
    if not drawn:
        if t.result is not None:
            return [plain("no segment was drawn: this job has no audits, or none fell due")]
        return [
            _quiet(
                "nothing was drawn" if is_over else "nothing drawn yet; the draw comes after each round's commitments"
            )
        ]
    held = sum(1 for audit in t.audits.values() if audit.finding == phrases.HOLDS)
    other: dict[str, int] = {}
    for audit in t.audits.values():
        if audit.finding != phrases.HOLDS:
            other[audit.finding] = other.get(audit.finding, 0) + 1
    still = len(phrases.open_audits(t))
    idle = drawn - len(t.audits) - still
    verifiers = phrases.many(len(t.verifiers), "verifier")
    return [
        plain(phrases.many(drawn, "segment") + " drawn"),
        TextSpan(f"{held} {'holds' if held == 1 else 'hold'}", SpanStyle.GOOD),
        *[
            TextSpan(f"{count} {phrases.clean(name, 12)}", SpanStyle.BAD if name == phrases.FALSE else SpanStyle.CARE)
            for name, count in sorted(other.items())
        ],
        *([_quiet(f"{still} open")] if still else []),
        *([_quiet(f"{idle} dropped with its peer")] if idle else []),
        plain(f"repeated by {verifiers}" if t.verifiers else ""),
        plain(canary_text.summary(t)),
    ]


def settle(t: RunTimeline, columns: int, is_over: bool) -> list[ScreenRow]:
    """Who was paid; what was slashed and came back; whether the ledger is balanced."""
    if not t.settled:
        text = "nobody was paid yet" if is_over else "when all rounds are closed and checked"
        return block("Settle", [_quiet(text)], columns, rank=FACT)
    price = t.matched.unit_price if t.matched is not None else 0
    parts = [plain(_paid(t, "provider")), plain(_paid(t, "verifier")), _quiet(phrases.anchor(price))]
    parts.append(plain(relay_fee_text.summary(t)))
    if t.result is None:
        slashed, _, _ = t.lost
        parts += [
            plain(f"slashed {phrases.short_credits(slashed)}" if slashed else ""),
            plain(_pending(t)),
            _quiet("the sum is not proved yet" if is_over else "the sum is proved at the end …"),
        ]
        return block("Settle", parts, columns, rank=FACT)
    money = f"slashed {phrases.short_credits(t.result.slashed)}, returned {phrases.shown_credits(t.result.refunded)}"
    money += f", pay burnt {phrases.short_credits(t.result.pay_burnt)}" if t.result.pay_burnt else ""
    style = SpanStyle.GOOD if t.result.sum == 0 else SpanStyle.BAD
    return [
        *block("Settle", parts, columns, rank=FACT),
        *block(
            "",
            [plain(money), plain(_pending(t)), TextSpan(phrases.conserved(t.result.sum, t.began), style)],
            columns,
            rank=STORY,
        ),
    ]


def _pending(t: RunTimeline) -> str:
    """What disputes still hold; empty where they hold nothing."""
    held = sum(c.pending for c in t.caught.values())
    return f"{phrases.short_credits(held)} wait for a dispute" if held else ""


def _paid(t: RunTimeline, role: str) -> str:
    """What the peers of one role got, and how many of them got something."""
    verifiers = {p.peer for p in t.processes.values() if p.role == "verifier" and p.peer} | set(t.verifiers)
    got = [s.paid for s in t.settled.values() if (s.peer in verifiers) == (role == "verifier")]
    paid = [each for each in got if each]
    if not got:
        return ""
    whom = phrases.many(len(paid), role) if len(paid) == len(got) else f"{len(paid)} of {phrases.many(len(got), role)}"
    return f"paid {phrases.shown_credits(sum(paid))} to {whom}"


def result(t: RunTimeline, now: float, columns: int, *, verbose: bool, is_over: bool, run: str = "") -> list[ScreenRow]:
    """What came out, against what, and what one can do with it."""
    r = t.result
    if r is None:
        return _no_result(t, now, columns, is_over, run)
    loss = [TextSpan(f"validation loss {phrases.loss_text(r.loss, t)}", SpanStyle.STRONG), plain(phrases.gap(r))]
    if phrases.is_left_out(t):
        loss.append(_quiet("no baseline: it was skipped, as asked"))
    all_sent, sync = traffic_ratios.sent_and_ring(r)
    ratios = [plain(text) for text in traffic_ratios.ratio_lines(t)] if verbose else []
    hashes = f"model {phrases.clean(r.model_hash[:HASH], HASH)}, ledger {phrases.clean(r.ledger_root[:HASH], HASH)}"
    return [
        *block("Result", loss, columns, rank=0),
        *block(
            "", [plain(f"{r.loss_start:.3f} at the start"), plain(phrases.unigram(r)), _trained(t)], columns, rank=MORE
        ),
        *block("", [plain(all_sent), plain(sync), _quiet(_largest(t))], columns, rank=FACT),
        *block("", ratios, columns, rank=DETAIL),
        *_against_plan(t, columns, verbose, run),
        *block("", [plain(hashes), *_again(t)], columns, rank=FACT),
        *_next(t, columns, run),
    ]


def _trained(t: RunTimeline) -> TextSpan:
    r = t.result
    return plain(f"{phrases.many(r.rounds, 'round')}, {format_count(r.tokens)} tokens" if r is not None else "")


def _largest(t: RunTimeline) -> str:
    """Where the bytes went that were not for agreement."""
    if t.result is None:
        return ""
    by = t.result.bytes_by
    rest = sorted((("audits", by.audit), ("joining", by.join), ("relayed", by.relay)), key=lambda x: -x[1])
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in rest if size)


def _no_result(t: RunTimeline, now: float, columns: int, is_over: bool, run: str) -> list[ScreenRow]:
    go_on = _commands(t, run, "resume")
    if t.failed is not None:
        said = [TextSpan(phrases.failed(t.failed, t), SpanStyle.BAD)]
        return block("Result", said, columns, rank=0)
    if is_over:
        return block("Result", [_quiet(phrases.UNFINISHED)], columns, rank=0, right=go_on)
    later = (
        "after the single-machine baseline"
        if phrases.is_comparing(t)
        else f"is being added up … {phrases.clock(now - t.at)}"
        if t.settled
        else "after settlement"
    )
    return block("Result", [_quiet(later)], columns, rank=FACT)


def _against_plan(t: RunTimeline, columns: int, verbose: bool, run: str) -> list[ScreenRow]:
    """The whole table when it was asked for, else how many estimates were off: the report says which."""
    if not t.compared:
        return []
    if not verbose:
        text = plan_vs_run_text.summary(t, _commands(t, run, "report")[0])
        said = TextSpan(text, SpanStyle.GOOD if text == plan_vs_run_text.KEPT else SpanStyle.QUIET)
        basis = [_quiet(each) for each in plan_vs_run_text.basis(t)]
        return block("", [said, *basis], columns, rank=DETAIL)
    width = CELL if columns >= WIDE else 0
    cells = [
        TextSpan(
            f"{plan_vs_run_text.short_comparison(row):<{width}}", SpanStyle.CARE if is_off(row) else SpanStyle.PLAIN
        )
        for row in t.compared
    ]
    cells += [_quiet(each) for each in plan_vs_run_text.basis(t)]
    return block("Measured", cells, columns, rank=STORY)


def _again(t: RunTimeline) -> list[TextSpan]:
    if t.repeated is None:
        return []
    style = SpanStyle.CARE if t.repeated.differs else SpanStyle.GOOD
    return [TextSpan(phrases.repeated(t.repeated), style)]


def _next(t: RunTimeline, columns: int, run: str) -> list[ScreenRow]:
    """What to do now."""
    if not (run or phrases.run_name(t)):
        return []
    do = TextSpan(_commands(t, run, "sample")[0], SpanStyle.MARK)
    return block("Next", [do, _quiet(phrases.ALSO)], columns, rank=0)
