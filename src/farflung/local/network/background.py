"""Runs a session in a background thread where an event loop already runs, as in a notebook.

Events cross over to the calling thread, so that callbacks print and draw where the person called; interrupts cross
back, so that a notebook's stop button does what Ctrl-C does in a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import FrameType
from typing import Any, Protocol

from farflung.core.events import AnyEvent, RunResultEvent
from farflung.peers.rundir.journal import Watcher
from farflung.watch.fold import RunTimeline


class RunnableSession(Protocol):
    """What runs (local.network.session.Run)."""

    def execute(self) -> Coroutine[Any, Any, RunResultEvent]:
        """Runs to the end."""

    def interrupt(self) -> None:
        """Asks for an end after the open round; asked again, for one now."""

    def cancel(self) -> None:
        """Ends now."""


def run(make: Callable[[Sequence[Watcher]], RunnableSession], watchers: Sequence[Watcher]) -> RunResultEvent:
    """Runs the session that `make` builds with watchers of ours; calls `watchers` in this thread, in order.

    Raises what the session raises. What a watcher raises ends the session first.
    """
    told: SimpleQueue[tuple[AnyEvent, RunTimeline] | None] = SimpleQueue()
    session = make([lambda event, timeline: told.put((event, timeline))])
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()

    def body() -> RunResultEvent:
        try:
            with runner:
                return runner.run(session.execute())
        finally:
            told.put(None)

    def over(call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
            loop.call_soon_threadsafe(loop.call_soon, call)  # one turn later: the session has begun by then

    with ThreadPoolExecutor(1, "farflung") as beside, _interrupts(lambda: over(session.interrupt)):
        ending = beside.submit(body)
        try:
            while (news := told.get()) is not None:
                for watcher in watchers:
                    watcher(*news)
        except BaseException:
            over(session.cancel)
            raise
        return ending.result()


@contextlib.contextmanager
def _interrupts(call: Callable[[], None]) -> Iterator[None]:
    """SIGINT means `call`, as long as this lasts; only the main thread may say what a signal means."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        call()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
