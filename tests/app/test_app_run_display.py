"""Plain lines have a clock, too: a run of which nothing is heard says what it waits for, and for how long."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import pytest
from app_story import story

from farflung.app.cli import run_display
from farflung.app.cli.run_display import LineOutput
from farflung.core import events
from farflung.watch.event_lines import silence
from farflung.watch.fold import RunTimeline, fold

PEERS = tuple(f"{i:02x}" * 32 for i in (1, 2))


def waiting() -> RunTimeline:
    """A round for which one of two providers is late."""
    timeline = RunTimeline()
    for event in (
        events.ProcessStartEvent(role="provider", name="provider-1", pid=7, peer=PEERS[1]),
        events.RoundStartEvent(at=10.0, round=2, rounds=9, peers=PEERS, waited=0.0),
        events.ArrivalEvent(at=12.0, round=2, peer=PEERS[0], phase="train", seconds=2.0),
    ):
        timeline = fold(timeline, event)
    return timeline


def test_a_silent_run_says_after_40_80_and_160_seconds_whom_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(run_display, "time", SimpleNamespace(monotonic=lambda: now))
    out, timeline = io.StringIO(), waiting()
    event = events.ArrivalEvent(at=12.0, round=2, peer=PEERS[0], phase="train", seconds=2.0)
    lines = LineOutput(out, "r1", as_json=False, tells_errors=False)
    lines.show(event, timeline)
    heard = []
    for seconds in range(170):
        now = 1000.0 + seconds
        before = out.tell()
        lines.tick()
        if out.tell() != before:
            heard.append(seconds)
    assert heard == [40, 80, 160]
    told = out.getvalue()
    assert "provider-1 (02020202)" in told
    assert "round 2 for 0:42" in told
    lines.show(event, timeline)  # it is heard again
    lines.tick()
    assert out.getvalue() == told


@pytest.mark.parametrize(("as_json", "until"), [(True, None), (False, 99.0)])
def test_json_and_replays_have_no_such_lines(
    monkeypatch: pytest.MonkeyPatch, as_json: bool, until: float | None
) -> None:
    monkeypatch.setattr(run_display, "time", SimpleNamespace(monotonic=lambda: 0.0))
    out = io.StringIO()
    lines = LineOutput(out, "r1", as_json=as_json, tells_errors=False)
    lines.hold(until)
    monkeypatch.setattr(run_display, "time", SimpleNamespace(monotonic=lambda: 999.0))
    lines.tick()
    assert out.getvalue() == ""


def test_whatever_has_happened_a_silence_is_told_until_the_end() -> None:
    timeline = RunTimeline()
    for event in story():
        timeline = fold(timeline, event)
        said = silence(timeline, timeline.at + 90.0)
        is_over = timeline.result is not None or timeline.failed is not None
        assert bool(said) != is_over
        assert is_over or any(":" in line for line in said)


def test_what_draws_the_report_is_loaded_once_when_the_first_lease_is_paid(monkeypatch, tmp_path) -> None:
    begun: list[str] = []

    def thread(*, target, name: str, daemon: bool) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: begun.append(target.__name__))

    out = io.StringIO()
    monkeypatch.setattr(run_display, "_while_somebody_reads", lambda show: lambda event, _: out.write(event.peer))
    monkeypatch.setattr(run_display, "surface", lambda *_: contextlib.nullcontext(SimpleNamespace(show=None)))
    monkeypatch.setattr(run_display, "threading", SimpleNamespace(Thread=thread))
    with run_display.watcher(False, tmp_path / "r1") as told:
        told(events.ProcessExitEvent(peer="a", reason=""), RunTimeline())
        assert begun == []
        for peer in "bc":
            told(events.LeasePaymentEvent(peer=peer, units=1, paid=1), RunTimeline())
    assert (begun, out.getvalue()) == (["load"], "abc")
