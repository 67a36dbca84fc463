"""Makes folders that belong to one process, and removes those of processes that were killed.

A folder's name tells its process. One whose process is gone is removed when the next of its kind is made; another
user's cannot be.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def make(prefix: str, base: Path | None = None) -> Path:
    """A new folder `PREFIXpid-...` in `base`, or in the system's temporary folder. Raises OSError."""
    place = base or Path(tempfile.gettempdir())
    for left in place.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not left.is_symlink() and not _is_alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=place))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
