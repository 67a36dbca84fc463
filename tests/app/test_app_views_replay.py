"""A replay keeps the order and the pace of what happened, and shortens long silences."""

from __future__ import annotations

from pathlib import Path

import pytest
from app_story import kept, story

from farflung.app.views.replay import GAP_SECONDS, replay, wait_between
from farflung.core.events import AnyEvent
from farflung.peers.rundir.folder import RunFolder
from farflung.watch.fold import RunTimeline, fold


class Seen:
    """What events are shown on, in a test."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.holds: list[float | None] = []

    def show(self, event: AnyEvent, timeline: RunTimeline) -> None:
        self.events.append(event)
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


def test_a_long_silence_is_shortened_and_time_never_runs_back() -> None:
    assert wait_between(10.0, 1000.0, 10.0) == GAP_SECONDS
    assert wait_between(10.0, 11.0, 10.0) == pytest.approx(0.1)
    assert wait_between(10.0, 9.0, 10.0) == 0.0
