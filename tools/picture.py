"""The last screen of a run as an SVG picture for pages: `python tools/picture.py RUN_FOLDER OUT.svg [--at SECONDS]`.

Drawn from the run's own events, so it cannot show what did not happen. The picture stands alone: no font, style or
script is fetched from anywhere. It brings its own dark ground, so that it reads the same on light and on dark pages.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console
from rich.style import Style as Ink
from rich.terminal_theme import TerminalTheme

from farflung.app.views import terminal
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.io.event_log import read
from farflung.watch.row_layout import SpanStyle
from farflung.watch.screen import COLUMNS, ScreenView, screen

# ground, text, then black red green yellow blue magenta cyan white, and the same bright
THEME = TerminalTheme(
    (22, 27, 34),
    (214, 220, 228),
    [
        (72, 79, 88), (255, 123, 114), (110, 205, 125), (227, 179, 65),
        (121, 192, 255), (210, 168, 255), (86, 200, 216), (214, 220, 228),
    ],
    [
        (139, 148, 158), (255, 123, 114), (110, 205, 125), (227, 179, 65),
        (121, 192, 255), (210, 168, 255), (86, 200, 216), (255, 255, 255),
    ],
)  # fmt: skip
INKS = {**terminal.INKS, SpanStyle.QUIET: Ink(color="bright_black")}  # faint letters are too faint for a page

FORMAT = """<svg class="{unique_id}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" \
aria-labelledby="{unique_id}-title">
<title id="{unique_id}-title">ABOUT</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-ligatures: none; white-space: pre }}
.{unique_id}-title {{ font-size: 16px; font-family: system-ui, sans-serif; fill: #8b949e }}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def timeline_of(folder: Path, until: float | None = None) -> RunTimeline:
    """What the run's events say, up to `until` seconds into it."""
    timeline = RunTimeline()
    for event in read(folder / "events.jsonl"):
        if until is not None and event.at > until:
            break
        timeline = fold(timeline, event)
    return timeline


def picture(timeline: RunTimeline, title: str, now: float | None = None) -> str:
    """The screen at `now`, else the last one, as SVG."""
    view = ScreenView(now=timeline.at if now is None else now, is_over=now is None)
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False
    )
    for row in screen(timeline, view):
        console.print(terminal.text_of(row, INKS), end="\n")
    about = "The terminal at the end of a run" if now is None else "The terminal in the middle of a run"
    code = FORMAT.replace("ABOUT", about)
    drawn = console.export_svg(title=title, theme=THEME, code_format=code, unique_id="farflung")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main() -> None:
    """Reads the arguments and writes the picture."""
    parser = argparse.ArgumentParser(description="The screen of a run as SVG.")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("out", type=Path, help="the picture to write")
    parser.add_argument("--at", type=float, help="seconds into the run; the end by default")
    parser.add_argument("--title", default="farflung run", help="what stands above it")
    given = parser.parse_args()
    given.out.write_text(picture(timeline_of(given.run, given.at), given.title, given.at), encoding="utf-8")


if __name__ == "__main__":
    main()
