"""What a person sees of a run: its timeline at one moment as at most 24 rows, from the plan down to the result.

A function of its arguments: live, replayed, as a picture or in a test, the same timeline gives the same rows. What is
not finished is said to be so; a number has a unit, a comparison names what it is compared with.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from farflung.core.units import format_seconds
from farflung.watch import ending, progress, words
from farflung.watch.fold import Timeline
from farflung.watch.rows import LABEL, Row, Span, Style, cut, fit
from farflung.watch.words import columns_of

ROWS: Final = 24
COLUMNS: Final = 100
LEAST_COLUMNS: Final = LABEL + 11

LIVE: Final = ("Ctrl-C finishes the round", "Ctrl-C: finish")
FINISHING: Final = ("Ctrl-C once more stops now", "Ctrl-C stops")


class View(Struct, frozen=True):
    """How a timeline is looked at. `now`: seconds since the run was created, on the clock of its events."""

    now: float = 0.0
    columns: int = COLUMNS
    rows: int = ROWS
    verbose: bool = False
    version: str = ""  # until the run says its own
    is_over: bool = False  # nothing more will come: what is missing now stays missing
    note: tuple[str, ...] = (
        LIVE  # what the right end of the first row says while the run goes on, shorter and shorter
    )


def screen(t: Timeline, view: View) -> tuple[Row, ...]:
    """The rows: at most `view.rows` and at most 24, none wider than `view.columns` and than 100."""
    columns = max(LEAST_COLUMNS, min(COLUMNS, view.columns))
    rows = [_header(t, view, columns), Row((Span(""),), 9)]
    rows += progress.plan(t, columns, view.is_over)
    rows += progress.network(t, columns, view.is_over)
    rows += progress.train(t, view.now, columns, view.is_over)
    rows += ending.verify(t, columns, view.is_over)
    rows += ending.settle(t, columns, view.is_over)
    rows += ending.result(t, columns, verbose=view.verbose, is_over=view.is_over)
    shown = fit(rows, min(ROWS, view.rows))
    return tuple(Row(cut(row.spans, min(columns, view.columns)), row.rank, row.is_torn) for row in shown)


def _note(t: Timeline, view: View) -> tuple[str, ...]:
    if t.result is not None:
        return (f"done after {format_seconds(t.result.seconds)}", "done")
    if t.failed is not None:
        return (f"failed after {format_seconds(t.at)}", "failed")
    if view.is_over:
        return (f"stopped after {format_seconds(t.at)}", "stopped")
    if view.note == LIVE and any(w.code == "FF-APP-131" for w in t.warnings):
        return FINISHING
    return view.note


def _header(t: Timeline, view: View, columns: int) -> Row:
    """Program, what this is, and what one can do: the middle goes first where it is narrow."""
    version = t.began.version if t.began is not None else view.version
    name = f"farflung {words.clean(version, 12)}".rstrip()
    middles = (*words.WHERE, "nothing leaves this computer", "")
    for note in _note(t, view):
        for middle in middles:
            free = columns - columns_of(name) - columns_of(middle) - columns_of(note) - 2 * bool(middle)
            if free >= 2:
                gap = Span("  ") if middle else Span("")
                spans = (
                    Span(name, Style.STRONG),
                    gap,
                    Span(middle),
                    Span(" " * free),
                    Span(note, Style.QUIET),
                )
                return Row(tuple(span for span in spans if span.text))
    return Row((Span(name, Style.STRONG),))
