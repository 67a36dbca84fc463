"""Chooses the kernels that the program's own processes use, and the folder that caches compiled code.

A worker in its sandbox is told the same choice but no folder: what lies there is run by every later process of this
user, so nothing that runs a stranger's model may write to it.
"""

from __future__ import annotations

import os

from farflung.compress import kernels
from farflung.peers.process.user_dirs import cache_folder


def choose_kernels() -> None:
    """Does what FARFLUNG_KERNELS says: `auto`, `numpy` or `numba`. Raises UsageError FF-COMP-037, 038."""
    kernels.use(os.environ.get("FARFLUNG_KERNELS") or "auto", cache=str(cache_folder() / "kernels"))
