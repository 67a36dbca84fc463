"""The one place where events enter a run: numbered in time, folded, stored, and handed to all who watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from farflung.app.folder import RunFolder
from farflung.core.events import AnyEvent
from farflung.watch.fold import Timeline, fold, is_told
from farflung.watch.io import eventlog
from farflung.watch.io.eventlog import EventLog

Watcher = Callable[[AnyEvent, Timeline], None]


class Emitter(Protocol):
    """Where those who do the work tell what happened: the journal, or in another process the leash that leads to it."""

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Tells of one event; its time is set where it is stored."""


class Journal:
    """Writes events to the run's event log and to every watcher, in the same order."""

    def __init__(self, path: Path, created: float, watchers: Sequence[Watcher] = ()) -> None:
        self._log = EventLog(path)
        self._created = created
        self._watchers = tuple(watchers)
        self.timeline = Timeline()
        for event in self._log.events:
            self.timeline = fold(self.timeline, event)

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Stamps, stores and shows one event, unless it was told. A clock that jumps back does not move time back."""
        if is_told(self.timeline, event):
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


def read_timeline(run: RunFolder) -> Timeline:
    """What a run's events say so far, without touching them."""
    timeline = Timeline()
    if run.events_file.exists():
        for event in eventlog.read(run.events_file):
            timeline = fold(timeline, event)
    return timeline
