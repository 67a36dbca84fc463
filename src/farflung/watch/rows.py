"""Rows of styled spans, and how parts of a line are laid into them: each knows how much it matters.

A screen, a picture and a detail page are lists of these rows; what paints them decides what a style looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from farflung.watch.words import clean, columns_of

LABEL: Final = 9  # columns of the first word of a block
WIDE: Final = 100  # from here on there is room between parts


def _between(columns: int) -> str:
    return "   " if columns >= WIDE else "  "


class Style(StrEnum):
    """What a span is; the words say it too, so that nothing is lost without colours."""

    PLAIN = "plain"
    STRONG = "strong"
    QUIET = "quiet"
    GOOD = "good"
    CARE = "care"
    BAD = "bad"
    MARK = "mark"


class Span(Struct, frozen=True):
    """Text of one style, without control characters."""

    text: str
    style: Style = Style.PLAIN


class Row(Struct, frozen=True):
    """One line. `rank`: the higher, the sooner it is left out where there are not enough lines."""

    spans: tuple[Span, ...]
    rank: int = 0
    is_torn: bool = False  # it goes on with a part of the row before: they stay or go together

    @property
    def text(self) -> str:
        """The row without styles."""
        return "".join(span.text for span in self.spans)


def plain(text: str) -> Span:
    """A span that stands out in no way."""
    return Span(text)


def cut(spans: Iterable[Span], columns: int) -> tuple[Span, ...]:
    """At most `columns` of the spans."""
    kept: list[Span] = []
    room = columns
    for span in spans:
        text = clean(span.text, room) if columns_of(span.text) > room else span.text
        if text:
            kept.append(Span(text, span.style))
        room -= columns_of(text)
        if room <= 0:
            break
    return tuple(kept)


class _Line(Struct):
    """A line in the making."""

    spans: list[Span]
    is_torn: bool = False

    @property
    def used(self) -> int:
        return sum(columns_of(span.text) for span in self.spans)


def _flow(parts: Sequence[Span], columns: int, between: str) -> list[_Line]:
    """Lines of whole parts; a part that is wider than a line is broken between words."""
    lines: list[_Line] = []
    for part in parts:
        if lines and lines[-1].used + len(between) + columns_of(part.text) <= columns:
            lines[-1].spans += [Span(between), part]
        else:
            lines += [_Line([piece], number > 0) for number, piece in enumerate(_broken(part, columns))]
    return lines


def _broken(part: Span, columns: int) -> list[Span]:
    if columns_of(part.text) <= columns:
        return [part]
    pieces: list[str] = []
    for word in part.text.split(" "):
        if pieces and columns_of(pieces[-1]) + 1 + columns_of(word) <= columns:
            pieces[-1] += " " + word
        else:
            pieces.append(clean(word, columns))
    return [Span(piece, part.style) for piece in pieces]


def block(
    label: str,
    parts: Sequence[Span],
    columns: int,
    *,
    rank: int = 0,
    right: Sequence[str] = (),
    label_style: Style = Style.STRONG,
) -> list[Row]:
    """Rows that start with `label` and hold the non-empty parts in order; none where nothing is to be said.

    `right`: what stands at the right end where there is room, else on a line of its own; the first that fits.
    A continued row matters less than the one before.
    """
    head = f"{clean(label, LABEL - 1):<{LABEL}}"
    room = max(1, columns - LABEL)
    lines = _flow([part for part in parts if part.text], room, _between(columns))
    if not lines and (label or right):
        lines = [_Line([Span("")])]
    if right:
        _add_right(lines, right, room)
    rows: list[Row] = []
    for number, line in enumerate(lines):
        first = Span(head, label_style) if number == 0 else Span(" " * LABEL)
        below = rows[-1].rank if line.is_torn else rank + number
        rows.append(Row(cut((first, *line.spans), columns), below, line.is_torn))
    return rows


def _add_right(lines: list[_Line], right: Sequence[str], room: int) -> None:
    used = lines[-1].used
    for text in right:
        free = room - used - columns_of(text)
        if free >= 2 or (not used and free >= 0):
            lines[-1].spans += [Span(" " * free), Span(text, Style.MARK)]
            return
    shortest = next((text for text in right if columns_of(text) <= room), right[-1])
    pieces = _broken(Span(shortest, Style.MARK), room)
    lines += [_Line([piece], number > 0) for number, piece in enumerate(pieces)]


def fit(rows: Sequence[Row], height: int) -> tuple[Row, ...]:
    """The rows that matter most, in their order: at most `height`. Among equals the last is left out first."""
    groups: list[list[Row]] = []
    for row in rows:
        if row.is_torn and groups:
            groups[-1].append(row)
        else:
            groups.append([row])
    count = len(rows)
    for number in sorted(range(len(groups)), key=lambda i: (-groups[i][0].rank, -i)):
        if count <= height:
            break
        count -= len(groups[number])
        groups[number] = []
    return tuple(row for group in groups for row in group)[: max(0, height)]
