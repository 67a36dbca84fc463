"""How a run is shown to who started it: JSON, plain lines on a pipe, or a screen on a terminal. The same facts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from farflung.app.journal import Watcher
from farflung.app.view.live import LiveScreen
from farflung.app.view.paint import is_screen, sayable
from farflung.app.view.replay import Shows
from farflung.core.events import AnyEvent, Failed, to_json
from farflung.watch.fold import Timeline
from farflung.watch.screen import LIVE
from farflung.watch.text import lines


def is_verbose() -> bool:
    """Whether `farflung -v` was asked for."""
    return bool(os.environ.get("FARFLUNG_DEBUG"))


class Lines:
    """Each event as an object or as plain lines. `tells_errors`: else an error ends the command, on stderr."""

    def __init__(self, out: TextIO, *, as_json: bool, tells_errors: bool) -> None:
        self._out, self._as_json, self._tells_errors = out, as_json, tells_errors

    def show(self, event: AnyEvent, timeline: Timeline) -> None:
        """Writes one event."""
        if isinstance(event, Failed) and not (self._as_json or self._tells_errors):
            return
        for line in [to_json(event)] if self._as_json else lines(event, timeline):
            self._out.write(sayable(line, self._out) + "\n")
        self._out.flush()

    def hold(self, until: float | None) -> None:
        """Lines have no clock."""


@contextlib.contextmanager
def surface(
    as_json: bool, *, note: tuple[str, ...] = LIVE, speed: float = 1.0, tells_errors: bool = False
) -> Iterator[Shows]:
    """What events are shown on until the block is left; a screen draws its first row at once."""
    if as_json or not is_screen(sys.stdout):
        yield Lines(sys.stdout, as_json=as_json, tells_errors=tells_errors)
        return
    with LiveScreen(sys.stdout, verbose=is_verbose(), note=note, speed=speed) as live:
        yield live


@contextlib.contextmanager
def watcher(as_json: bool) -> Iterator[Watcher]:
    """The watcher of a run that this command works on."""
    with surface(as_json) as on:
        yield on.show
