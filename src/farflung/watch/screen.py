"""Renders a run for a person: its timeline at one moment as at most 24 rows, progress first once training runs.

A function of its arguments: live, replayed, as a picture or in a test, the same timeline gives the same rows. What is
not finished is said to be so; a number has a unit, a comparison names what it is compared with.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from farflung.core.units import format_seconds
from farflung.watch import phrases, screen_progress, screen_result
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import columns_of
from farflung.watch.row_layout import LABEL, ScreenRow, SpanStyle, TextSpan, cut, fit

ROWS: Final = 24
COLUMNS: Final = 100
LEAST_COLUMNS: Final = LABEL + 11

LIVE: Final = ("Ctrl-C finishes the round; resume goes on", "Ctrl-C finishes the round", "Ctrl-C: finish")
EARLY: Final = ("Ctrl-C stops; resume goes on", "Ctrl-C stops")
COMPARING: Final = ("Ctrl-C skips the single-machine baseline", "Ctrl-C: skip it")
FINISHING: Final = ("Ctrl-C once more stops now", "Ctrl-C stops")


class ScreenView(Struct, frozen=True):
    """How a timeline is looked at. `now`: seconds since the run was created, on the clock of its events."""

    now: float = 0.0
    columns: int = COLUMNS
    rows: int = ROWS
    verbose: bool = False
    version: str = ""  # until the run says its own
    is_over: bool = False  # nothing more will come: what is missing now stays missing
    # What the right end of the first row says while the run goes on, shorter and shorter.
    note: tuple[str, ...] = LIVE
    run: str = ""  # how commands name the run, where it is not the newest of the runs' folder


def screen(t: RunTimeline, view: ScreenView) -> tuple[ScreenRow, ...]:
    """The rows: at most `view.rows` and at most 24, none wider than `view.columns` and than 100."""
    columns = max(LEAST_COLUMNS, min(COLUMNS, view.columns))
    rows = [_header(t, view, columns), ScreenRow((TextSpan(""),), 9)]
    network = screen_progress.network(t, view.now, columns, view.is_over)
    train = screen_progress.train(t, view.now, columns, view.is_over)
    if screen_progress.is_training(t) and not view.verbose:
        rows += [*train, *screen_progress.folded_plan(t, columns), *network]
    else:
        rows += [*screen_progress.plan(t, view.now, columns, view.is_over), *network, *train]
    rows += screen_result.verify(t, columns, view.is_over, view.run)
    rows += screen_result.settle(t, columns, view.is_over)
    rows += screen_result.result(t, view.now, columns, verbose=view.verbose, is_over=view.is_over, run=view.run)
    shown = fit(rows, min(ROWS, view.rows))
    return tuple(ScreenRow(cut(row.spans, min(columns, view.columns)), row.rank, row.is_torn) for row in shown)


def _note(t: RunTimeline, view: ScreenView) -> tuple[str, ...]:
    if t.result is not None or t.failed is not None or view.is_over:
        how = "done" if t.result is not None else "failed" if t.failed is not None else "stopped"
        seconds = t.result.seconds if t.result is not None else t.at - t.session_at
        session = f", session {t.sessions}" if t.resumed is not None else ""
        return (f"{how} after {format_seconds(seconds)}{session}", how)
    if view.note != LIVE:
        return view.note
    if phrases.is_comparing(t):
        return COMPARING
    if any(w.code == phrases.ASKED_TO_STOP for w in phrases.warnings(t, view.is_over)):
        return FINISHING
    at_work = any(p.role == "requester" and p.at >= t.session_at for p in t.processes.values())
    return LIVE if at_work and t.opened is not None else EARLY


def _header(t: RunTimeline, view: ScreenView, columns: int) -> ScreenRow:
    """Program, what this is, and what one can do: the middle goes first where it is narrow."""
    version = t.began.version if t.began is not None else view.version
    name = f"farflung {phrases.clean(version, 12)}".rstrip()
    last = () if t.began is not None and t.began.network else ("nothing leaves this computer",)
    middles = (*phrases.where(t.began), *last, "")
    for note in _note(t, view):
        for middle in middles:
            free = columns - columns_of(name) - columns_of(middle) - columns_of(note) - 2 * bool(middle)
            if free >= 2:
                gap = TextSpan("  ") if middle else TextSpan("")
                spans = (
                    TextSpan(name, SpanStyle.STRONG),
                    gap,
                    TextSpan(middle),
                    TextSpan(" " * free),
                    TextSpan(note, SpanStyle.QUIET),
                )
                return ScreenRow(tuple(span for span in spans if span.text))
    return ScreenRow((TextSpan(name, SpanStyle.STRONG),))
