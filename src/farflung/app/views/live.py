"""Shows a run on a terminal while it happens, repainted several times a second so that the clock keeps moving.

The last state stays on the terminal. What is shown is `watch.screen` and nothing else.
"""

from __future__ import annotations

import signal
import threading
import time
from types import TracebackType
from typing import Final, TextIO

import farflung
from farflung.app.views.terminal import TerminalPainter, size_of
from farflung.core.events import AnyEvent
from farflung.watch.fold import RunTimeline
from farflung.watch.screen import LIVE, ROWS, ScreenView, screen

PER_SECOND: Final = 8


class LiveScreen:
    """A watcher (peers.rundir.journal.Watcher) that paints. `speed`: seconds of the run in one second; `run`: see
    View.
    """

    def __init__(
        self, out: TextIO, *, verbose: bool = False, note: tuple[str, ...] = LIVE, speed: float = 1.0, run: str = ""
    ) -> None:
        self._painter, self._out = TerminalPainter(out), out
        self._verbose, self._note, self._speed, self._run = verbose, note, speed, run
        self._timeline = RunTimeline()
        self._is_new = True
        self._seen_at = time.monotonic()
        self._holds: float | None = None  # how far the clock may run on until the next event
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repaint, name="screen", daemon=True)

    def __enter__(self) -> LiveScreen:
        self._paint(is_over=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, lambda *_: self._painter.forget())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
        if self._is_new:
            self._painter.paint(())  # nothing was begun: an error is all there is to read
        else:
            self._paint(is_over=kind is not KeyboardInterrupt)  # who leaves ends no run

    def show(self, event: AnyEvent, timeline: RunTimeline, age: float = 0.0) -> None:
        """Takes note of one event, of `age` seconds ago; the next repaint shows it."""
        with self._lock:
            self._timeline, self._seen_at = timeline, time.monotonic() - age
            self._is_new = False

    def hold(self, until: float | None) -> None:
        """The clock does not run beyond `until`, the time of the event that comes next; None: it runs on."""
        with self._lock:
            self._holds = until

    def _repaint(self) -> None:
        while not self._ended.wait(1 / PER_SECOND):
            self._paint(is_over=False)

    def _paint(self, *, is_over: bool) -> None:
        with self._lock:
            timeline, holds = self._timeline, self._holds
            now = timeline.at + (time.monotonic() - self._seen_at) * self._speed
        now = timeline.at if is_over else now if holds is None else min(now, max(holds, timeline.at))
        columns, lines = size_of(self._out)
        view = ScreenView(
            now=now,
            columns=columns,
            rows=min(ROWS, max(1, lines - 1)),  # the cursor's line is not ours
            verbose=self._verbose,
            version=farflung.__version__,
            is_over=is_over,
            note=self._note,
            run=self._run,
        )
        self._painter.paint(screen(timeline, view))
