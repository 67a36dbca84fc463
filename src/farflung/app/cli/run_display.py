"""Displays a run to the user who started it: as JSON, as plain lines on a pipe, or as a screen on a terminal.

All three show the same facts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from farflung.app.views import svg
from farflung.app.views.live import LiveScreen
from farflung.app.views.replay import EventDisplay
from farflung.app.views.terminal import is_screen, sayable
from farflung.core.events import AnyEvent, LeasePaymentEvent, RunFailureEvent, to_json
from farflung.local.jobs import resolve
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import Watcher
from farflung.watch.event_lines import lines, silence
from farflung.watch.fold import RunTimeline
from farflung.watch.screen import LIVE


def is_verbose() -> bool:
    """Whether `farflung -v` was asked for."""
    return bool(os.environ.get("FARFLUNG_DEBUG"))


class LineOutput:
    """Each event as an object or as plain lines. `tells_errors`: else an error ends the command, on stderr.

    Plain lines say what is waited for after SILENCE seconds without an event, after twice as many, and so on.
    """

    SILENCE: Final = 40.0

    def __init__(self, out: TextIO, run: str, *, as_json: bool, tells_errors: bool) -> None:
        self._out, self._run, self._as_json, self._tells_errors = out, run, as_json, tells_errors
        self._timeline, self._heard_at, self._patience = RunTimeline(), time.monotonic(), self.SILENCE
        self._is_replay = as_json
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def show(self, event: AnyEvent, timeline: RunTimeline, age: float = 0.0) -> None:
        """Writes one event."""
        with self._lock:
            self._timeline, self._heard_at, self._patience = timeline, time.monotonic() - age, self.SILENCE
        if isinstance(event, RunFailureEvent) and not (self._as_json or self._tells_errors):
            return
        self._write([to_json(event)] if self._as_json else lines(event, timeline, self._run))

    def hold(self, until: float | None) -> None:
        """A replay that waits for its next event is not silent."""
        self._is_replay = self._as_json or until is not None

    def tick(self) -> None:
        """Says what is waited for, where it is time to."""
        with self._lock:
            silent = time.monotonic() - self._heard_at
            if self._is_replay or silent < self._patience:
                return
            while self._patience <= silent:
                self._patience *= 2
            said = silence(self._timeline, self._timeline.at + silent)
        with contextlib.suppress(BrokenPipeError, ValueError):  # who reads is gone: the next event says so
            self._write(said)

    @contextlib.contextmanager
    def ticking(self) -> Iterator[LineOutput]:
        """Looks at the clock until the block is left."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(1.0):
                self.tick()

        thread = threading.Thread(target=look, name="lines", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    def _write(self, said: list[str]) -> None:
        with self._writing:
            for line in said:
                self._out.write(sayable(line, self._out) + "\n")
            self._out.flush()


@contextlib.contextmanager
def surface(
    as_json: bool, run: str, *, note: tuple[str, ...] = LIVE, speed: float = 1.0, tells_errors: bool = False
) -> Iterator[EventDisplay]:
    """What events are shown on until the block is left; a screen draws its first row at once. `run`: see View."""
    if as_json or not is_screen(sys.stdout):
        with LineOutput(sys.stdout, run, as_json=as_json, tells_errors=tells_errors).ticking() as told:
            yield told
        return
    with LiveScreen(sys.stdout, verbose=is_verbose(), note=note, speed=speed, run=run) as live:
        yield live


@contextlib.contextmanager
def watcher(as_json: bool, root: Path) -> Iterator[Watcher]:
    """The watcher of the run in `root`, that this command works on."""
    with surface(as_json, resolve.must_be_named(RunFolder(root))) as on:
        yield _loading_ahead(_while_somebody_reads(on.show))


def _loading_ahead(show: Watcher) -> Watcher:
    """Loads what draws the report when work is paid, while the last loss is measured and the network ends."""
    loading: list[threading.Thread] = []

    def told(event: AnyEvent, timeline: RunTimeline) -> None:
        if isinstance(event, LeasePaymentEvent) and not loading:
            loading.append(threading.Thread(target=svg.load, name="charts", daemon=True))
            loading[0].start()
        show(event, timeline)

    return told


def _while_somebody_reads(show: Watcher) -> Watcher:
    """Stops the run, as `farflung stop --now` does, when whoever read its lines is gone (`| head`)."""
    is_read = True

    def told(event: AnyEvent, timeline: RunTimeline) -> None:
        nonlocal is_read
        if not is_read:
            return
        try:
            show(event, timeline)
        except BrokenPipeError:
            is_read = False
            with open(os.devnull, "w") as nobody:
                os.dup2(nobody.fileno(), sys.stdout.fileno())  # what is buffered still goes somewhere
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                raise  # there is no run yet that could be stopped
            sys.stderr.write("note: the reader of these lines is gone; the run stops\n")
            signal.raise_signal(signal.SIGTERM)

    return told
