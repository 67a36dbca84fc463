"""Shows a run in a notebook: the live screen (watch.screen) as an updating block, or a finished run's summary.

IPython is looked for and never loaded: where it does not run, there is nobody to show anything to.
"""

from __future__ import annotations

import html
import importlib
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from farflung.app.api.callbacks import Callback, State
from farflung.core.events import AnyEvent
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.watch import phrases, report_series, screen_progress
from farflung.watch.fold import RunTimeline
from farflung.watch.row_layout import ScreenRow, SpanStyle
from farflung.watch.screen import ScreenView, screen

LEAST_SECONDS: Final = 0.25  # between two updates
COLUMNS: Final = 100
WIDTH, HEIGHT = 240, 48  # of a sparkline, px
NOTE: Final = ("interrupt the kernel to finish the round", "interrupt: finish")
# Mid tones: 4.3 to 1 on white and on a dark page (#111) alike; a page does not say which of the two it is.
_STYLES: Final = {
    SpanStyle.STRONG: "font-weight:bold",
    SpanStyle.QUIET: "opacity:0.7",
    SpanStyle.GOOD: "color:#2a8b2a",
    SpanStyle.CARE: "color:#af6900",
    SpanStyle.BAD: "color:#d54747;font-weight:bold",
    SpanStyle.MARK: "color:#377bc9",
}
_PRE: Final = "line-height:1.3;margin:0;white-space:pre;overflow-x:auto;background:none;color:inherit"


def kernel() -> Any:
    """The notebook that this code runs in; None in a plain script and in a terminal."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


def screen_html(rows: Sequence[ScreenRow]) -> str:
    """The rows of a screen as preformatted text."""
    lines = []
    for row in rows:
        spans = []
        for span in row.spans:
            text, style = html.escape(span.text), _STYLES.get(span.style)
            spans.append(f'<span style="{style}">{text}</span>' if style else text)
        lines.append("".join(spans).rstrip())
    return f'<pre style="{_PRE}">' + "\n".join(lines) + "</pre>"


def text(rows: Sequence[ScreenRow]) -> str:
    """The same rows where nothing can be drawn."""
    return "\n".join(row.text.rstrip() for row in rows)


def plan_rows(timeline: RunTimeline) -> list[ScreenRow]:
    """What a plan says, as on the screen."""
    return screen_progress.plan(timeline, timeline.at, COLUMNS)


def run_html(name: str, timeline: RunTimeline) -> str:
    """A run's key figures and the curve of its losses."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(label)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for label, value in figures(timeline)
    )
    return f"<div><b>{html.escape(name)}</b>{sparkline(timeline)}<table><tbody>{rows}</tbody></table></div>"


def figures(timeline: RunTimeline) -> list[tuple[str, str]]:
    """Key figures, each with its unit and with what it is compared to."""
    curve, sent, money = (report_series.losses(timeline), report_series.sent(timeline), report_series.money(timeline))
    found = [("rounds", f"{len(timeline.rounds)} of {_rounds(timeline)}")]
    if curve.train:
        tokens, took = format_count(curve.train[-1].tokens), format_seconds(curve.train[-1].seconds)
        found.append(("trained", f"{tokens} tokens in {took}"))
    if curve.held_out:
        first, last = curve.held_out[0], curve.held_out[-1]
        since = f", {first.loss:.3f} at the start" if first.round < last.round else ""
        found.append(("validation loss", f"{phrases.loss_text(last.loss, timeline)}{since}"))
    if timeline.baseline is not None:
        found.append(("single-machine baseline", phrases.loss_text(timeline.baseline.loss, timeline)))
    ring = f"; a bf16 ring all-reduce would send {format_bytes(sent.ring)}" if sent.ring else ""
    found.append(("traffic", f"{format_bytes(sent.total)}, {format_bytes(sent.agreeing)} sync traffic{ring}"))
    audited = report_series.audits(timeline)
    caught = phrases.peers(tuple(timeline.caught), timeline) or "nobody"
    found.append(("audits", f"{phrases.many(audited.concluded, 'segment')} repeated; caught: {caught}"))
    balance = f"; sum {money.sum}" if money.sum is not None else ""
    found.append(("paid", f"{phrases.shown_credits(money.paid)}{balance}"))
    if timeline.result is not None:
        found.append(("model", timeline.result.model_hash))
    return found


def _rounds(timeline: RunTimeline) -> int:
    last = timeline.last_round
    return last.rounds if last is not None else timeline.plan.rounds if timeline.plan is not None else 0


def sparkline(timeline: RunTimeline) -> str:
    """Training loss (thin) and validation loss (thick) over tokens; empty before there are two points."""
    curve = report_series.losses(timeline)
    lines = [(curve.train, 1.0, 0.6), (curve.held_out, 2.0, 1.0)]
    points = [p for line, _, _ in lines for p in line if math.isfinite(p.loss)]
    if len(points) < 2:
        return ""
    right = max(p.tokens for p in points) or 1
    low, high = min(p.loss for p in points), max(p.loss for p in points)
    drawn = []
    for line, thick, strength in lines:
        places = " ".join(
            f"{2 + (WIDTH - 4) * p.tokens / right:.1f},{2 + (HEIGHT - 4) * (high - p.loss) / ((high - low) or 1):.1f}"
            for p in line
            if math.isfinite(p.loss)
        )
        style = f'stroke-width="{thick}" opacity="{strength}"'
        drawn.append(f'<polyline points="{places}" fill="none" stroke="currentColor" {style}/>')
    said = f"loss over tokens, {high:.3f} to {low:.3f} nats/token: validation thick, training thin"
    return (
        f'<svg role="img" aria-label="{said}" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' style="display:block;margin:4px 0"><title>{said}</title>{"".join(drawn)}</svg>'
    )


class NotebookDisplay(Callback):
    """Keeps one block of output up to date while a run goes on."""

    def __init__(self, created: float) -> None:
        """`created`: when the run was, in seconds since the epoch."""
        self._created = created
        self._block: Any = None
        self._shown = -math.inf
        self._timeline = RunTimeline()

    def on_event(self, event: AnyEvent, state: State) -> None:
        """Shows the run, a few times a second at most."""
        self._timeline = state.timeline
        now = time.monotonic()
        if now - self._shown >= LEAST_SECONDS:
            self._shown = now
            self._show(is_over=False)

    def close(self) -> None:
        """Shows the end, whatever it is; nothing where nothing began."""
        if self._block is not None:
            self._show(is_over=True)

    def _show(self, *, is_over: bool) -> None:
        view = ScreenView(time.time() - self._created, COLUMNS, is_over=is_over, note=NOTE)
        rows = screen(self._timeline, view)
        shown = {"text/html": screen_html(rows) + sparkline(self._timeline), "text/plain": text(rows)}
        if self._block is None:
            display = importlib.import_module("IPython.display").display  # it runs already
            self._block = display(shown, raw=True, display_id=True)
        else:
            self._block.update(shown, raw=True)
