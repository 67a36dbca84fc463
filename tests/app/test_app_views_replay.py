"""A replay keeps the order and the pace of what happened, and shortens long silences."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from app_story import kept, story

from farflung.app.views import live as live_module
from farflung.app.views import replay as replay_module
from farflung.app.views.live import LiveScreen
from farflung.app.views.replay import GAP_SECONDS, replay, wait_between
from farflung.core.events import AnyEvent, RoundStartEvent
from farflung.peers.rundir.folder import RunFolder
from farflung.watch.fold import RunTimeline, fold


class Seen:
    """What events are shown on, in a test."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.holds: list[float | None] = []

    def show(self, event: AnyEvent, timeline: RunTimeline, age: float = 0.0) -> None:
        self.events.append(event)
        self.age = age
        self.last = timeline

    def hold(self, until: float | None) -> None:
        self.holds.append(until)


def test_a_replay_shows_what_the_run_showed_in_its_own_time(tmp_path: Path) -> None:
    told = story()
    run = RunFolder(kept(tmp_path, told))
    seen, slept = Seen(), list[float]()
    end = replay(run, seen, speed=2.0, follow=False, sleep=slept.append)
    assert seen.events == told
    live = RunTimeline()
    for event in told:
        live = fold(live, event)
    assert end == seen.last == live
    assert sum(slept) == pytest.approx((told[-1].at - told[0].at) / 2)
    assert seen.holds == [event.at for event in told]  # the clock never runs past what comes next


def test_all_at_once_waits_for_nothing(tmp_path: Path) -> None:
    seen, slept = Seen(), list[float]()
    replay(RunFolder(kept(tmp_path, story())), seen, speed=None, follow=False, sleep=slept.append)
    assert slept == []
    assert set(seen.holds) == {None}


@pytest.mark.parametrize(("follow", "speed", "silent"), [(True, None, 500.0), (False, None, 0.0), (True, 1e9, 0.0)])
def test_who_looks_at_a_run_that_stands_still_sees_for_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: bool, speed: float | None, silent: float
) -> None:
    run, seen = RunFolder(kept(tmp_path, story())), Seen()
    last = run.events_file.stat().st_mtime
    monkeypatch.setattr(replay_module, "time", SimpleNamespace(time=lambda: last + 500))
    end = replay(run, seen, speed=speed, follow=follow, sleep=lambda _: None)
    assert seen.age == silent
    out = io.StringIO()
    live = LiveScreen(out)
    opened = RoundStartEvent(at=end.at, round=1, rounds=9, peers=("01" * 32,), waited=0.0)
    with live:
        live.show(opened, fold(RunTimeline(), opened), seen.age)
    shown: list[float] = []
    monkeypatch.setattr(live_module, "screen", lambda timeline, view: shown.append(view.now) or ())
    live._paint(is_over=False)
    assert shown[0] - end.at >= silent
    assert shown[0] - end.at < silent + 400


def test_a_long_silence_is_shortened_and_time_never_runs_back() -> None:
    assert wait_between(10.0, 1000.0, 10.0) == GAP_SECONDS
    assert wait_between(10.0, 11.0, 10.0) == pytest.approx(0.1)
    assert wait_between(10.0, 9.0, 10.0) == 0.0
