"""Raises a process's bound on open files: strangers take some of them from each role that listens."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_FILES: Final = 8192  # two sockets and two pipes a circuit of a relay are six descriptors


def allow_many_files() -> None:
    """Raises this process's own bound as far as it may. Where it may not, a relay's circuits go without pipes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
