"""What a notebook is given to show: the screen's own rows, key figures, and a curve, all safe to put into a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from farflung.app.api import notebook
from farflung.core import events
from farflung.core.events import AnyEvent
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.row_layout import ScreenRow, SpanStyle, TextSpan

PEER = "a1" * 32


def closed(round: int, loss: float) -> events.RoundEndEvent:
    return events.RoundEndEvent(
        at=3.0 + round,
        round=round,
        rounds=4,
        peers=2,
        loss=loss,
        tokens=1000,
        root="00" * 32,
        waited_for=PEER,
        seconds=1.5,
        train_seconds=0.5,
        sync_bytes=640,
    )


def folded(*told: AnyEvent) -> RunTimeline:
    timeline = RunTimeline()
    for event in told:
        timeline = fold(timeline, event)
    return timeline


def measured(round: int, loss: float) -> events.EvaluationEvent:
    return events.EvaluationEvent(round=round, loss=loss, tokens=64)


def test_the_screen_keeps_its_words_and_styles_and_nothing_becomes_markup() -> None:
    rows = [
        ScreenRow((TextSpan("Verify   ", SpanStyle.STRONG), TextSpan("<img src=x> & co", SpanStyle.BAD))),
        ScreenRow((TextSpan(""),)),
    ]
    page = notebook.screen_html(rows)
    assert "&lt;img src=x&gt; &amp; co" in page
    assert "<img" not in page
    assert page.count("<span") == 2
    assert notebook.text(rows) == "Verify   <img src=x> & co\n"


def test_key_figures_name_their_units_and_what_they_are_compared_with() -> None:
    alone = events.BaselineEvent(loss=3.5, steps=9, seconds=1.0)
    timeline = folded(measured(0, 5.5), closed(0, 4.5), closed(1, 4.0), measured(2, 3.75), alone)
    figures = dict(notebook.figures(timeline))
    assert figures["rounds"] == "2 of 4"
    assert figures["trained"] == "2 k tokens in 3.00 s"
    assert figures["validation loss"] == "3.750 nats/token, 5.500 at the start"
    assert figures["single-machine baseline"] == "3.500 nats/token"
    assert figures["audits"].endswith("caught: nobody")
    assert "model" not in figures


def test_a_run_that_has_just_begun_has_figures_too_and_no_curve() -> None:
    page = notebook.run_html("a <b>name</b>", RunTimeline())
    assert "a &lt;b&gt;name&lt;/b&gt;" in page
    assert "0 of 0" in page
    assert "<svg" not in page


@pytest.mark.parametrize("losses", [(4.0, 2.0, 3.0), (4.0, 4.0, 4.0), (float("nan"), 4.0, 2.0)])
def test_a_curve_is_a_drawing_of_its_own_that_stays_inside_its_frame(losses: tuple[float, ...]) -> None:
    timeline = folded(measured(0, 5.0), *(closed(round, loss) for round, loss in enumerate(losses)))
    drawing = notebook.sparkline(timeline)
    svg = ET.fromstring(drawing)
    assert svg.attrib["role"] == "img"
    assert "nats/token" in svg.attrib["aria-label"]
    places = re.findall(r"([-\d.]+),([-\d.]+)", " ".join(line.attrib["points"] for line in svg.iter("polyline")))
    assert len(places) >= 3
    assert all(0 <= float(x) <= notebook.WIDTH and 0 <= float(y) <= notebook.HEIGHT for x, y in places)
    assert "http" not in drawing
