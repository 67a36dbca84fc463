"""Runs a command under resource limits: `python -m farflung.host.io.confine RLIMIT_X=N ... -- COMMAND ...`.

Sets its own limits and becomes the command (exec, the same pid), so that they hold before the command's first
instruction. Not subprocess' `preexec_fn`: that runs Python between fork and exec, where a lock held by another
thread of the parent is never released. Not `prlimit` on the running child either: Linux only, and too late.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import sys
from collections.abc import Sequence


def lower(name: str, value: int) -> None:
    """Sets soft and hard limit `name` to `value`, or to the present hard limit where that is lower."""
    which = getattr(resource, name, None)
    if which is None:  # this kernel has no such limit
        return
    _, hard = resource.getrlimit(which)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(which, (bound, bound))
    except (ValueError, OSError) as error:  # macOS refuses RLIMIT_AS and RLIMIT_DATA
        if platform.system() == "Linux":
            raise
        sys.stderr.write(f"{name} is not enforced here: {error}\n")


def main(arguments: Sequence[str]) -> None:
    """Lowers the limits before `--`, then becomes the command behind it."""
    split = list(arguments).index("--")
    for item in arguments[:split]:
        name, _, value = item.partition("=")
        lower(name, int(value))
    # Ctrl-C reaches the whole foreground group; when to stop is the supervisor's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = list(arguments[split + 1 :])
    os.execv(command[0], command)  # noqa: S606 - no shell is what is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
