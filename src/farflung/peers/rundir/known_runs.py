"""Remembers where this user's runs are, so that verbs find one that was made elsewhere (`--out`, another folder).

One line a run, newest last, in the state folder (`runs.txt`). The list is a help and no record: an entry whose folder
is gone, is a link or holds no run is left out, a list that cannot be read or written is none. Where FARFLUNG_RUNS names
a folder, that folder alone counts.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from farflung.core import limits
from farflung.core.errors import FarflungError
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import read_bounded
from farflung.peers.process.user_dirs import state_folder

FILE: Final = "runs.txt"
MOST: Final = 200  # runs that are remembered
BYTES: Final = limits.MIB
_RUN: Final = "run.json"


def is_limited() -> bool:
    """Whether the runs of one folder alone count."""
    return bool(os.environ.get("FARFLUNG_RUNS"))


def note(root: Path) -> None:
    """Remembers a run's folder; forgets those that are gone."""
    if is_limited():
        return
    with contextlib.suppress(OSError, RuntimeError, FarflungError):  # no home, no space: a run needs neither
        path, place = state_folder() / FILE, str(root.resolve())
        kept = [str(each) for each in elsewhere() if str(each) != place]
        if place.isprintable():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, "".join(f"{each}\n" for each in [*kept, place][-MOST:]).encode(), "state.runs")


def elsewhere() -> list[Path]:
    """Folders of runs that were noted and are still there, oldest first."""
    if is_limited():
        return []
    try:
        text = read_bounded(state_folder() / FILE, BYTES, os.O_NOFOLLOW).decode("utf-8", "replace")
    except (OSError, RuntimeError, FarflungError):
        return []
    named = dict.fromkeys(Path(line) for line in text.splitlines()[-MOST:] if os.path.isabs(line))
    return [root for root in named if _is_run(root)]


def _is_run(root: Path) -> bool:
    try:
        return not root.is_symlink() and (root / _RUN).is_file() and not (root / _RUN).is_symlink()
    except (OSError, ValueError):
        return False
