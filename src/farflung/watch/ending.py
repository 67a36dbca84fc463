"""The lower half of the screen: what audits found, who is paid, and what came out."""

from __future__ import annotations

from typing import Final

from farflung.core.events import Caught
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count
from farflung.plan.compare import is_off
from farflung.watch import fares, foretold, game, guessing, words, yardstick
from farflung.watch.fold import Timeline
from farflung.watch.progress import DETAIL, FACT, MORE, STORY
from farflung.watch.rows import WIDE, Row, Span, Style, block, plain

HASH: Final = 12
CELL: Final = 42


def _quiet(text: str) -> Span:
    return Span(text, Style.QUIET)


def verify(t: Timeline, columns: int, is_over: bool, run: str = "") -> list[Row]:
    """How much work was repeated and what was found; a cheater's story in two lines."""
    rows = block("Verify", _counts(t, is_over), columns, rank=FACT)
    caught = sorted(t.caught.values(), key=lambda c: c.at)
    for number, each in enumerate(caught):
        rank = STORY if number == 0 else DETAIL
        rows += block("", [Span(words.caught_claim(each, t), Style.BAD)], columns, rank=rank)
        audit = words.audit_of(each, t)
        by = words.repeated_by(audit) if audit is not None else ""
        price = [plain(by), plain(words.caught_price(each))]
        rows += block("", price, columns, rank=rank + 1, right=_see(t, each, run))
    return rows + _guessers(t, columns) + _played(t, columns)


def _guessers(t: Timeline, columns: int) -> list[Row]:
    """Verifiers that lost their stakes to a canary: a line each."""
    rows: list[Row] = []
    for each in sorted(t.perjured.values(), key=lambda p: (p.round, p.verifier)):
        parts = [Span(guessing.claim(each), Style.BAD), plain(guessing.price(each))]
        rows += block("", parts, columns, rank=STORY if not rows else DETAIL)
    return rows


def _played(t: Timeline, columns: int) -> list[Row]:
    """Where each dispute stands, or how it ended: a line each."""
    rows: list[Row] = []
    for peer in sorted(t.games.keys() | t.ruled.keys()):
        ruled = t.ruled.get(peer)
        style = Style.CARE if ruled is None else game.style(ruled)
        element = game.element(ruled) if ruled is not None else ""
        parts = [Span(game.now(t, peer), style), plain(element)]
        rows += block("", parts, columns, rank=STORY if not rows else DETAIL)
    return rows


def _see(t: Timeline, caught: Caught, run: str) -> tuple[str, ...]:
    """The command that shows the evidence."""
    audit, found = words.audit_of(caught, t), words.disputes(t)
    if audit is None:
        return ()
    return _commands(t, run, "watch", f" --dispute {found.index(audit) + 1}")


def _commands(t: Timeline, run: str, verb: str, rest: str = "") -> tuple[str, ...]:
    """A verb with the run's name, and shorter without it; `run`: how it must be named, where it must be."""
    name = run or words.run_name(t)
    short = f"farflung {verb}{rest}"
    named = f"farflung {verb} {name}{rest}"
    return (named,) if run else (named, short) if name else (short,)


def _counts(t: Timeline, is_over: bool) -> list[Span]:
    drawn = len(t.drawn.keys() | t.audits.keys())
    if not drawn:
        if t.result is not None:
            return [plain("no segment was drawn: this job has no audits, or none fell due")]
        return [
            _quiet(
                "nothing was drawn"
                if is_over
                else "nothing drawn yet; the draw comes after each round's commitments"
            )
        ]
    held = sum(1 for audit in t.audits.values() if audit.finding == words.HOLDS)
    other: dict[str, int] = {}
    for audit in t.audits.values():
        if audit.finding != words.HOLDS:
            other[audit.finding] = other.get(audit.finding, 0) + 1
    still = len(words.open_audits(t))
    idle = drawn - len(t.audits) - still
    verifiers = words.many(len(t.verifiers), "verifier")
    return [
        plain(words.many(drawn, "segment") + " drawn"),
        Span(f"{held} {'holds' if held == 1 else 'hold'}", Style.GOOD),
        *[
            Span(f"{count} {words.clean(name, 12)}", Style.BAD if name == words.FALSE else Style.CARE)
            for name, count in sorted(other.items())
        ],
        *([_quiet(f"{still} open")] if still else []),
        *([_quiet(f"{idle} dropped with its peer")] if idle else []),
        plain(f"repeated by {verifiers}" if t.verifiers else ""),
        plain(guessing.shown(t)),
    ]


def settle(t: Timeline, columns: int, is_over: bool) -> list[Row]:
    """Who was paid; what was slashed and came back; that money is conserved."""
    if not t.settled:
        text = "nobody was paid yet" if is_over else "when all rounds are closed and checked"
        return block("Settle", [_quiet(text)], columns, rank=FACT)
    parts = [plain(_paid(t, "provider")), plain(_paid(t, "verifier"))]
    parts.append(plain(fares.together(t)))
    if t.result is None:
        slashed, _, _ = t.lost
        parts += [
            plain(f"slashed {format_credits(slashed)}" if slashed else ""),
            plain(_pending(t)),
            _quiet("the sum is not proved yet" if is_over else "the sum is proved at the end …"),
        ]
        return block("Settle", parts, columns, rank=FACT)
    money = f"slashed {format_credits(t.result.slashed)}, returned {words.credits_of(t.result.refunded)}"
    style = Style.GOOD if t.result.sum == 0 else Style.BAD
    return [
        *block("Settle", parts, columns, rank=FACT),
        *block(
            "",
            [plain(money), plain(_pending(t)), Span(words.conserved(t.result.sum), style)],
            columns,
            rank=STORY,
        ),
    ]


def _pending(t: Timeline) -> str:
    """What disputes still hold; empty where they hold nothing."""
    held = sum(c.pending for c in t.caught.values())
    return f"{format_credits(held)} wait for a dispute" if held else ""


def _paid(t: Timeline, role: str) -> str:
    """What the peers of one role got, and how many of them got something."""
    verifiers = {p.peer for p in t.processes.values() if p.role == "verifier" and p.peer} | set(t.verifiers)
    got = [s.paid for s in t.settled.values() if (s.peer in verifiers) == (role == "verifier")]
    paid = [each for each in got if each]
    if not got:
        return ""
    whom = (
        words.many(len(paid), role)
        if len(paid) == len(got)
        else f"{len(paid)} of {words.many(len(got), role)}"
    )
    return f"paid {words.credits_of(sum(paid))} to {whom}"


def result(t: Timeline, columns: int, *, verbose: bool, is_over: bool, run: str = "") -> list[Row]:
    """What came out, against what, and what one can do with it."""
    r = t.result
    if r is None:
        return _no_result(t, columns, is_over, run)
    loss = [Span(f"held-out loss {r.loss:.3f} nats a token", Style.STRONG), plain(words.gap(r))]
    if words.is_left_out(t):
        loss.append(_quiet("compared with nothing: one machine was left out, as asked"))
    own, ring = yardstick.sent_ring(r)
    all_sent = f"sent {format_bytes(r.bytes_sent)} in all"
    hashes = (
        f"model {words.clean(r.model_hash[:HASH], HASH)}, ledger {words.clean(r.ledger_root[:HASH], HASH)}"
    )
    return [
        *block("Result", loss, columns, rank=0),
        *block(
            "",
            [plain(f"{r.loss_start:.3f} at the start"), plain(words.unigram(r)), _trained(t)],
            columns,
            rank=MORE,
        ),
        *block("", [plain(own), plain(ring)], columns, rank=FACT),
        *block("", [plain(text) for text in yardstick.each_step(t)], columns, rank=DETAIL),
        *block("", [plain(all_sent), _quiet(_largest(t))], columns, rank=DETAIL),
        *_against_plan(t, columns, verbose),
        *block("", [plain(hashes), *_again(t)], columns, rank=FACT),
        *_next(t, columns, run),
    ]


def _trained(t: Timeline) -> Span:
    r = t.result
    return plain(f"{r.rounds} rounds, {format_count(r.tokens)} tokens" if r is not None else "")


def _largest(t: Timeline) -> str:
    """Where the bytes went that were not for agreement."""
    if t.result is None:
        return ""
    by = t.result.bytes_by
    rest = sorted((("audits", by.audit), ("joining", by.join), ("relayed", by.relay)), key=lambda x: -x[1])
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in rest if size)


def _no_result(t: Timeline, columns: int, is_over: bool, run: str) -> list[Row]:
    go_on = _commands(t, run, "resume")
    if t.failed is not None:
        said = [Span(words.failed(t.failed), Style.BAD)]
        return block("Result", said, columns, rank=0)
    if is_over:
        return block("Result", [_quiet(words.UNFINISHED)], columns, rank=0, right=go_on)
    later = (
        "when the one machine is done"
        if words.is_comparing(t)
        else "is being added up …"
        if t.settled
        else "after settlement"
    )
    return block("Result", [_quiet(later)], columns, rank=FACT)


def _against_plan(t: Timeline, columns: int, verbose: bool) -> list[Row]:
    """The whole table when it was asked for, else only what lies outside 0.8 to 1.25 of the plan."""
    if not t.compared:
        return []
    if not verbose:
        off, basis = foretold.off_plan(t.compared), [_quiet(each) for each in foretold.basis(t)]
        if off:
            off[0] = f"not as planned: {off[0]}"
            return block("", [*[Span(each, Style.CARE) for each in off], *basis], columns, rank=FACT)
        good = Span("all within 0.8 to 1.25 of the plan", Style.GOOD)
        return block("", [good, *basis], columns, rank=DETAIL)
    width = CELL if columns >= WIDE else 0
    cells = [
        Span(f"{foretold.against(row):<{width}}", Style.CARE if is_off(row) else Style.PLAIN)
        for row in t.compared
    ]
    cells += [_quiet(each) for each in foretold.basis(t)]
    return block("Measured", cells, columns, rank=STORY)


def _again(t: Timeline) -> list[Span]:
    if t.repeated is None:
        return []
    style = Style.CARE if t.repeated.differs else Style.GOOD
    return [Span(words.repeated(t.repeated), style)]


def _next(t: Timeline, columns: int, run: str) -> list[Row]:
    """What to do now."""
    if not (run or words.run_name(t)):
        return []
    do = Span(_commands(t, run, "sample")[0], Style.MARK)
    return block("Next", [do, _quiet(words.ALSO)], columns, rank=FACT)
