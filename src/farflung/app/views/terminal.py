"""Paints rows in place on a terminal: writes only changes, in one piece, so that nothing flickers or scrolls."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, TextIO

from rich.console import Console
from rich.style import Style as Ink
from rich.text import Text

from farflung.watch.row_layout import ScreenRow, SpanStyle

# The sixteen colours that every terminal has, as its owner chose them; NO_COLOR leaves the bold and the faint.
INKS: Final[Mapping[SpanStyle, Ink]] = {
    SpanStyle.PLAIN: Ink(),
    SpanStyle.STRONG: Ink(bold=True),
    SpanStyle.QUIET: Ink(dim=True),
    SpanStyle.GOOD: Ink(color="green"),
    SpanStyle.CARE: Ink(color="yellow"),
    SpanStyle.BAD: Ink(color="red"),
    SpanStyle.MARK: Ink(color="cyan"),
}
_ASCII: Final = str.maketrans({"━": "#", "─": "-", "…": ".", "█": "#", "▓": ">", "▒": "=", "·": "."})


def is_screen(out: TextIO) -> bool:
    """Whether `out` is a terminal that can be painted on."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def size_of(out: TextIO) -> tuple[int, int]:
    """Columns and lines of the terminal."""
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    other = shutil.get_terminal_size()
    return size.columns or other.columns, size.lines or other.lines


def sayable(text: str, out: TextIO) -> str:
    """`text` in the letters that `out` has: not every terminal speaks UTF-8."""
    encoding = out.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def text_of(row: ScreenRow, inks: Mapping[SpanStyle, Ink] = INKS) -> Text:
    """The row for rich; its text is never read as markup."""
    spans = ((span.text, inks[span.style]) for span in row.spans)
    return Text.assemble(*spans, no_wrap=True, overflow="crop", end="")


class TerminalPainter:
    """Keeps a block of rows at the place where it was painted first; the cursor rests on the line below it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._console = Console(
            file=out, force_terminal=True, color_system="standard", highlight=False, markup=False, emoji=False
        )
        self._shown: list[str] = []
        self._columns = 0
        self._ink = lru_cache(256)(self.inked)

    def inked(self, row: ScreenRow) -> str:
        """The row with the escapes of its styles, in what the terminal can print."""
        with self._console.capture() as taken:
            self._console.print(text_of(row), width=1000, crop=False, end="")
        return sayable(taken.get(), self._out)

    def forget(self) -> None:
        """Others have written since: the next rows are painted below that."""
        self._shown = []

    def paint(self, rows: Sequence[ScreenRow]) -> None:
        """Shows `rows` in the place of those before."""
        columns, _ = size_of(self._out)
        lines = [self._ink(row) for row in rows]
        if lines == self._shown and columns == self._columns:
            return
        parts = ["\x1b[?25l"]
        if columns != self._columns and self._shown:
            parts.append("\x1b[H\x1b[2J")  # lines were folded anew: where they lie now is not known
            self._shown = []
        elif self._shown:
            parts.append(f"\x1b[{len(self._shown)}A\r")
        self._columns = columns
        for number, line in enumerate(lines):
            is_same = number < len(self._shown) and self._shown[number] == line
            parts.append("\n" if is_same else f"\r\x1b[2K{line}\n")
        parts.append("\r\x1b[J\x1b[?25h")
        self._shown = lines
        self._out.write("".join(parts))
        self._out.flush()


def print_rows(rows: Sequence[ScreenRow], out: TextIO) -> None:
    """Rows once, below what is there: with styles on a terminal, else as plain lines."""
    if not is_screen(out):
        for row in rows:
            out.write(sayable(row.text.rstrip(), out) + "\n")
    else:
        painter = TerminalPainter(out)
        for row in rows:
            out.write(painter.inked(row) + "\n")
    out.flush()
