"""Lays parts of a line into rows of styled spans; each row has a rank that decides which is dropped first.

A screen, a picture and a detail page are lists of these rows; what paints them decides what a style looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from farflung.watch.phrases import clean, columns_of

LABEL: Final = 9  # columns of the first word of a block
WIDE: Final = 100  # from here on there is room between parts


def _between(columns: int) -> str:
    return "   " if columns >= WIDE else "  "


class SpanStyle(StrEnum):
    """What a span is; the words say it too, so that nothing is lost without colours."""

    PLAIN = "plain"
    STRONG = "strong"
    QUIET = "quiet"
    GOOD = "good"
    CARE = "care"
    BAD = "bad"
    MARK = "mark"


class TextSpan(Struct, frozen=True):
    """Text of one style, without control characters."""

    text: str
    style: SpanStyle = SpanStyle.PLAIN


class ScreenRow(Struct, frozen=True):
    """One line. `rank`: the higher, the sooner it is left out where there are not enough lines."""

    spans: tuple[TextSpan, ...]
    rank: int = 0
    is_torn: bool = False  # it goes on with a part of the row before: they stay or go together

    @property
    def text(self) -> str:
        """The row without styles."""
        return "".join(span.text for span in self.spans)


def plain(text: str) -> TextSpan:
    """A span that stands out in no way."""
    return TextSpan(text)


def cut(spans: Iterable[TextSpan], columns: int) -> tuple[TextSpan, ...]:
    """At most `columns` of the spans."""
    kept: list[TextSpan] = []
    room = columns
    for span in spans:
        text = clean(span.text, room) if columns_of(span.text) > room else span.text
        if text:
            kept.append(TextSpan(text, span.style))
        room -= columns_of(text)
        if room <= 0:
            break
    return tuple(kept)


class _LineBuilder(Struct):
    """A line in the making."""

    spans: list[TextSpan]
    is_torn: bool = False

    @property
    def used(self) -> int:
        return sum(columns_of(span.text) for span in self.spans)


def _flow(parts: Sequence[TextSpan], columns: int, between: str) -> list[_LineBuilder]:
    """Lines of whole parts; a part that is wider than a line is broken between words."""
    lines: list[_LineBuilder] = []
    for part in parts:
        if lines and lines[-1].used + len(between) + columns_of(part.text) <= columns:
            lines[-1].spans += [TextSpan(between), part]
        else:
            lines += [_LineBuilder([piece], number > 0) for number, piece in enumerate(_broken(part, columns))]
    return lines


def _broken(part: TextSpan, columns: int) -> list[TextSpan]:
    if columns_of(part.text) <= columns:
        return [part]
    pieces: list[str] = []
    for word in part.text.split(" "):
        if pieces and columns_of(pieces[-1]) + 1 + columns_of(word) <= columns:
            pieces[-1] += " " + word
        else:
            pieces.append(clean(word, columns))
    return [TextSpan(piece, part.style) for piece in pieces]


def block(
    label: str,
    parts: Sequence[TextSpan],
    columns: int,
    *,
    rank: int = 0,
    right: Sequence[str] = (),
    label_style: SpanStyle = SpanStyle.STRONG,
) -> list[ScreenRow]:
    """Rows that start with `label` and hold the non-empty parts in order; none where nothing is to be said.

    `right`: what is at the right end where there is room, else on a line of its own; the first that fits.
    A continued row matters less than the one before.
    """
    head = f"{clean(label, LABEL - 1):<{LABEL}}"
    room = max(1, columns - LABEL)
    lines = _flow([part for part in parts if part.text], room, _between(columns))
    if not lines and (label or right):
        lines = [_LineBuilder([TextSpan("")])]
    if right:
        _add_right(lines, right, room)
    rows: list[ScreenRow] = []
    for number, line in enumerate(lines):
        first = TextSpan(head, label_style) if number == 0 else TextSpan(" " * LABEL)
        below = rows[-1].rank if line.is_torn else rank + number
        rows.append(ScreenRow(cut((first, *line.spans), columns), below, line.is_torn))
    return rows


def _add_right(lines: list[_LineBuilder], right: Sequence[str], room: int) -> None:
    used = lines[-1].used
    for text in right:
        free = room - used - columns_of(text)
        if free >= 2 or (not used and free >= 0):
            lines[-1].spans += [TextSpan(" " * free), TextSpan(text, SpanStyle.MARK)]
            return
    shortest = next((text for text in right if columns_of(text) <= room), right[-1])
    pieces = _broken(TextSpan(shortest, SpanStyle.MARK), room)
    lines += [_LineBuilder([piece], number > 0) for number, piece in enumerate(pieces)]


def fit(rows: Sequence[ScreenRow], height: int) -> tuple[ScreenRow, ...]:
    """The rows that matter most, in their order: at most `height`. Among equals the last is left out first."""
    groups: list[list[ScreenRow]] = []
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
