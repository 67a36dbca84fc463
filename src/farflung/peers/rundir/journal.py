"""Records all events of a run in one place: numbers, folds and stores them, and passes them to all watchers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from farflung.core.events import AnyEvent
from farflung.peers.rundir.folder import RunFolder
from farflung.watch.fold import RunTimeline, fold, is_repeated
from farflung.watch.io import event_log
from farflung.watch.io.event_log import EventLog

Watcher = Callable[[AnyEvent, RunTimeline], None]


class EventEmitter(Protocol):
    """Where those who do the work tell what happened: the journal, or in another process the leash that leads to it."""

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Tells of one event; its time is set where it is stored."""


class Journal:
    """Writes events to the run's event log and to every watcher, in the same order."""

    def __init__(self, path: Path, created: float, watchers: Sequence[Watcher] = ()) -> None:
        self._log = EventLog(path)
        self._created = created
        self._watchers = tuple(watchers)
        self.timeline = RunTimeline()
        for event in self._log.events:
            self.timeline = fold(self.timeline, event)

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Stamps, stores and shows one event, unless it was told. A clock that jumps back does not move time back."""
        if is_repeated(self.timeline, event):
            return
        at = max(time.time() - self._created, self.timeline.at)
        event = msgspec.structs.replace(event, at=round(at, 3))
        self._log.append(event, durable=durable)
        self.timeline = fold(self.timeline, event)
        for watcher in self._watchers:
            watcher(event, self.timeline)

    def close(self) -> None:
        """Makes everything durable and closes the file."""
        self._log.close()


def read_timeline(run: RunFolder) -> RunTimeline:
    """What a run's events say so far, without touching them."""
    timeline = RunTimeline()
    if run.events_file.exists():
        for event in event_log.read(run.events_file):
            timeline = fold(timeline, event)
    return timeline
