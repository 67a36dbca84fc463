"""A run's events as they came, slower, faster or at once; from a log that is finished or still grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from farflung.app.folder import RunFolder
from farflung.core.events import AnyEvent, Result
from farflung.watch.fold import Timeline, fold
from farflung.watch.io.eventlog import Follower

GAP_SECONDS: Final = 2.0  # a longer silence is shortened to this, on the watcher's clock
POLL_SECONDS: Final = 0.2


class Shows(Protocol):
    """What events are shown on."""

    def show(self, event: AnyEvent, timeline: Timeline) -> None:
        """Takes note of one event."""

    def hold(self, until: float | None) -> None:
        """The clock does not run beyond `until`."""


def wait_between(before: float, after: float, speed: float) -> float:
    """Seconds to wait between two events at `speed`; a long silence is shortened."""
    return min(GAP_SECONDS, max(0.0, after - before) / speed)


def replay(
    run: RunFolder,
    on: Shows,
    *,
    speed: float | None,
    follow: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Timeline:
    """Shows all events; `speed` None: at once. With `follow`, until the run has ended or its process is gone."""
    timeline = Timeline()
    for event in _events(run, follow, sleep):
        if speed is not None:
            on.hold(event.at)
            sleep(wait_between(timeline.at, event.at, speed) if timeline.at else 0.0)
        timeline = fold(timeline, event)
        on.show(event, timeline)
        if speed is None:
            on.hold(None)
    return timeline


def _events(run: RunFolder, follow: bool, sleep: Callable[[float], None]) -> Iterator[AnyEvent]:
    log = Follower(run.events_file)
    is_ended = False
    while True:
        is_left = run.owner() is None  # asked before reading: what was written until then is read
        for event in log.new():
            is_ended = isinstance(event, Result)
            yield event
        if not follow or is_ended or is_left:
            return
        sleep(POLL_SECONDS)
