"""Replays a run's events in real time, slower, faster or at once, from a finished or a growing log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from farflung.core.events import AnyEvent, RunResultEvent
from farflung.peers.rundir.folder import RunFolder
from farflung.watch.fold import RunTimeline, fold
from farflung.watch.io.event_log import EventLogReader

GAP_SECONDS: Final = 2.0  # a longer silence is shortened to this, on the watcher's clock
POLL_SECONDS: Final = 0.2


class EventDisplay(Protocol):
    """What events are shown on."""

    def show(self, event: AnyEvent, timeline: RunTimeline, age: float = 0.0) -> None:
        """Takes note of one event, of `age` seconds ago."""

    def hold(self, until: float | None) -> None:
        """The clock does not run beyond `until`."""


def wait_between(before: float, after: float, speed: float) -> float:
    """Seconds to wait between two events at `speed`; a long silence is shortened."""
    return min(GAP_SECONDS, max(0.0, after - before) / speed)


def replay(
    run: RunFolder, on: EventDisplay, *, speed: float | None, follow: bool, sleep: Callable[[float], None] = time.sleep
) -> RunTimeline:
    """Shows all events; `speed` None: at once. With `follow`, until the run has ended or its process is gone."""
    timeline = RunTimeline()
    for event in _events(run, follow, sleep):
        if speed is not None:
            on.hold(event.at)
            sleep(wait_between(timeline.at, event.at, speed) if timeline.at else 0.0)
        timeline = fold(timeline, event)
        on.show(event, timeline, _age(run) if follow and speed is None else 0.0)
        if speed is None:
            on.hold(None)
    return timeline


def _age(run: RunFolder) -> float:
    """Seconds since the newest event of a run that goes on: shows how long a run has made no progress."""
    try:
        return max(0.0, time.time() - run.events_file.stat().st_mtime)
    except OSError:
        return 0.0


def _events(run: RunFolder, follow: bool, sleep: Callable[[float], None]) -> Iterator[AnyEvent]:
    log = EventLogReader(run.events_file)
    is_ended = False
    while True:
        is_left = run.owner() is None  # asked before reading: what was written until then is read
        for event in log.new():
            is_ended = isinstance(event, RunResultEvent)
            yield event
        if not follow or is_ended or is_left:
            return
        sleep(POLL_SECONDS)
