"""Which kernels the program's own processes use, and where compiled code is kept between them.

A worker in its sandbox is told the same choice but no folder: what lies there is run by every later process of this
user, so nothing that runs a stranger's model may write to it.
"""

from __future__ import annotations

import os
from pathlib import Path

from farflung.compress import kernels


def choose_kernels() -> None:
    """Does what FARFLUNG_KERNELS says: `auto`, `numpy` or `numba`. Raises UsageError FF-COMP-037, 038."""
    kernels.use(os.environ.get("FARFLUNG_KERNELS") or "auto", cache=str(_folder()))


def _folder() -> Path:
    """The user's cache folder for compiled code; made when something is first compiled."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "farflung" / "kernels"
