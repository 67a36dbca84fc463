"""Handles Ctrl-C without losing any, for a command that waits for another process.

An interrupt becomes an exception between any two instructions, also where nobody hears of it: in a finaliser, in a
library that catches everything, in a start that is half done. And one that comes between the last instruction and a
system call that waits, or to another thread, wakes nobody. So while something starts interrupts are noted and raised
after it; and what waits, waits for the wake-up descriptor as well (signal.set_wakeup_fd).
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class InterruptHandler:
    """Those of one command. Not `heard`, or heard outside of the main thread, all is as Python has it."""

    def __init__(self) -> None:
        self._is_held = self._is_asked = False
        self._woken: socket.socket | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """SIGINT is noted while this lasts. Raises KeyboardInterrupt, at the end too where it was lost on the way."""
        before = signal.getsignal(signal.SIGINT)
        is_ours = threading.current_thread() is threading.main_thread() and callable(before)
        if not is_ours:  # or it is ignored, as behind nohup
            yield
            return
        woken, wakes = socket.socketpair()
        with woken, wakes:
            woken.setblocking(False)
            wakes.setblocking(False)
            outer = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
            self._woken = woken
            signal.signal(signal.SIGINT, self._note)
            try:
                yield
                self.check()
            finally:
                signal.signal(signal.SIGINT, before)
                self._woken = None
                signal.set_wakeup_fd(outer)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No interrupt in here, but when it is asked for again; it is raised after this."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was one."""
        if self._is_asked:
            raise KeyboardInterrupt

    def wait(self, descriptor: int, events: int = select.POLLIN, look: Callable[[], None] | None = None) -> None:
        """Until it can be read (or whatever `events` say); `look` is called each second. Raises KeyboardInterrupt."""
        poll = select.poll()
        poll.register(descriptor, events)
        if self._woken is not None:
            poll.register(self._woken, select.POLLIN)
        while True:
            self.check()
            if descriptor in dict(poll.poll(1000 if look is not None else None)):
                return
            if look is not None:
                look()
            with contextlib.suppress(BlockingIOError):
                while self._woken is not None and self._woken.recv(64):
                    pass

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_again, self._is_asked = self._is_asked, True
        if is_again or not self._is_held:
            raise KeyboardInterrupt
