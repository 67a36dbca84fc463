"""Describes a dispute over a segment in words: each step of the dispute game, its outcome, and who pays.

For somebody who has never heard of it: two have computed the same steps and disagree. They do not show everything, but
go down, hash by hash, to the first few numbers in which they differ; one of those the law computes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from farflung.core.events import DisputeEndEvent, DisputeStageEvent
from farflung.core.units import Seconds, format_bytes, format_seconds
from farflung.watch import phrases
from farflung.watch.fold import RunTimeline
from farflung.watch.row_layout import ScreenRow, SpanStyle, TextSpan, block, plain

HEAD: Final = "block  what both sides owed, and their hashes where they differ"
HASH: Final = 8  # digits of both sides' hashes
TEXT: Final = 48  # columns of a name
# What an operation of a canonical graph makes (docs/protocol/canon); others are named as they are.
MADE_BY: Final[Mapping[str, str]] = {
    "matmul": "a matrix product",
    "sum": "a sum",
    "max": "a maximum",
    "add": "an addition",
    "sub": "a subtraction",
    "mul": "a multiplication",
    "div": "a division",
    "sqrt": "a square root",
    "exp": "an exponential",
    "log": "a logarithm",
    "select": "a choice",
    "move": "a view",
    "take": "rows taken from a table",
    "convert": "a conversion",
}
# What an input of a graph is.
READ_FROM: Final[Mapping[str, str]] = {
    "state": "the state before the step",
    "start": "the state at the segment's start",
    "claimed": "the state that the accused claims",
    "final": "the state at the segment's end",
    "buffer": "the model's constants",
    "batch": "the tokens of the step",
    "by_step": "the schedule",
    "by_count": "the schedule",
}
ENDS: Final[Mapping[str, str]] = {
    "upheld": "the accused loses",
    "overturned": "the accused was right",
    "forfeit": "both lose",
    "lapsed": "in doubt for the accused",
}

COMPUTED: Final[Mapping[str, str]] = {
    "upheld": "its number is not the one that the law computed",
    "overturned": "the challenger's number is not the one that the law computed",
    "forfeit": "neither number is the one that the law computed",
}


def of(
    t: RunTimeline, peer: str, round: int, segment: int
) -> tuple[tuple[DisputeStageEvent, ...], DisputeEndEvent | None]:
    """The rungs of the game over this segment and how its dispute ended, as far as they are known."""
    about = (round, segment)
    played = tuple(each for each in t.games.get(peer, ()) if (each.round, each.segment) == about)
    ruled = t.ruled.get(peer)
    return played, ruled if ruled is not None and (ruled.round, ruled.segment) == about else None


def steps(step: int, until: int, count: int) -> str:
    """`step 2 of 3`, `steps 1 to 2 of 3`, `the judgement`: what lies below a place of the game, counted from 1."""
    if step >= count:
        return "the judgement behind the steps"
    last = min(until, count - 1)
    what = f"step {step + 1} of {count}" if step == last else f"steps {step + 1} to {last + 1} of {count}"
    return what + (" and the judgement" if until >= count else "")


def tiles(event: DisputeStageEvent) -> str:
    """Which tiles lie there, numbered from 0 through all steps."""
    if event.leaves == 1:
        return f"tile {event.first:,}"
    return f"tiles {event.first:,} to {event.first + event.leaves - 1:,}"


def dispute_step(event: DisputeStageEvent) -> str:
    """One place of the game in a line."""
    where = steps(event.step, event.until, event.steps)
    match event.stage:
        case "offered":
            return "its stake is held; either side may have the steps computed again"
        case "first":
            who = "another accuser plays: both" if event.game else "both"
            return f"{who} hash all {event.total:,} tiles of {where}"
        case "descend":
            return f"they differ first in {tiles(event)}, {where}"
        case "show":
            return f"{tiles(event)}, {where}, is the first that differs; both show it"
        case "referee":
            return f"the law is to compute one element of {tiles(event)}"
        case "verdict":
            return "all hashes are the same; the last tile says who is right"
    return f"{phrases.clean(event.stage, 12)}: {tiles(event)}, {where}"


def hashes(accused: str, other: str) -> str:
    """Both sides' hashes where they differ; empty where none was posted."""
    if not accused or not other:
        return ""
    return f"{phrases.clean(accused[:HASH], HASH)} ≠ {phrases.clean(other[:HASH], HASH)}"


def element(event: DisputeEndEvent) -> str:
    """Which number was computed, and what made it; empty where none was."""
    if event.by != "element":
        return ""
    at = "(" + ", ".join(str(place) for place in event.element[:8]) + ")"
    shape = "x".join(str(size) for size in event.shape[:8])
    size = f"element {at} of {shape}" if event.shape else "the single value"
    where = steps(event.step, event.step, event.steps)
    if event.name:
        source = READ_FROM.get(event.op, f"`{phrases.clean(event.op, 20)}`")
        return f"{size}, {phrases.clean(event.name, TEXT)}, read from {source}, {where}"
    made = MADE_BY.get(event.op, f"operation `{phrases.clean(event.op, 20)}`")
    becomes = f", the new {phrases.clean(event.becomes, TEXT)}" if event.becomes else ""
    near = f", near {phrases.clean(event.near, TEXT)}" if event.near and not event.becomes else ""
    return f"{size}, made by {made}{becomes or near}, {where}"


def values(event: DisputeEndEvent) -> str:
    """What each side said of the element, and what it is."""
    if event.by != "element":
        return ""
    mine, theirs, law = (
        phrases.clean(value, 24) or "no such number" for value in (event.accused, event.other, event.law)
    )
    return f"accused {mine}, challenger {theirs}, the law {law}"


def end(event: DisputeEndEvent) -> str:
    """How it ended, and why."""
    silent = " and ".join(f"the {phrases.clean(side, 12)}" for side in event.silent)
    why = {
        "element": COMPUTED.get(event.ended, "one element was computed"),
        "verdict": "both have the same tiles, and the last one is the verdict",
        "silence": f"{silent or 'somebody'} owed a move and said nothing",
        "clock": "nobody contested it in time" if event.ended == "upheld" else "no jury decided in time",
        "jury": "a jury decided",
    }.get(event.by, phrases.clean(event.by, 20))
    return f"{ENDS.get(event.ended, phrases.clean(event.ended, 12))}: {why}"


def money(event: DisputeEndEvent) -> tuple[str, ...]:
    """Who lost what to whom."""
    said = []
    if event.slashed:
        split = f"{phrases.short_credits(event.bounty)} to its accusers, {phrases.short_credits(event.burnt)} burnt"
        said.append(f"the accused loses {phrases.shown_credits(event.slashed)}, stake and bond: {split}")
    else:
        said.append("the accused has its stake and its bond back")
    if event.lost:
        gained, burnt = phrases.short_credits(event.gained), phrases.short_credits(event.lost - event.gained)
        split = f"{gained} to the accused, {burnt} burnt"
        said.append(f"its accusers lose {phrases.shown_credits(event.lost)}: {split}")
    return tuple(said)


def size(event: DisputeEndEvent) -> str:
    """What it took."""
    took = [phrases.many(event.blocks, "block")]
    took += [f"{format_bytes(event.sent)} of hashes"] if event.sent else []
    took += [f"{format_bytes(event.shown)} shown to the law"] if event.shown else []
    return ", ".join(took)


def style(event: DisputeEndEvent) -> SpanStyle:
    """Bad for the accused, or not."""
    return SpanStyle.BAD if event.ended in ("upheld", "forfeit") else SpanStyle.GOOD


def now(t: RunTimeline, peer: str) -> str:
    """One line for the screen: where the game of `peer` stands, or how it ended; empty where there is none."""
    ruled, played = t.ruled.get(peer), t.games.get(peer, ())
    if ruled is not None:
        return f"in {phrases.named(peer, t)}'s dispute {end(ruled)}"
    if not played:
        return ""
    return f"{phrases.named(peer, t)}'s dispute is played: {dispute_step(played[-1])}"


def event_text(event: DisputeStageEvent | DisputeEndEvent, t: RunTimeline) -> tuple[str, ...]:
    """The event as parts of plain lines."""
    who = phrases.named(event.peer, t)
    if isinstance(event, DisputeStageEvent):
        return f"{who}, block {event.height}: {dispute_step(event)}", hashes(event.accused, event.other)
    return f"in {who}'s dispute {end(event)}", element(event), values(event), *money(event), size(event)


def rows(
    played: Sequence[DisputeStageEvent], ruled: DisputeEndEvent | None, t: RunTimeline, columns: int
) -> list[ScreenRow]:
    """A game rung by rung, one block of lines a move, and its end."""
    if not played and ruled is None:
        return []
    made = block("Game", [TextSpan(HEAD, SpanStyle.QUIET)], columns)
    roots = ruled.roots if ruled is not None and len(ruled.roots) == 2 else ("", "")
    last = max((each.game for each in played), default=0)
    for each in played:
        pair = roots if each.stage == "first" and each.game == last else (each.accused, each.other)
        right = tuple(text for text in (hashes(*pair),) if text)
        made += block("", [plain(f"{each.height:>5}  {dispute_step(each)}")], columns, right=right)
    challenger = next((each.challenger for each in reversed(played) if each.challenger), "")
    if challenger:
        made += block("", [plain(f"{phrases.named(challenger, t)} plays for the accusers")], columns)
    if ruled is None:
        return made + block("End", [TextSpan("not decided yet", SpanStyle.QUIET)], columns)
    made += block("End", [TextSpan(end(ruled), style(ruled)), plain(f"block {ruled.height}")], columns)
    found = [plain(element(ruled)), TextSpan(values(ruled), SpanStyle.STRONG)]
    made += block("Element", found, columns) if ruled.by == "element" else []
    made += block("Money", [plain(text) for text in money(ruled)], columns)
    took = format_seconds(Seconds(ruled.at - played[0].at)) if played else ""
    return made + block("Took", [plain(size(ruled)), plain(took)], columns)


def facts(played: Sequence[DisputeStageEvent], ruled: DisputeEndEvent | None) -> dict[str, Any]:
    """The same for machines."""
    return {
        "game": [msgspec.to_builtins(each) for each in played],
        "ruled": msgspec.to_builtins(ruled) if ruled is not None else None,
    }
