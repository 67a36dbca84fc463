"""A pipe whose closing ends the worker when its agent dies, at any point of start-up.

The agent holds the end that writes and never writes; the command that it starts inherits the end that reads. When the
agent ends, or lets go, the kernel closes the pipe, and sends SIGKILL to the process group that owns the other end
(fcntl(2), F_SETOWN and F_SETSIG). That is the worker's own, in whatever namespace it is, by word of host.io.confine,
which ends at once if the agent is gone by then; bubblewrap ends with its last process.

A parent-death signal alone leaves a gap: bubblewrap's init asks for it when the worker may run already, and does not
look whether its parent still lives. It stays the second wall: a worker's program may close the pipe.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys


class ParentDeathPipe:
    """The agent's side; forgetting it, as when a start is broken off, ends the worker as `cut` does."""

    def __init__(self) -> None:
        """Raises OSError. `far` is what the command inherits; the agent closes it when that has started."""
        self.far, held = os.pipe()
        self._held = os.fdopen(held, "wb", 0)
        if sys.platform == "linux":  # elsewhere a worker ends when its socket does
            fcntl.fcntl(self.far, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self.far, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)

    def cut(self) -> None:
        """Ends what hangs on it. A second time does nothing."""
        self._held.close()
